"""Quantiles, trained models, and the thread that asks them beside the engine."""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from evenflow_contract.worker_config import ClassPrior
from evenflow_worker.predict import (
    BatchPredictor,
    ClassPriorPredictor,
    LengthModel,
    LinearTokenModel,
    Prompt,
    QuantilePredictor,
    load_length_model,
)
from evenflow_worker.predict.length_model import PAUSE_SECONDS
from evenflow_worker.predict.quantile import MIN_COMPLETIONS, WINDOW

SECONDS = 10.0


def quantiles(q: float = 0.5) -> QuantilePredictor:
    return QuantilePredictor(ClassPriorPredictor({"chat": ClassPrior(10, 100)}, ("chat", "code")), q)


def test_before_any_completion_the_prior_answers() -> None:
    assert quantiles().predict("chat", 50) == 100


def test_the_median_of_prompts_of_about_this_length() -> None:
    predictor = quantiles()
    for number in range(MIN_COMPLETIONS):
        predictor.observe("chat", 40, 10 + number)
        predictor.observe("chat", 900, 500)
    assert predictor.predict("chat", 33) == 10 + MIN_COMPLETIONS // 2
    assert predictor.predict("chat", 1000) == 500
    # No prompt of this length yet: the class as a whole.
    assert 10 <= predictor.predict("chat", 4) <= 500
    assert predictor.predict("code", 40) == 256


def test_what_is_long_ago_is_forgotten() -> None:
    predictor = quantiles()
    for _ in range(WINDOW):
        predictor.observe("chat", 40, 1000)
    for _ in range(WINDOW):
        predictor.observe("chat", 40, 10)
    assert predictor.predict("chat", 40) == 10


def test_a_quantile_follows_the_sorted_window(seed: int) -> None:
    source = random.Random(seed)
    predictor = quantiles(0.9)
    seen = [source.randrange(1, 2000) for _ in range(3 * WINDOW)]
    for output in seen:
        predictor.observe("chat", 100, output)
    assert predictor.predict("chat", 100) == sorted(seen[-WINDOW:])[int(0.9 * WINDOW)]


class Gate:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def predict(self, batch: Sequence[Prompt]) -> Sequence[float]:
        self.entered.set()
        assert self.leave.wait(SECONDS)
        return [float(prompt.prompt_tokens) for prompt in batch]


class Beside:
    def __init__(self, model: LengthModel | None = None, clock: list[float] | None = None) -> None:
        self.fallbacks: Counter[str] = Counter()
        self.batches: list[int] = []
        self.changed = threading.Condition()
        now = clock or [0.0]
        self.predictor: BatchPredictor[str] = BatchPredictor(self._fell_back, self._observed, clock=lambda: now[0])
        if model is not None:
            self.predictor.use(lambda: model)

    def _fell_back(self, reason: str, count: int) -> None:
        with self.changed:
            self.fallbacks[reason] += count
            self.changed.notify_all()

    def _observed(self, batch: int, seconds: float) -> None:
        with self.changed:
            self.batches.append(batch)
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        """Until `count` prompts were asked for."""
        with self.changed:
            assert self.changed.wait_for(lambda: sum(self.batches) >= count, SECONDS)

    def drained(self, count: int) -> list[tuple[str, float]]:
        """Predictions that came back; the thread hands them over just after it reported the batch."""
        found = self.predictor.drain()
        for _ in range(1000):
            if len(found) >= count:
                break
            with self.changed:
                self.changed.wait(0.01)
            found += self.predictor.drain()
        return found


def prompt(tokens: int = 5) -> Prompt:
    return Prompt("chat", tokens, None)


def test_prompts_that_pile_up_are_asked_in_one_batch() -> None:
    gate = Gate()
    beside = Beside(gate)
    beside.predictor.submit("first", prompt(1))
    assert gate.entered.wait(SECONDS)
    for number in range(2, 40):
        beside.predictor.submit(f"r{number}", prompt(number))
    gate.leave.set()
    beside.wait(39)
    assert beside.batches == [1, 38]
    assert sorted(length for _, length in beside.drained(39)) == list(range(1, 40))
    beside.predictor.close()


class Broken:
    def __init__(self, answers: Sequence[float] | None) -> None:
        self._answers = answers

    def predict(self, batch: Sequence[Prompt]) -> Sequence[float]:
        if self._answers is None:
            raise RuntimeError("boom")
        return self._answers


@pytest.mark.parametrize(
    ("answers", "reason"), [(None, "error"), ([1.0, 2.0], "error"), ([float("nan")], "invalid"), ([-1.0], "invalid")]
)
def test_a_broken_model_is_counted_and_asked_again(answers: Sequence[float] | None, reason: str) -> None:
    beside = Beside(Broken(answers))
    for number in (1, 2):
        beside.predictor.submit("r", prompt())
        with beside.changed:
            assert beside.changed.wait_for(lambda number=number: beside.fallbacks[reason] == number, SECONDS)
    assert beside.predictor.drain() == []
    beside.predictor.close()


def test_a_model_that_hangs_gets_no_more_prompts_until_it_returns() -> None:
    gate, clock = Gate(), [0.0]
    beside = Beside(gate, clock)
    beside.predictor.submit("a", prompt())
    assert gate.entered.wait(SECONDS)
    clock[0] = 1.5
    beside.predictor.submit("b", prompt())
    assert beside.fallbacks == {"late": 1}
    gate.leave.set()
    beside.wait(1)
    beside.predictor.submit("c", prompt())
    beside.wait(2)
    assert beside.fallbacks == {"late": 1}
    beside.predictor.close()


def test_a_model_that_cannot_be_loaded_is_unavailable() -> None:
    beside = Beside()
    beside.predictor.use(lambda: load_length_model(Path("/nowhere/at/all")))
    beside.predictor.submit("a", prompt())
    with beside.changed:
        assert beside.changed.wait_for(lambda: beside.fallbacks["unavailable"] == 1, SECONDS)
    beside.predictor.close()


def test_the_linear_model_reads_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, weights=np.array([0.0, 1.0]), bias=np.float64(2.0), slope=np.float64(0.5))
    model = load_length_model(path)
    lengths = model.predict([Prompt("chat", 3, [1, 3, 5]), Prompt("chat", 3, [2, 4]), Prompt("chat", 0, None)])
    assert lengths == pytest.approx([np.exp(2 + 0.5 * np.log(4) + 1), np.exp(2 + 0.5 * np.log(4)), np.exp(2)], rel=1e-6)


def test_the_linear_model_lets_the_engine_in_after_every_prompt_with_tokens() -> None:
    pauses: list[float] = []
    model = LinearTokenModel(np.zeros(8, dtype=np.float32), 1.0, 0.0, pause=pauses.append)
    model.predict([Prompt("chat", 3, [1, 3, 5]), Prompt("chat", 0, None), Prompt("chat", 2, [1, 2])])
    assert pauses == [PAUSE_SECONDS] * 2


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04broken"])
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no length model"):
        load_length_model(path)


def test_weights_that_would_run_code_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, weights=np.array([object()], dtype=object), bias=1.0, slope=1.0)
    with pytest.raises(ValueError, match="no length model"):
        load_length_model(path)
