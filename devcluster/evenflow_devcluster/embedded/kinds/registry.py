"""Which resources are served right now: the built-in ones and those of the installed definitions."""

from collections.abc import Iterable, Iterator, Mapping

from evenflow_devcluster.embedded.kinds.definitions import CRDS, DefinitionStrategy
from evenflow_devcluster.embedded.kinds.others import strategy_for
from evenflow_devcluster.embedded.kinds.resources import CelTwin, Resource, builtin_resources
from evenflow_devcluster.embedded.kinds.strategy import Strategy


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

    def strategy(self, resource: Resource) -> Strategy:
        found = self._strategies.get(resource)
        if found is None:
            defines = resource.qualified == CRDS
            found = DefinitionStrategy(resource, self._twins) if defines else strategy_for(resource)
            self._strategies[resource] = found
        return found

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
