"""The Tokens port: admin tokens from Secrets that this operator is explicitly allowed to read."""

import base64
import binascii
from collections.abc import Collection
from urllib.parse import quote

from evenflow_operator.adapters.kube import KubeClient
from evenflow_operator.ports import ApiError, Clock, TokenUnavailable

CACHE_SECONDS = 60.0
MAX_CACHED = 1000
MAX_TOKEN = 4096


class SecretTokens:
    """`allowed` holds `namespace/secret`: other pools get no push, their annotation delivers.

    An answer, also that there is no token, is believed for a minute: pools ask at every pass.
    """

    def __init__(self, client: KubeClient, clock: Clock, allowed: Collection[str]) -> None:
        self._client = client
        self._clock = clock
        self._allowed = frozenset(allowed)
        self._cache: dict[tuple[str, str, str], tuple[float, str | TokenUnavailable]] = {}

    async def admin_token(self, namespace: str, secret: str, key: str) -> str:
        if f"{namespace}/{secret}" not in self._allowed:
            raise TokenUnavailable(f"Secret {namespace}/{secret} isn't among the operator's --admin-token-secret")
        now = self._clock.monotonic()
        read_at, token = self._cache.get((namespace, secret, key), (-CACHE_SECONDS, ""))
        if now - read_at >= CACHE_SECONDS:
            try:
                token = await self._read(namespace, secret, key)
            except TokenUnavailable as error:
                token = error
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[namespace, secret, key] = now, token
        if isinstance(token, TokenUnavailable):
            raise TokenUnavailable(str(token))
        return token

    async def _read(self, namespace: str, secret: str, key: str) -> str:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets/{quote(secret, safe='')}"
        try:
            document = await self._client.request("GET", path)
        except ApiError as error:
            raise TokenUnavailable(f"Secret {namespace}/{secret}: {error.status} {error.reason}") from error
        try:
            token = base64.b64decode(document["data"][key], validate=True).decode("ascii").strip()
        except (KeyError, TypeError, ValueError, binascii.Error):
            # The cause's text could quote the secret's bytes: it stays out of the message and of the traceback.
            raise TokenUnavailable(f"Secret {namespace}/{secret}: key {key!r} is missing or no ASCII text") from None
        if not token or len(token) > MAX_TOKEN or not token.isprintable():
            raise TokenUnavailable(f"Secret {namespace}/{secret}: key {key!r} holds no usable token")
        return token
