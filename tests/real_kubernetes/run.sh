#!/usr/bin/env bash
# Runs the contract suite, the tests in this folder and the end-to-end tests of pools against a real control plane of
# this computer. Arguments replace these tests and go to pytest.
# All of it in a network namespace of its own: nothing outside is reached from there, and pods and Services can have
# addresses that aren't loopback ones, which a real API server refuses as endpoints.
set -euo pipefail
cd "$(dirname "$0")/../.."
binary=$(tests/real_kubernetes/install.sh)
# Fetched here: inside, there is no network. Without helm the chart's tests say that they were skipped.
.venv/bin/python tests/chart/helm_tool.py > /dev/null || true
readonly pools=tests/end_to_end/test_
[ $# -gt 0 ] || set -- tests/contract_suite tests/real_kubernetes ${pools}{kubectl_pool,pool_faults,metrics_faults}.py
exec unshare --map-root-user --net -- bash -c '
  ip link set lo up && ip route add local 10.77.0.0/16 dev lo && ip route add local 10.78.0.0/16 dev lo
  exec .venv/bin/python tests/real_kubernetes/control_plane.py "$0" .venv/bin/pytest "$@"' "$binary" "$@"
