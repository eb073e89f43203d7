"""The agent's own HTTP port: container logs for `kubectl logs`, as a kubelet has it, over TLS."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from aiohttp import web

from evenflow_devcluster.agent.logs import LogQuery, read_log, since_seconds
from evenflow_devcluster.agent.pod_worker import PodWorker

Find = Callable[[str, str], PodWorker | None]
"""The worker of a pod by namespace and name."""


def log_query(query: dict[str, str], now: datetime) -> LogQuery:
    """Kubernetes' PodLogOptions. Raises ValueError naming the option that is wrong."""

    def number(name: str) -> int | None:
        if name not in query:
            return None
        try:
            value = int(query[name])
        except ValueError:
            value = -1
        if value < 0:
            raise ValueError(f"{name}: {query[name]!r} must be a whole number of at least 0")
        return value

    def flag(name: str) -> bool:
        return query.get(name, "").lower() in ("true", "1")

    result = LogQuery(
        follow=flag("follow"),
        timestamps=flag("timestamps"),
        tail_lines=number("tailLines"),
        limit_bytes=number("limitBytes"),
    )
    seconds = number("sinceSeconds")
    if seconds is not None:
        return replace(result, since=since_seconds(now, seconds))
    if "sinceTime" in query:
        try:
            return replace(result, since=datetime.fromisoformat(query["sinceTime"].replace("Z", "+00:00")))
        except ValueError:
            raise ValueError(f"sinceTime: {query['sinceTime']!r} isn't an RFC 3339 time") from None
    return result


def build_app(find: Find, now: Callable[[], datetime]) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def container_logs(request: web.Request) -> web.StreamResponse:
        worker = find(request.match_info["namespace"], request.match_info["pod"])
        runner = None if worker is None else worker.runner(request.match_info["container"])
        if worker is None or runner is None:
            raise web.HTTPNotFound(text=f"no container {request.match_info['container']!r} runs here in that pod\n")
        try:
            query = log_query(dict(request.query), now())
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        run = runner.status.restarts
        if request.query.get("previous", "").lower() in ("true", "1"):
            if run == 0:
                raise web.HTTPBadRequest(text=f"previous terminated container {runner.name!r} not found\n")
            run -= 1
            query = replace(query, follow=False)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        path = worker.log_path(runner.name, run)
        async for line in read_log(path, query, lambda: runner.log_open and runner.status.restarts == run):
            await response.write(line)
        await response.write_eof()
        return response

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/containerLogs/{namespace}/{pod}/{container}", container_logs),
        ]
    )
    return app
