"""The ASGI application: HTTP in, calls of the table of routes, JSON out. Decodes strictly; sends errors as ErrorReply.

The event loop only moves bytes: decoding, database work and encoding happen in a few threads (readers) and in threads
that wait for the one writer.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from tidemill import clock, log
from tidemill.errors import SiteError, TidemillError, did_you_mean
from tidemill.model.identity import Act, Identity, own_name
from tidemill.model.job import JobSpec
from tidemill.server.api import openapi, probes
from tidemill.server.api.connection import who
from tidemill.server.api.followers import FOLLOWERS_MAX, Followers, Interest
from tidemill.server.api.pace import COST_S, LARGE_BYTES
from tidemill.server.api.refusal import reply_of, status_of
from tidemill.server.api.router import BoundedRequest, Handler, Router
from tidemill.server.api.routes import Call, ChangesQuery, LogQuery, Route, served
from tidemill.server.archive import lookup
from tidemill.server.core import rights, submission, sync
from tidemill.server.core.body_count import BodyCount
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.readers import Readers
from tidemill.server.database.store import Store
from tidemill.server.errors import PaceError, QuotaError, RequestError, RoomError
from tidemill.server.identity.access import IDENTITY, Authenticator
from tidemill.server.read.job_search import TOP
from tidemill.server.watch.health import Watched
from tidemill.wire.api import ErrorReply, JobLog, SubmitRequest, SyncRequest

WAITERS = 16
LOG_WAIT_S = 20.0
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
_LOG = log.Log("server")
_ENCODER = msgspec.json.Encoder()


class Api:
    """The state that handlers of the API share. Made in the event loop's thread, ended by `close`."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        *,
        authenticator: Authenticator | None = None,
        transport_up: Callable[[], bool] | None = None,
    ) -> None:
        authenticator = authenticator or Authenticator()
        self.on_refused, self.believed = authenticator.on_refused, authenticator.believes
        self.watched = Watched(dispatcher, transport_up)
        self.dispatcher, self.readers = dispatcher, Readers(store)
        self.session, self.read = self.readers.session, self.readers.read
        self.waiters = ThreadPoolExecutor(WAITERS, thread_name_prefix="waiter")
        self._specs: dict[int, JobSpec] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._large = threading.Lock()  #: one large body is decoded at a time: it is many times as long then
        self.followers = Followers(self)
        self.closing = False
        dispatcher.writer.listeners.append(self._wake_from_writer)

    async def run(self, called: Route, request: BoundedRequest) -> bytes:
        """The encoded answer of a route."""
        self._loop = asyncio.get_running_loop()
        identity = who(request.scope, called.act)
        if called.body is not None and called.act is not Act.SYNC:
            request.counted = BodyCount()
        body = await request.body()
        query = _query(called.query, request)
        at = dict(request.path_params)
        pool = self.readers.threads if called.reads else self.waiters
        answer = partial(self._answer, called, query, body, at, identity)
        return await self._loop.run_in_executor(pool, self.timed, request.scope, answer)

    def timed(self, scope: Any, answer: Callable[[], T]) -> T:
        """The answer, and in the request's scope the time that it took of the server, without that of others."""
        began_s = clock.monotonic_s()
        self.dispatcher.writer.take_waited_s()
        try:
            return answer()
        finally:
            scope[COST_S] = clock.monotonic_s() - began_s - self.dispatcher.writer.take_waited_s()

    def _answer(
        self, called: Route, query: msgspec.Struct, body: bytes, at: dict[str, Any], identity: Identity
    ) -> bytes:
        with self._large if len(body) > LARGE_BYTES else nullcontext():
            decoded = None if called.body is None else _decode(body, called.body)
        if called.run is None:
            raise TypeError(f"{called.path} has a handler of its own")
        call = Call(self.session(), self.dispatcher, query, decoded, at, self._specs, identity)
        return _ENCODER.encode(called.run(call))

    # ---- what waits for commits ------------------------------------------------------------------------------

    def _wake_from_writer(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait for a commit after `event` was taken from `next_change`; whether there was one."""
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def next_change(self) -> asyncio.Event:
        """Set at the next commit. Take it before reading, so that nothing is missed."""
        self._loop = asyncio.get_running_loop()
        return self._changed

    def stop_waiting(self) -> None:
        """Let every feed end: the server stops."""
        self.closing = True
        self._wake()

    def close(self) -> None:
        """End the threads and their connections."""
        self.waiters.shutdown()
        self.readers.close()


def make_app(
    api: Api,
    pages_: Sequence[Handler] = (),
    error: Callable[[BoundedRequest, Exception], Response] | None = None,
) -> Router:
    """The application. `pages_`: the pages for people; `error`: makes the response for an exception."""
    handlers = [_handler(api, each) for each in served() if each.run is not None]
    handlers += [
        _log_handler(api),
        _changes_handler(api),
        _openapi_handler(),
        *probes.handlers(api),
        *pages_,
    ]
    return Router(
        handlers,
        error=error or partial(error_reply, api),
        around=probes.measuring(api.dispatcher.meters),
    )


def _handler(api: Api, called: Route) -> Handler:
    async def handle(request: BoundedRequest) -> Response:
        return _json(await api.run(called, request))

    return Handler(called.method, called.path, handle)


def _log_handler(api: Api) -> Handler:
    async def handle(request: BoundedRequest) -> Response:
        identity = who(request.scope, Act.LOG)
        query, job = _query(LogQuery, request), int(request.path_params["job"])
        event: int | None = query.event
        await api.read(lambda session: rights.check_jobs(session, identity, Act.LOG, [job]))
        if not await api.read(lambda session: session.rows("states_by_id", ids=[job])):
            raise await api.read(lambda session: lookup.refusal_of_log(session, job)) or rights.missing_job(
                job
            )
        loop = asyncio.get_running_loop()
        number = await loop.run_in_executor(api.waiters, api.dispatcher.ask_log, job, event, identity)
        reply = JobLog(job=job, event=event, found=False, pending=number is not None, stdout="", stderr="")
        deadline_s = clock.monotonic_s() + LOG_WAIT_S
        while number is not None and not api.closing:
            changed = api.next_change()
            found = (await api.read(lambda session: session.rows("log_request", id=number)))[:1]
            if found and found[0].answered:
                told = found[0]
                reply = JobLog(
                    job=job, event=event, found=bool(told.found), pending=False, stdout=bytes(told.stdout).decode(),
                    stderr=bytes(told.stderr).decode(),
                )  # fmt: skip
                break
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0 or not found:
                break
            await api.changed(changed, left_s)
        return _json(_ENCODER.encode(reply))

    return Handler("GET", "/v1/jobs/{job:int}/log", handle)


def _changes_handler(api: Api) -> Handler:
    async def handle(request: BoundedRequest) -> StreamingResponse:
        identity = who(request.scope, Act.READ)
        query = _query(ChangesQuery, request)
        wanted = query.campaign
        rights.check(identity, Act.READ)
        campaign = (
            None
            if wanted is None
            else await api.read(
                lambda session: rights.check_campaign(session, identity, Act.READ, wanted).number
            )
        )
        if api.followers.is_full:
            raise SiteError(
                f"{FOLLOWERS_MAX} clients already follow the feed, which is the limit", hint="try again later"
            )
        interest = Interest(campaign, own_name(identity, Act.READ))
        feed = api.followers.follow(interest, query.after, partial(api.believed, identity))
        return StreamingResponse(feed, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    return Handler("GET", "/v1/changes", handle)


def _openapi_handler() -> Handler:
    text = _ENCODER.encode(openapi.document())

    async def handle(request: BoundedRequest) -> Response:
        who(request.scope, Act.SCHEMA)
        return _json(text)

    return Handler("GET", "/schema/openapi.json", handle)


def _json(content: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(content, status, headers, "application/json")


def _query(kind: type[S], request: BoundedRequest) -> S:
    pairs = dict(request.query_params.items())
    try:
        query = msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        fields = kind.__struct_fields__
        unknown = next((key for key in pairs if key not in fields), None)
        hint = None if unknown is None else did_you_mean(unknown, fields)
        raise RequestError(f"query of {request.scope['path']} cannot be read: {error}", hint=hint) from error
    for name, number in [*request.path_params.items(), *msgspec.structs.asdict(query).items()]:
        if isinstance(number, int) and not 0 <= number <= TOP:
            raise RequestError(f"`{name}` of {request.scope['path']} is {number}, legal is 0 to {TOP}")
    return query


def _decode(body: bytes, kind: type[msgspec.Struct]) -> Any:
    if kind is SubmitRequest:
        return submission.decode(body, counted=True)
    if kind is SyncRequest:
        return sync.decode(body)
    return submission.decode_as(body, kind)


TOLD_CHARACTERS = 500


def error_reply(api: Api, request: BoundedRequest, error: Exception) -> Response:
    """The response for an exception: never a traceback."""
    headers = None
    status, reply = status_of(error), reply_of(error)
    if isinstance(error, SiteError):
        headers = {"Retry-After": "2"}
    if isinstance(error, HTTPException):
        status = error.status_code
    if isinstance(error, HTTPException) and status < 500:
        reply = ErrorReply(error=f"{request.method} {request.scope['path']}: {error.detail}", hint=None)
    elif not isinstance(error, TidemillError):
        _LOG.error("request.failed", method=request.method, path=request.scope["path"], error=repr(error))
    if isinstance(error, PaceError):
        headers = {"Retry-After": str(math.ceil(error.wait_s))}
    if isinstance(error, QuotaError | RoomError):
        asked = request.scope.get(IDENTITY)
        who = asked.name if isinstance(asked, Identity) else ""
        _LOG.warning("quota.refused", who=who, path=request.scope["path"], why=reply.error)
    elif status == 403 or getattr(error, "of_another", False):
        asked = request.scope.get(IDENTITY)
        subject = asked.subject if isinstance(asked, Identity) else ""
        api.on_refused(subject, f"{request.method} {request.scope['path']}: {reply.error}")
        _LOG.warning(
            "access.forbidden",
            subject=subject,
            method=request.method,
            path=request.scope["path"],
            why=reply.error,
        )
    if status == 400 and request.method == "POST":
        asked = request.scope.get(IDENTITY)
        who = asked.name if isinstance(asked, Identity) else ""
        _LOG.warning(
            "request.refused", who=who, path=request.scope["path"], why=reply.error[:TOLD_CHARACTERS]
        )
    if status == 503 and reply.standby is not True:
        _LOG.warning("request.unserved", method=request.method, path=request.scope["path"], error=reply.error)
    return _json(_ENCODER.encode(reply), status=status, headers=headers)
