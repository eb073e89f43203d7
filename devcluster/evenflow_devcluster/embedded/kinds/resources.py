"""The kinds the server knows: one `Resource` per served group, version and plural name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.schema.structural import Schema, builtin

CelTwin = Callable[[Object, Object | None], list[FieldError]]

METADATA_ONLY = Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_PATCHABLE = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a custom resource keeps its replicas; dotted paths as the CRD gives them."""

    spec_replicas: tuple[str, ...]
    status_replicas: tuple[str, ...]
    selector: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    path: str = ""
    description: str = ""
    priority: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    schema: Schema
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    generation: bool = False
    scale: Scale | None = None
    custom: bool = False
    columns: tuple[Column, ...] = ()
    twin: CelTwin | None = None
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra_subresources: Mapping[str, tuple[str, str, tuple[str, ...]]] = field(default_factory=dict)
    storage_version: str = ""

    @property
    def qualified(self) -> str:
        """`pods`, `leases.coordination.k8s.io`: the name in messages and the key in the store."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def decoding(self) -> Schema:
        """What the API server's own types are decoded by: all of a built-in kind, the metadata of a custom one."""
        return METADATA_ONLY if self.custom else self.schema

    @property
    def stored_api_version(self) -> str:
        version = self.storage_version or self.version
        return f"{self.group}/{version}" if self.group else version

    @property
    def list(self) -> str:
        return self.list_kind or f"{self.kind}List"

    @property
    def subresources(self) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        """Name -> (apiVersion, kind, verbs), in the order of their names."""
        found = dict(self.extra_subresources)
        if self.status:
            found["status"] = (self.api_version, self.kind, _PATCHABLE)
        if self.scale is not None:
            found["scale"] = ("autoscaling/v1", "Scale", _PATCHABLE)
        return dict(sorted(found.items()))

    def selectable(self) -> dict[str, tuple[str, ...]]:
        common: dict[str, tuple[str, ...]] = {"metadata.name": ("metadata", "name")}
        if self.namespaced:
            common["metadata.namespace"] = ("metadata", "namespace")
        return {**common, **self.fields}


def _paths(*labels: str) -> dict[str, tuple[str, ...]]:
    return {label: tuple(label.split(".")) for label in labels}


_CORE = "io.k8s.api.core.v1."
_EVENT_FIELDS = {
    **_paths(
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
        "reason", "reportingComponent", "type",
    ),
    "source": ("source", "component"),
}  # fmt: skip
_POD_FIELDS = _paths(
    "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
    "status.phase", "status.podIP", "status.nominatedNodeName",
)  # fmt: skip


def builtin_resources() -> tuple[Resource, ...]:
    def core(plural: str, kind: str, namespaced: bool = True, **more: Any) -> Resource:
        schema = builtin(_CORE + kind)
        return Resource("", "v1", plural, kind.lower(), kind, namespaced, schema, **more)

    def workload(plural: str, kind: str, short: str) -> Resource:
        scale = Scale(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))
        schema = builtin(f"io.k8s.api.apps.v1.{kind}")
        return Resource("apps", "v1", plural, kind.lower(), kind, True, schema, short_names=(short,),
                        categories=("all",), status=True, generation=True, scale=scale)  # fmt: skip

    def rbac(plural: str, kind: str, namespaced: bool) -> Resource:
        schema = builtin(f"io.k8s.api.rbac.v1.{kind}")
        return Resource("rbac.authorization.k8s.io", "v1", plural, kind.lower(), kind, namespaced, schema)

    return (
        core("namespaces", "Namespace", False, short_names=("ns",), status=True, fields=_paths("status.phase"),
             extra_subresources={"finalize": ("v1", "Namespace", ("update",))}),
        core("nodes", "Node", False, short_names=("no",), status=True, fields=_paths("spec.unschedulable")),
        core("pods", "Pod", short_names=("po",), categories=("all",), status=True, generation=True, fields=_POD_FIELDS,
             extra_subresources={
                 "binding": ("v1", "Binding", ("create",)),
                 "eviction": ("policy/v1", "Eviction", ("create",)),
                 "log": ("v1", "Pod", ("get",)),
             }),
        core("services", "Service", short_names=("svc",), categories=("all",), status=True,
             fields=_paths("spec.clusterIP", "spec.type")),
        core("configmaps", "ConfigMap", short_names=("cm",)),
        core("secrets", "Secret", fields=_paths("type")),
        core("events", "Event", short_names=("ev",), fields=_EVENT_FIELDS),
        core("serviceaccounts", "ServiceAccount", short_names=("sa",)),
        Resource("discovery.k8s.io", "v1", "endpointslices", "endpointslice", "EndpointSlice", True,
                 builtin("io.k8s.api.discovery.v1.EndpointSlice"), generation=True),
        Resource("coordination.k8s.io", "v1", "leases", "lease", "Lease", True,
                 builtin("io.k8s.api.coordination.v1.Lease")),
        Resource("policy", "v1", "poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget", True,
                 builtin("io.k8s.api.policy.v1.PodDisruptionBudget"), short_names=("pdb",), status=True,
                 generation=True),
        workload("deployments", "Deployment", "deploy"),
        workload("replicasets", "ReplicaSet", "rs"),
        Resource("networking.k8s.io", "v1", "networkpolicies", "networkpolicy", "NetworkPolicy", True,
                 builtin("io.k8s.api.networking.v1.NetworkPolicy"), short_names=("netpol",), generation=True),
        rbac("clusterroles", "ClusterRole", False),
        rbac("clusterrolebindings", "ClusterRoleBinding", False),
        rbac("roles", "Role", True),
        rbac("rolebindings", "RoleBinding", True),
        Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "customresourcedefinition",
                 "CustomResourceDefinition", False,
                 builtin("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"),
                 short_names=("crd", "crds"), categories=("api-extensions",), status=True, generation=True),
    )  # fmt: skip


# Kubernetes has these, this server doesn't: a request for one is answered 501, not 404.
ABSENT_KINDS = frozenset({
    "bindings", "componentstatuses", "endpoints", "limitranges", "persistentvolumeclaims", "persistentvolumes",
    "podtemplates", "replicationcontrollers", "resourcequotas", "controllerrevisions.apps", "daemonsets.apps",
    "statefulsets.apps", "ingressclasses.networking.k8s.io", "ingresses.networking.k8s.io",
    "ipaddresses.networking.k8s.io", "servicecidrs.networking.k8s.io",
})  # fmt: skip
ABSENT_GROUPS = frozenset({
    "admissionregistration.k8s.io", "apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
    "autoscaling", "batch", "certificates.k8s.io", "events.k8s.io", "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io", "node.k8s.io", "resource.k8s.io",
    "scheduling.k8s.io", "storage.k8s.io", "storagemigration.k8s.io",
})  # fmt: skip
ABSENT_SUBRESOURCES = frozenset({
    "attach", "ephemeralcontainers", "exec", "portforward", "proxy", "resize", "token",
})  # fmt: skip
