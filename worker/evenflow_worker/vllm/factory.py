"""Builds the scheduler that `--scheduler-cls evenflow_worker.vllm.make_scheduler` asks for."""

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from evenflow_contract import environment as env
from evenflow_worker.control.admin import AdminAccess
from evenflow_worker.vllm.control import ControlThread
from evenflow_worker.vllm.logs import join_vllm_log
from evenflow_worker.vllm.mixin import EvenflowScheduling
from evenflow_worker.vllm.names import TESTED_VERSIONS, missing_names
from evenflow_worker.vllm.queue import VolumeQueue
from evenflow_worker.vllm.reports import EngineReport

log = logging.getLogger(__name__)


def make_scheduler(vllm_config: Any, **kwargs: Any) -> Any:
    """vLLM's own scheduler, synchronous or asynchronous as it decided, steered by evenflow; its admin server started.

    If a name that we rely on is missing, or our part can't be set up, the stock scheduler comes back, loudly.
    """
    join_vllm_log()
    scheduler, reason = build_scheduler(vllm_config, **kwargs)
    try:
        _start_control(scheduler, vllm_config, reason)
    except Exception:
        log.exception("evenflow: no admin server; the engine runs with its default settings")
    return scheduler


def build_scheduler(vllm_config: Any, **kwargs: Any) -> tuple[Any, str | None]:
    """The scheduler without an admin server, and why it is the stock one if it is."""
    base = stock_class(bool(vllm_config.scheduler_config.async_scheduling))
    reason = _reason_against(base)
    if reason is None:
        steered = type(f"Evenflow{base.__name__}", (EvenflowScheduling, base), {"__module__": __name__})
        scheduler = steered(vllm_config=vllm_config, **kwargs)
        if isinstance(scheduler.evenflow, str):
            reason = scheduler.evenflow
    else:
        scheduler = base(vllm_config=vllm_config, **kwargs)
    if reason is not None:
        log.error("EVENFLOW IS OFF, stock scheduling runs: %s", reason)
    return scheduler, reason


def stock_class(asynchronous: bool) -> type[Any]:
    name = "AsyncScheduler" if asynchronous else "Scheduler"
    return _of_vllm(f"v1.core.sched.{'async_scheduler' if asynchronous else 'scheduler'}", name)


def vllm_version() -> str:
    try:
        return str(import_module("vllm").__version__)
    except (ImportError, AttributeError):
        return "unknown"


def _of_vllm(module: str, name: str) -> type[Any]:
    """Late, because a process that only wants the middleware, or the type checker, has no scheduler."""
    found: type[Any] = getattr(import_module(f"vllm.{module}"), name)
    return found


def _reason_against(base: type) -> str | None:
    try:
        request, queue = _of_vllm("v1.request", "Request"), _of_vllm("v1.core.sched.request_queue", "RequestQueue")
        missing = missing_names(base, request, queue, VolumeQueue)
    except Exception as error:
        return f"this vLLM cannot be checked: {error!r}"
    version = vllm_version()
    if missing:
        return f"vLLM {version} lacks {', '.join(missing)}"
    if not version.startswith(TESTED_VERSIONS):
        tested = ", ".join(known + "x" for known in TESTED_VERSIONS)
        log.warning("evenflow was tested with vLLM %s, not with %s; every name it needs is there", tested, version)
    return None


def _start_control(scheduler: Any, vllm_config: Any, reason: str | None) -> None:
    registry = CollectorRegistry()
    hooks = scheduler.evenflow if reason is None else None
    report = EngineReport(scheduler, registry, hooks, version=f"vLLM {vllm_version()}", stock_reason=reason)
    host = os.environ.get(env.ENV_ADMIN_HOST) or "127.0.0.1"
    port = int(os.environ.get(env.ENV_ADMIN_PORT) or env.ADMIN_PORT)
    # For dense models every engine's data_parallel_rank is 0; the index is what tells them apart.
    index = int(vllm_config.parallel_config.data_parallel_index)
    config = Path(os.environ.get(env.ENV_CONFIG) or env.DEFAULT_CONFIG_PATH)
    control = ControlThread(report, registry, AdminAccess.from_environment(host), port + index if port else 0, config)
    control.start()
    if hooks is not None:
        hooks.at_shutdown.append(control.stop)
        hooks.take_config()
