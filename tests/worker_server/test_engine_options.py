"""The command line of the simulated engine."""

from pathlib import Path

import pytest

from evenflow_worker.simulated.options import EngineOptions, parse_options


def test_defaults_are_those_of_the_dataclass():
    assert parse_options([], environ={}) == EngineOptions()


def test_what_pods_pass():
    options = parse_options(
        [
            "--host", "127.77.0.4", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--served-model-name", "llama-8b",
            "--kv-tokens", "60000", "--max-num-seqs", "128", "--max-num-batched-tokens", "4096",
            "--max-model-len", "65536", "--step-time-model", "A100-70B", "--time-scale", "12.5",
            "--stream-interval", "64", "--shutdown-timeout", "30",
        ],
        environ={
            "EVENFLOW_ADMIN_HOST": "127.77.0.4",
            "EVENFLOW_ADMIN_PORT": "8011",
            "EVENFLOW_CONFIG": "/somewhere/config.json",
        },
    )  # fmt: skip
    assert options.model_names == ("llama-8b",)
    assert (options.admin_host, options.admin_port) == ("127.77.0.4", 8011)
    assert options.config == Path("/somewhere/config.json")
    assert (options.kv_tokens, options.model_len, options.time_scale) == (60_000, 65_536, 12.5)


def test_the_model_length_is_what_fits():
    assert parse_options(["--kv-tokens", "4096"], environ={}).model_len == 4096
    assert parse_options([], environ={}).model_len == 131_072


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--time-scale", "0"], "--time-scale"),
        (["--time-scale", "101"], "at most 100"),
        (["--time-scale", "nan"], "--time-scale"),
        (["--kv-tokens", "many"], "--kv-tokens"),
        (["--kv-tokens", "8"], "at least one block of 16"),
        (["--port", "70000"], "--port"),
        (["--step-time-model", "H100"], "A100-8B"),
        (["--overhead-ms", "-1"], "--overhead-ms"),
        (["--stream-interval", "0"], "--stream-interval"),
        (["--what"], "--what"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(capsys, arguments, named):
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments, environ={})
    assert caught.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_a_bad_environment_is_named(capsys):
    with pytest.raises(SystemExit):
        parse_options([], environ={"EVENFLOW_ADMIN_PORT": "http"})
    assert "--admin-port" in capsys.readouterr().err


def test_help_says_what_it_is(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_options(["--help"], environ={})
    assert caught.value.code == 0
    assert "OpenAI-compatible" in capsys.readouterr().out
