"""A real vLLM server on CPU with a tiny random model, its worker loaded from an install directory."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

START_SECONDS = 600.0
SECONDS = 300.0
"""How long anything else may take before it is a failure: these run on whatever computer there is, beside whatever."""
T = TypeVar("T")


def make_weights(path: Path, *, max_model_len: int = 1024) -> Path:
    """The tiny model with random weights and a tokenizer of 512 words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from vllm_kit import make_model_dir

    make_model_dir(path, max_model_len=max_model_len)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig.from_pretrained(path)).to(torch.float32).save_pretrained(path)
    return path


def make_adapter(path: Path) -> Path:
    """A LoRA adapter for the tiny model: rank 8 on the query projections, small random numbers."""
    import torch
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps({**config, "task_type": "CAUSAL_LM"}))
    weights = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(8, 64) * 0.01
        weights[f"{name}.lora_B.weight"] = torch.randn(64, 8) * 0.01
    save_file(weights, path / "adapter_model.safetensors")
    return path


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on now, below those that connections are made from."""
    for base in range(20_000 + os.getpid() % 8_000, 32_000, count):
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise RuntimeError("no free ports")


def environment(worker: Path, config: Path, admin_port: int) -> dict[str, str]:
    """What a process with vLLM and the worker in it is started with; of this one's, nothing that is ours."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("EVENFLOW_")},
        # /pause, /resume and /sleep are only there for developers.
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONPATH": os.pathsep.join([str(worker), *_vllm_path()]),
        "EVENFLOW_ADMIN_PORT": str(admin_port),
        "EVENFLOW_ADMIN_HOST": "127.0.0.1",
        "EVENFLOW_CONFIG": str(config),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


def client() -> aiohttp.ClientSession:
    """As many connections as are asked for, and patience."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=2 * SECONDS)
    )


class VllmServer:
    """One server process. `admin` are the admin ports of its engines."""

    def __init__(self, model: Path, worker: Path, log: Path, *extra: str, engines: int = 1, config: Path | None = None):
        base = free_ports(2 + engines)
        self.port = base
        self.admin = list(range(base + 1, base + 1 + engines))
        self.config = config or log.with_suffix(".json")
        self.log = log
        self._command = [
            sys.executable,
            *("-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", "tiny", "--dtype", "float32"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--max-model-len", "1024", "--block-size", "32", "--num-gpu-blocks-override", "129"),
            *("--max-num-seqs", "64", "--enforce-eager", "--no-enable-log-requests"),
            *("--scheduler-cls", "evenflow_worker.vllm.make_scheduler"),
            *("--middleware", "evenflow_worker.vllm.TrafficClassMiddleware"),
            *extra,
        ]
        self._environment = environment(worker, self.config, self.admin[0])
        self.process: subprocess.Popen[bytes] | None = None
        self._asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def admin_url(self, path: str, engine: int = 0) -> str:
        return f"http://127.0.0.1:{self.admin[engine]}{path}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            # A session of its own, so that the engine's processes can be ended with the server's.
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    async def ready(self) -> None:
        """Until the server and the admin port of each engine answer."""
        urls = [f"{self.url}/health", *(self.admin_url("/evenflow/v1/state", one) for one in range(len(self.admin)))]
        deadline = time.monotonic() + START_SECONDS
        async with client() as session:
            while time.monotonic() < deadline:
                assert self.process is not None
                if self.process.poll() is not None:
                    raise AssertionError(f"the server ended: {self.tail()}")
                try:
                    async with session.get(urls[0]) as answer:
                        if answer.status == 200:
                            urls.pop(0)
                            if not urls:
                                return
                            continue
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.5)
        raise AssertionError(f"{urls[0]}: no answer after {START_SECONDS} s: {self.tail()}")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def stop(self, how: int = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        _signal(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        _signal(process.pid, signal.SIGKILL)
        process.wait(60)

    async def get(self, url: str) -> Any:
        async with client() as session, session.get(url) as answer:
            assert answer.status == 200, await answer.text()
            if answer.content_type == "application/json":
                return await answer.json()
            return await answer.text()

    async def push(self, document: dict[str, Any], engine: int = 0) -> tuple[int, Any]:
        async with (
            client() as session,
            session.put(self.admin_url("/evenflow/v1/config", engine), data=json.dumps(document)) as answer,
        ):
            return answer.status, await answer.json()

    async def state(self, engine: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(self.admin_url("/evenflow/v1/state", engine))
        return found

    async def complete(
        self,
        session: aiohttp.ClientSession,
        tokens: int,
        *,
        prompt: int = 32,
        headers: dict[str, str] | None = None,
        stop_after: int | None = None,
        **fields: Any,
    ) -> int:
        """Stream one completion; returns the chunks with text. `stop_after` chunks the client hangs up.

        Every prompt begins differently: equal ones share their memory, answers included, and nobody would wait long.
        """
        self._asked += 1
        body = {
            "model": "tiny",
            "prompt": " ".join(f"w{3 + (self._asked * 37 + number) % 500}" for number in range(prompt)),
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            **fields,
        }
        chunks = 0
        async with session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    chunks += 1
                    if chunks == stop_after:
                        return chunks
        return chunks

    async def keep_asking(self, session: aiohttp.ClientSession, answered: list[int], over: asyncio.Event) -> None:
        """One client that asks again as soon as it is answered, until it is `over`: never too early, never too late."""
        while not over.is_set():
            self._asked += 1
            body = {"model": "tiny", "prompt": f"w{3 + self._asked * 37 % 500} w9 w8", "max_tokens": 400}
            body |= {"ignore_eos": True, "temperature": 0}
            async with session.post(f"{self.url}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                answered.append((await answer.json())["usage"]["completion_tokens"])

    @contextlib.asynccontextmanager
    async def loaded(self, clients: int = 40) -> AsyncIterator[list[int]]:
        """So many clients at once that some requests wait, from the first line of the block to its last; afterwards the
        list holds the length of every answer."""
        answered: list[int] = []
        over = asyncio.Event()
        async with client() as session, asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self.keep_asking(session, answered, over))
            try:
                await until(self.somebody_waits, "some requests wait")
                yield answered
            finally:
                over.set()

    async def somebody_waits(self) -> bool:
        return bool((await self.state())["waiting"] > 0)


def _signal(group: int, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, how)


def _vllm_path() -> list[str]:
    """Where this Python found vLLM, if not in its own site-packages (several versions share one environment)."""
    import vllm

    root = str(Path(vllm.__file__).parents[1])
    return [] if root.startswith(sys.prefix) else [root]


async def until(check: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Poll an async check until it answers something true; returns that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = await check()
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")
