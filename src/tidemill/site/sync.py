"""The exchange with the server, in a thread of its own so that a slow server holds up nothing.

One exchange at a time. Only reports that are durable in the site's log are sent; orders are durable there before the
next request acknowledges them.
"""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import TidemillError, is_transient
from tidemill.log import Log
from tidemill.wire.api import SyncReply, SyncRequest
from tidemill.wire.http import ConflictError, Connection

UNIX_INTERVAL_S = 0.2
TCP_INTERVAL_S = 10.0
AWAY_FIRST_S = 0.5
PRESSED = 20
"""When something presses, the pause is so many times shorter."""

_log = Log("sync")


class Sync:
    """When to talk to the server, and the exchange that is under way."""

    def __init__(self, config: SiteConfig) -> None:
        default_s = UNIX_INTERVAL_S if config.server.startswith("unix:") else TCP_INTERVAL_S
        self.interval_s = config.sync_interval_s or default_s
        self._longest_s = max(config.sync_interval_max_s, self.interval_s)
        self._connection = Connection(
            config.server, secret_file=config.secret_file, timeout_s=config.sync_timeout_s
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._under_way: Future[SyncReply] | None = None
        self._next_s = 0.0
        self._pressed_s = 0.0
        self.failures = 0
        self.more = False
        self.said: str | None = None

    def is_due(self, *, presses: bool) -> bool:
        """Whether to start an exchange now. `presses`: results wait, or cores are free and the server has more."""
        if self._under_way is not None:
            return False
        now = clock.monotonic_s()
        return now >= self._next_s or (presses and not self.failures and now >= self._pressed_s)

    def start(self, request: SyncRequest) -> None:
        """Send a request; `take` gives the answer when it is there."""
        assert self._under_way is None
        self._under_way = self._thread.submit(
            self._connection.call, "POST", "/v1/sync", SyncReply, body=request
        )

    @property
    def is_under_way(self) -> bool:
        """Whether an answer is awaited."""
        return self._under_way is not None

    def take(self) -> SyncReply | None:
        """The answer if it has come. A server that is away is tried again, slower and slower.

        Raises ConflictError when the server knows a newer epoch of this site.
        """
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        try:
            reply = done.result()
        except ConflictError:
            raise
        except TidemillError as error:
            self._away(error)
            return None
        if self.failures:
            _log.info("server.answers", after_failures=self.failures)
        self.failures = 0
        self.said = None
        self.more = reply.more
        now = clock.monotonic_s()
        self._next_s = now + self.interval_s
        self._pressed_s = now + self.interval_s / PRESSED
        return reply

    def wait(self, timeout_s: float) -> None:
        """Wait until the exchange under way has its answer, at most so long."""
        deadline = clock.monotonic_s() + timeout_s
        while self._under_way is not None and not self._under_way.done() and clock.monotonic_s() < deadline:
            clock.sleep_s(0.002)

    def close(self) -> None:
        """Wait for nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _away(self, error: TidemillError) -> None:
        self.failures += 1
        longest = min(self._longest_s, AWAY_FIRST_S * 2 ** min(self.failures - 1, 20))
        pause_s = longest * random.uniform(0.5, 1.0)  # so that sites do not come back all at once
        self._next_s = clock.monotonic_s() + pause_s
        transient = is_transient(error)
        if error.message != self.said:
            self.said = error.message
            tell = _log.warning if transient else _log.error
            tell("server.away", reason=error.message, hint=error.hint, next_try_s=round(pause_s, 1))
