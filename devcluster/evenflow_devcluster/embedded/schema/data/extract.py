"""Cut the schemas of the served kinds out of Kubernetes' own OpenAPI v3 documents.

    python -m evenflow_devcluster.embedded.schema.data.extract .../kubernetes/api/openapi-spec/v3

reads that folder of a Kubernetes source tree and rewrites `builtin_schemas.json.gz` beside this file. No schema is
changed: descriptions, defaults, list types and merge keys are Kubernetes' own (Apache-2.0, The Kubernetes Authors).
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

ROOTS = {
    "api__v1": [
        "io.k8s.api.autoscaling.v1.Scale",
        "io.k8s.api.core.v1.Binding",
        "io.k8s.api.core.v1.ConfigMap",
        "io.k8s.api.core.v1.Event",
        "io.k8s.api.core.v1.Namespace",
        "io.k8s.api.core.v1.Node",
        "io.k8s.api.core.v1.Pod",
        "io.k8s.api.core.v1.Secret",
        "io.k8s.api.core.v1.Service",
        "io.k8s.api.core.v1.ServiceAccount",
        "io.k8s.api.policy.v1.Eviction",
        "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
        "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta",
        "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    ],
    "apis__apiextensions.k8s.io__v1": [
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
    ],
    "apis__apps__v1": ["io.k8s.api.apps.v1.Deployment", "io.k8s.api.apps.v1.ReplicaSet"],
    "apis__coordination.k8s.io__v1": ["io.k8s.api.coordination.v1.Lease"],
    "apis__discovery.k8s.io__v1": ["io.k8s.api.discovery.v1.EndpointSlice"],
    "apis__networking.k8s.io__v1": ["io.k8s.api.networking.v1.NetworkPolicy"],
    "apis__policy__v1": ["io.k8s.api.policy.v1.PodDisruptionBudget"],
    "apis__rbac.authorization.k8s.io__v1": [
        "io.k8s.api.rbac.v1.ClusterRole",
        "io.k8s.api.rbac.v1.ClusterRoleBinding",
        "io.k8s.api.rbac.v1.Role",
        "io.k8s.api.rbac.v1.RoleBinding",
    ],
}


def references(node: Any, found: set[str]) -> None:
    if isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str):
            found.add(target.rsplit("/", 1)[1])
        for value in node.values():
            references(value, found)
    elif isinstance(node, list):
        for value in node:
            references(value, found)


def closure(schemas: dict[str, Any], roots: list[str]) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in taken:
            taken[name] = schemas[name]
            found: set[str] = set()
            references(schemas[name], found)
            waiting.extend(sorted(found))
    return taken


def without_prose(node: Any) -> Any:
    """The same schema without its descriptions; a property that is called `description` stays."""
    if isinstance(node, dict):
        return {
            key: without_prose(value)
            for key, value in node.items()
            if key != "description" or not isinstance(value, str)
        }
    return [without_prose(item) for item in node] if isinstance(node, list) else node


def main(folder: Path) -> None:
    merged: dict[str, Any] = {}
    for document, roots in ROOTS.items():
        schemas = json.loads((folder / f"{document}_openapi.json").read_text())["components"]["schemas"]
        merged.update(without_prose(closure(schemas, roots)))
    text = json.dumps(merged, sort_keys=True, separators=(",", ":")).encode()
    target = Path(__file__).with_name("builtin_schemas.json.gz")
    target.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f"{len(merged)} schemas, {len(text)} bytes, {target.stat().st_size} compressed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
