"""Belief from poll to poll: one agent's witnesses, and its reports of doubt. `belief` decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidemill import clock
from tidemill.batch import constants as batch_constants
from tidemill.batch.contract import Status, is_shown
from tidemill.config.site import SiteConfig
from tidemill.log import Log
from tidemill.model.failure import FailureClass
from tidemill.model.trouble import TEXT_MAX, Scope, Trouble
from tidemill.node.journal import allocation_of
from tidemill.site import constants as site_constants
from tidemill.site.nodes import belief
from tidemill.site.nodes.batch_calls import PollAnswer
from tidemill.site.nodes.planning import EVER_S, Starts
from tidemill.site.nodes.selection import Named
from tidemill.site.state.site_state import Allocation
from tidemill.wire.node import Ended, Record

CAUSE = "doubt"
"""The cause in metrics for which the site requests no more nodes."""

_log = Log("doubt")


class Doubts:
    """What the agent believes about its batch system."""

    def __init__(self, config: SiteConfig) -> None:
        self._config = config
        #: a local pilot is a process of this machine: the plain query decides
        self._word_s = 0.0 if config.batch == "local" else batch_constants.WORD_S
        self._heard_s: dict[str, float] = {}
        self.belief = belief.Belief()
        self._since_us = 0
        #: what the reply under way has to show: running and waiting allocations
        self._asked: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    # ---- witnesses ----

    def on_records(self, records: Iterable[Record]) -> None:
        """Note that pilots have written records: those that did not sign off are at work."""
        now_s = clock.monotonic_s()
        for record in records:
            name = allocation_of(record.p)
            if type(record) is Ended:
                self._heard_s.pop(name, None)
            else:
                self._heard_s[name] = now_s

    def sampled(self, name: str) -> None:
        """Note that a pilot of this allocation has measured its node."""
        self._heard_s[name] = clock.monotonic_s()

    def heard_since(self, name: str, at_s: float) -> bool:
        """Whether a pilot of this allocation wrote something after this (monotonic) time."""
        return self._heard_s.get(name, -EVER_S) >= at_s + self._word_s

    # ---- replies ----

    def to_check(self, living: Iterable[Allocation]) -> list[str]:
        """Allocations to look up by the plain query if the next reply does not show them."""
        running, waiting = self._asked = belief.expected(living, clock.now_us())
        missing_s, now_s = self.belief.missing_s, clock.monotonic_s()
        late = {name for name in waiting if now_s - missing_s.get(name, now_s) >= belief.QUEUED_LAG_S}
        return sorted(running | late)

    def judge(
        self, answer: PollAnswer, living: Sequence[Allocation], *, futile: Sequence[str]
    ) -> dict[str, Status]:
        """Judge a reply, and return the statuses that count. `futile`: allocations that go on after confirmed
        cancels."""
        # since the question an end may have been seen or ordered
        running, waiting = belief.expected(living, clock.now_us())
        running, waiting = running & self._asked[0], waiting & self._asked[1]
        names = {each.name for each in living}
        self._heard_s = {name: at_s for name, at_s in self._heard_s.items() if name in names}
        surveyed = belief.surveyed(answer.snapshot, answer.statuses)
        reply = belief.ReplySeen(
            at_s=answer.at_s,
            running=running,
            waiting=waiting,
            shown=frozenset(name for name in running | waiting if is_shown(answer.statuses, name)),
            surveyed=None if surveyed is None else surveyed & running,
            plain=answer.plain,
            heard_s=self._heard_s,
            futile=tuple(futile),
            word_s=self._word_s,
        )
        before, self.belief = self.belief, belief.judge(self.belief, reply)
        self._log_belief(before)
        return belief.believed(answer.statuses, self.belief)

    def _log_belief(self, before: belief.Belief) -> None:
        now = self.belief
        if now.is_sure and not before.is_sure:
            self._since_us = clock.now_us()
        if now.is_sure and (now.doubt, now.why) != (before.doubt, before.why):
            _log.error("reply.doubted", kind=now.doubt.value, reason=now.why, hint=now.hint)
        elif now.doubt and not before.doubt:
            _log.info("reply.checked", reason=now.why)
        elif before.doubt and not now.doubt:
            _log.info("reply.believed", was=before.doubt.value)

    # ---- what follows ----

    @property
    def text(self) -> str:
        """Why the site submits nothing, as shown to users; empty = replies are believed."""
        if not self.belief.doubt:
            return ""
        begin = (
            "replies of the batch system are not believed"
            if self.belief.is_sure
            else "a reply is being checked"
        )
        return f"{begin}: {self.belief.why}"

    @property
    def shown(self) -> str:
        """`text` if a witness contradicts the reply; otherwise empty: users need not know of a check."""
        return self.text if self.belief.is_sure else ""

    def starts(self, usual: Starts) -> Starts:
        """What may be started: nothing while replies are doubted."""
        return Starts(pause_s=EVER_S, why=self.text, cause=CAUSE) if self.belief.doubt else usual

    def kept(self, plan: Named) -> Named:
        """The part of a plan to carry out. While replies are doubted, the site yields nodes to the regular jobs that it
        sees and ends nothing else: what seems to wait or to be idle may be Tidemill's."""
        if not self.belief.doubt or plan.decision.yields_to:
            return plan
        return msgspec.structs.replace(plan, cancel=[], ends_s={})

    def begin(self) -> None:
        """Forget earlier doubts: an operator has resumed the site."""
        self.belief = belief.Belief()

    def last(self) -> str:
        """Why the site has to stop; empty = it may go on."""
        if not belief.lasts(self.belief, clock.monotonic_s(), doubt_s=site_constants.DOUBT_S):
            return ""
        return f"{self.text}; {self.belief.hint}"

    def troubles(self, *, jobs: int, next_us: int) -> list[Trouble]:
        """The doubt as a trouble for the server, which sends no work meanwhile. `jobs`: the number that wait here for
        nodes; `next_us`: when the batch system is polled next."""
        if not self.shown:
            return []
        trouble = Trouble(
            failure=FailureClass.BATCH.value, scope=Scope.ALL, message=self.text[:TEXT_MAX],
            hint=self.belief.hint[:TEXT_MAX], since_us=self._since_us, next_us=next_us, jobs=jobs, is_open=True,
        )  # fmt: skip
        return [trouble]
