"""How much of the server one submitter gets: requests at once and in a second, and a part of the server's time.

Requests that come too fast wait for their turn, and are answered 429 when that takes too long. The server's own user,
sites and operators are not held up. Knows who asks and what requests cost, not what they want.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tidemill import clock, log
from tidemill.model.identity import Identity, Role
from tidemill.server import constants
from tidemill.server.errors import FIXED, PaceError
from tidemill.wire.api import REQUEST_BYTES_MAX, ErrorReply

COST_S = "tidemill.cost_s"  #: in the ASGI scope: seconds that a request has taken of the server
PATIENCE_S = 5.0  #: longest time that a request waits for its turn
REFUSAL_PAUSE_S = 2.0  #: before a request is refused, so that immediate retries cannot overload the server
BURST_S = 10.0  #: as many requests may come at once as REQUESTS_PER_S allows in this time
CREDIT_S = 1.0  #: of the server's time that may be taken at once
DEBT_S_MAX = (
    10.0  #: one large request, such as to cancel a million jobs, must not lock its user out for minutes
)
AT_ONCE = 3  #: requests of one submitter that are worked on at once
LARGE_BYTES = 1024 * 1024
LARGE_AT_ONCE = 8  #: large bodies of all submitters together
REQUEST_COST_S = 0.001  #: of any request: parsing, logging; measured on a 2-core machine
BYTE_COST_S = 1e-8  #: of one byte of a body: TLS, parsing, counting; measured: 20 MB take 0.15 to 0.75 s
SHOWN_COST_S = 0.5  #: of a page at most
STREAMS = ("/v1/changes", "/live")  #: and logs of jobs: they wait for something to happen
ACCOUNTS_MAX = 10_000
BOUNDS = {
    "requests_per_s": "send {:g} requests a second on average",
    "time_share": "take {:.0%} of the server's time on average",
    "requests_max": "have {:g} requests under way at once",
    "feeds_max": "wait for {:g} feeds and logs at once",
}
"""What each submitter may do, for the text of a refusal."""
_LOG = log.Log("server")


class PaceAccount:
    """What one submitter has asked for of late. Time is passed in, in seconds."""

    def __init__(self) -> None:
        self._debt_s = self._asked = 0.0
        self._at_s = 0.0
        self.under_way = self.streams = 0
        self.turns, self.large = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(1)

    def ask(self, now_s: float) -> None:
        """One more request."""
        self._pass(now_s)
        self._asked += 1

    def spend(self, cost_s: float, now_s: float) -> None:
        """A request has cost that."""
        self._pass(now_s)
        self._debt_s = min(self._debt_s + cost_s, DEBT_S_MAX)

    def wait_s(self, now_s: float) -> tuple[float, str]:
        """How long the next request has to wait, and which of BOUNDS says so."""
        self._pass(now_s)
        by_rate = (self._asked - constants.REQUESTS_PER_S * BURST_S) / constants.REQUESTS_PER_S
        by_time = (self._debt_s - CREDIT_S) / constants.TIME_SHARE
        return max((by_rate, "requests_per_s"), (by_time, "time_share"), (0.0, ""))

    def is_idle(self, now_s: float) -> bool:
        """Whether forgetting it now changes nothing: what was asked for has been paid by time."""
        self._pass(now_s)
        return not (self.under_way or self.streams or self._debt_s or self._asked)

    def _pass(self, now_s: float) -> None:
        past_s, self._at_s = max(0.0, now_s - self._at_s), now_s
        self._debt_s = max(0.0, self._debt_s - past_s * constants.TIME_SHARE)
        self._asked = max(0.0, self._asked - past_s * constants.REQUESTS_PER_S)


class Gate:
    """ASGI: lets the requests of submitters through, each at its pace. `asks`: who makes a request, by its scope."""

    def __init__(
        self,
        app: Any,
        asks: Callable[[Any], Identity | None],
        *,
        pause_s: float = REFUSAL_PAUSE_S,
    ) -> None:
        self._app, self._asks, self._pause_s = app, asks, pause_s
        self._accounts: dict[str, PaceAccount] = {}
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        identity = self._asks(scope) if scope["type"] == "http" else None
        if identity is None or identity.is_local_admin or identity.role is not Role.SUBMITTER:
            await self._app(scope, receive, send)
            return
        account = self._account(identity.name)
        passage = self._stream(account) if _is_stream(scope["path"]) else self._turn(account, scope)
        try:
            async with passage:
                await self._app(scope, receive, send)
        except PaceError as error:
            _LOG.warning("request.paced", who=identity.name, path=scope["path"], why=error.message)
            await asyncio.sleep(self._pause_s)
            await _refuse(send, error)

    def _account(self, name: str) -> PaceAccount:
        result = self._accounts.get(name)
        if result is None:
            if len(self._accounts) >= ACCOUNTS_MAX:
                now_s = clock.monotonic_s()
                self._accounts = {
                    key: each for key, each in self._accounts.items() if not each.is_idle(now_s)
                }
            result = self._accounts[name] = PaceAccount()
        return result

    @asynccontextmanager
    async def _stream(self, account: PaceAccount) -> AsyncIterator[None]:
        most = constants.FEEDS_MAX
        if account.streams >= most:
            raise _paced("feeds_max", most, f"{most} feeds and logs are waited for already", PATIENCE_S)
        account.streams += 1
        try:
            yield
        finally:
            account.streams -= 1

    @asynccontextmanager
    async def _turn(self, account: PaceAccount, scope: Any) -> AsyncIterator[None]:
        most = constants.REQUESTS_MAX
        if account.under_way >= most:
            raise _paced("requests_max", most, f"{most} requests are under way already", PATIENCE_S)
        account.under_way += 1
        account.ask(clock.monotonic_s())
        locks = [account.turns]
        try:
            if _is_large(scope):
                locks = [account.large, self._large, account.turns]
            taken = await self._acquire(account, locks)
            began_s = clock.monotonic_s()
            try:
                yield
            finally:
                for lock in reversed(taken):
                    lock.release()
                now_s = clock.monotonic_s()
                cost_s = scope.get(COST_S, min(SHOWN_COST_S, now_s - began_s))
                account.spend(cost_s + REQUEST_COST_S + _length(scope) * BYTE_COST_S, now_s)
        finally:
            account.under_way -= 1

    async def _acquire(self, account: PaceAccount, locks: list[asyncio.Semaphore]) -> list[asyncio.Semaphore]:
        """The locks, once they are free and the account allows it. Raises PaceError, holding none of them."""
        taken: list[asyncio.Semaphore] = []
        until_s = clock.monotonic_s() + PATIENCE_S
        try:
            for lock in locks:
                await asyncio.wait_for(lock.acquire(), max(0.001, until_s - clock.monotonic_s()))
                taken.append(lock)
            await self._pay(account, until_s)
        except BaseException as error:
            for lock in reversed(taken):
                lock.release()
            if isinstance(error, TimeoutError):
                why = f"{AT_ONCE} earlier requests, or a large one, still take their time"
                raise _paced("requests_max", constants.REQUESTS_MAX, why, PATIENCE_S) from None
            raise
        return taken

    async def _pay(self, account: PaceAccount, until_s: float) -> None:
        """Wait until the account allows another request. Raises PaceError when that is later than `until_s`."""
        while True:
            now_s = clock.monotonic_s()
            wait_s, bound = account.wait_s(now_s)
            if wait_s <= 0:
                return
            if now_s + wait_s > until_s:
                most = constants.REQUESTS_PER_S if bound == "requests_per_s" else constants.TIME_SHARE
                raise _paced(bound, most, "there were too many requests of late", wait_s)
            await asyncio.sleep(wait_s)


def _paced(bound: str, most: float, why: str, wait_s: float) -> PaceError:
    return PaceError(
        f"{why}; each submitter may {BOUNDS[bound].format(most)} ({FIXED})",
        wait_s=max(1.0, wait_s),
        hint="wait as long as `Retry-After` says and send it again",
    )


def _is_stream(path: str) -> bool:
    trimmed = "/" + "/".join(part for part in path.split("/") if part)
    return trimmed in STREAMS or (trimmed.startswith("/v1/jobs/") and trimmed.endswith("/log"))


def _length(scope: Any) -> int:
    found = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return min(int(found), REQUEST_BYTES_MAX) if found.isdigit() else 0


def _is_large(scope: Any) -> bool:
    """Whether a body is, or may be, large."""
    if any(name == b"transfer-encoding" for name, _ in scope["headers"]):
        return True
    return _length(scope) > LARGE_BYTES


async def _refuse(send: Any, error: PaceError) -> None:
    text = msgspec.json.encode(ErrorReply(error=error.message, hint=error.hint))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(text)),
        (b"retry-after", b"%d" % math.ceil(error.wait_s)),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": text})
