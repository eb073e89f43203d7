"""What the factory builds, and when stock scheduling runs instead."""

import os
from pathlib import Path
from typing import Any

import pytest
import vllm_kit
from vllm_kit import Engine, make_engine

from evenflow_worker.vllm import factory, mixin
from evenflow_worker.vllm.names import TESTED_VERSIONS

pytestmark = pytest.mark.vllm


def test_the_expected_release_is_what_is_tested() -> None:
    expected = os.environ.get("EVENFLOW_EXPECT_VLLM")
    if expected is None:
        pytest.skip("EVENFLOW_EXPECT_VLLM is not set: whatever vLLM is installed is tested")
    assert factory.vllm_version() == expected
    assert expected.startswith(TESTED_VERSIONS)


def test_a_missing_name_means_stock_scheduling(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow_worker.vllm.names.METHODS", ("schedule", "gone_tomorrow"))
    config = vllm_kit.make_config(model_dir)
    scheduler, reason = vllm_kit.built(config)
    assert reason is not None
    assert "Scheduler.gone_tomorrow" in reason
    assert type(scheduler) is factory.stock_class(False)


def test_a_missing_attribute_of_the_built_scheduler_too(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow_worker.vllm.names.KV_ATTRIBUTES", ("gone_tomorrow",))
    scheduler, reason = vllm_kit.built(vllm_kit.make_config(model_dir))
    assert reason == "this vLLM lacks KVCacheManager.gone_tomorrow"
    made = Engine(scheduler, 16, False)
    made.add("a", 5, 3)
    made.run()
    assert made.finished == ["a"]


def test_a_set_up_that_fails_means_stock_scheduling(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scheduler: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(mixin, "Hooks", broken)
    scheduler, reason = vllm_kit.built(vllm_kit.make_config(model_dir))
    assert reason is not None
    assert "boom" in reason
    made = Engine(scheduler, 16, False)
    made.add("a", 5, 3)
    made.run()
    assert made.finished == ["a"]


def test_with_vllms_own_priorities_it_stands_aside(model_dir: Path) -> None:
    made = make_engine(model_dir, policy="priority")
    assert isinstance(made.scheduler.evenflow, str)
    made.add("a", 5, 3)
    made.run()
    assert made.finished == ["a"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_right_base_for_each_mode(model_dir: Path, asynchronous: bool) -> None:
    made = make_engine(model_dir, asynchronous=asynchronous)
    assert isinstance(made.scheduler, factory.stock_class(asynchronous))
    assert type(made.scheduler).__module__ == "evenflow_worker.vllm.factory"
