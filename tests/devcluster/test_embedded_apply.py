"""Server-side apply and managedFields."""

from typing import Any

import pytest

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.patching import ownership
from evenflow_devcluster.embedded.patching.apply import apply
from evenflow_devcluster.embedded.patching.fieldsets import field_values, from_fields_v1, readable, to_fields_v1
from evenflow_devcluster.embedded.patching.ownership import APPLY, UPDATE, Managed, Owner
from evenflow_devcluster.embedded.schema.structural import Schema

PART = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}
SCHEMA = Schema(
    {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer"},
                    "size": {"type": "string"},
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": PART,
                    },
                    "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                    "steps": {"type": "array", "items": {"type": "string"}},
                },
            }
        },
    }
)
ANN, BOB = Owner("ann", APPLY), Owner("bob", APPLY)


def run(live: Any, config: Any, managed: Managed, owner: Owner, force: bool = False) -> tuple[Any, Managed]:
    return apply(live, config, SCHEMA, managed, owner, api_version="v1", now="now", force=force)


def spec(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": fields}


def owned(managed: Managed, owner: Owner) -> set[str]:
    return {readable(path) for path in managed[owner].paths} if owner in managed else set()


def test_fields_v1_round_trip() -> None:
    obj = spec(replicas=1, parts=[{"name": "a", "n": 1}], tags=["t"], steps=["s"])
    obj["metadata"]["labels"] = {"k": "v"}
    paths = set(field_values(obj, SCHEMA))
    fields = to_fields_v1(paths)
    assert fields["f:spec"]["f:parts"]['k:{"name":"a"}'] == {".": {}, "f:name": {}, "f:n": {}}
    assert fields["f:spec"]["f:tags"] == {'v:"t"': {}}
    assert fields["f:spec"]["f:steps"] == {}
    assert fields["f:metadata"] == {"f:labels": {"f:k": {}}}
    assert from_fields_v1(fields) == paths


def test_two_appliers_share_equal_values_and_conflict_on_others() -> None:
    live, managed = run(spec(), spec(replicas=1, size="s"), {}, ANN)
    live, managed = run(live, spec(replicas=1), managed, BOB)
    assert owned(managed, BOB) == {".spec.replicas"}
    with pytest.raises(StatusError) as caught:
        run(live, spec(replicas=2), managed, BOB)
    assert caught.value.code == 409
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "ann": .spec.replicas'
    assert caught.value.body()["details"]["causes"][0]["field"] == ".spec.replicas"
    live, managed = run(live, spec(replicas=2), managed, BOB, force=True)
    assert live["spec"]["replicas"] == 2
    assert owned(managed, ANN) == {".spec.size"}


def test_a_field_no_longer_applied_goes_unless_somebody_else_owns_it() -> None:
    live, managed = run(spec(), spec(replicas=1, size="s", parts=[{"name": "a"}, {"name": "b"}]), {}, ANN)
    live, managed = run(live, spec(size="s", parts=[{"name": "b"}]), managed, BOB)
    live, managed = run(live, spec(), managed, ANN)
    assert live["spec"] == {"size": "s", "parts": [{"name": "b"}]}
    assert owned(managed, ANN) == {".spec"}


def test_lists_merge_by_key_and_keep_the_applied_order() -> None:
    live, managed = run(spec(), spec(parts=[{"name": "a", "n": 1}, {"name": "b"}]), {}, ANN)
    live, managed = run(live, spec(parts=[{"name": "c"}, {"name": "b", "n": 7}], tags=["x"]), managed, BOB)
    assert live["spec"]["parts"] == [{"name": "a", "n": 1}, {"name": "c"}, {"name": "b", "n": 7}]
    live, managed = run(live, spec(tags=["y"]), managed, Owner("cy", APPLY))
    assert sorted(live["spec"]["tags"]) == ["x", "y"]


def test_atomic_lists_are_owned_whole() -> None:
    live, managed = run(spec(), spec(steps=["a"]), {}, ANN)
    with pytest.raises(StatusError, match=r"\.spec\.steps"):
        run(live, spec(steps=["a", "b"]), managed, BOB)


def test_an_update_takes_what_it_changes_from_every_other_manager() -> None:
    live, managed = run(spec(), spec(replicas=1, size="s"), {}, ANN)
    new = spec(replicas=5, size="s")
    scaler = Owner("kubectl", UPDATE, "scale")
    before, after = field_values(live, SCHEMA), field_values(new, SCHEMA)
    managed = ownership.after_update(managed, scaler, before, after, "v1", "later")
    assert owned(managed, ANN) == {".spec.size"}
    assert owned(managed, scaler) == {".spec.replicas"}
    with pytest.raises(StatusError, match='conflict with "kubectl" with subresource "scale" using v1') as caught:
        run(new, spec(replicas=1, size="s"), managed, ANN)
    assert caught.value.reason == "Conflict"


def test_managed_fields_survive_writing_and_reading() -> None:
    _, managed = run(spec(), spec(replicas=1, parts=[{"name": "a"}]), {}, ANN)
    assert ownership.read(ownership.write(managed)) == managed


def test_applying_the_same_again_changes_nothing() -> None:
    config = spec(replicas=1, parts=[{"name": "a"}], tags=["t"])
    live, managed = run(spec(), config, {}, ANN)
    again, managed_again = run(live, config, managed, ANN)
    assert again == live
    assert managed_again == managed


def test_an_owner_no_longer_applied_goes_also_where_the_schema_has_no_spec() -> None:
    schema = Schema({"type": "object", "properties": {"data": {"type": "string"}}})
    bare: dict[str, Any] = {"metadata": {"name": "x"}}
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"}
    held = {"metadata": {"name": "x", "ownerReferences": [reference]}, "data": "d"}
    live, managed = apply(bare, held, schema, {}, ANN, api_version="v1", now="now", force=False)
    assert live["metadata"]["ownerReferences"] == [reference]
    live, _ = apply(live, {**bare, "data": "d"}, schema, managed, ANN, api_version="v1", now="now", force=False)
    assert live == {"metadata": {"name": "x"}, "data": "d"}
