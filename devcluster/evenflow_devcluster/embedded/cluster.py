"""One embedded cluster: store, API server, controllers and a kubeconfig, started and stopped together."""

import contextlib
import os
import random
import secrets
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from evenflow_devcluster.embedded.controller_api import ControllerApi
from evenflow_devcluster.embedded.controllers import Controllers
from evenflow_devcluster.embedded.faults import Faults
from evenflow_devcluster.embedded.http.server import ApiServer
from evenflow_devcluster.embedded.http.tls import kubeconfig, make_certificates, server_context, write_private
from evenflow_devcluster.embedded.jsonvalues import Clock, utc_now
from evenflow_devcluster.embedded.kinds.resources import CelTwin
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.local import LocalApi
from evenflow_devcluster.embedded.store.memory import Store

_SHUTDOWN_SECONDS = 2.0


class EmbeddedCluster:
    """Made by `start`; the kubeconfig under `state_dir` holds the authority and the token of cluster-admin."""

    def __init__(self, api: Api, faults: Faults, server: ApiServer, runner: web.AppRunner) -> None:
        self.api: ControllerApi = LocalApi(api)
        self.faults = faults
        self.kubeconfig = Path()
        self.url = ""
        self.token = ""
        self._api = api
        self._server = server
        self._runner = runner
        self._controllers: Controllers | None = None

    @classmethod
    async def start(
        cls,
        state_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        cel_twins: Mapping[str, CelTwin] | None = None,
        clock: Clock = utc_now,
        seed: int | None = None,
        controllers: bool = True,
    ) -> "EmbeddedCluster":
        """Serve on `host`:`port` (0: any free one). `cel_twins` maps a CRD's name to the Python form of its CEL rules;
        with a `seed`, uids, generated names and injected faults repeat. Raises OSError if the port is taken.
        """
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        rng = random.Random(seed)
        # As etcd's would after a restart, versions go on growing: a client of a cluster that was here before gets 410.
        store = Store(start=int(clock().timestamp() * 1000))
        api = Api(store, clock, rng, cel_twins or {})
        faults = Faults(random.Random(rng.random()), api.store.end_watches, api.store.forget_history)
        token = secrets.token_urlsafe(24)
        server = ApiServer(api, faults, token, rng)
        certificates = make_certificates(host)
        context = server_context(certificates, state_dir)
        runner = web.AppRunner(
            server.application(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=120.0,
        )
        cluster = cls(api, faults, server, runner)
        try:
            await runner.setup()
            await web.TCPSite(runner, host, port, ssl_context=context, backlog=1024).start()
            bound = runner.addresses[0][1]
            cluster.url = f"https://{host}:{bound}"
            cluster.token = token
            cluster.kubeconfig = state_dir / "kubeconfig"
            write_private(cluster.kubeconfig, kubeconfig(cluster.url, certificates.ca, token))
            if controllers:
                cluster._controllers = Controllers(LocalApi(api, "kube-controller-manager"), clock)
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    async def stop(self) -> None:
        """End controllers, watches and connections; leaves no port and no task, and nothing in the state folder."""
        if self._controllers is not None:
            await self._controllers.stop()
            self._controllers = None
        self._api.close()
        self.faults.clear()
        await self._server.close()
        await self._runner.cleanup()
        with contextlib.suppress(OSError):
            self.kubeconfig.unlink()
