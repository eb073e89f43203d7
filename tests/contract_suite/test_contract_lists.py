"""Lists: selectors, pages, resource versions, tables."""

import pytest
from suite_behaviours import behaviour
from suite_client import TABLE, Client, url
from suite_objects import Gadgets, config_map, pod

LABELS = {
    "a": {"tier": "front", "env": "prod"},
    "b": {"tier": "back", "env": "prod"},
    "c": {"tier": "back", "env": "test"},
    "d": {"env": "test"},
}


async def fill(api: Client, ns: str) -> None:
    for name, labels in LABELS.items():
        await api.create("configmaps", ns, config_map(name, labels={**labels, "suite": "yes"}))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("tier=back", "bc"),
        ("tier==back,env=prod", "b"),
        ("suite,tier!=back", "ad"),
        ("tier in (front,back),env notin (prod)", "c"),
        ("suite,!tier", "d"),
        ("tier", "abc"),
    ],
)
@behaviour(
    "label-selectors", "Lists select by labels: equal, not equal, in, notin, present and absent, joined by commas."
)
async def test_label_selectors(api: Client, ns: str, selector: str, names: str) -> None:
    await fill(api, ns)
    assert await api.names("configmaps", ns, labelSelector=selector) == list(names)


@behaviour("bad-selectors-400", "A selector that can't be parsed, or a field that can't be selected by, is 400.")
async def test_bad_selectors(api: Client, ns: str) -> None:
    await api.refused(400, "GET", url("configmaps", ns), labelSelector="a in b")
    status = await api.refused(400, "GET", url("configmaps", ns), fieldSelector="data.a=1")
    assert "data.a" in status["message"]


@behaviour(
    "field-selectors", "Lists select by metadata.name and by the kind's own fields, such as a pod's node and phase."
)
async def test_field_selectors(api: Client, ns: str) -> None:
    await api.create("pods", ns, pod("one", nodeName="contract-nowhere"))
    await api.create("pods", ns, pod("two", schedulerName="nobody"))
    for selector, names in (
        ("metadata.name=one", ["one"]),
        ("metadata.name!=one", ["two"]),
        ("spec.nodeName=contract-nowhere", ["one"]),
        ("spec.nodeName=", ["two"]),
        ("status.phase=Pending,spec.nodeName!=contract-nowhere", ["two"]),
        ("status.phase=Running", []),
    ):
        assert await api.names("pods", ns, fieldSelector=selector) == names, selector


@behaviour("selectable-fields", "A definition's selectableFields can be selected by.")
async def test_selectable_fields(api: Client, ns: str, gadgets: Gadgets) -> None:
    for name, color in (("one", "red"), ("two", "blue")):
        await api.create(gadgets.resource, ns, gadgets.make(name, {"color": color}))
    assert await api.names(gadgets.resource, ns, fieldSelector="spec.color=blue") == ["two"]


@behaviour("all-namespaces", "A list without a namespace has the objects of all of them.")
async def test_all_namespaces(api: Client, ns: str) -> None:
    await api.create("configmaps", ns, config_map("one"))
    found = await api.items("configmaps", None, fieldSelector=f"metadata.namespace={ns},metadata.name=one")
    assert [item["metadata"]["namespace"] for item in found] == [ns]


@behaviour("list-shape", "A list names its kind and the resourceVersion it stands for.")
async def test_list_shape(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one"))
    listed = await api.ok("GET", url(gadgets.resource, ns))
    assert (listed["kind"], listed["apiVersion"]) == ("GadgetList", gadgets.api_version)
    assert int(listed["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
    assert listed["items"] == [created]


@behaviour("pages", "limit and continue walk a list in pages; the first says how many remain.")
async def test_pages(api: Client, ns: str) -> None:
    for index in range(5):
        await api.create("secrets", ns, {"metadata": {"name": f"s{index}"}})
    path = url("secrets", ns)
    first = await api.ok("GET", path, limit=2)
    assert [item["metadata"]["name"] for item in first["items"]] == ["s0", "s1"]
    assert first["metadata"]["remainingItemCount"] == 3
    second = await api.ok("GET", path, limit=2, **{"continue": first["metadata"]["continue"]})
    third = await api.ok("GET", path, limit=2, **{"continue": second["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in second["items"] + third["items"]] == ["s2", "s3", "s4"]
    assert not third["metadata"].get("continue")
    assert {page["metadata"]["resourceVersion"] for page in (second, third)} == {first["metadata"]["resourceVersion"]}


@behaviour("pages-are-one-snapshot", "Later pages show the objects as they were when the first page was read.")
async def test_pages_snapshot(api: Client, ns: str) -> None:
    for name in ("b", "d", "f"):
        await api.create("secrets", ns, {"metadata": {"name": name}, "stringData": {"v": "1"}})
    path = url("secrets", ns)
    first = await api.ok("GET", path, limit=1)
    await api.delete("secrets", ns, "d")
    await api.create("secrets", ns, {"metadata": {"name": "e"}})
    await api.patch("secrets", ns, "f", {"stringData": {"v": "2"}})
    rest = await api.ok("GET", path, **{"continue": first["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in rest["items"]] == ["d", "f"]
    assert rest["items"][1]["data"] == {"v": "MQ=="}


@behaviour("bad-continue-400", "A continue token that the server didn't make is 400.")
async def test_bad_continue(api: Client, ns: str) -> None:
    await api.refused(400, "GET", url("configmaps", ns), limit=1, **{"continue": "nonsense"})


@behaviour("list-exact-version", "resourceVersionMatch=Exact lists what there was at that resourceVersion.")
async def test_exact(api: Client, ns: str) -> None:
    created = await api.create("secrets", ns, {"metadata": {"name": "one"}})
    await api.create("secrets", ns, {"metadata": {"name": "two"}})
    version = created["metadata"]["resourceVersion"]
    params = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    assert await api.names("secrets", ns, **params) == ["one"]
    params["resourceVersionMatch"] = "NotOlderThan"
    assert await api.names("secrets", ns, **params) == ["one", "two"]


@behaviour("version-match-needs-version", "resourceVersionMatch without a resourceVersion is refused.")
async def test_match_needs_version(api: Client, ns: str) -> None:
    answer = await api.send("GET", url("configmaps", ns), resourceVersionMatch="Exact")
    assert answer.status in (400, 422)
    assert "resourceVersionMatch" in answer.body["message"]


@behaviour("future-version-504", "A list not older than a version that is far ahead is answered 504: too large.")
async def test_future(api: Client, ns: str) -> None:
    version = (await api.ok("GET", url("configmaps", ns)))["metadata"]["resourceVersion"]
    params = {"resourceVersion": str(int(version) + 10**9), "resourceVersionMatch": "NotOlderThan"}
    status = await api.refused(504, "GET", url("configmaps", ns), **params)
    assert "Too large resource version" in status["message"]


@behaviour(
    "table", "Asked for a Table, lists and objects answer the columns of the kind, the custom ones of a definition."
)
async def test_table(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 7, "color": "red"}))
    table = await api.ok("GET", url(gadgets.resource, ns), accept=TABLE)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [(column["name"], column["type"], column["priority"]) for column in table["columnDefinitions"]]
    assert columns == [
        ("Name", "string", 0),
        ("Size", "integer", 0),
        ("Phase", "string", 0),
        ("Color", "string", 1),
        ("Age", "date", 0),
    ]
    row = table["rows"][0]
    assert row["cells"][:2] == ["one", 7]
    assert row["cells"][3] == "red"
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "one"
    one = await api.ok("GET", url(gadgets.resource, ns, "one"), accept=TABLE)
    assert [found["cells"][0] for found in one["rows"]] == ["one"]


@behaviour("pod-table", "A pod's Table row tells ready containers, status, restarts and age.")
async def test_pod_table(api: Client, ns: str) -> None:
    await api.create("pods", ns, pod("one", schedulerName="nobody"))
    table = await api.ok("GET", url("pods", ns), accept=TABLE)
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert table["rows"][0]["cells"][:4] == ["one", "0/1", "Pending", "0"]


@behaviour("partial-metadata", "Asked for PartialObjectMetadata, the server answers metadata only.")
async def test_partial(api: Client, ns: str) -> None:
    await api.create("configmaps", ns, config_map("one", {"a": "b"}))
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    found = await api.ok("GET", url("configmaps", ns, "one"), accept=accept)
    assert (found["kind"], found["metadata"]["name"]) == ("PartialObjectMetadata", "one")
    assert "data" not in found
