"""One way to the API server: raw JSON through `kubernetes.aio`.

Every request has a time-out, every failure is an ApiError.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config
from yaml import YAMLError

from evenflow_operator.outages import transport_cause
from evenflow_operator.ports import ApiError

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
USER_AGENT = "evenflow-operator"
REQUEST_TIMEOUT_SECONDS = 15.0
LIST_TIMEOUT_SECONDS = 60.0
MAX_MESSAGE = 1000
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Body = Mapping[str, Any] | list[Mapping[str, Any]]


class KubeConfigError(Exception):
    """No usable credentials; the message says what was looked for."""


async def load_configuration(kubeconfig: str | None, context: str | None) -> Configuration:
    """Credentials from a kubeconfig, else from the pod's service account, else from the usual kubeconfig places.

    Raises KubeConfigError.
    """
    configuration = Configuration()
    # Retrying is the work queue's job: a hidden retry would hold a slot of the pool for minutes.
    configuration.retries = None
    configuration.connection_pool_maxsize = 64
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists():
            load_incluster_config(client_configuration=configuration)
        else:
            await load_kube_config(
                config_file=_file(kubeconfig) if kubeconfig else None,
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
    except (AttributeError, KeyError, TypeError, ValueError, OSError, YAMLError) as error:
        # The client library stumbles over files that are no kubeconfig in all these ways.
        raise KubeConfigError(f"the kubeconfig can't be read ({type(error).__name__}: {error})") from error
    except ConfigException as error:
        raise KubeConfigError(
            f"no way to reach a cluster: {error}; give --kubeconfig, set KUBECONFIG, or run inside a cluster"
        ) from error
    return configuration


def _file(kubeconfig: str) -> str:
    path = Path(kubeconfig).expanduser()
    if not path.is_file():
        raise KubeConfigError(f"--kubeconfig: {kubeconfig} is not a file")
    return str(path)


def service_account_namespace() -> str | None:
    """The namespace that this process runs in, inside a cluster."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


class KubeClient:
    """Requests to one API server; `failed` is told the verb and status (0: no answer) of each that fails.

    Close it when done.
    """

    def __init__(
        self,
        kubeconfig: str | None = None,
        context: str | None = None,
        failed: Callable[[str, int], None] = lambda verb, status: None,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._failed = failed
        self._api: ApiClient | None = None
        self._retired: ApiClient | None = None
        self._lock = asyncio.Lock()

    async def connect(self) -> Configuration:
        """Load (or reload) the credentials; requests under way finish with the old ones. Raises KubeConfigError."""
        configuration = await load_configuration(self._kubeconfig, self._context)
        api = ApiClient(configuration=configuration)
        api.user_agent = USER_AGENT
        retired, self._retired, self._api = self._retired, self._api, api
        if retired is not None:
            await retired.close()
        return configuration

    async def close(self) -> None:
        for api in (self._api, self._retired):
            if api is not None:
                await api.close()
        self._api = self._retired = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Body | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = REQUEST_TIMEOUT_SECONDS,
    ) -> Any:
        """The decoded answer. Raises ApiError for every other status than 2xx, and for no answer at all."""
        used = self._api
        try:
            return await self._request(method, path, query, body, content_type, accept, timeout)
        except ApiError as error:
            self._failed(method, error.status)
            # A token may have been rotated: read the credentials again, once, and only for what never happened.
            if error.status != 401 or not await self._reconnect(used):
                raise
            return await self._request(method, path, query, body, content_type, accept, timeout)

    async def _reconnect(self, used: ApiClient | None) -> bool:
        async with self._lock:
            if self._api is used:
                try:
                    await self.connect()
                except KubeConfigError:
                    return False
            return True

    async def _request(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: Body | None,
        content_type: str,
        accept: str,
        timeout: float,
    ) -> Any:
        api = self._api
        if api is None:
            await self.connect()
            api = self._api
        assert api is not None
        headers = {"Accept": accept, "Content-Type": content_type}
        try:
            serialized = await api.param_serialize(
                method,
                path,
                query_params=list(query) or None,
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await api.call_api(*serialized, _request_timeout=aiohttp.ClientTimeout(total=timeout))
            data = await response.read()
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{method} {path}: no answer within {timeout:g} s") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # RuntimeError: "Session is closed", when the process is closing.
            why = transport_cause(repr(error)) or str(error)[:MAX_MESSAGE]
            raise ApiError(0, type(error).__name__, f"{method} {path}: {why}") from error
        if not 200 <= response.status <= 299:
            raise _api_error(response.status, response.headers, data)
        try:
            return json.loads(data) if data else {}
        except ValueError as error:
            raise ApiError(0, "InvalidAnswer", f"{method} {path}: the answer is no JSON") from error


def _api_error(status: int, headers: Mapping[str, str], data: bytes) -> ApiError:
    reason, message = "", ""
    try:
        document = json.loads(data)
        if isinstance(document, dict):
            reason, message = str(document.get("reason") or ""), str(document.get("message") or "")
    except ValueError:
        message = data[:MAX_MESSAGE].decode("utf-8", "replace")
    try:
        retry_after = min(60.0, max(0.0, float(headers.get("Retry-After", ""))))
    except ValueError:
        retry_after = None
    return ApiError(status, reason or f"HTTP{status}", message[:MAX_MESSAGE], retry_after=retry_after)
