"""A real scheduler with our worker in charge, on a clock that the test moves."""

from pathlib import Path
from typing import Any

from vllm_kit import Engine, make_engine

from evenflow_contract.worker_config import ClassPrior, WorkerConfig
from evenflow_worker.vllm.events import HookFailed

SVF = WorkerConfig(
    generation=1,
    aging_seconds=0.0,
    classes=("short", "long"),
    class_priors={"short": ClassPrior(10, 5), "long": ClassPrior(10, 50)},
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def engine(model: Path, config: WorkerConfig = SVF, **options: Any) -> Engine:
    made = make_engine(model, clock=options.pop("clock", Clock()), **options)
    apply(made, config)
    return made


def apply(made: Engine, config: WorkerConfig) -> None:
    made.scheduler.evenflow.steering.offer(config)
    made.scheduler.evenflow.take_config()


def running(made: Engine) -> list[str]:
    return [request.request_id for request in made.scheduler.running]


def waiting(made: Engine) -> list[str]:
    return [request.request_id for request in made.scheduler.waiting]


def no_hook_failed(made: Engine) -> None:
    assert not [event for event in made.scheduler.evenflow.steering.events if isinstance(event, HookFailed)]
