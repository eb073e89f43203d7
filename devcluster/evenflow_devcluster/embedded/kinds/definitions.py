"""CustomResourceDefinitions: checked, completed, and turned into the resources they define."""

from collections.abc import Iterator, Mapping

from evenflow_devcluster.embedded.errors import FieldError, unsupported
from evenflow_devcluster.embedded.jsonvalues import Object, dig
from evenflow_devcluster.embedded.kinds.resources import CelTwin, Column, Resource, Scale
from evenflow_devcluster.embedded.kinds.strategy import Strategy
from evenflow_devcluster.embedded.schema.structural import Schema
from evenflow_devcluster.embedded.schema.structural_rules import has_cel_rules, structural_errors

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class DefinitionStrategy(Strategy):
    def __init__(self, resource: Resource, twins: Mapping[str, CelTwin]) -> None:
        super().__init__(resource)
        self._twins = twins

    def default(self, obj: Object) -> None:
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return
        names = spec.setdefault("names", {})
        kind = names.get("kind", "")
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def validate(self, obj: Object) -> Iterator[FieldError]:
        spec = obj.get("spec") or {}
        names = spec.get("names") or {}
        expected = f"{names.get('plural')}.{spec.get('group')}"
        if obj["metadata"]["name"] != expected:
            message = f'must be spec.names.plural+"."+spec.group: {expected}'
            yield FieldError("metadata.name", message, value=obj["metadata"]["name"])
        if spec.get("scope") not in ("Namespaced", "Cluster"):
            listed = 'supported values: "Cluster", "Namespaced"'
            yield FieldError("spec.scope", listed, "NotSupported", spec.get("scope"))
        versions = spec.get("versions") or []
        stored = sum(bool(version.get("storage")) for version in versions)
        if stored != 1:
            message = "must have exactly one version marked as storage version"
            yield FieldError("spec.versions", message, value=[version.get("name") for version in versions])
        errors = [error for index, version in enumerate(versions) for error in _version_errors(version, index)]
        yield from errors
        if stored == 1 and not errors:
            defined_resources(obj, self._twins)

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        for keys in (("group",), ("scope",), ("names", "plural"), ("names", "kind")):
            value = dig(new, "spec", *keys)
            if value != dig(old, "spec", *keys):
                yield FieldError(".".join(("spec", *keys)), "field is immutable", value=value)


def _version_errors(version: Object, index: int) -> Iterator[FieldError]:
    schema = dig(version, "schema", "openAPIV3Schema")
    path = f"spec.versions[{index}].schema.openAPIV3Schema"
    if not isinstance(schema, dict):
        yield FieldError(path, "schemas are required", "Required")
        return
    if schema.get("type") != "object":
        yield FieldError(f"{path}.type", "must be object at the root", value=schema.get("type"))
    yield from structural_errors(schema, path)


def defined_resources(definition: Object, twins: Mapping[str, CelTwin]) -> list[Resource]:
    """The resources of every served version. Raises 501 for CEL rules without a twin and for conversion webhooks."""
    name = definition["metadata"]["name"]
    spec = definition["spec"]
    if dig(spec, "conversion", "strategy") not in (None, "None"):
        raise unsupported(f"conversion webhooks (spec.conversion.strategy of {name}); use strategy None")
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    found = []
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        twin = twins.get(name)
        if twin is None and has_cel_rules(schema):
            raise unsupported(f"CEL rules (x-kubernetes-validations) of {name}: no Python twin was given in cel_twins")
        if version.get("served"):
            found.append(_resource(spec, version, storage, twin))
    return found


def _resource(spec: Object, version: Object, storage: str, twin: CelTwin | None) -> Resource:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    return Resource(
        spec["group"],
        version["name"],
        names["plural"],
        names["singular"],
        names["kind"],
        spec["scope"] == "Namespaced",
        Schema(version["schema"]["openAPIV3Schema"]),
        list_kind=names["listKind"],
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        status="status" in subresources,
        generation=True,
        scale=_scale(scale) if scale else None,
        custom=True,
        columns=tuple(_column(column) for column in version.get("additionalPrinterColumns") or ()),
        twin=twin,
        fields={
            path.lstrip("."): _steps(path)
            for path in (field["jsonPath"] for field in version.get("selectableFields") or ())
        },
        storage_version=storage,
    )


def _scale(scale: Object) -> Scale:
    selector = scale.get("labelSelectorPath")
    return Scale(
        _steps(scale["specReplicasPath"]), _steps(scale["statusReplicasPath"]), _steps(selector) if selector else None
    )


def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.strip(".").split("."))


def _column(column: Object) -> Column:
    return Column(
        column["name"],
        column["type"],
        column["jsonPath"],
        column.get("description", ""),
        column.get("priority", 0),
        column.get("format", ""),
    )


def with_status(definition: Object, clash: str | None, now: str) -> Object:
    """The definition with the status that the naming and establishing controllers give it."""
    names = definition["spec"]["names"]
    old = definition.get("status") or {}
    accepted = clash is None
    conditions = [
        _condition(
            "NamesAccepted",
            accepted,
            "NoConflicts" if accepted else "ShortNamesConflict",
            "no conflicts found" if accepted else str(clash),
            now,
        ),
        _condition(
            "Established",
            accepted,
            "InitialNamesAccepted" if accepted else "NotAccepted",
            "the initial names have been accepted" if accepted else "not all names are accepted",
            now,
        ),
    ]
    storage = next(version["name"] for version in definition["spec"]["versions"] if version.get("storage"))
    stored = list(old.get("storedVersions") or [])
    if storage not in stored:
        stored.append(storage)
    before = {condition["type"]: condition for condition in old.get("conditions") or ()}
    for condition in conditions:
        previous = before.get(condition["type"])
        if previous and previous["status"] == condition["status"]:
            condition["lastTransitionTime"] = previous["lastTransitionTime"]
    kept = [condition for kind, condition in before.items() if kind not in ("NamesAccepted", "Established")]
    status = {
        "conditions": [*conditions, *kept],
        "acceptedNames": dict(names) if accepted else old.get("acceptedNames", {"plural": "", "kind": ""}),
        "storedVersions": stored,
    }
    return {**definition, "status": status}


def _condition(kind: str, true: bool, reason: str, message: str, now: str) -> Object:
    return {
        "type": kind,
        "status": "True" if true else "False",
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }
