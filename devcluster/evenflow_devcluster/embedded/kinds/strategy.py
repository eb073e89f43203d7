"""What a kind does to its objects before they are stored. The defaults here fit most kinds."""

from collections.abc import Iterator

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.schema.pruning import apply_defaults


class Strategy:
    """Hooks of one kind; every object passed in is the server's own copy and may be changed."""

    name_rule = "subdomain"

    def __init__(self, resource: Resource) -> None:
        self.resource = resource

    def default(self, obj: Object) -> None:
        """Fill in what the user left out; runs on create and on every update."""

    def prepare_create(self, obj: Object) -> None:
        if self.resource.status:
            obj.pop("status", None)

    def prepare_update(self, new: Object, old: Object, subresource: str) -> None:
        """Put back what this endpoint may not write."""
        if subresource == "status":
            for key in [key for key in new if key not in ("apiVersion", "kind", "metadata", "status")]:
                del new[key]
            for key, value in old.items():
                if key not in ("metadata", "status"):
                    new[key] = value
            if self.resource.custom:
                managed = new["metadata"].get("managedFields")
                new["metadata"] = dict(old["metadata"])
                if managed is not None:
                    new["metadata"]["managedFields"] = managed
        elif self.resource.status:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)

    def validate(self, obj: Object) -> Iterator[FieldError]:
        """What holds for every stored object; the schema has been checked before."""
        yield from ()

    def validate_create(self, obj: Object) -> Iterator[FieldError]:
        yield from ()

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        yield from ()


class CustomStrategy(Strategy):
    """A custom resource: defaults from its schema, cross-field rules from the twin of its CEL rules."""

    def default(self, obj: Object) -> None:
        apply_defaults(obj, self.resource.schema)

    def validate_create(self, obj: Object) -> Iterator[FieldError]:
        if self.resource.twin is not None:
            yield from self.resource.twin(obj, None)

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        if self.resource.twin is not None:
            yield from self.resource.twin(new, old)
