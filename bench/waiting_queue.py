"""The waiting queue at 10,000 waiting, beside a plain heap of comparable objects, as vLLM's PRIORITY queue is one.

    python bench/waiting_queue.py [--waiting 10000]

Microseconds of CPU per operation, best of five rounds.
"""

import argparse
import random
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.scheduling import Ordering, WaitingQueue

ROUNDS = 5


class Request:
    """Comparable in Python, as vLLM's Request is: priority, then arrival."""

    __slots__ = ("arrival_s", "metric", "sequence")

    def __init__(self, metric: float, arrival_s: float, sequence: int) -> None:
        self.metric = metric
        self.arrival_s = arrival_s
        self.sequence = sequence

    def __lt__(self, other: "Request") -> bool:
        return (self.metric, self.arrival_s) < (other.metric, other.arrival_s)


def best(operation: Callable[[], int]) -> float:
    """Microseconds per operation; `operation` returns how many it did."""
    times = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        count = operation()
        times.append((time.perf_counter() - before) / count * 1e6)
    return min(times)


def requests(count: int, seed: int) -> list[Request]:
    source = random.Random(seed)
    return [Request(source.lognormvariate(12, 1.5), source.random() * 100, number) for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=10_000)
    waiting = parser.parse_args().waiting
    ordering = Ordering.from_config(WorkerConfig(), 65_536)
    base, extra, extra_heap = requests(waiting, 1), requests(1000, 2), requests(1000, 2)

    def key(request: Request) -> tuple[float, float, int]:
        return ordering.key(request.metric, request.arrival_s, request.sequence, 100.0)

    queue: WaitingQueue[Request] = WaitingQueue()
    heap: list[Request] = []
    for request in base:
        queue.add(request, key(request))
        heappush(heap, request)

    def add_ours() -> int:
        for request in extra:
            queue.add(request, key(request))
        return len(extra)

    def add_heap() -> int:
        for request in extra_heap:
            heappush(heap, request)
        return len(extra_heap)

    def add_pop_ours() -> int:
        for index, request in enumerate(extra):
            queue.add(request, key(request))
            queue.peek()
            extra[index] = queue.pop()
        return len(extra)

    def add_pop_heap() -> int:
        for index, request in enumerate(extra_heap):
            heappush(heap, request)
            extra_heap[index] = heappop(heap)
        return len(extra_heap)

    def remove_ours() -> int:
        for request in extra:
            queue.remove(request)
        for request in extra:
            queue.add(request, key(request))
        return len(extra)

    def remove_heap() -> int:
        for request in extra_heap[:20]:
            heap.remove(request)
            heapify(heap)
        for request in extra_heap[:20]:
            heappush(heap, request)
        return 20

    def rekey_ours() -> int:
        shift = random.random()
        for number, request in enumerate(extra):
            queue.rekey(request, ((number + shift) * 977.0, 0.0, number))
        return len(extra)

    def rekey_all_ours() -> int:
        queue.rekey_all(key)
        return len(queue)

    popped: list[Request] = []

    def pop_ours() -> int:
        popped[:] = [queue.pop() for _ in range(1000)]
        for request in popped:
            queue.add(request, key(request))
        return 1000

    def pop_heap() -> int:
        popped[:] = [heappop(heap) for _ in range(1000)]
        for request in popped:
            heappush(heap, request)
        return 1000

    rows: list[tuple[str, float, float | None]] = [
        ("add + peek + pop (heap: add + pop)", best(add_pop_ours), best(add_pop_heap)),
        ("pop + add again, in blocks of 1000", best(pop_ours), best(pop_heap)),
    ]
    add_ours()
    add_heap()
    rows += [
        ("remove + add again", best(remove_ours), best(remove_heap)),
        ("re-key one", best(rekey_ours), None),
        ("re-key all, per request", best(rekey_all_ours), None),
    ]
    print(f"{waiting} waiting; microseconds each{'':6}evenflow  plain heap")
    for title, ours, plain in rows:
        print(f"{title:36}{ours:10.2f}" + ("" if plain is None else f"{plain:12.2f}{plain / ours:10.1f}x"))


if __name__ == "__main__":
    main()
