"""pods/log: fetched from the node that runs the pod, as the real API server fetches it from the kubelet."""

from collections.abc import Mapping

import aiohttp
from aiohttp import web

from evenflow_devcluster.embedded.errors import StatusError, bad_request, unsupported
from evenflow_devcluster.embedded.http.requests import Target
from evenflow_devcluster.embedded.jsonvalues import Object, dig
from evenflow_devcluster.embedded.operations.api import Api

_PASSED_ON = ("follow", "tailLines", "previous", "sinceSeconds", "sinceTime", "timestamps", "limitBytes")
_CONNECT_SECONDS = 5.0


class PodLogs:
    """Streams from `https://<node's InternalIP>:<kubelet port>/containerLogs/<namespace>/<pod>/<container>`."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def serve(self, request: web.Request, target: Target) -> web.StreamResponse:
        pod = self._api.record(target.resource, target.key).object
        container = chosen_container(pod, request.query)
        url = self._url(pod, target, container)
        query = {key: request.query[key] for key in _PASSED_ON if key in request.query}
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            # As the real API server by default, which is given no authority to check kubelets by.
            async with self._session.get(url, params=query, ssl=False) as upstream:
                if upstream.status != 200:
                    text = (await upstream.text())[:1000].strip()
                    raise bad_request(text or f"the node answered {upstream.status} for the log of {container}")
                response = web.StreamResponse(headers={"Content-Type": "text/plain"})
                response.enable_chunked_encoding()
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (TimeoutError, aiohttp.ClientError) as error:
            message = f"Get {url}: {error}"
            raise StatusError(500, "InternalError", message) from None

    def _url(self, pod: Object, target: Target, container: str) -> str:
        name = dig(pod, "spec", "nodeName")
        if not name:
            raise bad_request(f"pod {target.name} does not have a host assigned")
        record = self._api.store.get("nodes", ("", name))
        if record is None:
            raise StatusError(500, "InternalError", f"Get the log of {target.name}: node {name} not found")
        status = record.object.get("status") or {}
        port = dig(status, "daemonEndpoints", "kubeletEndpoint", "Port")
        addresses = {entry.get("type"): entry.get("address") for entry in status.get("addresses") or ()}
        address = addresses.get("InternalIP")
        if not port or not address:
            raise unsupported(
                f"the log of pod {target.name}: node {name} publishes no log endpoint "
                f"(status.daemonEndpoints.kubeletEndpoint.Port and an InternalIP)"
            )
        return f"https://{address}:{port}/containerLogs/{target.namespace}/{target.name}/{container}"


def chosen_container(pod: Object, query: Mapping[str, str]) -> str:
    """The container asked for, or the only one. Raises 400 naming the choices."""
    spec = pod.get("spec") or {}
    names = [c["name"] for field in ("containers", "initContainers") for c in spec.get(field) or ()]
    asked = query.get("container")
    name = pod["metadata"]["name"]
    if asked:
        if asked not in names:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    own = [c["name"] for c in spec.get("containers") or ()]
    if len(own) != 1:
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
    return str(own[0])
