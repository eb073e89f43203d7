"""Startup, readiness and liveness probes, and preStop hooks: what is asked, when, and what the answers add up to."""

import asyncio
import errno
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from evenflow_devcluster.agent.expansion import ConfigError, resolve_port
from evenflow_devcluster.agent.process import StartError

Json = dict[str, Any]

_EAGER_SECONDS = 0.2
_CONNECT_ERRORS = (aiohttp.ClientError, OSError)


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """Kubernetes' defaults; durations in seconds, thresholds in consecutive answers."""

    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    successes: int = 1
    failures: int = 3

    @classmethod
    def of(cls, probe: Json) -> "ProbeTiming":
        return cls(
            initial_delay=float(probe.get("initialDelaySeconds") or 0),
            period=float(probe.get("periodSeconds") or 10),
            timeout=float(probe.get("timeoutSeconds") or 1),
            successes=int(probe.get("successThreshold") or 1),
            failures=int(probe.get("failureThreshold") or 3),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Consecutive equal answers so far, and what they amount to."""

    passing: bool
    last: bool | None = None
    streak: int = 0

    def after(self, success: bool, timing: ProbeTiming) -> "Verdict":
        streak = self.streak + 1 if success == self.last else 1
        needed = timing.successes if success else timing.failures
        return Verdict(success if streak >= needed else self.passing, success, streak)

    def failed(self, timing: ProbeTiming) -> bool:
        """Whether the failure threshold has been reached just now or before."""
        return self.last is False and self.streak >= timing.failures


class Exec(Protocol):
    """Runs a command as the container would: (exit code, output). Raises StartError or TimeoutError."""

    def __call__(self, command: list[str], timeout: float) -> Awaitable[tuple[int, str]]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where a container's probes and hooks go."""

    container: Json
    pod_ip: str
    session: aiohttp.ClientSession
    run: Exec


async def ask(handler: Json, target: Target, timeout: float) -> str | None:
    """Put one probe's question: None for success, else what to say in the event."""
    try:
        async with asyncio.timeout(timeout):
            if "httpGet" in handler:
                return await _http(handler["httpGet"], target)
            if "tcpSocket" in handler:
                return await _tcp(handler["tcpSocket"], target)
            if "exec" in handler:
                code, output = await target.run(handler["exec"].get("command") or [], timeout)
                return None if code == 0 else f"command exited with {code}: {output[-200:]}"
    except (StartError, ConfigError) as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except _CONNECT_ERRORS as error:
        return _said(error)
    raise ConfigError(f"{sorted(handler)}: not a kind of probe this node agent knows; use httpGet, tcpSocket or exec")


def _said(error: Exception) -> str:
    """A failed connection in a kubelet's words, without this computer's objects and addresses in them."""
    number = getattr(error, "errno", None)
    if not isinstance(number, int) or number not in errno.errorcode:
        return str(error) or type(error).__name__
    connecting = isinstance(error, aiohttp.ClientConnectorError) or not isinstance(error, aiohttp.ClientError)
    return f"{'connect: ' if connecting else ''}{os.strerror(number).lower()}"


async def _http(handler: Json, target: Target) -> str | None:
    port = resolve_port(handler["port"], target.container)
    host = handler.get("host") or target.pod_ip
    scheme = (handler.get("scheme") or "HTTP").lower()
    path = "/" + (handler.get("path") or "/").lstrip("/")
    headers = {"User-Agent": "kube-probe/1.37", "Accept": "*/*"}
    headers |= {item["name"]: item["value"] for item in handler.get("httpHeaders") or []}
    url = f"{scheme}://{host}:{port}{path}"
    async with target.session.get(url, headers=headers, allow_redirects=False, ssl=False) as response:
        if 200 <= response.status < 400:
            return None
        return f"HTTP probe failed with statuscode: {response.status}"


async def _tcp(handler: Json, target: Target) -> str | None:
    port = resolve_port(handler["port"], target.container)
    _, writer = await asyncio.open_connection(handler.get("host") or target.pod_ip, port)
    writer.close()
    return None


async def run_hook(handler: Json, target: Target, timeout: float) -> str | None:
    """A preStop hook, within `timeout` seconds: None for success, else what went wrong."""
    if "sleep" in handler:
        await asyncio.sleep(min(float(handler["sleep"].get("seconds") or 0), timeout))
        return None
    return await ask(handler, target, timeout)


async def probe_loop(
    probe: Json, target: Target, *, passing: bool, on_verdict: Callable[[Verdict, str | None], bool]
) -> None:
    """Probe until `on_verdict` returns False. `passing` is what holds before the first answer.

    Until the first success it asks every 0.2 s, for a local process is up long before a period has passed; failures
    still count once a period, so that thresholds mean what they mean to a kubelet.
    """
    timing = ProbeTiming.of(probe)
    verdict = Verdict(passing)
    loop = asyncio.get_running_loop()
    period = min(timing.period, _EAGER_SECONDS)
    counted = -math.inf
    await asyncio.sleep(timing.initial_delay)
    while True:
        problem = await ask(probe, target, timing.timeout)
        if problem is None:
            period = timing.period
        if problem is None or loop.time() - counted >= timing.period:
            counted = loop.time()
            verdict = verdict.after(problem is None, timing)
            if not on_verdict(verdict, problem):
                return
        await asyncio.sleep(period)


def still_starting(probe: Json, running_for: float) -> bool:
    """Whether a startup probe that fails `running_for` seconds after the start says only that programs take time.

    So for the probe's first period, and for the 10 s that are a period's default: a process is asked here at once.
    """
    return running_for < max(ProbeTiming.of(probe).period, ProbeTiming().period)


def check_handlers(container: Json) -> None:
    """Refuse, before anything is started, probes and hooks that could never be asked. Raises ConfigError."""
    known = ("httpGet", "tcpSocket", "exec")
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind)
        if probe is not None and not any(key in probe for key in known):
            raise ConfigError(f"containers[{container['name']}].{kind}: needs one of {', '.join(known)}")
    lifecycle = container.get("lifecycle") or {}
    if lifecycle.get("postStart"):
        raise ConfigError(f"containers[{container['name']}].lifecycle.postStart: isn't supported by this node agent")
    hook = lifecycle.get("preStop")
    if hook is not None and not any(key in hook for key in (*known, "sleep")):
        raise ConfigError(f"containers[{container['name']}].lifecycle.preStop: needs one of {', '.join(known)}, sleep")
