"""`/readyz` and `/metrics` of the operator, on a server of its own: kopf's probe port answers for liveness only."""

from collections.abc import Callable

from aiohttp import web

from evenflow_operator.telemetry import CONTENT_TYPE, Telemetry


class PortTaken(Exception):
    """The address can't be bound; the message names the flag."""


class ProbeServer:
    """`unready` says why the operator isn't ready, or None."""

    def __init__(self, host: str, port: int, telemetry: Telemetry, unready: Callable[[], str | None]) -> None:
        self._address = host, port
        self._telemetry = telemetry
        self._unready = unready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Raises PortTaken."""
        app = web.Application()
        app.add_routes([web.get("/readyz", self._readyz), web.get("/metrics", self._metrics)])
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

    async def _readyz(self, _: web.Request) -> web.Response:
        problem = self._unready()
        return web.Response(text=problem or "ready", status=503 if problem else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._telemetry.render(), headers={"Content-Type": CONTENT_TYPE})
