"""HTTP in front of the API: authentication, routing, answers."""

import hmac
import json
import logging
import random
from collections.abc import Callable
from typing import Any

from aiohttp import web

from evenflow_devcluster.embedded.errors import (
    StatusError,
    bad_request,
    method_not_allowed,
    no_such_path,
    success,
    unauthorized,
    unsupported_media_type,
)
from evenflow_devcluster.embedded.faults import Faults
from evenflow_devcluster.embedded.http import discovery
from evenflow_devcluster.embedded.http.bodies import MAX_BODY, checked_body, decoded
from evenflow_devcluster.embedded.http.lists import list_page
from evenflow_devcluster.embedded.http.logs import PodLogs
from evenflow_devcluster.embedded.http.openapi import OpenApi
from evenflow_devcluster.embedded.http.requests import (
    Path,
    Target,
    caller_of,
    find_target,
    number,
    parse_path,
    predicate_of,
    validation_of,
    verb_of,
)
from evenflow_devcluster.embedded.http.shapes import Shape, shape_of, shown, shown_list
from evenflow_devcluster.embedded.http.streams import WatchStream, options_of
from evenflow_devcluster.embedded.jsonvalues import Object, encoded
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.deletion import DeleteOptions, options_from
from evenflow_devcluster.embedded.operations.pod_actions import bind, evict
from evenflow_devcluster.embedded.operations.scale import patch_scale, put_scale, scale_of
from evenflow_devcluster.embedded.patching.media_types import APPLY, accepted
from evenflow_devcluster.embedded.store.memory import Record, key_of

log = logging.getLogger(__name__)

_OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/version", "/version/"})
_RETURNS_DELETED = frozenset({"pods", "services", "serviceaccounts"})
_PATCH_TYPES = accepted(custom=False)


class ApiServer:
    """One aiohttp handler for everything; `token` is the bearer token of the only user, cluster-admin."""

    def __init__(self, api: Api, faults: Faults, token: str, rng: random.Random) -> None:
        self._api = api
        self._faults = faults
        self._token = token.encode()
        self._rng = rng
        self._openapi = OpenApi(api.registry)
        self._logs = PodLogs(api)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def close(self) -> None:
        await self._logs.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        warnings: list[str] = []
        try:
            if request.path in _OPEN_PATHS:
                return self._open(request.path)
            self._authenticate(request)
            path = parse_path(request.path)
            if path is None:
                return await self._other(request)
            response = await self._resource(request, path, warnings)
        except StatusError as error:
            response = _status_response(error)
        except web.HTTPRequestEntityTooLarge:
            message = f"the body is larger than {MAX_BODY} bytes"
            response = _status_response(StatusError(413, "RequestEntityTooLarge", message))
        except ConnectionError:
            raise
        except Exception:
            # Whatever validation let through: it must be answered, and must not look like anything but our own fault.
            log.exception("%s %s failed", request.method, request.path)
            message = "Internal error occurred: the embedded API server failed on this request; its log has the reason"
            response = _status_response(StatusError(500, "InternalError", message))
        for warning in dict.fromkeys(warnings):
            response.headers.add("Warning", f"299 - {json.dumps(warning)}")
        return response

    def _open(self, path: str) -> web.Response:
        if path.startswith("/version"):
            return _json_response(encoded(discovery.VERSION))
        return web.Response(text="ok")

    def _authenticate(self, request: web.Request) -> None:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
            raise unauthorized()

    # --- discovery ----------------------------------------------------------------------------------------------

    async def _other(self, request: web.Request) -> web.Response:
        path = request.path.rstrip("/")
        if path == "/_faults":
            return await self._configure_faults(request)
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        registry = self._api.registry
        parts = path.strip("/").split("/")
        if path in ("/api", "/apis"):
            core = path == "/api"
            if discovery.wants_aggregated(request.headers.get("Accept", "")):
                return _json_response(encoded(discovery.aggregated(registry, core)), discovery.AGGREGATED)
            return _json_response(encoded(discovery.api_versions() if core else discovery.group_list(registry)))
        if path == "/openapi/v3":
            # Untyped, as the real server has it.
            return web.Response(body=encoded(self._openapi.index()), content_type="text/plain")
        if path.startswith("/openapi/v3/"):
            parts = parts[2:]
        groups = registry.groups()
        if parts[0] == "api" and len(parts) == 2:
            group, versions = "", parts[1:]
        elif parts[0] == "apis" and len(parts) in (2, 3):
            group, versions = parts[1], parts[2:]
        else:
            raise no_such_path()
        if group not in groups or (versions and versions[0] not in groups[group]):
            raise no_such_path()
        if path.startswith("/openapi/v3/"):
            if not versions:
                raise no_such_path()
            return _json_response(self._openapi.document(group, versions[0]))
        if not versions:
            return _json_response(encoded(discovery.group(registry, group)))
        return _json_response(encoded(discovery.resource_list(registry, group, versions[0])))

    async def _configure_faults(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            document = decoded(await request.read(), "application/json", "Ignore")
            if not isinstance(document, dict):
                raise bad_request("the body must be a fault document")
            self._faults.configure(document)
        elif request.method == "DELETE":
            self._faults.clear()
        elif request.method != "GET":
            raise method_not_allowed()
        return _json_response(encoded({"acted": self._faults.acted, "stallWatches": self._faults.stalled}))

    # --- resources ----------------------------------------------------------------------------------------------

    async def _resource(self, request: web.Request, path: Path, warnings: list[str]) -> web.StreamResponse:
        verb = verb_of(request.method, path, request.query)
        await self._strike(request, path, verb)
        target = find_target(path, self._api.registry)
        caller = caller_of(request.query, request.headers.get("User-Agent", ""), warnings.append)
        if target.subresource not in ("", "status", "finalize"):
            return await self._subresource(request, target, verb, caller)
        shape = shape_of(request.headers.get("Accept", ""), request.query)
        match verb:
            case "get":
                record = self._api.record(target.resource, target.key)
                return _json_response(shown(self._api, target.resource, record, shape))
            case "list":
                return _json_response(list_page(self._api, target, request.query, shape))
            case "watch":
                options = options_of(request.query, self._api, self._rng)
                return await WatchStream(self._api, self._faults, target, shape, options).serve(request)
            case "deletecollection":
                return await self._delete_all(request, target, shape)
            case "delete":
                return await self._delete(request, target)
        return await self._write(request, target, verb, caller, shape)

    async def _strike(self, request: web.Request, path: Path, verb: str) -> None:
        resource = f"{path.plural}.{path.group}" if path.group else path.plural
        if path.subresource:
            resource += f"/{path.subresource}"
        agent = request.headers.get("User-Agent", "")
        await self._faults.strike(verb, resource, path.namespace or "", path.name, agent)

    def _stored(self, target: Target, obj: Object, shape: Shape, status: int = 200) -> web.Response:
        """The answer to a write, from the store's own record where there is one (its JSON is shared with watches)."""
        record = self._api.store.get(target.resource.qualified, key_of(obj))
        if record is None or record.object is not obj:
            record = Record(obj)
        return _json_response(shown(self._api, target.resource, record, shape), status=status)

    async def _write(
        self, request: web.Request, target: Target, verb: str, caller: Caller, shape: Shape
    ) -> web.Response:
        api, resource = self._api, target.resource
        content_type = _media_type(request)
        if verb == "patch" and content_type not in _PATCH_TYPES:
            raise unsupported_media_type(content_type, _PATCH_TYPES)
        body = decoded(await request.read(), content_type, caller.validation)
        if verb in ("patch", "update") and not target.name:
            raise bad_request("name must be provided") if resource.custom else method_not_allowed()
        if verb == "patch":
            if content_type == APPLY and not request.query.get("fieldManager"):
                raise bad_request(
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
                )
            obj, created = api.patch(resource, target.key, content_type, body, caller, subresource=target.subresource)
            return self._stored(target, obj, shape, 201 if created else 200)
        if not isinstance(body, dict):
            raise bad_request("the body must be one object")
        if verb == "update":
            obj = api.update(resource, target.key, body, caller, subresource=target.subresource)
            return self._stored(target, obj, shape)
        if target.name or target.subresource:
            raise method_not_allowed()
        if target.namespace is None:
            raise method_not_allowed()
        return self._stored(target, api.create(resource, target.namespace, body, caller), shape, 201)

    async def _delete_options(self, request: web.Request) -> DeleteOptions:
        """From the body if there is one, as the real server does: query parameters count only without a body."""
        body = await request.read()
        if body.strip():
            document = decoded(body, _media_type(request), validation_of(request.query))
            if not isinstance(document, dict):
                raise bad_request("the body of a DELETE is DeleteOptions")
            return options_from(document)
        query = request.query
        return DeleteOptions(
            grace=number(query, "gracePeriodSeconds"),
            propagation=query.get("propagationPolicy") or None,
            dry_run=query.get("dryRun") == "All",
        )

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        if target.subresource:
            raise method_not_allowed()
        options = await self._delete_options(request)
        obj, gone = self._api.delete(target.resource, target.key, options)
        if not gone or target.resource.qualified in _RETURNS_DELETED:
            return _json_response(self._api.viewed(target.resource, Record(obj)).json)
        details: Object = {"name": target.name, "kind": target.resource.plural, "uid": obj["metadata"]["uid"]}
        if target.resource.group:
            details["group"] = target.resource.group
        return _json_response(encoded(success(details)))

    async def _delete_all(self, request: web.Request, target: Target, shape: Shape) -> web.Response:
        options = await self._delete_options(request)
        predicate = predicate_of(target, request.query)
        found = [
            record
            for record in self._api.store.records(target.resource.qualified, target.namespace or None)
            if predicate is None or predicate(record.object)
        ]
        deleted = []
        for record in found:
            key = key_of(record.object)
            if self._api.store.get(target.resource.qualified, key) is not None:
                deleted.append(Record(self._api.delete(target.resource, key, options)[0]))
        metadata = {"resourceVersion": str(self._api.store.version)}
        return _json_response(shown_list(self._api, target.resource, deleted, metadata, shape))

    async def _subresource(self, request: web.Request, target: Target, verb: str, caller: Caller) -> web.StreamResponse:
        api, resource, key = self._api, target.resource, target.key
        if target.subresource == "log":
            if verb != "get":
                raise method_not_allowed()
            return await self._logs.serve(request, target)
        if target.subresource == "scale" and verb == "get":
            return _json_response(encoded(scale_of(resource, api.record(resource, key).object)))
        content_type = _media_type(request)
        body: Any = decoded(await request.read(), content_type, caller.validation)
        if target.subresource == "scale":
            if verb == "update":
                scale = put_scale(api, resource, key, checked_body(body, "Scale"), caller)
            elif verb == "patch":
                scale = patch_scale(api, resource, key, content_type, body, caller)
            else:
                raise method_not_allowed()
            return _json_response(encoded(scale))
        actions: dict[str, tuple[str, Callable[..., Object]]] = {
            "binding": ("Binding", bind),
            "eviction": ("Eviction", evict),
        }
        kind, act = actions[target.subresource]
        if verb != "create":
            raise method_not_allowed()
        return _json_response(encoded(act(api, key, checked_body(body, kind), caller)), status=201)


def _media_type(request: web.Request) -> str:
    return request.headers.get("Content-Type", "application/json").split(";", 1)[0].strip()


def _json_response(body: bytes, content_type: str = "application/json", status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _status_response(error: StatusError) -> web.Response:
    response = _json_response(encoded(error.body()), status=error.code)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
