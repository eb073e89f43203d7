"""vLLM's RequestQueue over our waiting queue. Duck-typed: the name check compares it with vLLM's abstract class."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from evenflow_worker.vllm.steering import Steering


class VolumeQueue:
    """The scheduler's `waiting`. Its length is always true; only `bool` may say no, while `gate` is set.

    vLLM's admission loop asks `bool(queue)`, then peeks, then pops: the gate therefore decides about the head, and
    nothing is re-keyed in between.
    """

    def __init__(self, steering: Steering) -> None:
        self._steering = steering
        self._queue = steering.queue
        self.gate: Callable[[], bool] | None = None

    def add_request(self, request: Any) -> None:
        self._steering.enqueue(request)

    def prepend_request(self, request: Any) -> None:
        """There is no front: evicted and skipped requests go where their keys belong."""
        self._steering.enqueue(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self._steering.enqueue(request)

    def peek_request(self) -> Any:
        return self._queue.peek()

    def pop_request(self) -> Any:
        return self._queue.pop()

    def remove_request(self, request: Any) -> None:
        """Raises ValueError if the request isn't here, as vLLM's queues do."""
        if request not in self._queue:
            raise ValueError(f"{request.request_id} is not waiting")
        self._queue.remove(request)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Absent ones are no mistake: vLLM asks every queue."""
        for request in requests:
            if request in self._queue:
                self._queue.remove(request)

    def __contains__(self, request: object) -> bool:
        return request in self._queue

    def __bool__(self) -> bool:
        if not len(self._queue):
            return False
        return self.gate is None or self.gate()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._queue)
