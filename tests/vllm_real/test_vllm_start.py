"""What the factory builds, and when stock scheduling runs instead."""

import json
import logging
import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import vllm_kit
from vllm_kit import Engine, make_engine

from evenflow_worker.vllm import factory, mixin
from evenflow_worker.vllm.hooks import Hooks
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


@pytest.mark.parametrize("names", ["METHODS", "ATTRIBUTES"])
def test_the_admin_server_says_that_stock_scheduling_runs(
    names: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the scheduler is built, and after: the whole of what `--scheduler-cls` names."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(f"evenflow_worker.vllm.names.{names}", ("schedule", "gone_tomorrow"))
    monkeypatch.setenv("EVENFLOW_ADMIN_PORT", str(port))
    monkeypatch.setattr("evenflow_worker.vllm.factory.join_vllm_log", lambda: None)
    with caplog.at_level(logging.ERROR):
        made = Engine(vllm_kit.made(vllm_kit.make_config(model_dir)), 16, False)
    assert "EVENFLOW IS OFF, stock scheduling runs" in caplog.text
    made.add("a", 5, 3)
    state = asked(f"http://127.0.0.1:{port}/evenflow/v1/state")
    assert (state["scheduler"], state["running"], state["waiting"]) == ("stock", 0, 1)
    assert "Scheduler.gone_tomorrow" in state["reason"]
    made.run()
    assert made.finished == ["a"]


def test_an_engine_that_shut_down_leaves_no_admin_server(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may build one engine after another: `LLM` without multiprocessing does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("EVENFLOW_ADMIN_PORT", str(port))
    monkeypatch.setattr("evenflow_worker.vllm.factory.join_vllm_log", lambda: None)
    scheduler = vllm_kit.made(vllm_kit.make_config(model_dir))
    asked(f"http://127.0.0.1:{port}/evenflow/v1/state")
    scheduler.shutdown()
    with socket.socket() as again, pytest.raises(ConnectionRefusedError):
        again.connect(("127.0.0.1", port))


def asked(url: str) -> Any:
    """The admin server binds in its own thread, soon."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "no admin server"
            time.sleep(0.02)


def test_a_release_that_was_not_tested_runs_with_a_warning(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(factory, "vllm_version", lambda: "0.99.1")
    with caplog.at_level(logging.WARNING):
        scheduler, reason = vllm_kit.built(vllm_kit.make_config(model_dir))
    assert reason is None
    assert isinstance(scheduler.evenflow, Hooks)
    assert "not with 0.99.1" in caplog.text


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
