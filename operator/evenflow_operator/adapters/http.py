"""What every HTTP client of pods shares: one kind of session, bounded answers."""

import aiohttp


class TooLarge(Exception):
    """An answer longer than the reader is willing to take."""


def session() -> aiohttp.ClientSession:
    """A session for pods: no proxy, no cookies."""
    connector = aiohttp.TCPConnector(limit=256, limit_per_host=4, keepalive_timeout=30)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


def base_url(ip: str, port: int) -> str:
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body. Raises TooLarge beyond `limit` bytes, after having read no more than that."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(65_536):
        size += len(chunk)
        if size > limit:
            response.close()
            raise TooLarge(f"answer longer than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
