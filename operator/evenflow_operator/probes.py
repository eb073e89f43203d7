"""`/healthz`, `/readyz` and `/metrics` of the operator, on a server of its own.

kopf's probe port is there only while kopf runs, and a standby that waits for the lease must be alive too.
"""

from collections.abc import Callable

from aiohttp import web

from evenflow_operator.telemetry import CONTENT_TYPE, Telemetry

Verdict = Callable[[], str | None]


class PortTaken(Exception):
    """The address can't be bound; the message names the flag."""


class ProbeServer:
    """`sick` and `unready` say why the operator isn't alive or isn't ready, or None."""

    def __init__(self, host: str, port: int, telemetry: Telemetry, sick: Verdict, unready: Verdict) -> None:
        self._address = host, port
        self._telemetry = telemetry
        self._sick = sick
        self._unready = unready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Raises PortTaken."""
        app = web.Application()
        routes = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        app.add_routes([web.get(path, handler) for path, handler in routes.items()])
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.5, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._address).start()
        except OSError as error:
            host, port = self._address
            raise PortTaken(
                f"--metrics-port: {host}:{port} can't be bound ({error.strerror}); choose another"
            ) from error

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        problem = self._sick()
        return web.Response(text=problem or "alive", status=503 if problem else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        problem = self._unready()
        return web.Response(text=problem or "ready", status=503 if problem else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._telemetry.render(), headers={"Content-Type": CONTENT_TYPE})
