"""Fault injection: the API answers errors, answers late, or loses watches, as told. Seeded, so that it repeats."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from evenflow_devcluster.embedded.errors import StatusError, bad_request

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the requests that match. Empty matchers match everything.

    `resources` are qualified names (`pods`, `leases.coordination.k8s.io`), with `/status` for a subresource; `count` is
    how often the rule acts (None: always), `probability` how likely each time, `latency` in seconds, `status` the HTTP
    status to answer instead of doing anything (None: only delay), `retry_after` in seconds.
    """

    verbs: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    user_agents: tuple[str, ...] = ()
    count: int | None = None
    probability: float = 1.0
    latency: float = 0.0
    status: int | None = None
    retry_after: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (
            ("count", int),
            ("status", int),
            ("retry_after", int),
            ("probability", float),
            ("latency", float),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (int, kind)):
                raise bad_request(f"{name}: {value!r} is not a number")
        if self.status is not None and self.status not in _REASONS:
            raise bad_request(f"status: {self.status} is none of {sorted(_REASONS)}")
        if not 0 <= self.probability <= 1:
            raise bad_request(f"probability: {self.probability} is not between 0 and 1")
        if not 0 <= self.latency <= 3600:
            raise bad_request(f"latency: {self.latency} s is not between 0 and 3600")

    def matches(self, verb: str, resource: str, namespace: str, name: str, user_agent: str) -> bool:
        return (
            _matches(self.verbs, verb)
            and _matches(self.resources, resource)
            and _matches(self.namespaces, namespace)
            and _matches(self.names, name)
            and (not self.user_agents or any(user_agent.startswith(prefix) for prefix in self.user_agents))
        )


def _matches(allowed: tuple[str, ...], value: str) -> bool:
    return not allowed or value in allowed


class Faults:
    """The rules in force. `end_watches` and `forget` are the server's hands on its watches and its history."""

    def __init__(
        self, rng: random.Random, end_watches: Callable[[str | None], None], forget: Callable[[str | None], None]
    ) -> None:
        self._rng = rng
        self._end_watches = end_watches
        self._forget = forget
        self._rules: list[tuple[Fault, list[int]]] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.acted = 0
        """How often a rule has acted."""

    def add(self, fault: Fault) -> None:
        self._rules.append((fault, [0]))

    def clear(self) -> None:
        """Forget all rules and let stalled watches flow."""
        self._rules.clear()
        self._flowing.set()

    def drop_watches(self, resource: str | None = None) -> None:
        """End the open watches of a resource (all without one); clients have to reconnect."""
        self._end_watches(resource)

    def stall_watches(self) -> None:
        """Watches stay open and say nothing, not even bookmarks, until `resume_watches`."""
        self._flowing.clear()

    def resume_watches(self) -> None:
        self._flowing.set()

    def forget_history(self, resource: str | None = None) -> None:
        """A watch or a continued list from before now is answered 410."""
        self._forget(resource)

    @property
    def stalled(self) -> bool:
        return not self._flowing.is_set()

    async def flowing(self, timeout: float) -> bool:
        """Wait until watches may send, at most `timeout` seconds."""
        if self._flowing.is_set():
            return True
        try:
            await asyncio.wait_for(self._flowing.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def choose(self, verb: str, resource: str, namespace: str, name: str, user_agent: str) -> Fault | None:
        """The rule that acts on this request, counted as used."""
        for fault, used in self._rules:
            if fault.count is not None and used[0] >= fault.count:
                continue
            if not fault.matches(verb, resource, namespace, name, user_agent):
                continue
            if fault.probability < 1 and self._rng.random() >= fault.probability:
                continue
            used[0] += 1
            self.acted += 1
            return fault
        return None

    async def strike(self, verb: str, resource: str, namespace: str, name: str, user_agent: str) -> None:
        """Delay the request or raise the error that a rule has for it."""
        if not self._rules:
            return
        fault = self.choose(verb, resource, namespace, name, user_agent)
        if fault is None:
            return
        if fault.latency:
            await asyncio.sleep(fault.latency)
        if fault.status is not None:
            message = f"injected fault: {fault.status} for {verb} {resource}"
            raise StatusError(fault.status, _REASONS[fault.status], message, retry_after=fault.retry_after)

    def configure(self, document: Mapping[str, Any]) -> None:
        """The document of `PUT /_faults`: replaces all rules. Raises 400 naming what it doesn't understand.

        `{"rules": [{"verbs": ["patch"], "resources": ["pods"], "status": 409, "count": 3}], "stallWatches": false,
        "dropWatches": ["pods"], "forgetHistory": ["*"]}`
        """
        known = {"rules", "stallWatches", "dropWatches", "forgetHistory"}
        if unknown := sorted(set(document) - known):
            raise bad_request(f"unknown fields {unknown}: a fault document has {sorted(known)}")
        rules = [_fault(rule) for rule in document.get("rules") or ()]
        self.clear()
        for rule in rules:
            self.add(rule)
        if document.get("stallWatches"):
            self.stall_watches()
        for resource in document.get("forgetHistory") or ():
            self.forget_history(None if resource == "*" else str(resource))
        for resource in document.get("dropWatches") or ():
            self.drop_watches(None if resource == "*" else str(resource))


def _fault(rule: Any) -> Fault:
    names = {"retryAfterSeconds": "retry_after", "latencySeconds": "latency", "userAgents": "user_agents"}
    if not isinstance(rule, Mapping):
        raise bad_request(f"a rule is an object, not {rule!r}")
    values: dict[str, Any] = {}
    known = {field.name for field in fields(Fault)}
    for key, value in rule.items():
        name = names.get(key, key)
        if name not in known:
            raise bad_request(f"rules: unknown field {key!r}")
        values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return Fault(**values)
    except TypeError as error:
        raise bad_request(f"rules: {error}") from None
