import math
from collections import Counter
from dataclasses import replace

import pytest

from evenflow_contract.worker_config import ClassPrior, Predictor, WorkerConfig
from evenflow_worker.predict import ClassPriorPredictor, GuardedPredictor


def test_starts_from_the_prior_and_learns_the_mean():
    predictor = ClassPriorPredictor({"chat": ClassPrior(1000, 200)}, ["chat"])
    assert predictor.predict("chat", 5) == 200
    for _ in range(500):
        predictor.observe("chat", 5, 400)
    assert predictor.predict("chat", 5) == pytest.approx(400, rel=0.02)


def test_a_few_completions_do_not_throw_the_prior_away():
    predictor = ClassPriorPredictor({"chat": ClassPrior(1000, 200)}, ["chat"])
    predictor.observe("chat", 5, 2)
    assert predictor.predict("chat", 5) == pytest.approx(178)


def test_follows_a_shift():
    predictor = ClassPriorPredictor({}, ["chat"])
    for length in [100] * 10_000 + [500] * 10_000:
        predictor.observe("chat", 5, length)
    assert predictor.predict("chat", 5) == pytest.approx(500, rel=0.01)


def test_a_class_without_prior_gets_the_mean_of_all_then_its_own():
    predictor = ClassPriorPredictor({"chat": ClassPrior(1000, 200)}, ["chat", "code"])
    assert predictor.predict("code", 5) == 256
    predictor.observe("chat", 5, 300)
    assert predictor.predict("code", 5) == 300
    predictor.observe("code", 5, 10)
    assert predictor.predict("code", 5) == 10
    assert predictor.predict("default", 5) == pytest.approx(155)


def test_memory_is_bounded_by_the_configured_classes():
    predictor = ClassPriorPredictor({}, ["chat"])
    for number in range(1000):
        predictor.observe(f"made-up-{number}", 5, 10)
    assert set(predictor._means) <= {"chat", "default"}


def test_what_was_learnt_survives_a_new_config():
    predictor = ClassPriorPredictor({"chat": ClassPrior(1000, 200)}, ["chat"])
    for _ in range(3000):
        predictor.observe("chat", 5, 400)
    predictor.configure({"chat": ClassPrior(1000, 50)}, ["chat", "code"])
    assert predictor.predict("chat", 5) == pytest.approx(400, rel=0.01)
    predictor.configure({}, ["code"])
    predictor.configure({"chat": ClassPrior(1000, 50)}, ["chat"])
    assert predictor.predict("chat", 5) == 50


class Broken:
    def __init__(self, answer: float | Exception) -> None:
        self.answer = answer

    def predict(self, traffic_class: str, prompt_tokens: int) -> float:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        if isinstance(self.answer, Exception):
            raise self.answer


CONFIG = WorkerConfig(classes=("chat",), class_priors={"chat": ClassPrior(1000, 200)})


@pytest.mark.parametrize(
    ("answer", "reason"), [(RuntimeError(), "error"), (math.nan, "invalid"), (-3.0, "invalid"), (math.inf, "invalid")]
)
def test_a_broken_predictor_falls_back_and_is_counted(answer, reason):
    fallbacks: Counter[str] = Counter()
    guarded = GuardedPredictor(Broken(answer), fallbacks)
    guarded.configure(CONFIG)
    assert guarded.predict("chat", 5) == 200
    assert fallbacks == {reason: 1}
    guarded.observe("chat", 5, 20)
    assert guarded.predict("chat", 5) == pytest.approx(180)


def test_a_good_predictor_is_used():
    fallbacks: Counter[str] = Counter()
    guarded = GuardedPredictor(Broken(7.0), fallbacks)
    guarded.configure(CONFIG)
    assert guarded.predict("chat", 5) == 7.0
    assert not fallbacks


def test_a_kind_that_is_not_here_is_counted():
    fallbacks: Counter[str] = Counter()
    guarded = GuardedPredictor(None, fallbacks)
    guarded.configure(replace(CONFIG, predictor=Predictor("Model", "/nowhere")))
    assert guarded.predict("chat", 5) == 200
    assert fallbacks == {"unavailable": 1}
    guarded.configure(CONFIG)
    guarded.predict("chat", 5)
    assert fallbacks == {"unavailable": 1}
