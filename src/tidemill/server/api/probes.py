"""Routes for monitoring: `/health` for probes, `/v1/health` for clients, `/metrics` for Prometheus; and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response

from tidemill import clock
from tidemill.errors import SiteError
from tidemill.model.identity import Act
from tidemill.server.api.connection import who
from tidemill.server.api.router import BoundedRequest, Handler
from tidemill.server.core.meters import Meters
from tidemill.server.database.store import Session
from tidemill.server.watch.health import health
from tidemill.server.watch.metrics import ServerMetrics

if TYPE_CHECKING:
    from tidemill.server.api.app import Api


TYPE = "text/plain; version=0.0.4; charset=utf-8"
STREAMED = (
    "/v1/changes",
    "/v1/jobs/{job}/log",
    "/live",
)  #: they wait for something to happen: no measure of speed
WORKS = frozenset({"ok", "degraded"})
T = TypeVar("T")


def handlers(api: Api) -> list[Handler]:
    """The handlers of `/v1/health`, `/health` and `/metrics`."""
    metrics = ServerMetrics(api.watched)

    async def read(act: Callable[[Session | None], T]) -> T:
        """With a reader's connection, or with none if there is none to be had."""

        def run() -> T:
            try:
                session: Session | None = api.session()
            except SiteError:
                session = None
            return act(session)

        return await asyncio.get_running_loop().run_in_executor(api.readers.threads, run)

    async def tell(_: BoundedRequest) -> Response:
        found = await read(lambda session: health(session, api.watched))
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def probe(_: BoundedRequest) -> Response:
        found = await read(lambda session: health(session, api.watched))
        status = 200 if found.status in WORKS else 503
        return Response(msgspec.json.encode(found), media_type="application/json", status_code=status)

    async def scrape(request: BoundedRequest) -> Response:
        who(request.scope, Act.METRICS)
        text = await read(lambda session: metrics.text(session, feed_readers=api.followers.count))
        return Response(text.encode(), media_type=TYPE)

    return [
        Handler("GET", "/v1/health", tell), Handler("GET", "/health", probe), Handler("GET", "/metrics", scrape),
    ]  # fmt: skip


def measuring(meters: Meters) -> Callable[[Any], Any]:
    """ASGI middleware that counts requests by route and status, and measures those that wait for nothing outside."""

    def around(app: Any) -> Any:
        async def measured(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began_s, status = clock.monotonic_s(), 500

            async def noting(message: Any) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = int(message["status"])
                await send(message)

            try:
                await app(scope, receive, noting)
            finally:
                path = str(scope.get("path_template") or "other")
                meters.add(
                    "tidemill_server_requests_total",
                    route=path,
                    method=scope["method"],
                    status=f"{status // 100}xx",
                )
                if path not in STREAMED:
                    meters.observe(
                        "tidemill_server_request_seconds", clock.monotonic_s() - began_s, route=path
                    )

        return measured

    return around
