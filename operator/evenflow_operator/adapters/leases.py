"""The Leases port: one Lease object in the cluster."""

from typing import Any

from evenflow_operator.adapters.kube import KubeClient
from evenflow_operator.ports import ApiError, LeaseRecord

REQUEST_TIMEOUT_SECONDS = 5.0
_GROUP = "/apis/coordination.k8s.io/v1"


class KubeLeases:
    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._collection = f"{_GROUP}/namespaces/{namespace}/leases"

    async def get(self) -> LeaseRecord | None:
        try:
            return _record(await self._request("GET", f"{self._collection}/{self._name}", None))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        return _record(await self._request("POST", self._collection, self._manifest(record)))

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        return _record(await self._request("PUT", f"{self._collection}/{self._name}", self._manifest(record)))

    async def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        return await self._client.request(method, path, body=body, timeout=REQUEST_TIMEOUT_SECONDS)

    def _manifest(self, record: LeaseRecord) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if record.resource_version is not None:
            metadata["resourceVersion"] = record.resource_version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": record.duration_seconds,
                "acquireTime": record.acquired_at,
                "renewTime": record.renewed_at,
                "leaseTransitions": record.transitions,
            },
        }


def _record(obj: Any) -> LeaseRecord:
    try:
        spec = obj.get("spec") or {}
        return LeaseRecord(
            holder=str(spec.get("holderIdentity") or ""),
            duration_seconds=int(spec.get("leaseDurationSeconds") or 1),
            acquired_at=str(spec.get("acquireTime") or ""),
            renewed_at=str(spec.get("renewTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
            resource_version=obj["metadata"]["resourceVersion"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ApiError(0, "InvalidAnswer", f"the API server's answer is no Lease ({type(error).__name__})") from error
