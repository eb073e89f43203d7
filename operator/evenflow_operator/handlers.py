"""The kopf glue: watches feed the cache, nothing else (docs/kubernetes.md §1.1).

There is no index function, with which kopf would tell when its first lists are complete: it wakes every object for each
other one then, and keeps them all in memory. The watchdog finds out instead.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from evenflow_contract import labels
from evenflow_operator.adapters import views
from evenflow_operator.api.names import GROUP, PLURAL, VERSION
from evenflow_operator.engine.feed import Feed
from evenflow_operator.ports import Kind, Record

RELOGIN_AFTER = timedelta(hours=1)
LOGIN_PAUSE_SECONDS = 0.5
LIST_PAGE = 500

log = logging.getLogger(__name__)

Parse = Callable[[Any], Record | None]
Login = Callable[[], Awaitable[Mapping[str, Any]]]
"""Fields of a kopf.ConnectionInfo, freshly read."""

RESOURCES: Mapping[Kind, tuple[str, str, str, Parse]] = {
    "pools": (GROUP, VERSION, PLURAL, views.pool_record),
    "pods": ("", "v1", "pods", views.pod_record),
    "services": ("", "v1", "services", views.service_record),
    "endpointslices": ("discovery.k8s.io", "v1", "endpointslices", views.slice_record),
    "nodes": ("", "v1", "nodes", views.node_record),
}
LABELLED = ("pods", "services", "endpointslices")


def build_registry(feed: Feed, login: Login, *, watch_nodes: bool) -> kopf.OperatorRegistry:
    """A registry of our own."""
    registry = kopf.OperatorRegistry()
    logins = itertools.count()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        apply_settings(settings)

    @kopf.on.cleanup(registry=registry)
    async def stopped(**_: Any) -> None:
        log.debug("watches stopped")

    @kopf.on.login(registry=registry, id="credentials")
    async def connect(**_: Any) -> kopf.ConnectionInfo:
        if next(logins):
            await asyncio.sleep(LOGIN_PAUSE_SECONDS)
        # kopf never takes the same credentials again after one 401: the expiry makes each reading of them new.
        return kopf.ConnectionInfo(**await login(), expiration=datetime.now(UTC) + RELOGIN_AFTER)

    for kind, (group, version, plural, parse) in RESOURCES.items():
        if kind != "nodes" or watch_nodes:
            _watch(registry, feed, kind, (group, version, plural), parse)
    return registry


def _watch(
    registry: kopf.OperatorRegistry, feed: Feed, kind: Kind, resource: tuple[str, str, str], parse: Parse
) -> None:
    @kopf.on.event(*resource, registry=registry, id=f"watch-{kind}")
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        body = event["object"]
        one = views.identity(body)
        if one is None:
            return
        if event["type"] == "DELETED":
            feed.drop(kind, one.uid, one.resource_version)
        elif (record := parse(body)) is not None:
            feed.put(kind, one.uid, record)


async def connection_fields(configuration: Any) -> Mapping[str, Any]:
    """The fields of a kopf.ConnectionInfo from a client configuration: one reading of credentials for both clients."""
    authorization = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    return {
        "server": configuration.host,
        "ca_path": configuration.ssl_ca_cert,
        "ca_data": configuration.ca_cert_data if not configuration.ssl_ca_cert else None,
        "insecure": not configuration.verify_ssl,
        "certificate_path": configuration.cert_file,
        "private_key_path": configuration.key_file,
        "token": authorization.removeprefix("Bearer ") or None,
        "proxy_url": configuration.proxy,
    }


class _NoMemory(kopf.DiffBaseStorage):
    """kopf copies every object of every event, to tell changes that no handler of ours asks about."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def apply_settings(settings: kopf.OperatorSettings) -> None:
    """See docs/kubernetes.md §1.2."""
    settings.peering.standalone = True
    settings.scanning.disabled = True
    for plural in LABELLED:
        settings.watching.label_selectors[plural] = labels.POOL
    settings.watching.inactivity_timeout = 70
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.initial_streaming = False
    settings.watching.chunk_size = LIST_PAGE
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = (0.1, 0.5, 1, 2, 4)
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 0.5
    settings.queueing.exit_timeout = 0.5
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.posting.reporting_component = "evenflow-operator"
    settings.persistence.finalizer = "evenflow.dev/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="evenflow.dev")
    settings.persistence.diffbase_storage = _NoMemory()
    settings.execution.max_workers = 2
    settings.process.ultimate_exiting_timeout = None
