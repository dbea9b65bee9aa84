"""The exchange with the server, in a thread of its own so that a slow server holds up nothing.

One exchange at a time. Only reports that are durable in the site's log are sent; orders are durable there before the
next request acknowledges them.

A server that reports a newer epoch for this site may be wrong: the site's own epoch files decide whether the agent has
to end (`epoch`). The agent is `contested` until the server accepts it as the site's agent again.
"""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import ProtocolError, TidemillError, is_transient
from tidemill.log import Log
from tidemill.site import constants
from tidemill.site.link.transport import open_transport
from tidemill.wire.api import SyncReply, SyncRequest
from tidemill.wire.protocol import PROTOCOL, mismatch
from tidemill.wire.server_connection import ConflictError, TooLongError

UNIX_INTERVAL_S = 0.2
TCP_INTERVAL_S = 10.0
AWAY_FIRST_S = 0.5
PRESSED = 20
"""The pause is shorter by this factor when something is urgent."""

LIVELY, LIVELY_S = 4, 2.0
"""The pause is shorter by the factor LIVELY for LIVELY_S after orders or reports, if the server is on the same machine:
the user who runs a command waits for each of them."""

SAID_CHARACTERS_MAX = 1_000
"""Of a server's words in the log: it may answer with many megabytes, other ones each time."""

_log = Log("sync")


class Sync:
    """When to talk to the server, and the exchange that is under way."""

    def __init__(self, config: SiteConfig) -> None:
        default_s = UNIX_INTERVAL_S if config.is_its_own else TCP_INTERVAL_S
        self.interval_s = constants.SYNC_INTERVAL_S or default_s
        self._longest_s = max(constants.SYNC_INTERVAL_MAX_S, self.interval_s)
        self._transport = open_transport(config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._under_way: Future[SyncReply] | None = None
        self._next_s = 0.0
        self._pressed_s = 0.0
        self._lively = LIVELY if config.is_its_own else 1
        self._lively_until_s = 0.0
        self.failures = self.failed = 0  #: in a row; since the start
        self.last_s = self._began_s = 0.0
        self.more = False
        self.last_error: str | None = None
        self.contested = ""  #: why the server takes another agent for this site's; empty = it does not

    def is_due(self, *, presses: bool) -> bool:
        """Whether to start an exchange now. `presses`: results wait, or cores are free and the server has more."""
        if self._under_way is not None:
            return False
        now = clock.monotonic_s()
        return now >= self._next_s or (presses and not self.failures and now >= self._pressed_s)

    def start(self, request: SyncRequest) -> None:
        """Send a request; `poll_reply` gives the answer when it is there."""
        assert self._under_way is None
        self._began_s = clock.monotonic_s()
        if request.reports:
            self._lively_until_s = self._began_s + LIVELY_S
        self._under_way = self._thread.submit(self._send, request)

    @property
    def under_way(self) -> Future[SyncReply] | None:
        """The exchange whose answer is awaited; None = there is none."""
        return self._under_way

    def poll_reply(self) -> SyncReply | None:
        """The answer if it has come. A server that is unreachable, or takes another agent for this site's, is asked
        again at growing intervals."""
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        try:
            reply = done.result()
        except TidemillError as error:
            self._away(error)
            return None
        if self.contested:
            _log.warning("server.agrees", contested=self.contested)
        self.contested = ""
        if self.failures:
            _log.info("server.answers", after_failures=self.failures)
        self.failures = 0
        self.last_error = None
        self.more = reply.more
        now = clock.monotonic_s()
        self.last_s = now - self._began_s
        if reply.orders:
            self._lively_until_s = now + LIVELY_S
        self._next_s = now + self.interval_s / (self._lively if now < self._lively_until_s else 1)
        self._pressed_s = now + self.interval_s / PRESSED
        return reply

    def wait(self, timeout_s: float) -> None:
        """Wait until the exchange under way has its answer, at most `timeout_s`."""
        deadline = clock.monotonic_s() + timeout_s
        while self._under_way is not None and not self._under_way.done() and clock.monotonic_s() < deadline:
            clock.sleep_s(0.002)

    def _send(self, request: SyncRequest) -> SyncReply:
        """With as many of the reports as may pass: they have texts of failed programs, and what is too long once would
        be so for ever. The rest goes with the next exchange."""
        while True:
            try:
                return _of_our_protocol(self._transport.sync(request))
            except TooLongError:
                if len(request.reports) < 2:
                    raise
                few = request.reports[: len(request.reports) // 2]
                request = msgspec.structs.replace(request, reports=few)

    def close(self) -> None:
        """Wait for nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._transport.close()

    def _away(self, error: TidemillError) -> None:
        self.failures += 1
        self.failed += 1
        longest = min(self._longest_s, AWAY_FIRST_S * 2 ** min(self.failures - 1, 20))
        pause_s = longest * random.uniform(0.5, 1.0)  # so that sites do not come back all at once
        self._next_s = clock.monotonic_s() + pause_s
        message, hint = error.message[:SAID_CHARACTERS_MAX], (error.hint or "")[:SAID_CHARACTERS_MAX] or None
        if isinstance(error, ConflictError):
            self.contested = message
        if message != self.last_error:
            self.last_error = message
            if isinstance(error, ConflictError):
                _log.error("server.contests", reason=message, hint=hint, next_try_s=round(pause_s, 1))
                return
            write = _log.warning if is_transient(error) else _log.error
            write("server.away", reason=message, hint=hint, next_try_s=round(pause_s, 1))


def _of_our_protocol(reply: SyncReply) -> SyncReply:
    """The reply. Raises ProtocolError, which says which side to upgrade, for one of another protocol: its orders may
    mean something else here."""
    if (found := mismatch(PROTOCOL, reply.protocol)) is not None:
        raise ProtocolError(found[0], hint=found[1])
    return reply
