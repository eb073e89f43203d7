"""The Cluster port over the Kubernetes API."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from evenflow_contract import labels
from evenflow_operator.adapters import views
from evenflow_operator.adapters.kube import (
    JSON,
    JSON_PATCH,
    LIST_TIMEOUT_SECONDS,
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    KubeClient,
)
from evenflow_operator.api.names import GROUP, PLURAL, SCALE_MANAGER, VERSION
from evenflow_operator.core.snapshot import PodView, ServiceView
from evenflow_operator.ports import ApiError, Identity, Kind, PodRecord, PoolRecord, Record

T = TypeVar("T")

METADATA_ONLY = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
PAGE = 500

_COLLECTIONS: Mapping[Kind, tuple[str, str]] = {
    "pools": (f"/apis/{GROUP}/{VERSION}", PLURAL),
    "pods": ("/api/v1", "pods"),
    "services": ("/api/v1", "services"),
    "endpointslices": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "nodes": ("/api/v1", "nodes"),
}
_LABELLED: frozenset[Kind] = frozenset({"pods", "services", "endpointslices"})
_RECORDS: Mapping[Kind, Callable[[Any], Record | None]] = {
    "pools": views.pool_record,
    "pods": views.pod_record,
    "services": views.service_record,
    "endpointslices": views.slice_record,
    "nodes": views.node_record,
}


class KubeCluster:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def crd_installed(self) -> bool:
        """Whether the API server knows our resource. Raises ApiError for anything else than yes or no."""
        try:
            document = await self._client.request("GET", f"/apis/{GROUP}/{VERSION}")
        except ApiError as error:
            if error.not_found:
                return False
            raise
        resources = document.get("resources") if isinstance(document, Mapping) else None
        return any(isinstance(entry, Mapping) and entry.get("name") == PLURAL for entry in resources or ())

    async def get_pool(self, namespace: str, name: str) -> tuple[PoolRecord, Mapping[str, Any]] | None:
        obj = await self._get("pools", namespace, name)
        record = views.pool_record(obj) if obj is not None else None
        if record is None or obj is None:
            return None
        status = obj.get("status")
        return record, status if isinstance(status, Mapping) else {}

    async def patch_pool_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        # A merge patch leaves what it doesn't name, and the API server looks at no uid in a patch of a custom /status.
        body: list[Mapping[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        await self._client.request(
            "PATCH", _path("pools", namespace, name, "status"), body=body, content_type=JSON_PATCH
        )

    async def scale_pool(self, namespace: str, name: str, replicas: int, resource_version: str) -> None:
        body = {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}}
        await self._client.request(
            "PATCH",
            _path("pools", namespace, name, "scale"),
            query=[("fieldManager", SCALE_MANAGER)],
            body=body,
            content_type=MERGE_PATCH,
        )

    async def list_pods(self, namespace: str, pool: str) -> list[PodView]:
        return await self._list("pods", namespace, views.pod_view, selector=f"{labels.POOL}={pool}")

    async def get_pod(self, namespace: str, name: str) -> PodRecord | None:
        obj = await self._get("pods", namespace, name)
        view = views.pod_view(obj) if obj is not None else None
        if view is None or obj is None:
            return None
        tags = obj["metadata"].get("labels") or {}
        return PodRecord(namespace, str(tags.get(labels.POOL, "")), view)

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any]) -> PodView:
        return _pod(await self._client.request("POST", _path("pods", namespace), body=manifest))

    async def dry_run_pod(self, namespace: str, manifest: Mapping[str, Any]) -> None:
        await self._client.request("POST", _path("pods", namespace), query=[("dryRun", "All")], body=manifest)

    async def patch_pod(
        self, namespace: str, name: str, patch: Mapping[str, Any], *, strategic: bool = False
    ) -> PodView:
        content_type = STRATEGIC_MERGE_PATCH if strategic else MERGE_PATCH
        path = _path("pods", namespace, name)
        return _pod(await self._client.request("PATCH", path, body=patch, content_type=content_type))

    async def delete_pod(self, namespace: str, name: str, uid: str, resource_version: str | None) -> PodView | None:
        preconditions = {"uid": uid}
        if resource_version is not None:
            preconditions["resourceVersion"] = resource_version
        # A DELETE with a body ignores its query parameters, so every option stands in the body.
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        obj = await self._client.request("DELETE", _path("pods", namespace, name), body=body)
        return views.pod_view(obj) if isinstance(obj, Mapping) and obj.get("kind") == "Pod" else None

    async def get_service(self, namespace: str, name: str) -> ServiceView | None:
        obj = await self._get("services", namespace, name)
        return views.service_view(obj) if obj is not None else None

    async def create_service(self, namespace: str, manifest: Mapping[str, Any]) -> ServiceView:
        return _service(await self._client.request("POST", _path("services", namespace), body=manifest))

    async def patch_service(self, namespace: str, name: str, patch: Mapping[str, Any]) -> ServiceView:
        path = _path("services", namespace, name)
        return _service(await self._client.request("PATCH", path, body=patch, content_type=MERGE_PATCH))

    async def delete_service(self, namespace: str, name: str, uid: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self._client.request("DELETE", _path("services", namespace, name), body=body)

    async def list_records(self, kind: Kind, namespace: str | None) -> list[Record]:
        selector = labels.POOL if kind in _LABELLED else None
        return await self._list(kind, namespace, _RECORDS[kind], selector=selector)

    async def list_identities(self, kind: Kind, namespace: str | None) -> list[Identity]:
        selector = labels.POOL if kind in _LABELLED else None
        return await self._list(kind, namespace, views.identity, selector=selector, accept=METADATA_ONLY)

    async def _get(self, kind: Kind, namespace: str, name: str) -> Mapping[str, Any] | None:
        try:
            obj = await self._client.request("GET", _path(kind, namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return obj if isinstance(obj, Mapping) else None

    async def _list(
        self,
        kind: Kind,
        namespace: str | None,
        parse: Callable[[Any], T | None],
        *,
        selector: str | None,
        accept: str = JSON,
    ) -> list[T]:
        """What can be read, page by page: whole objects of a large cluster would be hundreds of megabytes."""
        found: list[T] = []
        token = ""
        while True:
            query = [("limit", str(PAGE))]
            if selector:
                query.append(("labelSelector", selector))
            if token:
                query.append(("continue", token))
            page = await self._client.request(
                "GET", _path(kind, namespace), query=query, accept=accept, timeout=LIST_TIMEOUT_SECONDS
            )
            found += [one for one in map(parse, page.get("items") or ()) if one is not None]
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return found


def _path(kind: Kind, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
    prefix, plural = _COLLECTIONS[kind]
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    path = f"{prefix}{scope}/{plural}"
    for part in (name, subresource):
        path += f"/{quote(part, safe='')}" if part else ""
    return path


def _pod(obj: Any) -> PodView:
    view = views.pod_view(obj)
    if view is None:
        raise ApiError(0, "InvalidAnswer", "the API server's answer is no pod")
    return view


def _service(obj: Any) -> ServiceView:
    view = views.service_view(obj)
    if view is None:
        raise ApiError(0, "InvalidAnswer", "the API server's answer is no Service")
    return view
