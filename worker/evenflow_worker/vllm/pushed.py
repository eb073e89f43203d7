"""How the API server's process learns of configs that were pushed: a push reaches the engine's process only.

The mounted file carries the same document, but the kubelet takes up to two minutes to write it. So the engine's admin
port is asked, in the background; while it doesn't answer, the file decides alone.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from evenflow_contract import environment as env
from evenflow_contract.reading import MAX_DOCUMENT_BYTES
from evenflow_worker.control.settings import Applied, Settings, Source

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 1.0
ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def config_url(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where this pod's first engine tells its config. All of its engines are pushed the same one. None: nowhere."""
    host = (environ.get(env.ENV_ADMIN_HOST) or "127.0.0.1").strip("[]")
    host = ANYWHERE.get(host, host)
    port = environ.get(env.ENV_ADMIN_PORT) or str(env.ADMIN_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{env.CONFIG_PATH}"


async def follow_pushes(settings: Settings, url: str, *, seconds: float = ASK_SECONDS) -> None:
    """Ask every `seconds`, for ever; cancel to stop. Whatever goes wrong, the last good config stays."""
    # Late: the middleware loads with the standard library alone, and goes on without this if it must.
    import aiohttp

    problem = ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        while True:
            try:
                outcome = settings.apply(await _ask(session, url), Source.PUSH)
                if isinstance(outcome, Applied):
                    log.info("config generation %d learnt from the engine", outcome.generation)
                problem = ""
            except Exception as error:
                if repr(error) != problem:
                    problem = repr(error)
                    log.info("%s doesn't answer, the config file decides alone: %s", url, problem)
            await asyncio.sleep(seconds)


async def _ask(session: "aiohttp.ClientSession", url: str) -> bytes:
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status != 200 or not 0 < (answer.content_length or 0) <= MAX_DOCUMENT_BYTES:
            raise ValueError(f"status {answer.status}, {answer.content_length} bytes")
        return await answer.read()
