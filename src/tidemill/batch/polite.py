"""Limits on what Tidemill costs a batch system: commands a minute, bytes and seconds of each, and rarer polls
where it is slow.

Shared by all adapters; every command of theirs goes through one `Budget`. Its `calls` are exported as metrics.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from tidemill import clock
from tidemill.batch import constants
from tidemill.batch.contract import CommandCounts
from tidemill.batch.environment import batch_environment
from tidemill.batch.run import CommandResult, LongReplyError, Refusal, ask, recognise
from tidemill.config.site import Cluster
from tidemill.errors import SiteError

WAIT_S_MAX = 5.0
"""How long a command waits for its turn; after that it is refused, and the caller asks again later."""

KEPT_FOR_ACTIONS = 0.25
"""Queries leave this share of the commands a minute to cancels, submits and shortenings: a release never waits."""

GLANCE_BYTES_MAX = 1_000_000
"""A glance is asked for every few seconds. `sdiag` prints 4 to 20 kB, `qstat -B` about 2 kB."""

BYTES_HINT = (
    "the batch system answers, but with more than Tidemill reads at once: report it in an issue (the agent needs about "
    "8 bytes of memory for each byte of REPLY_BYTES_MAX in batch/constants.py)"
)
"""`replies.read_text` of PBS needs that much (docs/batch-pbs.md); the other adapters need less."""

Words = Sequence[tuple[str, Refusal]]
"""Lower-case pieces of what commands print, and what they mean; the first that fits counts."""


class Budget:
    """Counts and bounds what we ask. `words`: how the batch system's commands refuse."""

    def __init__(self, config: Cluster, words: Words = ()) -> None:
        self.calls = CommandCounts()
        self._config = config
        self._words = words
        self._per_s = config.calls_per_min_max / 60
        self._left = float(config.calls_per_min_max)
        self._counted_s = clock.monotonic_s()
        self._factors: dict[str, float] = {}

    def query(self, command: Sequence[str], *, kind: str = "") -> CommandResult:
        """Ask something. `kind` names polls that are alike: they become rarer when one of them is slow, and come back
        when it is quick again; what is asked rarely has none. Raises SiteError when it could not be asked; what was
        refused is a reply (see `refusal`)."""
        self._wait_turn(math.ceil(self._config.calls_per_min_max * KEPT_FOR_ACTIONS))
        self.calls.queries += 1
        reply = self._run(command, kind=kind, stdin=b"")
        self.calls.last_s = reply.seconds
        return reply

    def glance(self, command: Sequence[str]) -> bytes:
        """What a short query printed. Raises SiteError as `query` and `check` do, and where it printed more than
        GLANCE_BYTES_MAX."""
        self.calls.glances += 1
        output = self.check(self.query(command, kind="glance"))
        if len(output) > GLANCE_BYTES_MAX:
            message = (
                f"`{' '.join(command)}` printed {len(output)} bytes; a glance may have {GLANCE_BYTES_MAX}"
            )
            raise SiteError(message, hint="the next poll shows what has changed")
        return output

    def act(self, command: Sequence[str], *, stdin: bytes = b"") -> CommandResult:
        """Change something. Raises SiteError as `query` does; it may have been done then."""
        self._wait_turn(0)
        self.calls.actions += 1
        return self._run(command, kind="", stdin=stdin)

    def refusal(self, reply: CommandResult) -> Refusal:
        """Why a reply with another status than 0 did not do its work."""
        return recognise(reply, self._words)

    def check(self, reply: CommandResult) -> bytes:
        """What a query printed. Raises SiteError, transient unless it is denied, when its status is not 0."""
        if reply.status != 0:
            self.calls.failures += 1
            raise reply.error(transient=self.refusal(reply) is not Refusal.DENIED)
        return reply.output

    def _run(self, command: Sequence[str], *, kind: str, stdin: bytes) -> CommandResult:
        config, started_s = self._config, clock.monotonic_s()
        try:
            reply = ask(
                command,
                timeout_s=constants.COMMAND_TIMEOUT_S,
                bytes_max=constants.REPLY_BYTES_MAX,
                environ=batch_environment(os.environ, server=config.server),
                stdin=stdin,
            )
        except SiteError as error:
            self.calls.failures += 1
            self.calls.seconds += clock.monotonic_s() - started_s
            self._adapt(kind, slow=True)
            if isinstance(error, LongReplyError):
                raise LongReplyError(error.message, hint=BYTES_HINT) from error
            raise
        self.calls.seconds += reply.seconds
        self.calls.bytes += len(reply.output) + len(reply.errors)
        limited = bool(reply.errors) and self.refusal(reply) is Refusal.BUSY
        self._adapt(kind, slow=limited or reply.seconds > constants.SLOW_S, limited=limited)
        return reply

    def _adapt(self, kind: str, *, slow: bool, limited: bool = False) -> None:
        """Polls become half as frequent after a slow reply, twice as frequent after a quick one of the same kind; a
        rate limit, whatever met it, slows all of them."""
        self.calls.slow += slow
        if kind:
            self._factors.setdefault(kind, 1.0)
        for each in [*self._factors] if limited else [kind] if kind else []:
            factor = self._factors[each]
            self._factors[each] = min(factor * 2, constants.SLOWDOWN_MAX) if slow else max(factor / 2, 1.0)
        self.calls.interval_factor = max(self._factors.values(), default=1.0)

    def _wait_turn(self, kept: int) -> None:
        """Wait for our turn. Raises SiteError when that would take too long."""
        most = float(self._config.calls_per_min_max)
        now_s = clock.monotonic_s()
        self._left = min(most, self._left + (now_s - self._counted_s) * self._per_s)
        self._counted_s = now_s
        wait_s = max(0.0, (1 + min(kept, most - 1) - self._left) / self._per_s)
        if wait_s > WAIT_S_MAX:
            message = f"{most:g} commands a minute are allowed, the next in {wait_s:.0f} s"
            raise SiteError(message, hint="see `cluster.calls_per_min_max`")
        if wait_s:
            clock.sleep_s(wait_s)
        self._left -= 1
