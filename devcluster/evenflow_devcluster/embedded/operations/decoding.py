"""From a body to an object of the resource: does it belong to the request, and is it of the right types?"""

from evenflow_devcluster.embedded.errors import bad_request, undeclared, undecodable_patch
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.schema.pruning import drop_nulls, prune
from evenflow_devcluster.embedded.schema.validation import MAX_ERRORS, validate


def checked_envelope(resource: Resource, obj: Object, namespace: str, name: str | None) -> Object:
    """Check apiVersion, kind, name and namespace against the request; returns the metadata."""
    for field, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        given = obj.get(field)
        if not given and resource.custom:
            raise bad_request(f"Object '{field[0].upper()}{field[1:]}' is missing in the request's body")
        if given and given != expected:
            if field == "kind":
                raise bad_request(f"{given} in version {obj.get('apiVersion')!r} cannot be handled as a {expected}")
            message = f"the API version in the data ({given}) does not match the expected API version ({expected})"
            raise bad_request(message)
    obj["apiVersion"], obj["kind"] = resource.api_version, resource.kind
    metadata = obj.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be an object")
    if resource.namespaced:
        if metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request(
                f"the namespace of the provided object does not match the namespace sent on the request "
                f"({metadata['namespace']} != {namespace})"
            )
    else:
        metadata.pop("namespace", None)
    if not isinstance(metadata.get("name", ""), str):
        raise bad_request(f"metadata.name must be a string, not {metadata['name']!r}")
    if name is not None and metadata.setdefault("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    return metadata


def clean(resource: Resource, obj: Object, caller: Caller, *, patched: bool = False) -> None:
    """What decoding does on the real server: nulls of built-in types and unknown fields go, wrong types are 400.

    What a patch has made of an object (`patched`) is refused with 422 instead.
    """

    def refuse(why: str) -> Exception:
        if patched:
            return undecodable_patch(obj, why)
        return bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
        )

    drop_nulls(obj if not resource.custom else obj["metadata"])
    unknown: list[str] = []
    prune(obj, resource.schema, unknown.append)
    if unknown and caller.validation != "Ignore":
        texts = [f'unknown field "{path}"' for path in unknown[:MAX_ERRORS]]
        if caller.validation == "Strict":
            raise refuse("strict decoding error: " + ", ".join(texts))
        for text in texts:
            caller.warn(text)
    mistyped = [error for error in validate(obj, resource.decoding) if error.kind == "TypeInvalid"]
    if mistyped:
        raise refuse(str(mistyped[0]))


def check_applied(resource: Resource, config: Object, name: str) -> None:
    """Raise if what is applied server-side doesn't fit the schema, by which its fields are owned: even with Ignore."""
    unknown: list[str] = []
    prune(config, resource.schema, unknown.append)
    problems = [f".{path}: field not declared in schema" for path in unknown]
    for error in validate(config, resource.schema):
        if error.kind == "TypeInvalid":
            problems.append(f".{error.path}: {error.message}")
        elif error.kind == "Duplicate":
            problems.append(f".{error.path.rpartition('[')[0]}: duplicate entries for key {error.value}")
    if problems:
        raise undeclared(resource.kind, resource.api_version, name, problems[0])
