"""The operator's own settings: flags, each with an environment variable `EVENFLOW_…` behind it."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from evenflow_operator.engine.lease import LeaseTimes

LogFormat = Literal["plain", "json"]
VERSION = "0.1.0"
MAX_WORKERS = 64
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class SettingsError(ValueError):
    """A setting that can't be used: names the flag, what was found and the remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    kubeconfig: str | None = None
    context: str | None = None
    namespaces: tuple[str, ...] = ()
    """Empty: the whole cluster."""
    watch_nodes: bool = True
    """Cluster-wide mode only: nodes are cluster-scoped."""
    leader_election: bool = True
    lease_name: str = "evenflow-operator"
    lease_namespace: str | None = None
    """None: the namespace that the operator runs in, else `default`."""
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)
    prometheus_url: str | None = None
    prometheus_token_file: Path | None = None
    worker_image: str = f"evenflow/worker:{VERSION}"
    simulated_image: str = f"evenflow/engine:{VERSION}"
    admin_token_secrets: tuple[str, ...] = ()
    """`namespace/secret`: the only Secrets that are ever read."""
    admin_write_open: bool = False
    """A NetworkPolicy guards the workers' admin port: pushes need no token."""
    host: str = "127.0.0.1"
    metrics_port: int = 0
    """`/healthz`, `/readyz` and `/metrics`; 0: not served."""
    workers: int = 4
    watchdog_seconds: float = 60.0
    log_format: LogFormat = "plain"
    log_level: str = "INFO"

    @property
    def scope(self) -> str:
        return ", ".join(self.namespaces) if self.namespaces else "the whole cluster"


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Raises SettingsError; `--help` prints and raises SystemExit, as argparse does."""
    options = _parser(environment).parse_args(arguments)
    try:
        times = LeaseTimes(options.lease_duration, options.lease_renew_deadline, options.lease_retry)
    except ValueError as error:
        raise SettingsError(f"--lease-duration, --lease-renew-deadline, --lease-retry: {error}") from None
    namespaces = tuple(dict.fromkeys(_split(options.namespace)))
    for namespace in namespaces:
        if not _NAME.fullmatch(namespace):
            raise SettingsError(f"--namespace: {namespace!r} is no namespace name; globs are not supported")
    secrets = tuple(_split(options.admin_token_secret))
    for secret in secrets:
        if secret.count("/") != 1 or not all(secret.split("/")):
            raise SettingsError(f"--admin-token-secret: {secret!r}; write namespace/secret")
    if options.prometheus_url is not None:
        _check_url(options.prometheus_url)
    if options.admin_write not in ("token", "open"):
        raise SettingsError(f"--admin-write: {options.admin_write!r}; say token or open")
    if options.log_format not in get_args(LogFormat):
        raise SettingsError(f"--log-format: {options.log_format!r}; say plain or json")
    for flag, value, low, high in (
        ("--metrics-port", options.metrics_port, 0, 65_535),
        ("--workers", options.workers, 1, MAX_WORKERS),
        ("--watchdog-seconds", options.watchdog_seconds, 1, 86_400),
    ):
        if not low <= value <= high:
            raise SettingsError(f"{flag}: {value:g}; give a number from {low} to {high}")
    return Settings(
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespaces=namespaces,
        watch_nodes=options.watch_nodes and not namespaces,
        leader_election=options.leader_election,
        lease_name=options.lease_name,
        lease_namespace=options.lease_namespace,
        lease_times=times,
        prometheus_url=options.prometheus_url,
        prometheus_token_file=Path(options.prometheus_token_file) if options.prometheus_token_file else None,
        worker_image=options.worker_image,
        simulated_image=options.simulated_image,
        admin_token_secrets=secrets,
        admin_write_open=options.admin_write == "open",
        host=options.host,
        metrics_port=options.metrics_port,
        workers=options.workers,
        watchdog_seconds=options.watchdog_seconds,
        log_format=options.log_format,
        log_level=options.log_level.upper(),
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="evenflow operator",
        description="Run the operator against a cluster.",
        epilog="Every option can be set by an environment variable: --log-format by EVENFLOW_LOG_FORMAT, and so on.",
        allow_abbrev=False,
    )

    def option(flag: str, help_text: str, default: object, kind: type = str, **more: object) -> None:
        name = "EVENFLOW_" + flag.removeprefix("--").replace("-", "_").upper()
        value = environment.get(name, default)
        parser.add_argument(flag, help=help_text, default=value, type=kind, **more)  # type: ignore[arg-type]

    def switch(flag: str, help_text: str, default: bool) -> None:
        name = "EVENFLOW_" + flag.removeprefix("--").replace("-", "_").upper()
        value = environment.get(name, str(default)).strip().lower() in ("1", "true", "yes", "on")
        parser.add_argument(flag, help=help_text, default=value, action=argparse.BooleanOptionalAction)

    def listed(flag: str, help_text: str) -> None:
        name = "EVENFLOW_" + flag.removeprefix("--").replace("-", "_").upper()
        values = environment.get(name, "")
        parser.add_argument(flag, help=help_text, default=[values] if values else [], action=_Replace)

    option("--kubeconfig", "Kubeconfig file; default: in-cluster, else $KUBECONFIG, else ~/.kube/config.", None)
    option("--context", "Context of the kubeconfig.", None)
    listed("--namespace", "Namespace to serve; repeat or separate by commas. Default: the whole cluster.")
    switch("--watch-nodes", "Notice lost nodes (cluster-wide mode only).", defaults.watch_nodes)
    switch("--leader-election", "Lead by a Lease; switch it off on a laptop.", defaults.leader_election)
    option("--lease-name", "Name of the Lease.", defaults.lease_name)
    option("--lease-namespace", "Namespace of the Lease; default: the operator's own.", None)
    option("--lease-duration", "Seconds.", defaults.lease_times.duration, float)
    option("--lease-renew-deadline", "Seconds.", defaults.lease_times.renew_deadline, float)
    option("--lease-retry", "Seconds.", defaults.lease_times.retry, float)
    option("--prometheus-url", "Prometheus to read engine metrics from; default: scrape the pods.", None)
    option("--prometheus-token-file", "File with a bearer token for Prometheus, read for every query.", None)
    option("--worker-image", "Image that carries the worker, for pools that name none.", defaults.worker_image)
    option("--simulated-image", "Image of simulated engines.", defaults.simulated_image)
    listed("--admin-token-secret", "namespace/secret that may be read for a pool's adminTokenSecretRef; repeatable.")
    option("--admin-write", "token, or open where a NetworkPolicy guards the workers' admin port.", "token")
    option("--host", "Address of the port below.", defaults.host)
    option("--metrics-port", "Port of /healthz, /readyz and /metrics; 0: none.", defaults.metrics_port, int)
    option("--workers", "Pools worked on at once.", defaults.workers, int)
    option("--watchdog-seconds", "Seconds between two checks of the watches.", defaults.watchdog_seconds, float)
    option("--log-format", "plain or json.", defaults.log_format, choices=get_args(LogFormat))
    option("--log-level", "DEBUG, INFO, WARNING or ERROR.", defaults.log_level)
    return parser


class _Replace(argparse.Action):
    """Append; the first flag on the command line replaces what the environment said."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: object = None) -> None:
        seen = f"_{self.dest}_given"
        before = getattr(namespace, self.dest) if getattr(namespace, seen, False) else []
        setattr(namespace, self.dest, [*before, values])
        setattr(namespace, seen, True)


def _split(values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SettingsError(f"--prometheus-url: {url!r}; give a full URL such as http://prometheus.monitoring:9090")
    if parts.username or parts.password:
        raise SettingsError("--prometheus-url: holds credentials; use --prometheus-token-file")
