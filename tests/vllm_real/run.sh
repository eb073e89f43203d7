#!/usr/bin/env bash
# Runs the tests of the worker inside real vLLM: the schedulers of every supported release, one real server.
# Arguments go to pytest. Stops at the first release that fails, so that the last line is that of its pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly home=.venv-vllm newest=0.32.0 older="0.30.0 0.28.0" ours=$PWD/worker:$PWD/contract:$PWD/model:$PWD/cli
run() { # version, files..., with vLLM's folder in front if it isn't the environment's own
  local version=$1 path=$ours
  shift
  [ "$version" = "$newest" ] || path=$PWD/$home/vllm-$version:$ours
  echo "== vLLM $version"
  local sequences=1000
  [ "$version" = "$newest" ] || sequences=200
  EVENFLOW_FUZZ_CASES=${EVENFLOW_FUZZ_CASES:-1000} \
    EVENFLOW_DIFFERENTIAL_SEQUENCES=${EVENFLOW_DIFFERENTIAL_SEQUENCES:-$sequences} \
    EVENFLOW_EXPECT_VLLM=$version PYTHONPATH=$path OMP_NUM_THREADS=1 \
    "$home/bin/python" -m pytest -p no:cacheprovider -W ignore::DeprecationWarning "$@"
}
for version in $newest $older; do
  run "$version" tests/vllm_real --ignore tests/vllm_real/test_vllm_server.py "$@"
done
run "$newest" tests/vllm_real/test_vllm_server.py "$@"
