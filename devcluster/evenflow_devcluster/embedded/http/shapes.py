"""How a client wants to see objects: whole, as a Table, or only their metadata."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.http.tables import partial, table
from evenflow_devcluster.embedded.jsonvalues import Object, encoded
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.store.memory import Record

_ACCEPTS = re.compile(r"^\s*(application/json|application/\*|\*/\*)\s*(;|$)")


@dataclass(frozen=True, slots=True)
class Shape:
    """`kind` is Object, Table or PartialObjectMetadata; `include` says how much of each object a Table's rows carry."""

    kind: str = "Object"
    include: str = "Metadata"


def shape_of(accept: str, query: Mapping[str, str]) -> Shape:
    """The first alternative of an Accept header that can be served. Raises 406 if none can."""
    if not accept:
        return Shape()
    for alternative in accept.split(","):
        if not _ACCEPTS.match(alternative):
            continue
        parameters = dict(part.strip().partition("=")[::2] for part in alternative.split(";")[1:])
        wanted = parameters.get("as")
        if wanted is None:
            return Shape()
        if parameters.get("g") == "meta.k8s.io" and parameters.get("v") == "v1":
            if wanted == "Table":
                return Shape("Table", query.get("includeObject") or "Metadata")
            if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return Shape("PartialObjectMetadata")
    message = f"only application/json can be served, not {accept!r}"
    raise StatusError(406, "NotAcceptable", message)


def shown(api: Api, resource: Resource, record: Record, shape: Shape) -> bytes:
    """The JSON of one object; whole, it is the record's own, which watches and answers share."""
    viewed = api.viewed(resource, record)
    if shape.kind == "Object":
        return viewed.json
    if shape.kind == "PartialObjectMetadata":
        return encoded(partial(viewed.object))
    metadata = {"resourceVersion": viewed.object["metadata"].get("resourceVersion", "")}
    return encoded(table(resource, [viewed.object], metadata, shape.include, api.clock()))


def shown_list(api: Api, resource: Resource, records: Iterable[Record], metadata: Object, shape: Shape) -> bytes:
    """The JSON of a list; `metadata` is the list's own."""
    if shape.kind == "Table":
        objects = (api.viewed(resource, record).object for record in records)
        return encoded(table(resource, objects, metadata, shape.include, api.clock()))
    if shape.kind == "PartialObjectMetadata":
        items = [partial(record.object) for record in records]
        kind = "PartialObjectMetadataList"
        return encoded({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
    head = {"kind": resource.list, "apiVersion": resource.api_version, "metadata": metadata}
    items_json = b",".join(api.viewed(resource, record).json for record in records)
    return encoded(head)[:-1] + b',"items":[' + items_json + b"]}"
