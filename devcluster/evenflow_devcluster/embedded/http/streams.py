"""WATCH over HTTP: JSON lines, bookmarks, time limits."""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from evenflow_devcluster.embedded.errors import FieldError, StatusError, invalid
from evenflow_devcluster.embedded.faults import Faults
from evenflow_devcluster.embedded.http.requests import Target, flag, number, predicate_of
from evenflow_devcluster.embedded.http.shapes import Shape, shown
from evenflow_devcluster.embedded.http.tables import partial
from evenflow_devcluster.embedded.jsonvalues import Object, encoded
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.store.watch import OpenWatch, WatchEvent, open_watch

QUEUE = 20_000
BOOKMARK_SECONDS = 60.0
SEND_SECONDS = 30.0
_BATCH = 200
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True)
class WatchOptions:
    since: int | None
    bookmarks: bool
    initial_end: bool
    timeout: float


def options_of(query: Mapping[str, str], api: Api, rng: random.Random) -> WatchOptions:
    """Raises 422 as the real server does where sendInitialEvents and resourceVersionMatch don't go together."""
    version = number(query, "resourceVersion")
    wants_initial = query.get("sendInitialEvents")
    match = query.get("resourceVersionMatch")
    if wants_initial is not None and match != "NotOlderThan":
        message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid("ListOptions", "meta.k8s.io", "", [FieldError("resourceVersionMatch", message, "Forbidden")])
    if wants_initial is None and match:
        message = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise invalid("ListOptions", "meta.k8s.io", "", [FieldError("resourceVersionMatch", message, "Forbidden")])
    initial = flag(query, "sendInitialEvents")
    if initial:
        since = None
    elif version:
        since = version
    else:
        since = None if wants_initial is None else api.store.version
    bookmarks = flag(query, "allowWatchBookmarks")
    asked = number(query, "timeoutSeconds")
    return WatchOptions(since, bookmarks, initial and bookmarks, float(asked or rng.randint(1800, 3600)))


class WatchStream:
    """Writes one watch to one client until its time is up, it is cut off, or the client leaves."""

    def __init__(self, api: Api, faults: Faults, target: Target, shape: Shape, options: WatchOptions) -> None:
        self._api = api
        self._faults = faults
        self._target = target
        self._shape = shape
        self._options = options

    async def serve(self, request: web.Request) -> web.StreamResponse:
        target = self._target
        predicate = predicate_of(target, request.query)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        try:
            watch = open_watch(
                self._api.store,
                target.resource.qualified,
                namespace=target.namespace or None,
                predicate=predicate,
                since=self._options.since,
                capacity=QUEUE,
            )
        except StatusError as error:
            await response.prepare(request)
            await _write(response, self._line("ERROR", error.body()))
            await response.write_eof()
            return response
        try:
            await response.prepare(request)
            await self._run(watch, response)
            if request.transport is not None and not request.transport.is_closing():
                await response.write_eof()
        except (ConnectionError, TimeoutError):
            # The client has left, or reads nothing: what it has got so far is consistent, and it has to start again.
            if request.transport is not None:
                request.transport.abort()
        finally:
            watch.close()
        return response

    async def _run(self, watch: OpenWatch, response: web.StreamResponse) -> None:
        deadline = time.monotonic() + self._options.timeout
        await self._faults.flowing(deadline - time.monotonic())
        await self._send(watch.initial, response)
        if self._options.initial_end:
            await _write(response, self._bookmark(watch.version, _INITIAL_EVENTS_END))
        bookmark_due = time.monotonic() + BOOKMARK_SECONDS
        while not watch.watcher.ended and (now := time.monotonic()) < deadline:
            await watch.watcher.wait(min(deadline, bookmark_due) - now)
            if self._faults.stalled:
                await self._faults.flowing(max(deadline - time.monotonic(), 0))
                continue
            bookmark = time.monotonic() >= bookmark_due
            await self._flush(watch, response, bookmark)
            if bookmark:
                bookmark_due = time.monotonic() + BOOKMARK_SECONDS
        if not self._faults.stalled:
            await self._flush(watch, response, bookmark=True)

    async def _flush(self, watch: OpenWatch, response: web.StreamResponse, bookmark: bool) -> None:
        """Send what is due, and a bookmark behind it: of the version at which the queue was emptied, or a client
        that resumes there would miss what came in while this was being sent."""
        events, version = watch.watcher.take(), self._api.store.version
        await self._send(events, response)
        if bookmark and self._options.bookmarks and not watch.watcher.ended:
            await _write(response, self._bookmark(version, {}))

    async def _send(self, events: list[WatchEvent], response: web.StreamResponse) -> None:
        for start in range(0, len(events), _BATCH):
            await _write(response, b"".join(self._event(event) for event in events[start : start + _BATCH]))

    def _event(self, event: WatchEvent) -> bytes:
        obj = shown(self._api, self._target.resource, event.record, self._shape)
        return b'{"type":"' + event.type.encode() + b'","object":' + obj + b"}\n"

    def _bookmark(self, version: int, annotations: Object) -> bytes:
        resource = self._target.resource
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        obj: Object = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._shape.kind == "Table":
            obj = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": str(version)},
                "columnDefinitions": [],
                "rows": [{"cells": [], "object": partial(obj)}],
            }
        elif self._shape.kind == "PartialObjectMetadata":
            obj = partial(obj)
        return self._line("BOOKMARK", obj)

    def _line(self, kind: str, obj: Object) -> bytes:
        return encoded({"type": kind, "object": obj}) + b"\n"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Raises TimeoutError if the client takes nothing for `SEND_SECONDS`."""
    async with asyncio.timeout(SEND_SECONDS):
        await response.write(data)
