"""Asks a trained model beside the engine: a bounded queue, a thread, batches (Process 1 of the SVF paper).

The engine never waits: a request is scheduled by the class prior until its prediction comes back, and for ever if none
does.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from evenflow_worker.predict.guarded import ERROR, INVALID, UNAVAILABLE
from evenflow_worker.predict.length_model import LengthModel, Prompt

log = logging.getLogger(__name__)

T = TypeVar("T")

LATE: Final = "late"
"""A batch takes longer than `late_seconds`: new requests aren't sent until it returns."""
OVERFLOW: Final = "overflow"

MAX_BATCH: Final = 256
MAX_PENDING: Final = 16_384
LATE_SECONDS: Final = 1.0


class BatchPredictor(Generic[T]):
    """`submit` and `drain` belong to the engine's thread and take microseconds; the model runs in a thread of its own.

    `fallback(reason, count)` and `observed(batch, seconds)` must be thread-safe. `load` makes the model, in the thread,
    because reading weights takes time; if it raises, every prompt falls back until `use` names another one.
    """

    def __init__(
        self,
        fallback: Callable[[str, int], None],
        observed: Callable[[int, float], None],
        *,
        late_seconds: float = LATE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fallback = fallback
        self._observed = observed
        self._late_seconds = late_seconds
        self._clock = clock
        self._pending: deque[tuple[T, Prompt]] = deque()
        self.done: deque[tuple[T, float]] = deque(maxlen=4 * MAX_PENDING)
        """Predictions for `drain`."""
        self._wake = threading.Event()
        self._load: Callable[[], LengthModel] | None = None
        self._loaded: Callable[[], LengthModel] | None = None
        self._model: LengthModel | None = None
        self._busy_since: float | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def enabled(self) -> bool:
        return self._load is not None

    def use(self, load: Callable[[], LengthModel] | None) -> None:
        """Take another model live, or none."""
        self._load = load
        if load is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="evenflow-predictor", daemon=True)
            self._thread.start()
        self._wake.set()

    def submit(self, item: T, prompt: Prompt) -> None:
        """Queue one prompt; if the model is late or the queue full, the prompt stays with the prior, counted."""
        busy_since = self._busy_since
        if busy_since is not None and self._clock() - busy_since > self._late_seconds:
            self._fallback(LATE, 1)
        elif len(self._pending) >= MAX_PENDING:
            self._fallback(OVERFLOW, 1)
        else:
            self._pending.append((item, prompt))
            if not self._wake.is_set():
                self._wake.set()

    def drain(self) -> list[tuple[T, float]]:
        """Predictions that came back since the last call, in tokens, positive and finite."""
        done = self.done
        found: list[tuple[T, float]] = []
        while done:
            found.append(done.popleft())
        return found

    def close(self) -> None:
        """End the thread after the batch it is in."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            # The timeout is only a belt: every producer sets the event after its append.
            self._wake.wait(timeout=5.0)
            self._wake.clear()
            while self._pending and not self._closed:
                self._answer()

    def _answer(self) -> None:
        batch: list[tuple[T, Prompt]] = []
        while self._pending and len(batch) < MAX_BATCH:
            batch.append(self._pending.popleft())
        began = self._busy_since = self._clock()
        try:
            model = self._current()
            if model is None:
                self._fallback(UNAVAILABLE, len(batch))
                return
            lengths = [float(length) for length in model.predict([prompt for _, prompt in batch])]
            if len(lengths) != len(batch):
                raise ValueError(f"the model answered {len(lengths)} lengths for {len(batch)} prompts")
        except Exception as error:
            log.debug("the predictor failed: %s", error)
            self._fallback(ERROR, len(batch))
            return
        finally:
            self._busy_since = None
            self._observed(len(batch), self._clock() - began)
        invalid = 0
        for (item, _), length in zip(batch, lengths, strict=True):
            if math.isfinite(length) and length > 0.0:
                self.done.append((item, length))
            else:
                invalid += 1
        if invalid:
            self._fallback(INVALID, invalid)

    def _current(self) -> LengthModel | None:
        load = self._load
        if load is not self._loaded:
            self._loaded, self._model = load, None
            try:
                self._model = None if load is None else load()
            except Exception as error:
                log.error("the trained predictor cannot be loaded, the class prior serves instead: %s", error)
        return self._model
