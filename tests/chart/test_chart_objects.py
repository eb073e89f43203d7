"""What the chart renders: objects that Kubernetes knows, wired to each other and to the operator."""

import dataclasses
import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_values import ALL, EVERYTHING, MONITORING, NAMESPACED
from helm_tool import CHART, Helm, Objects, Refused

from evenflow_contract import environment, labels
from evenflow_operator.engine.lease import LeaseTimes
from evenflow_operator.settings import Settings, parse_settings

KUBERNETES = "1.37"
EXAMPLE = "mirror.example/evenflow@sha256:" + "0" * 64


@pytest.fixture(params=ALL)
def rendered(request: pytest.FixtureRequest, helm: Helm) -> Objects:
    values, options = ALL[request.param]
    return helm.template(values, *options)


def operator(objects: Objects) -> dict[str, Any]:
    return objects.the("Deployment")["spec"]["template"]["spec"]["containers"][0]


def settings(objects: Objects) -> Settings:
    """What the operator makes of the container's environment."""
    variables = {one["name"]: one.get("value", "10.0.0.1") for one in operator(objects)["env"]}
    return parse_settings([], variables)


def matches(selector: dict[str, str], found: dict[str, str]) -> bool:
    return selector.items() <= found.items()


@pytest.mark.parametrize("name", ALL)
def test_lint_is_content(helm: Helm, name: str) -> None:
    values, _ = ALL[name]
    # lint knows no --api-versions.
    switched_off = {"metrics": {"dashboard": {"enabled": True}}} if name == "everything" else {}
    helm.run("lint", "--strict", str(CHART), values={**values, **switched_off})


def test_names_that_yaml_would_read_as_numbers_or_words_stay_names(helm: Helm) -> None:
    values = {
        **NAMESPACED,
        "watchNamespaces": ["123", "null"],
        "adminTokenSecrets": [{"namespace": "123", "name": "456"}],
        "engineNetworkPolicy": {"enabled": True},
        "networkPolicy": {"enabled": True, "metricsFrom": [{"podSelector": {}}]},
        "prometheus": {"url": "http://prometheus:9090", "tokenSecret": {"name": "789", "key": "1"}},
        "serviceAccount": {"create": True, "name": "5"},
        "priorityClassName": "6",
    }
    objects = helm.template(values, "--namespace", "7", release="on")
    assert {one["metadata"].get("namespace") for one in objects} == {None, "7", "123", "null"}
    assert settings(objects).namespaces == ("123", "null")
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed yet; run make setup")
    for one in objects:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_objects_are_what_kubernetes_takes(rendered: Objects) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed yet; run make setup")
    for one in rendered:
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_names_are_unique_and_namespaces_are_said(rendered: Objects) -> None:
    keys = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in rendered]
    assert len(keys) == len(set(keys))
    unplaced = {kind for kind, namespace, _ in keys if namespace is None}
    cluster_scoped = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    assert unplaced - cluster_scoped <= {"ConfigMap"}, "extra objects alone"


def test_whoever_selects_the_operator_finds_it_and_nothing_else(rendered: Objects) -> None:
    deployment = rendered.the("Deployment")
    pod = deployment["spec"]["template"]["metadata"]["labels"]
    test = rendered.the("Pod")["metadata"]["labels"]
    selectors = [deployment["spec"]["selector"]["matchLabels"], rendered.the("Service")["spec"]["selector"]]
    for kind in ("PodDisruptionBudget", "ServiceMonitor"):
        selectors += [one["spec"]["selector"]["matchLabels"] for one in rendered.named(kind)]
    for constraint in deployment["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
        selectors.append(constraint["labelSelector"]["matchLabels"])
    for selector in selectors:
        assert matches(selector, pod)
        assert not matches(selector, test)
    assert matches(rendered.the("Service")["spec"]["selector"], pod)


def test_bindings_join_the_service_account_to_roles_of_the_chart(rendered: Objects) -> None:
    account = rendered.the("Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = [*rendered.named("ClusterRoleBinding"), *rendered.named("RoleBinding")]
    for binding in bindings:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "operators"}]
        role = binding["roleRef"]
        assert rendered.the(role["kind"], role["name"], binding["metadata"].get("namespace"))
    if rendered.named("ServiceAccount"):
        assert rendered.the("ServiceAccount")["metadata"]["name"] == account
        assert rendered.the("ServiceAccount")["automountServiceAccountToken"] is False


def test_probes_ask_the_port_that_the_operator_serves(rendered: Objects) -> None:
    container = operator(rendered)
    (port,) = container["ports"]
    assert port["containerPort"] == settings(rendered).metrics_port
    asked = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {get["port"] for get in asked.values()} == {port["name"]}
    assert (asked["livenessProbe"]["path"], asked["readinessProbe"]["path"]) == ("/healthz", "/readyz")
    assert rendered.the("Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    address = next(one for one in container["env"] if one["name"] == "EVENFLOW_HOST")
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_a_services_variables_are_kept_out(rendered: Objects) -> None:
    """Kubernetes would set EVENFLOW_…_PORT=tcp://… for a Service of the chart, which looks like a setting."""
    for pod in (rendered.the("Deployment")["spec"]["template"], rendered.the("Pod")):
        assert pod["spec"]["enableServiceLinks"] is False


def test_the_default_pod_is_restricted(helm: Helm) -> None:
    """By the Pod Security Standard of that name, and with a read-only root."""
    objects = helm.template()
    for pod in (objects.the("Deployment")["spec"]["template"]["spec"], objects.the("Pod")["spec"]):
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "cpu" not in container["resources"].get("limits", {})


def test_default_settings(helm: Helm) -> None:
    objects = helm.template()
    assert settings(objects) == Settings(
        lease_name="evenflow-operator",
        lease_namespace="operators",
        worker_image="evenflow:0.1.0",
        simulated_image="evenflow:0.1.0",
        host="10.0.0.1",
        metrics_port=8080,
        log_format="json",
    )
    assert operator(objects)["image"] == "evenflow:0.1.0"
    assert operator(objects)["command"] == ["evenflow", "operator"]
    # Without switches: nothing that needs more than Kubernetes, nothing that changes who may reach whom.
    assert {one["kind"] for one in objects} == {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "Deployment",
        "Pod",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    }


def test_every_setting_arrives(helm: Helm) -> None:
    objects = helm.template(EVERYTHING, *MONITORING)
    assert settings(objects) == Settings(
        lease_name="evenflow-operator",
        lease_namespace="operators",
        lease_times=LeaseTimes(30, 20, 4),
        prometheus_url="http://prometheus.monitoring:9090",
        prometheus_token_file=Path("/etc/evenflow-prometheus/token"),
        worker_image="mirror.example/worker:1",
        simulated_image="mirror.example/engine:2",
        admin_token_secrets=("team-a/admin",),
        host="10.0.0.1",
        metrics_port=9000,
        workers=8,
        watchdog_seconds=30,
        log_level="DEBUG",
    )
    deployment = objects.the("Deployment")
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["replicas"] == 3
    assert operator(objects)["image"] == objects.the("Pod")["spec"]["containers"][0]["image"] == EXAMPLE
    mounts = {one["name"]: one["mountPath"] for one in operator(objects)["volumeMounts"]}
    token = next(one for one in pod["spec"]["volumes"] if one["name"] == "prometheus-token")
    assert mounts["ca"] == "/etc/company"
    assert EVERYTHING["extraVolumes"][0] in pod["spec"]["volumes"]
    assert mounts["prometheus-token"] == "/etc/evenflow-prometheus"
    assert token["secret"] == {"secretName": "prometheus", "items": [{"key": "bearer", "path": "token"}]}
    for key in ("priorityClassName", "nodeSelector", "tolerations", "affinity", "imagePullSecrets"):
        assert pod["spec"][key] == EVERYTHING[key]
    # What isn't named keeps its default.
    assert pod["spec"]["securityContext"]["runAsUser"] == 1234
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert operator(objects)["resources"]["limits"]["memory"] == "2Gi"
    assert operator(objects)["resources"]["requests"]["cpu"] == "100m"
    assert pod["metadata"]["annotations"] == {"example.org/note": "x"}
    assert pod["metadata"]["labels"]["example.org/zone"] == "here"
    extra = {"evenflow-a", "evenflow-operator-b"}
    for one in objects:
        name = one["metadata"]["name"]
        assert name in extra or one["kind"] == "CustomResourceDefinition" or one["metadata"]["labels"]["team"]
    assert extra <= {one["metadata"]["name"] for one in objects}
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert objects.the(kind)["metadata"]["labels"]["release"] == "prometheus"
    assert objects.the("ServiceMonitor")["spec"]["endpoints"][0]["interval"] == "10s"
    assert objects.the("PodDisruptionBudget")["spec"]["maxUnavailable"] == "50%"


def test_labels_of_a_user_change_no_label_that_selectors_need(helm: Helm) -> None:
    own = {"app.kubernetes.io/name": "mine", "app.kubernetes.io/instance": "mine"}
    objects = helm.template({"commonLabels": own, "podLabels": own})
    deployment = objects.the("Deployment")
    assert matches(deployment["spec"]["selector"]["matchLabels"], deployment["spec"]["template"]["metadata"]["labels"])


def test_namespaces_that_are_watched(helm: Helm) -> None:
    objects = helm.template(NAMESPACED)
    found = settings(objects)
    assert found.namespaces == ("team-a", "team-b")
    assert not found.watch_nodes
    assert found.admin_write_open
    assert found.admin_token_secrets == ("team-a/admin", "team-a/spare", "team-b/admin")


def test_the_engines_policy_guards_the_admin_ports_and_nothing_else(helm: Helm) -> None:
    objects = helm.template(NAMESPACED)
    operators = objects.the("Deployment")["spec"]["template"]["metadata"]["labels"]
    policies = objects.named("NetworkPolicy")
    assert [policy["metadata"]["namespace"] for policy in policies] == ["team-a", "team-b"]
    for policy in policies:
        spec = policy["spec"]
        assert spec["podSelector"] == {"matchExpressions": [{"key": labels.POOL, "operator": "Exists"}]}
        requests, admin = spec["ingress"]
        assert requests == {"ports": [{"port": environment.ENGINE_PORT, "protocol": "TCP"}]}
        (ports,) = admin["ports"]
        assert ports["port"] == environment.ADMIN_PORT < ports["endPort"]
        who, more = admin["from"]
        assert who["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "operators"}}
        assert matches(who["podSelector"]["matchLabels"], operators)
        assert [more] == NAMESPACED["engineNetworkPolicy"]["adminFrom"]


def test_an_open_admin_port_without_a_policy_around_it_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match=r"engineNetworkPolicy\.enabled: needs watchNamespaces"):
        helm.template({"engineNetworkPolicy": {"enabled": True}})
    assert not settings(helm.template({"watchNamespaces": ["a"]})).admin_write_open


def test_the_operators_policy_lets_scrapers_and_the_test_in(helm: Helm) -> None:
    objects = helm.template(EVERYTHING, *MONITORING)
    spec = objects.the("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == EVERYTHING["networkPolicy"]["egress"]
    (ingress,) = spec["ingress"]
    assert ingress["from"][0] == EVERYTHING["networkPolicy"]["metricsFrom"][0]
    assert matches(ingress["from"][1]["podSelector"]["matchLabels"], objects.the("Pod")["metadata"]["labels"])
    anybody = helm.template({"networkPolicy": {"enabled": True}}).the("NetworkPolicy")["spec"]
    assert anybody["policyTypes"] == ["Ingress"]
    assert "from" not in anybody["ingress"][0]


@pytest.mark.parametrize("monitor", ["serviceMonitor", "podMonitor", "prometheusRule"])
def test_a_monitor_that_the_cluster_does_not_know_is_named(helm: Helm, monitor: str) -> None:
    with pytest.raises(Refused, match=rf"metrics\.{monitor}\.enabled: .*install the Prometheus Operator"):
        helm.template({"metrics": {monitor: {"enabled": True}}})


def test_engines_are_scraped_on_the_ports_that_their_pods_name(helm: Helm) -> None:
    for values, where in (
        (EVERYTHING, {"any": True}),
        ({**EVERYTHING, **NAMESPACED}, {"matchNames": ["team-a", "team-b"]}),
    ):
        spec = helm.template(values, *MONITORING).the("PodMonitor")["spec"]
        assert spec["namespaceSelector"] == where
        assert spec["selector"] == {"matchExpressions": [{"key": labels.POOL, "operator": "Exists"}]}
        names = [one["port"] for one in spec["podMetricsEndpoints"]]
        assert names == [environment.ENGINE_PORT_NAME, environment.ADMIN_PORT_NAME]


def test_a_pools_series_keep_its_namespace(helm: Helm) -> None:
    (endpoint,) = helm.template(EVERYTHING, *MONITORING).the("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True


def test_rules_and_dashboard_are_the_files(helm: Helm) -> None:
    objects = helm.template(EVERYTHING, *MONITORING)
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert objects.the("PrometheusRule")["spec"] == rules
    (dashboard,) = [one for one in objects.named("ConfigMap") if one["metadata"]["name"].endswith("dashboard")]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "yes"
    expected = json.loads((CHART / "files" / "dashboard.json").read_text())
    assert json.loads(dashboard["data"]["evenflow.json"]) == expected


@pytest.mark.parametrize("problem", [None, "the CRD is not installed"])
def test_the_test_passes_when_the_operator_is_ready(helm: Helm, problem: str | None) -> None:
    objects = helm.template()
    pod, service = objects.the("Pod"), objects.the("Service")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    asked = re.search(r'"http://([^:/]+):(\d+)/readyz"', container["args"][0])
    assert asked
    assert asked[1] == service["metadata"]["name"]
    assert int(asked[2]) == service["spec"]["ports"][0]["port"]

    class Readiness(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if problem else 200)
            self.end_headers()
            self.wfile.write(b"ready")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Readiness) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            script = container["args"][0].replace(f"{asked[1]}:{asked[2]}", f"127.0.0.1:{server.server_port}")
            command = [sys.executable, *container["command"][1:], script]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        finally:
            server.shutdown()
            thread.join()
    assert (done.returncode == 0, done.stdout) == ((True, "ready\n") if problem is None else (False, ""))


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("evenflow", {}, "evenflow-operator"),
        ("prod", {}, "prod-evenflow-operator"),
        ("prod", {"nameOverride": "ef"}, "prod-ef-operator"),
        ("prod", {"fullnameOverride": "serving"}, "serving-operator"),
        ("a" * 53, {}, "a" * 40 + "-operator"),
    ],
)
def test_names(helm: Helm, release: str, values: dict[str, Any], name: str) -> None:
    objects = helm.template(values, release=release)
    assert objects.the("Deployment")["metadata"]["name"] == name
    assert settings(objects).lease_name == name
    assert all(len(one["metadata"]["name"]) <= 63 for one in objects)
    # No flag is set by the default environment that this chart doesn't know of.
    assert dataclasses.replace(settings(objects), lease_name="x").leader_election
