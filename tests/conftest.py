"""What every test shares: a seed that is printed, and a summary of what was exercised and what was not."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

AREAS = {
    "contract": "documents between operator and worker",
    "model": "mathematics: volume, x*, severity, step time",
    "operator_api": "resource, CRD, CEL rules and their twins, lint",
    "operator_core": "decisions: slots, placement, caps, status",
    "operator_engine": "work queue, lease, adapters, operator against the embedded API server",
    "worker_scheduling": "queue, bucket, victims, aging, the simulated engine's core",
    "simulate": "simulated pools: leaps, routing, prefix caches, evenflow simulate",
    "plan": "advice on a pool: placement, cap, trims, replicas, evenflow plan",
    "worker_server": "simulated engine over HTTP, admin API, metrics",
    "worker_vllm": "class middleware, predictors beside the engine",
    "vllm_real": "the worker inside real vLLM (make test-real)",
    "devcluster": "embedded API server and its controllers",
    "devcluster_agent": "node agent, router, trace replay",
    "contract_suite": "Kubernetes behaviours, black box: the embedded API server, or a real one",
    "real_kubernetes": "definition, permissions and release on a real API server (make test-kubernetes)",
    "chart": "Helm chart, permissions, alerts, the commands of the Dockerfile",
    "docs": "generated reference, links, references from code to docs",
    "end_to_end": "operator, cluster and engines as real processes, with faults",
}
NOT_HERE = "a kubelet, kube-proxy or gateway of a production cluster"

settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that runs the tests in the background has interrupts ignored, and the processes they start inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[SEED] = int(os.environ.get("EVENFLOW_TEST_SEED") or random.SystemRandom().randrange(2**32))


SEED = pytest.StashKey[int]()


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[SEED]} (repeat with EVENFLOW_TEST_SEED={config.stash[SEED]})"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """This run's seed; a test that draws at random starts from it, so that a failure can be repeated."""
    return request.config.stash[SEED]


def area(nodeid: str) -> str:
    parts = Path(nodeid.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 else "other"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            if outcome == "passed" and report.when != "call":
                continue
            counts.setdefault(area(report.nodeid), Counter())[outcome] += 1
    if not counts:
        return
    write = terminalreporter.write_line
    terminalreporter.section("exercised")
    for name, description in AREAS.items():
        found = counts.get(name, Counter())
        total = "  ".join(
            f"{found[outcome]} {outcome}" for outcome in ("passed", "failed", "error", "skipped") if found[outcome]
        )
        write(f"{name:<18} {total or 'not run':<28} {description}")
    terminalreporter.section("not exercised by this run")
    if not counts.get("real_kubernetes", Counter())["passed"]:
        write("- a real kube-apiserver (make test-kubernetes runs the contract suite and the operator on one)")
    vllm_ran = counts.get("vllm_real", Counter())["passed"] > 0
    engines = "a GPU (vLLM ran on CPU)" if vllm_ran else "real vLLM and a GPU (engines here are simulated)"
    for what in (NOT_HERE, engines):
        write(f"- {what}")
    skipped = terminalreporter.stats.get("skipped", [])
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        write(f"- {report.nodeid}: {reason}")
    write(f"skipped tests: {len(skipped)}; seed: {config.stash[SEED]}")
