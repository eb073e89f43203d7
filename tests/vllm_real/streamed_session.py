"""A session whose input comes in pieces, beside ordinary requests, in vLLM's own asynchronous engine.

No route of the server's takes such input for a text model, so this talks to the engine. Prints one JSON object.
Arguments: model directory, admin port.
"""

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

TURNS, TOKENS, OTHERS = 3, 7, 20


def parameters() -> SamplingParams:
    return SamplingParams(
        max_tokens=TOKENS,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
        extra_args={"traffic_class": "chat"},
    )


async def session(engine: AsyncLLM) -> int:
    """Each piece of input follows the answer to the one before; returns the tokens answered."""
    answered = 0
    progress = asyncio.Condition()

    async def pieces() -> AsyncGenerator[StreamingInput, None]:
        for turn in range(TURNS):
            async with progress:
                await progress.wait_for(lambda turn=turn: answered >= turn * TOKENS)
            yield StreamingInput(TokensPrompt(prompt_token_ids=[9 + turn] * 40), parameters())
        async with progress:
            await progress.wait_for(lambda: answered >= TURNS * TOKENS)

    async for output in engine.generate(pieces(), parameters(), "session"):
        async with progress:
            answered += sum(len(one.token_ids) for one in output.outputs)
            progress.notify_all()
    return answered


async def plain(engine: AsyncLLM, number: int) -> int:
    prompt = TokensPrompt(prompt_token_ids=[3 + number] * 30)
    answered = 0
    async for output in engine.generate(prompt, parameters(), f"plain-{number}"):
        answered += sum(len(one.token_ids) for one in output.outputs)
    return answered


def asked(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


async def idle(port: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        state: dict[str, Any] = json.loads(await asyncio.to_thread(asked, port, "/evenflow/v1/state"))
        if state["running"] + state["waiting"] == 0 or time.monotonic() > deadline:
            return state
        await asyncio.sleep(0.05)


async def main(model: str, port: int) -> None:
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            dtype="float32",
            max_model_len=1024,
            block_size=32,
            num_gpu_blocks_override=129,
            max_num_seqs=8,
            enforce_eager=True,
            scheduler_cls="evenflow_worker.vllm.make_scheduler",
        )
    )
    try:
        async with asyncio.timeout(240):
            answers = await asyncio.gather(session(engine), *(plain(engine, number) for number in range(OTHERS)))
        state = await idle(port)
        print(json.dumps({"answers": answers, "state": state, "metrics": asked(port, "/metrics")}))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
