"""What is laid over vLLM's scheduler classes: thin overrides, each of which calls vLLM's method exactly once.

vLLM's code stays as it is: the waiting queue is replaced, the running list is sorted before a pass, and the queue says
"empty" during a pass when the next request may not enter yet. Everything of ours is behind one attribute, `evenflow`,
because any other name might be vLLM's tomorrow.
"""

from typing import TYPE_CHECKING, Any

from evenflow_worker.vllm.hooks import Hooks
from evenflow_worker.vllm.names import missing_attributes

if TYPE_CHECKING:

    class _Scheduler:
        """The part of vLLM's Scheduler that is used here."""

        requests: dict[str, Any]
        policy: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def schedule(self, *args: Any, **kwargs: Any) -> Any: ...
        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any: ...
        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any: ...
        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any: ...
        def shutdown(self) -> None: ...
else:
    _Scheduler = object


class EvenflowScheduling(_Scheduler):
    """Stands before Scheduler or AsyncScheduler in the bases. `evenflow` is a reason where stock scheduling runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.evenflow: Hooks | str = "the scheduler is being built"
        super().__init__(*args, **kwargs)
        missing = missing_attributes(self)
        if missing:
            self.evenflow = f"this vLLM lacks {', '.join(missing)}"
        elif getattr(self.policy, "value", "fcfs") != "fcfs":
            self.evenflow = "--scheduling-policy priority is set; evenflow orders by itself, only under fcfs"
        else:
            try:
                self.evenflow = Hooks(self)
            except Exception as error:
                # The queue is replaced last, so that vLLM's own still stands here.
                self.evenflow = f"its part could not be set up: {error!r}"

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self.evenflow
        if isinstance(hooks, str):
            return super().schedule(*args, **kwargs)
        hooks.open_pass()
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            hooks.end_pass()
        hooks.close_pass(output)
        return output

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = self.evenflow
        # A known id brings more input for a streaming session: that isn't a request of its own.
        if isinstance(hooks, str) or request.request_id in self.requests:
            return super().add_request(request, *args, **kwargs)
        hooks.entering(request)
        result = super().add_request(request, *args, **kwargs)
        hooks.entered(request)
        return result

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.evenflow, str):
            self.evenflow.evicting(request)
        return super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.evenflow, str):
            self.evenflow.leaving(request)
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        if not isinstance(self.evenflow, str):
            self.evenflow.close()
        super().shutdown()
