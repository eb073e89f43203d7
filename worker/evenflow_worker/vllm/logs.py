"""What the worker says appears in vLLM's log, in vLLM's form and at its level."""

import logging


def join_vllm_log() -> None:
    """vLLM configures only its own logger: without this our messages below WARNING would reach nobody."""
    ours, theirs = logging.getLogger("evenflow_worker"), logging.getLogger("vllm")
    if theirs.handlers and not ours.handlers:
        for handler in theirs.handlers:
            ours.addHandler(handler)
        ours.setLevel(theirs.level)
        ours.propagate = False
