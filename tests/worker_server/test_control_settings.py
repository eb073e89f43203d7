"""Which documents replace the applied config, from the file and from pushes."""

import asyncio
import json
from pathlib import Path

import pytest

from evenflow_contract.errors import ContractError
from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.control.classes import exported_classes, listed, route
from evenflow_worker.control.config_file import ConfigFile
from evenflow_worker.control.settings import Applied, Refused, SameAlready, Settings, Source, StaleGeneration


@pytest.fixture
def applied():
    return []


@pytest.fixture
def settings(applied):
    return Settings(applied.append)


def test_a_higher_generation_is_applied_once(settings, applied, config_document):
    assert settings.apply(config_document(3), Source.PUSH) == Applied(3)
    assert settings.apply(json.dumps(config_document(3)), Source.FILE) == SameAlready(3)
    assert [config.generation for config in applied] == [3]
    assert settings.config_hash == WorkerConfig.parse(config_document(3)).content_hash()


def test_a_lower_generation_and_a_contradiction_are_stale(settings, applied, config_document):
    settings.apply(config_document(3), Source.PUSH)
    stale = StaleGeneration(3, settings.config_hash)
    assert settings.apply(config_document(2), Source.PUSH) == stale
    assert settings.apply(config_document(2), Source.FILE) == stale
    assert settings.apply(config_document(3, policy="FCFS"), Source.PUSH) == stale
    assert len(applied) == 1
    assert settings.refused_total == 0


def test_the_file_wins_a_contradiction(settings, config_document):
    settings.apply(config_document(3), Source.PUSH)
    assert settings.apply(config_document(3, policy="FCFS"), Source.FILE) == Applied(3)
    assert settings.config.policy == "FCFS"


@pytest.mark.parametrize(
    "change",
    [
        {"admission": {"mode": "Limited", "unit": "Volume", "watermark": 0}},
        {"admission": {"mode": "Limited", "unit": "Volume", "perIteration": float("nan"), "watermark": 0}},
        {"policy": "LIFO"},
        {"surprise": 1},
    ],
)
def test_a_malformed_document_is_refused_whole_and_counted(settings, applied, config_document, change):
    settings.apply(config_document(3), Source.PUSH)
    outcome = settings.apply(config_document(4, classes=["other"], **change), Source.PUSH)
    assert isinstance(outcome, Refused)
    assert settings.config.generation == 3
    assert settings.config.classes == ("chat", "code")
    assert settings.refused_total == 1
    assert len(applied) == 1


def test_what_the_engine_refuses_is_not_applied(config_document):
    def sink(config: WorkerConfig) -> None:
        raise ContractError("predictor.path", "missing", "mount it")

    settings = Settings(sink)
    outcome = settings.apply(config_document(1), Source.PUSH)
    assert isinstance(outcome, Refused)
    assert outcome.error.field == "predictor.path"
    assert settings.config == WorkerConfig()


def test_the_file_is_read_again_only_when_it_changed(tmp_path: Path, settings, config_document):
    path = tmp_path / "config.json"
    file = ConfigFile(path, settings)
    assert file.poll() is None
    path.write_text("")
    assert file.poll() is None
    assert settings.config.generation == 0
    path.write_text(json.dumps(config_document(5)))
    assert file.poll() == Applied(5)
    assert file.poll() is None
    path.write_text("{not json")
    assert isinstance(file.poll(), Refused)
    assert file.poll() is None
    assert settings.refused_total == 1
    assert settings.config.generation == 5
    path.unlink()
    assert file.poll() is None
    assert settings.config.generation == 5


def test_the_kubelets_symlink_swap_is_seen(tmp_path: Path, settings, config_document):
    for generation in (1, 2):
        folder = tmp_path / f"..{generation}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config_document(generation)))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.json").symlink_to("..data/config.json")
    file = ConfigFile(tmp_path / "config.json", settings)
    assert file.poll() == Applied(1)
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert file.poll() == Applied(2)


def test_an_oversized_file_is_refused(tmp_path: Path, settings):
    path = tmp_path / "config.json"
    path.write_bytes(b" " * 10 + b"x" * 1_000_000)
    assert isinstance(ConfigFile(path, settings).poll(), Refused)


async def test_the_watch_survives_a_failing_engine(tmp_path: Path, config_document, eventually):
    calls = []

    def sink(config: WorkerConfig) -> None:
        calls.append(config.generation)
        if config.generation == 1:
            raise RuntimeError("boom")

    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_document(1)))
    settings = Settings(sink)
    task = asyncio.create_task(ConfigFile(path, settings, poll_seconds=0.005).watch())
    await eventually(lambda: calls == [1])
    path.write_text(json.dumps(config_document(2)))
    await eventually(lambda: settings.config.generation == 2)
    task.cancel()


def test_routes(config_document):
    config = WorkerConfig.parse(config_document(1))
    assert not route(config, "chat").misrouted
    assert route(config, "chat").traffic_class == "chat"
    assert route(config, None).traffic_class == "default"
    assert not route(config, None).misrouted
    assert not route(config, "default").misrouted
    wrong = route(config, "summarise")
    assert (wrong.traffic_class, wrong.misrouted) == ("default", True)
    draining = WorkerConfig.parse(config_document(2, draining=True))
    assert route(draining, "chat").misrouted
    assert route(draining, None).misrouted


def test_without_an_operator_nothing_is_misrouted():
    assert route(WorkerConfig(), "chat").traffic_class == "default"
    assert not route(WorkerConfig(), "chat").misrouted


def test_only_listed_classes_are_exported(config_document):
    config = WorkerConfig.parse(config_document(1))
    assert exported_classes(config) == ("chat", "code", "default")
    assert exported_classes(WorkerConfig.parse(config_document(1, classes=["default", "a"]))) == ("default", "a")
    assert listed(config, "x" * 5000) == "default"
