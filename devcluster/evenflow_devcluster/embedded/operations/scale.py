"""The scale subresource: one number of an object, read and written as autoscaling/v1 Scale."""

from collections.abc import Callable
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError, StatusError, invalid, no_such_path, unsupported
from evenflow_devcluster.embedded.jsonvalues import Object, copied, dig
from evenflow_devcluster.embedded.kinds.resources import Resource, Scale
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.patching.media_types import APPLY
from evenflow_devcluster.embedded.store.memory import Key
from evenflow_devcluster.embedded.syntax.selectors import selector_text


def scale_of(resource: Resource, obj: Object) -> Object:
    """autoscaling/v1 Scale. Raises 500 as the real server does if the object has no replicas."""
    paths = _scale_paths(resource)
    replicas = dig(obj, *paths.spec_replicas)
    if replicas is None:
        path = ".".join(("", *paths.spec_replicas))
        raise StatusError(
            500, "InternalError", f'Internal error occurred: the spec replicas field "{path}" does not exist'
        )
    status: Object = {"replicas": dig(obj, *paths.status_replicas) or 0}
    selector = dig(obj, *paths.selector) if paths.selector else None
    if isinstance(selector, dict):
        selector = selector_text(selector)
    if selector:
        status["selector"] = selector
    metadata = obj["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": replicas},
        "status": status,
    }


def _scale_paths(resource: Resource) -> Scale:
    if resource.scale is None:
        raise no_such_path()
    return resource.scale


def put_scale(api: Api, resource: Resource, key: Key, body: Object, caller: Caller) -> Object:
    return _write_scale(api, resource, key, lambda _: body, caller)


def patch_scale(api: Api, resource: Resource, key: Key, kind: str, patch: Any, caller: Caller) -> Object:
    if kind == APPLY:
        raise unsupported("server-side apply on /scale; use a merge patch or PUT")
    build = api.patcher(resource, kind, patch)
    return _write_scale(api, resource, key, build, caller)


def _write_scale(api: Api, resource: Resource, key: Key, build: Callable[[Object], Object], caller: Caller) -> Object:
    paths = _scale_paths(resource)

    def change(live: Object) -> Object:
        before = _scale_or_zero(resource, live)
        wanted = build(before)
        replicas = dig(wanted, "spec", "replicas") or 0
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
            error = FieldError("spec.replicas", "must be greater than or equal to 0", value=replicas)
            raise invalid("Scale", "autoscaling", key[1], [error])
        new = copied(live)
        node = new
        for step in paths.spec_replicas[:-1]:
            node = node.setdefault(step, {})
        node[paths.spec_replicas[-1]] = replicas
        for field in ("resourceVersion", "uid"):
            given = dig(wanted, "metadata", field)
            if given:
                new["metadata"][field] = given
        return new

    return scale_of(resource, api.writer.update(resource, key, change, caller, subresource="scale"))


def _scale_or_zero(resource: Resource, live: Object) -> Object:
    """A PUT or patch may set replicas for the first time."""
    try:
        return scale_of(resource, live)
    except StatusError:
        return {"metadata": {"name": live["metadata"]["name"]}, "spec": {"replicas": 0}}
