"""vLLM's RequestQueue over our waiting queue. Duck-typed: the name check compares it with vLLM's abstract class."""

from collections.abc import Callable, Iterable
from typing import Any

from evenflow_worker.scheduling.queue import WaitingQueue


class VolumeQueue(WaitingQueue[Any]):
    """The scheduler's `waiting`. Its length is always true; only `bool` may say no, while `gate` is set.

    vLLM's admission loop asks `bool(queue)`, then peeks, then pops: the gate therefore decides about the head, and
    nothing is re-keyed in between. `enqueue` gives a request the key where it belongs; there is no front, evicted and
    skipped requests go where their keys belong, too.
    """

    __slots__ = ("enqueue", "gate")

    def __init__(self) -> None:
        super().__init__()
        self.gate: Callable[[], bool] | None = None
        self.enqueue: Callable[[Any], None]

    peek_request = WaitingQueue.peek
    pop_request = WaitingQueue.pop

    def add_request(self, request: Any) -> None:
        self.enqueue(request)

    def prepend_request(self, request: Any) -> None:
        self.enqueue(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.enqueue(request)

    def remove_request(self, request: Any) -> None:
        """Raises ValueError if the request isn't here, as vLLM's queues do."""
        if request not in self:
            raise ValueError(f"{request.request_id} is not waiting")
        self.remove(request)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Absent ones are no mistake: vLLM asks every queue."""
        for request in requests:
            if request in self:
                self.remove(request)

    def __bool__(self) -> bool:
        if not self._entries:
            return False
        return self.gate is None or self.gate()
