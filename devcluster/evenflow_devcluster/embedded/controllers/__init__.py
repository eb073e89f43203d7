"""The controllers of the embedded cluster: what kube-scheduler and kube-controller-manager do for Evenflow's pods."""

import asyncio
from typing import Any

from evenflow_devcluster.embedded.controller_api import ControllerApi
from evenflow_devcluster.embedded.controllers.deployments import DeploymentController
from evenflow_devcluster.embedded.controllers.disruption import DisruptionController
from evenflow_devcluster.embedded.controllers.endpoints import EndpointSliceController
from evenflow_devcluster.embedded.controllers.garbage import GarbageCollector
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.controllers.replicasets import ReplicaSetController
from evenflow_devcluster.embedded.controllers.scheduler import Scheduler
from evenflow_devcluster.embedded.jsonvalues import Clock


class Controllers:
    """Runs on the event loop that is running; each controller subscribes before it lists, so nothing is missed."""

    def __init__(self, api: ControllerApi, clock: Clock) -> None:
        self._loops: list[ControlLoop[Any]] = [
            Scheduler(api, clock),
            EndpointSliceController(api),
            GarbageCollector(api),
            DisruptionController(api, clock),
            ReplicaSetController(api),
            DeploymentController(api, clock),
        ]
        self._tasks = [asyncio.create_task(loop.run(), name=type(loop).__name__) for loop in self._loops]

    @property
    def idle(self) -> bool:
        """Whether no controller has anything left to look at."""
        return all(loop.idle for loop in self._loops)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
