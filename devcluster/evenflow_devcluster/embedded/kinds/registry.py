"""Which resources are served right now, built in or defined by an installed definition, and their strategies."""

from collections.abc import Iterable, Iterator, Mapping

from evenflow_devcluster.embedded.kinds.access import BindingStrategy, NetworkPolicyStrategy, RoleStrategy
from evenflow_devcluster.embedded.kinds.budgets import BUDGETS, DisruptionBudgetStrategy
from evenflow_devcluster.embedded.kinds.definitions import CRDS, DefinitionStrategy
from evenflow_devcluster.embedded.kinds.pods import PodStrategy
from evenflow_devcluster.embedded.kinds.resources import CelTwin, Resource, builtin_resources
from evenflow_devcluster.embedded.kinds.services import ServiceStrategy
from evenflow_devcluster.embedded.kinds.simple import (
    DataStrategy,
    EndpointSliceStrategy,
    EventStrategy,
    LeaseStrategy,
    NamespaceStrategy,
    NodeStrategy,
)
from evenflow_devcluster.embedded.kinds.strategy import CustomStrategy, Strategy
from evenflow_devcluster.embedded.kinds.workloads import (
    DEPLOYMENTS,
    REPLICA_SETS,
    DeploymentStrategy,
    ReplicaSetStrategy,
)

_STRATEGIES: dict[str, type[Strategy]] = {
    "namespaces": NamespaceStrategy,
    "nodes": NodeStrategy,
    "pods": PodStrategy,
    "services": ServiceStrategy,
    "configmaps": DataStrategy,
    "secrets": DataStrategy,
    "events": EventStrategy,
    "endpointslices.discovery.k8s.io": EndpointSliceStrategy,
    "leases.coordination.k8s.io": LeaseStrategy,
    BUDGETS: DisruptionBudgetStrategy,
    DEPLOYMENTS: DeploymentStrategy,
    REPLICA_SETS: ReplicaSetStrategy,
    "networkpolicies.networking.k8s.io": NetworkPolicyStrategy,
    "clusterroles.rbac.authorization.k8s.io": RoleStrategy,
    "clusterrolebindings.rbac.authorization.k8s.io": BindingStrategy,
    "roles.rbac.authorization.k8s.io": RoleStrategy,
    "rolebindings.rbac.authorization.k8s.io": BindingStrategy,
}


class Registry:
    def __init__(self, twins: Mapping[str, CelTwin]) -> None:
        self._twins = twins
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self._stored: dict[str, Resource] = {}
        self._strategies: dict[Resource, Strategy] = {}
        self.generation = 0
        """Grows with every change; lets discovery and OpenAPI documents be cached."""
        for resource in builtin_resources():
            self._add(resource)

    def _add(self, resource: Resource) -> None:
        self._by_path[(resource.group, resource.version, resource.plural)] = resource
        if not resource.storage_version or resource.storage_version == resource.version:
            self._stored[resource.qualified] = resource
        else:
            self._stored.setdefault(resource.qualified, resource)

    def install(self, qualified: str, resources: Iterable[Resource]) -> None:
        """Replace what `qualified` (plural.group) serves; an empty list withdraws it."""
        for path in [path for path, known in self._by_path.items() if known.qualified == qualified]:
            known = self._by_path.pop(path)
            self._strategies.pop(known, None)
        self._stored.pop(qualified, None)
        for resource in resources:
            self._add(resource)
        self.generation += 1

    def clash(self, qualified: str, resources: Iterable[Resource]) -> str | None:
        """Why the names of a definition can't be accepted: another resource of its group has them."""
        for resource in resources:
            wanted = {resource.plural, resource.singular, *resource.short_names}
            for known in self._by_path.values():
                if known.group != resource.group or known.qualified == qualified:
                    continue
                taken = wanted & {known.plural, known.singular, *known.short_names}
                if taken:
                    return f'"{min(taken)}" is already in use'
                if resource.kind == known.kind:
                    return f'"{resource.kind}" is already in use'
        return None

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def named(self, qualified: str) -> Resource | None:
        """The storage version of `pods`, `leases.coordination.k8s.io`."""
        return self._stored.get(qualified)

    def builtin(self, qualified: str) -> Resource:
        """One of Kubernetes' own resources, which are always served. Raises KeyError for any other name."""
        return self._stored[qualified]

    def strategy(self, resource: Resource) -> Strategy:
        found = self._strategies.get(resource)
        if found is None:
            found = self._strategies[resource] = self._new_strategy(resource)
        return found

    def _new_strategy(self, resource: Resource) -> Strategy:
        if resource.custom:
            return CustomStrategy(resource)
        if resource.qualified == CRDS:
            return DefinitionStrategy(resource, self._twins)
        return _STRATEGIES.get(resource.qualified, Strategy)(resource)

    def all(self) -> Iterator[Resource]:
        yield from self._by_path.values()

    def stored(self) -> list[Resource]:
        return list(self._stored.values())

    def groups(self) -> dict[str, list[str]]:
        """Group -> versions, both in the order of installation."""
        found: dict[str, list[str]] = {}
        for resource in self._by_path.values():
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        return found
