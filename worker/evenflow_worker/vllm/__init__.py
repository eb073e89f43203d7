"""Evenflow inside vLLM: `--scheduler-cls evenflow_worker.vllm.make_scheduler` and
`--middleware evenflow_worker.vllm.TrafficClassMiddleware`. Nothing of vLLM is imported before it asks for it."""

from typing import Any

from evenflow_worker.vllm.middleware import TrafficClassMiddleware

__all__ = ["TrafficClassMiddleware", "make_scheduler"]


def make_scheduler(vllm_config: Any, **kwargs: Any) -> Any:
    """See factory.make_scheduler. The API server loads this package for its middleware alone and needs no scheduler."""
    from evenflow_worker.vllm import factory

    return factory.make_scheduler(vllm_config, **kwargs)
