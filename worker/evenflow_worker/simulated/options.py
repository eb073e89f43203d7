"""The simulated engine's options: one definition for `evenflow engine` and `python -m evenflow_worker.simulated`."""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenflow_contract import environment as env
from evenflow_model.steptime import ENGINE_OVERHEAD_MS, STEP_TIME_MODELS

MAX_TIME_SCALE = 100.0
DEFAULT_KV_TOKENS = 430_000
DEFAULT_MAX_MODEL_LEN = 131_072


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """A port of 0 lets the system choose. `startup_seconds` and `shutdown_timeout` are wall seconds at every scale."""

    host: str = "127.0.0.1"
    port: int = env.ENGINE_PORT
    admin_host: str = "127.0.0.1"
    admin_port: int = env.ADMIN_PORT
    model: str = "simulated"
    served_model_names: tuple[str, ...] = ()
    kv_tokens: int = DEFAULT_KV_TOKENS
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    max_num_queued: int = 100_000
    step_time_model: str = "A100-8B"
    overhead_ms: float = ENGINE_OVERHEAD_MS
    time_scale: float = 1.0
    stream_interval: int = 1
    startup_seconds: float = 0.0
    shutdown_timeout: float = 600.0
    seed: int = 0
    config: Path = Path(env.DEFAULT_CONFIG_PATH)

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients may ask for; the first is what answers and metrics say."""
        return self.served_model_names or (self.model,)

    @property
    def model_len(self) -> int:
        return min(self.kv_tokens, DEFAULT_MAX_MODEL_LEN) if self.max_model_len is None else self.max_model_len


def _integer(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: must be an integer from {low} to {high}")
        return value

    return convert


def _number(low: float, high: float, *, exclusive: bool = False) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (exclusive and value == low):
            span = f"above {low:g} and at most {high:g}" if exclusive else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"{text!r}: must be a number {span}")
        return value

    return convert


def _parser(prog: str, environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [options]; --help lists them",
        description="An OpenAI-compatible server with vLLM's scheduling and memory behaviour and A100 step times: "
        "it evicts, recomputes and exports vLLM's metrics, without a GPU and without a model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    port, count = _integer(0, 65_535), _integer(1, 10_000_000)
    network = parser.add_argument_group("network")
    network.add_argument("--host", default="127.0.0.1", help="address of the OpenAI API and the vllm: metrics")
    network.add_argument("--port", type=port, default=env.ENGINE_PORT, help="its port; 0 lets the system choose")
    network.add_argument(
        "--admin-host",
        default=environ.get(env.ENV_ADMIN_HOST) or "127.0.0.1",
        help=f"address of the admin API and the evenflow_ metrics; from {env.ENV_ADMIN_HOST}",
    )
    network.add_argument(
        "--admin-port",
        type=port,
        default=environ.get(env.ENV_ADMIN_PORT) or str(env.ADMIN_PORT),
        help=f"its port; from {env.ENV_ADMIN_PORT}",
    )
    model = parser.add_argument_group("model and memory, named as vLLM names them")
    model.add_argument("--model", default="simulated", help="name of the model")
    model.add_argument("--served-model-name", nargs="+", default=None, metavar="NAME", help="names for clients")
    model.add_argument("--kv-tokens", type=count, default=DEFAULT_KV_TOKENS, help="usable KV tokens M")
    model.add_argument("--block-size", type=_integer(1, 4096), default=16, help="tokens per KV block")
    model.add_argument("--max-num-seqs", type=_integer(1, 65_536), default=256, help="sequences running at once")
    model.add_argument("--max-num-batched-tokens", type=count, default=2048, help="tokens per step")
    model.add_argument(
        "--max-model-len",
        type=count,
        default=None,
        help=f"longest prompt plus output; if not given, --kv-tokens or {DEFAULT_MAX_MODEL_LEN}, whichever is less",
    )
    model.add_argument(
        "--max-num-queued", type=_integer(1, 10_000_000), default=100_000, help="waiting requests before 503"
    )
    time = parser.add_argument_group("time")
    time.add_argument("--step-time-model", choices=tuple(STEP_TIME_MODELS), default="A100-8B", help="whose steps")
    time.add_argument("--overhead-ms", type=_number(0, 10_000), default=ENGINE_OVERHEAD_MS, help="added to each step")
    time.add_argument(
        "--time-scale",
        type=_number(0, MAX_TIME_SCALE, exclusive=True),
        default=1.0,
        help="engine seconds per wall second",
    )
    time.add_argument(
        "--stream-interval",
        type=count,
        default=1,
        help="tokens per streamed chunk after the first, as vLLM's option of that name",
    )
    time.add_argument("--startup-seconds", type=_number(0, 86_400), default=0.0, help="wall seconds before it listens")
    time.add_argument(
        "--shutdown-timeout",
        type=_number(0, 86_400),
        default=600.0,
        help="wall seconds that running requests get to finish after SIGTERM",
    )
    parser.add_argument("--seed", type=_integer(0, 2**63), default=0, help="of output lengths that no client gave")
    parser.add_argument(
        "--config",
        type=Path,
        default=Path(environ.get(env.ENV_CONFIG) or env.DEFAULT_CONFIG_PATH),
        help=f"worker config file; from {env.ENV_CONFIG}",
    )
    return parser


def parse_options(
    arguments: Sequence[str], *, prog: str = "evenflow engine", environ: Mapping[str, str] = os.environ
) -> EngineOptions:
    """Read a command line; a mistake ends the process with status 2 and one line that names the option."""
    parser = _parser(prog, environ)
    found = parser.parse_args(arguments)
    options = EngineOptions(
        host=found.host,
        port=found.port,
        admin_host=found.admin_host,
        admin_port=found.admin_port,
        model=found.model,
        served_model_names=tuple(found.served_model_name or ()),
        kv_tokens=found.kv_tokens,
        block_size=found.block_size,
        max_num_seqs=found.max_num_seqs,
        max_num_batched_tokens=found.max_num_batched_tokens,
        max_model_len=found.max_model_len,
        max_num_queued=found.max_num_queued,
        step_time_model=found.step_time_model,
        overhead_ms=found.overhead_ms,
        time_scale=found.time_scale,
        stream_interval=found.stream_interval,
        startup_seconds=found.startup_seconds,
        shutdown_timeout=found.shutdown_timeout,
        seed=found.seed,
        config=found.config,
    )
    if options.kv_tokens < options.block_size:
        parser.error(f"--kv-tokens {options.kv_tokens}: must hold at least one block of {options.block_size} tokens")
    return options
