"""Service accounts on a real API server: kubeconfigs with their tokens."""

from pathlib import Path

import yaml
from e2e_stack import Stack


async def kubeconfig_of(stack: Stack, folder: Path, namespace: str, name: str) -> Path:
    """A kubeconfig with a token of this service account, good for an hour."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    answer = await stack.client.create(path, request)
    config = yaml.safe_load(stack.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    made = folder / "kubeconfig"
    made.write_text(yaml.safe_dump(config))
    return made
