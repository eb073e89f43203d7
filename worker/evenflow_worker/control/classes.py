"""Which traffic class a request counts under, and whether it came to the right engine (docs/design.md §6.6)."""

from dataclasses import dataclass

from evenflow_contract.names import DEFAULT_CLASS
from evenflow_contract.worker_config import WorkerConfig


@dataclass(frozen=True, slots=True)
class Route:
    """`misrouted`: serve the request all the same, answer `Connection: close`, count it."""

    traffic_class: str
    misrouted: bool


def listed(config: WorkerConfig, name: str | None) -> str:
    """The class itself if the config lists it, else `default`: labels never carry another name."""
    return name if name is not None and name in config.classes else DEFAULT_CLASS


def exported_classes(config: WorkerConfig) -> tuple[str, ...]:
    """Every class that metrics and states may name."""
    if DEFAULT_CLASS in config.classes:
        return config.classes
    return (*config.classes, DEFAULT_CLASS)


def route(config: WorkerConfig, name: str | None) -> Route:
    """Without an operator (generation 0) nothing was placed, so nothing can be misrouted. Class `default` is served by
    every engine, so it is misrouted only while draining."""
    wrong = name is not None and name != DEFAULT_CLASS and name not in config.classes
    return Route(listed(config, name), config.draining or (wrong and config.generation > 0))
