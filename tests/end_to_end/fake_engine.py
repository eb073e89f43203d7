"""An engine that lies, for a pool's podTemplate: healthy, and with metrics that hang, fail or are NaN.

Run as `python -m`-free script: fake_engine.py HOST MODE. MODE is nan, error or hang.
"""

import asyncio
import sys

from aiohttp import web

NAN_PAGE = """\
vllm:num_requests_running{model_name="x",engine="0"} NaN
vllm:num_requests_waiting{model_name="x",engine="0"} NaN
vllm:num_preemptions_total{model_name="x",engine="0"} NaN
evenflow_evictions_total{traffic_class="chat"} NaN
evenflow_admitted_requests_total{traffic_class="chat",kind="new"} NaN
evenflow_iterations_total NaN
"""


async def main(host: str, mode: str) -> None:
    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    async def metrics(_request: web.Request) -> web.Response:
        if mode == "hang":
            await asyncio.Event().wait()
        if mode == "error":
            return web.Response(status=500, text="boom")
        return web.Response(text=NAN_PAGE)

    for port in (8000, 8010):
        app = web.Application()
        app.router.add_get("/health", health)
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], sys.argv[2]))
