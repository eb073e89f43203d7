"""What a user does with kubectl, and what kubectl shows."""

import asyncio
import json

from suite_behaviours import behaviour
from suite_client import Client, url
from suite_kubectl import Kubectl
from suite_objects import Gadgets, add_node, config_map, owner, pod, unique


@behaviour("kubectl-version", "`kubectl version` finds server and client compatible.")
async def test_version(kubectl: Kubectl) -> None:
    found = json.loads(await kubectl("version", "-o", "json"))
    assert found["serverVersion"]["minor"].startswith("37")


@behaviour(
    "kubectl-get-table",
    "`kubectl get` prints the custom columns, by plural, singular and short name; -o wide adds more.",
)
async def test_get(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 7, "color": "red"}))
    header, row = (await kubectl("get", gadgets.resource)).splitlines()
    assert header.split() == ["NAME", "SIZE", "PHASE", "AGE"]
    assert row.split()[:2] == ["one", "7"]
    assert "red" in await kubectl("get", gadgets.short_name, "-o", "wide")
    assert "red" not in await kubectl("get", gadgets.short_name)
    assert "one" in await kubectl("get", gadgets.category)


@behaviour("kubectl-get-output", "`kubectl get -o` name, json, yaml, jsonpath and custom-columns, and with selectors.")
async def test_output(api: Client, kubectl: Kubectl, ns: str) -> None:
    for name, tier in (("one", "front"), ("two", "back")):
        await api.create("configmaps", ns, config_map(name, {"k": name}, labels={"tier": tier}))
    assert await kubectl("get", "cm", "-l", "tier", "-o", "name") == "configmap/one\nconfigmap/two\n"
    assert await kubectl("get", "cm", "one", "-o", "jsonpath={.data.k}") == "one"
    assert (await kubectl("get", "cm", "-l", "tier=back", "-o", "custom-columns=N:.metadata.name")).split() == [
        "N",
        "two",
    ]
    assert json.loads(await kubectl("get", "cm", "one", "-o", "json"))["data"] == {"k": "one"}
    assert "k: two" in await kubectl("get", "cm", "--field-selector=metadata.name=two", "-o", "yaml")
    assert "(NotFound)" in await kubectl.fails("get", "cm", "three")


@behaviour(
    "kubectl-get-pods", "`kubectl get pods` prints READY, STATUS, RESTARTS; a deleted one on a node is Terminating."
)
async def test_get_pods(api: Client, kubectl: Kubectl, ns: str) -> None:
    await api.create("pods", ns, pod("one", nodeName="contract-nowhere"))
    header, row = (await kubectl("get", "pods")).splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["one", "0/1", "Pending", "0"]
    assert {"IP", "NODE"} <= set((await kubectl("get", "pods", "-o", "wide")).split())
    await kubectl("delete", "pod", "one", "--wait=false")
    assert "Terminating" in await kubectl("get", "pods")
    await kubectl("delete", "pod", "one", "--grace-period=0", "--force")
    assert await kubectl("get", "pods", "-o", "name") == ""


@behaviour("kubectl-get-watch", "`kubectl get -w` shows what is there and then each change.")
async def test_get_watch(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 7}))
    async with kubectl.running("get", gadgets.resource, "-w", "--output-watch-events") as output, asyncio.timeout(20):
        assert b"EVENT" in await output.readline()
        assert (await output.readline()).split()[:3] == [b"ADDED", b"one", b"7"]
        await api.patch(gadgets.resource, ns, "one", {"spec": {"size": 8}})
        assert (await output.readline()).split()[:3] == [b"MODIFIED", b"one", b"8"]
        await api.delete(gadgets.resource, ns, "one")
        assert (await output.readline()).split()[:3] == [b"DELETED", b"one", b"8"]


@behaviour("kubectl-describe", "`kubectl describe` shows a custom resource's fields and its Events.")
async def test_describe(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 7}))
    involved = {key: created["metadata"][key] for key in ("name", "namespace", "uid")}
    event = {
        "metadata": {"generateName": "one."},
        "involvedObject": {"apiVersion": gadgets.api_version, "kind": "Gadget", **involved},
        "type": "Normal",
        "reason": "CapLowered",
        "message": "cap lowered to 0.8",
        "source": {"component": "suite"},
        "firstTimestamp": created["metadata"]["creationTimestamp"],
        "lastTimestamp": created["metadata"]["creationTimestamp"],
        "count": 3,
    }
    await api.create("events", ns, event)
    told = await kubectl("describe", gadgets.resource, "one")
    assert "Size:" in told
    assert "CapLowered" in told
    assert "cap lowered to 0.8" in told
    assert "CapLowered" in await kubectl("events", "--for", f"{gadgets.resource}/one")


@behaviour("kubectl-describe-pod", "`kubectl describe pod` shows node, conditions and the scheduler's Events.")
async def test_describe_pod(api: Client, kubectl: Kubectl, ns: str, node_labels: dict[str, str]) -> None:
    node = unique("contract")
    await add_node(api, node, node_labels)
    await api.create("pods", ns, pod("one", nodeSelector=node_labels))
    await api.settled("pods", ns, "one", lambda found: found["spec"].get("nodeName"))
    told = await kubectl("describe", "pod", "one")
    assert "PodScheduled" in told
    assert f"Successfully assigned {ns}/one to {node}" in told
    assert "nodes are available" not in told
    assert node in await kubectl("describe", "node", node)


@behaviour(
    "kubectl-explain",
    "`kubectl explain` knows built-in fields with their types, and custom ones with their descriptions as well.",
)
async def test_explain(kubectl: Kubectl, gadgets: Gadgets) -> None:
    told = await kubectl("explain", f"{gadgets.resource}.spec.color")
    assert "What colour the gadget has." in told
    assert "<string>" in told
    assert "parts" in await kubectl("explain", f"{gadgets.resource}.spec")
    assert "containerPort" in await kubectl("explain", "pods.spec.containers.ports")


@behaviour("kubectl-api-resources", "`kubectl api-resources` lists the custom kind with short name and scope.")
async def test_api_resources(kubectl: Kubectl, gadgets: Gadgets) -> None:
    row = await kubectl("api-resources", f"--api-group={gadgets.group}", "--no-headers")
    assert row.split() == ["gadgets", gadgets.short_name, gadgets.api_version, "true", "Gadget"]


@behaviour(
    "kubectl-apply", "`kubectl apply` creates, reports unchanged, configures, and removes fields left out since."
)
async def test_apply(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    body = gadgets.make("one", {"size": 7, "code": "abc"})
    assert "created" in await kubectl("apply", "-f", "-", manifest=body)
    assert "unchanged" in await kubectl("apply", "-f", "-", manifest=body)
    del body["spec"]["code"]
    body["spec"]["size"] = 8
    assert "configured" in await kubectl("apply", "-f", "-", manifest=body)
    spec = (await api.get(gadgets.resource, ns, "one"))["spec"]
    assert spec["size"] == 8
    assert "code" not in spec


@behaviour("kubectl-apply-built-in", "`kubectl apply` merges built-in lists by key: others' containers and ports stay.")
async def test_apply_built_in(api: Client, kubectl: Kubectl, ns: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "one"},
        "spec": {"selector": {"app": "x"}, "ports": [{"name": "a", "port": 1000}, {"name": "b", "port": 2000}]},
    }
    await kubectl("apply", "-f", "-", manifest=body)
    other = {"spec": {"ports": [{"name": "c", "port": 3000}]}}
    await kubectl("patch", "service", "one", "-p", json.dumps(other))
    body["spec"] = {"selector": {"app": "y"}, "ports": [{"name": "a", "port": 1000}]}
    await kubectl("apply", "-f", "-", manifest=body)
    spec = (await api.get("services", ns, "one"))["spec"]
    assert spec["selector"] == {"app": "y"}
    assert sorted(port["name"] for port in spec["ports"]) == ["a", "c"]


@behaviour("kubectl-apply-strict", "`kubectl apply` refuses unknown fields and wrong types, naming the field.")
async def test_apply_strict(kubectl: Kubectl, gadgets: Gadgets) -> None:
    assert 'unknown field "spec.bogus"' in await kubectl.fails(
        "apply", "-f", "-", manifest=gadgets.make("a", {"bogus": 1})
    )
    assert "spec.size" in await kubectl.fails("apply", "-f", "-", manifest=gadgets.make("a", {"size": 1000}))


@behaviour(
    "kubectl-apply-server-side",
    "`kubectl apply --server-side` reports conflicts by manager; --force-conflicts takes over.",
)
async def test_apply_server_side(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    apply = ("apply", "--server-side", "-f", "-", "--field-manager")
    body = gadgets.make("one", {"size": 7})
    assert "serverside-applied" in await kubectl(*apply, "anna", manifest=body)
    body["spec"]["size"] = 8
    told = await kubectl.fails(*apply, "ben", manifest=body)
    assert 'conflict with "anna"' in told
    assert ".spec.size" in told
    await kubectl(*apply, "ben", "--force-conflicts", manifest=body)
    assert (await api.get(gadgets.resource, ns, "one"))["spec"]["size"] == 8


@behaviour("kubectl-diff", "`kubectl diff` shows what apply would change, and ends with 1 only if there is something.")
async def test_diff(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    body = gadgets.make("one", {"size": 7})
    await kubectl("apply", "-f", "-", manifest=body)
    assert await kubectl("diff", "-f", "-", manifest=body) == ""
    body["spec"]["size"] = 8
    code, output, _ = await kubectl.attempt("diff", "-f", "-", manifest=body)
    assert code == 1
    assert "+  size: 8" in output
    assert (await api.get(gadgets.resource, ns, "one"))["spec"]["size"] == 7


@behaviour("kubectl-create-replace", "`kubectl create` (also generateName) and `kubectl replace` work.")
async def test_create_replace(api: Client, kubectl: Kubectl, ns: str) -> None:
    body = config_map("one", {"a": "1"})
    await kubectl("create", "-f", "-", manifest=body)
    assert "(AlreadyExists)" in await kubectl.fails("create", "-f", "-", manifest=body)
    await kubectl("replace", "-f", "-", manifest=config_map("one", {"a": "2"}))
    assert (await api.get("configmaps", ns, "one"))["data"] == {"a": "2"}
    generated = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}
    assert (await kubectl("create", "-f", "-", "-o", "name", manifest=generated)).startswith("configmap/made-")


@behaviour("kubectl-patch", "`kubectl patch` with merge, JSON and strategic types, and --subresource=status.")
async def test_patch(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    patch = ("patch", gadgets.resource, "one")
    await kubectl(*patch, "--type=merge", "-p", '{"spec":{"size":5}}')
    await kubectl(*patch, "--type=json", "-p", '[{"op":"add","path":"/spec/code","value":"abc"}]')
    await kubectl(*patch, "--type=merge", "--subresource=status", "-p", '{"status":{"phase":"Up"}}')
    found = await api.get(gadgets.resource, ns, "one")
    assert (found["spec"]["size"], found["spec"]["code"], found["status"]["phase"]) == (5, "abc", "Up")
    assert "no change" in await kubectl(*patch, "--type=merge", "-p", '{"spec":{"size":5}}')


@behaviour("kubectl-label-annotate", "`kubectl label` and `kubectl annotate` add, overwrite on request, and remove.")
async def test_label(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    await kubectl("label", gadgets.resource, "one", "a=1", "b=2")
    await kubectl.fails("label", gadgets.resource, "one", "a=3")
    await kubectl("label", gadgets.resource, "one", "a=3", "b-", "--overwrite")
    await kubectl("annotate", gadgets.resource, "--all", "note=hello")
    metadata = (await api.get(gadgets.resource, ns, "one"))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"a": "3"}, {"note": "hello"})


@behaviour(
    "kubectl-scale", "`kubectl scale` writes spec.replicas of a custom resource, and --current-replicas is checked."
)
async def test_scale(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"replicas": 1}))
    await kubectl("scale", gadgets.resource, "one", "--replicas=4")
    assert (await api.get(gadgets.resource, ns, "one"))["spec"]["replicas"] == 4
    await kubectl.fails("scale", gadgets.resource, "one", "--replicas=5", "--current-replicas=3")
    assert (await api.get(gadgets.resource, ns, "one"))["spec"]["replicas"] == 4


@behaviour("kubectl-wait", "`kubectl wait` for a condition, a jsonpath value and a deletion ends when it comes true.")
async def test_wait(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    target = f"{gadgets.resource}/one"
    condition = asyncio.create_task(kubectl("wait", "--for=condition=Ready", target, "--timeout=15s"))
    ready = {"status": {"phase": "Up", "conditions": [{"type": "Ready", "status": "True"}]}}
    await api.patch(gadgets.resource, ns, "one", ready, sub="status")
    assert "condition met" in await condition
    assert "condition met" in await kubectl("wait", "--for=jsonpath={.status.phase}=Up", target, "--timeout=15s")
    await kubectl.fails("wait", "--for=condition=Broken", target, "--timeout=1s")
    gone = asyncio.create_task(kubectl("wait", "--for=delete", target, "--timeout=15s"))
    await api.delete(gadgets.resource, ns, "one")
    await gone


@behaviour("kubectl-delete", "`kubectl delete` by name, label and file waits until the objects are gone.")
async def test_delete(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    for name in ("one", "two", "three"):
        await api.create(gadgets.resource, ns, gadgets.make(name, metadata={"labels": {"n": name}}))
    await kubectl("delete", gadgets.resource, "one")
    await kubectl("delete", gadgets.resource, "-l", "n=two")
    await kubectl("delete", "-f", "-", manifest=gadgets.make("three"))
    assert await api.names(gadgets.resource, ns) == []
    assert "(NotFound)" in await kubectl.fails("delete", gadgets.resource, "one")
    await kubectl("delete", gadgets.resource, "one", "--ignore-not-found")


@behaviour("kubectl-dry-run", "`kubectl apply --dry-run=server` validates and prints, and stores nothing.")
async def test_dry_run(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    arguments = ("apply", "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.size}")
    assert await kubectl(*arguments, manifest=gadgets.make("one")) == "1"
    await kubectl.fails(*arguments, manifest=gadgets.make("one", {"size": 1000}))
    assert not await api.exists(gadgets.resource, ns, "one")


@behaviour("kubectl-nodes", "`kubectl get nodes`, `cordon`, `uncordon` and `taint` work on a node.")
async def test_nodes(api: Client, kubectl: Kubectl, node_labels: dict[str, str]) -> None:
    name = unique("contract")
    await add_node(api, name, node_labels)
    assert (await kubectl("get", "node", name, "--no-headers")).split()[:2] == [name, "Ready"]
    await kubectl("cordon", name)
    assert "SchedulingDisabled" in await kubectl("get", "node", name)
    await kubectl("uncordon", name)
    await kubectl("taint", "node", name, "gpu=yes:NoSchedule")
    taints = (await api.get("nodes", None, name))["spec"]["taints"]
    assert ("gpu", "yes", "NoSchedule") in [(one["key"], one.get("value"), one["effect"]) for one in taints]


@behaviour("kubectl-drain", "`kubectl drain` evicts a node's pods that have a controller.")
async def test_drain(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str, node_labels: dict[str, str]) -> None:
    name = unique("contract")
    await add_node(api, name, node_labels)
    parent = await api.create(gadgets.resource, ns, gadgets.make("parent"))
    reference = {"apiVersion": gadgets.api_version, "kind": "Gadget", "controller": True}
    reference |= {key: parent["metadata"][key] for key in ("name", "uid")}
    await api.create("pods", ns, pod("one", nodeName=name, metadata={"ownerReferences": [reference]}))
    draining = asyncio.create_task(kubectl("drain", name, "--timeout=15s"))
    await api.settled("pods", ns, "one", lambda found: found["metadata"].get("deletionTimestamp"))
    await api.delete("pods", ns, "one", {"gracePeriodSeconds": 0})
    assert "drained" in await draining


@behaviour("kubectl-get-all-namespaces", "`kubectl get -A` shows the namespace of each object.")
async def test_all_namespaces(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    header, *rows = (await kubectl("get", gadgets.resource, "-A")).splitlines()
    assert header.split()[:2] == ["NAMESPACE", "NAME"]
    assert [ns, "one"] in [row.split()[:2] for row in rows]


@behaviour("kubectl-edit", "`kubectl edit` opens the object in an editor and applies what was changed.")
async def test_edit(api: Client, kubectl: Kubectl, gadgets: Gadgets, ns: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 7}))
    assert "edited" in await kubectl("edit", gadgets.resource, "one", editor="sed -i s/size:.7/size:\\ 8/")
    assert (await api.get(gadgets.resource, ns, "one"))["spec"]["size"] == 8


@behaviour("kubectl-cascade", "`kubectl delete --cascade` orphan keeps the dependents, foreground waits for them.")
async def test_cascade(api: Client, kubectl: Kubectl, ns: str) -> None:
    for cascade, left in (("orphan", ["child"]), ("foreground", [])):
        parent = await api.create("configmaps", ns, config_map("parent"))
        reference = owner("v1", "ConfigMap", parent, blockOwnerDeletion=True)
        await api.create("secrets", ns, {"metadata": {"name": "child", "ownerReferences": [reference]}})
        await kubectl("delete", "configmap", "parent", f"--cascade={cascade}")
        assert await api.names("secrets", ns) == left
        await api.ok("DELETE", url("secrets", ns))


@behaviour("kubectl-pods-watch", "`kubectl get pods -w` follows a pod's status.")
async def test_pods_watch(api: Client, kubectl: Kubectl, ns: str) -> None:
    await api.create("pods", ns, pod("one", schedulerName="nobody"))
    async with kubectl.running("get", "pods", "-w", "--no-headers") as output, asyncio.timeout(20):
        assert (await output.readline()).split()[:3] == [b"one", b"0/1", b"Pending"]
        status = {"name": "main", "ready": True, "restartCount": 2, "image": "i", "imageID": "", "started": True}
        running = {"phase": "Running", "containerStatuses": [{**status, "state": {"running": {}}}]}
        await api.patch("pods", ns, "one", {"status": running}, sub="status")
        assert (await output.readline()).split()[:4] == [b"one", b"1/1", b"Running", b"2"]
