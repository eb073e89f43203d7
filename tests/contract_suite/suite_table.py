"""The table of all behaviours.

`python tests/contract_suite/suite_table.py` prints it; with `--write` it writes docs/contract-suite.md.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from suite_behaviours import ATTRIBUTE, Behaviour

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent.parent / "docs" / "contract-suite.md"
PREFIX = "test_contract_"
OWN_TEST = "test_contract_table.py"

INTRODUCTION = """# The Kubernetes contract suite

`tests/contract_suite` is a black-box test of a Kubernetes API server and its controllers: it knows a kubeconfig and
nothing else. `make test` runs it against the embedded API server, `make test-kubernetes` runs the very same tests
against kube-apiserver, controller-manager and scheduler 1.37, `EVENFLOW_TEST_KUBECONFIG=… pytest tests/contract_suite`
against any other cluster. They make namespaces, nodes and definitions with random names and remove them. Only what
holds on both counts as Kubernetes' behaviour.

The embedded API server leaves out on purpose:

* Admission beyond defaults: service account tokens, PriorityClasses, Pod Security, quotas, limit ranges, policies and
  webhooks; and RBAC, for it has one user. `tests/real_kubernetes` runs the operator against these.
* CEL: a definition's rules need a Python twin, which names the item of a list where CEL names the list.
* Loopback addresses are allowed as endpoints: pods of a cluster on one computer have no others.
* managedFields of an update name the fields that were set, not the objects and lists around them.
* ReplicaSets adopt no pods and release none. Deployments that are paused, of strategy Recreate or with minReadySeconds,
  and other workload kinds are answered 501; a rollout never runs into its deadline. Nobody enforces NetworkPolicies.
* Namespaces go at once, where a real one takes seconds; slices follow a node's coming and going at once.
* Service types that open ports on nodes, and protobuf but for what kubectl sends.

This table is generated: `python tests/contract_suite/suite_table.py --write`.
"""


def areas() -> dict[str, list[Behaviour]]:
    """Area (the test file's name without its prefix) -> behaviours in the order of the file.

    Raises ValueError for a test without a behaviour and for a name used twice.
    """
    found: dict[str, list[Behaviour]] = {}
    seen: dict[str, str] = {}
    for path in sorted(HERE.glob(f"{PREFIX}*.py")):
        if path.name == OWN_TEST:
            continue
        listed = _behaviours(importlib.import_module(path.stem))
        for one in listed:
            if one.name in seen:
                raise ValueError(
                    f"behaviour {one.name!r} is in {seen[one.name]} and in {path.name}: choose another name"
                )
            seen[one.name] = path.name
        found[path.stem.removeprefix(PREFIX)] = listed
    return found


def _behaviours(module: ModuleType) -> list[Behaviour]:
    listed = []
    for name, value in vars(module).items():
        if not name.startswith("test_") or not callable(value):
            continue
        found = getattr(value, ATTRIBUTE, None)
        if found is None:
            raise ValueError(f"{module.__name__}.{name} names no behaviour: add @behaviour(name, sentence)")
        listed.append(found)
    return listed


def document() -> str:
    everything = areas()
    lines = [INTRODUCTION, f"{sum(map(len, everything.values()))} behaviours.", ""]
    for area, listed in everything.items():
        lines += [f"## {area.replace('_', ' ')}", "", "| behaviour | what holds |", "|---|---|"]
        lines += [f"| `{one.name}` | {one.sentence.replace('|', '&#124;')} |" for one in listed]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(document())
    else:
        sys.stdout.write(document())
