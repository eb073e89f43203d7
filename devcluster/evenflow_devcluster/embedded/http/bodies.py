"""Reading the body of a request: JSON, YAML, or the protobuf that kubectl insists on."""

import json
from typing import Any

import yaml

from evenflow_devcluster.embedded.errors import bad_request, unsupported_media_type
from evenflow_devcluster.embedded.http.protobuf import MEDIA_TYPE, read_protobuf
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.operations.caller import Validation
from evenflow_devcluster.embedded.patching.media_types import accepted
from evenflow_devcluster.embedded.schema.pruning import drop_nulls
from evenflow_devcluster.embedded.schema.structural import builtin
from evenflow_devcluster.embedded.schema.validation import validate

MAX_BODY = 3 * 1024 * 1024
_READABLE = frozenset({"application/json", "application/yaml", *accepted(custom=False)})
_SCHEMAS = {
    "Binding": "io.k8s.api.core.v1.Binding",
    "Eviction": "io.k8s.api.policy.v1.Eviction",
    "Scale": "io.k8s.api.autoscaling.v1.Scale",
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Times stay strings, as in JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def decoded(body: bytes, content_type: str, validation: Validation) -> Any:
    """The JSON or YAML of a body. Raises 400 if it can't be read, 415 for any other media type."""
    kind = content_type.split(";", 1)[0].strip()
    if kind == MEDIA_TYPE:
        return read_protobuf(body)
    if kind not in _READABLE:
        raise unsupported_media_type(kind, ("application/json", "application/yaml"))
    try:
        if validation == "Strict":
            return json.loads(body, object_pairs_hook=_without_duplicates)
        return json.loads(body)
    except ValueError as error:
        if "yaml" not in kind:
            raise bad_request(f"couldn't read the request's body as JSON: {error}") from None
    try:
        return _json_like(yaml.load(body, Loader=_Loader))
    except yaml.YAMLError as error:
        raise bad_request(f"couldn't read the request's body as YAML: {error}") from None


def _json_like(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_like(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_like(item) for item in value]
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise bad_request(f'strict decoding error: duplicate field "{key}"')
        found[key] = value
    return found


def checked_body(body: Any, kind: str) -> Object:
    """The body of a binding, eviction or scale. Raises 400 if it is of another kind."""
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a {kind}")
    if body.get("kind", kind) != kind:
        raise bad_request(f"the body must be a {kind}, not {body.get('kind')!r}")
    drop_nulls(body)
    for error in validate(body, builtin(_SCHEMAS[kind])):
        if error.kind == "TypeInvalid":
            raise bad_request(f"{kind} cannot be handled as a {kind}: {error}")
    return body
