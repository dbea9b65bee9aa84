"""Jobs that wait at this site for a cause of its own, and the breakers: closed, open, trying. Pure: takes the time.

A job that fails through the site's fault is retried by itself, with pauses from seconds to an hour. Different jobs that
fail for the same cause with no success in between open its breaker: jobs that would meet the cause are then tried one
at a time, and a success closes the breaker. The server sends only one such job for each try, so that a few jobs that
can never succeed do not keep the breaker open. After `wait_max_s` jobs go back to the server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Hashable, Iterable
from typing import NamedTuple

import msgspec

from tidemill.model.failure import POLICY, FailureClass
from tidemill.model.trouble import EXAMPLES_MAX, TEXT_MAX, TROUBLES_MAX, Trouble

CLOSED_KEPT_S = 7200.0
"""A breaker that opens again within this time goes on with the pause that it had."""

TRIAL_S_MAX = 3600.0
"""A trial without an outcome for this time is given up: another job is tried."""

FAILURES_MAX = 10
"""So many failures in a row open a breaker even if all are of one job or node."""

HELD_MAX = 1.5
"""Of the longest pause: what is further ahead is of a clock that was set back."""


class TroubleCause(NamedTuple):
    """What jobs wait for."""

    failure: FailureClass
    scope: str  #: a `trouble.Scope`; empty = of single jobs, it opens no breaker
    name: str = ""


class Breaker(msgspec.Struct, kw_only=True):
    """The state of a cause. It can be written as JSON and taken up by the next agent."""

    failure: FailureClass
    scope: str
    name: str
    message: str = ""
    hint: str = ""
    since_us: int = 0
    tries: int = 0  #: that failed since it opened
    next_us: int = 0
    is_open: bool = False
    closed_us: int = 0
    failed: int = 0  #: in a row, while it is closed
    failing: list[str] = []  #: different jobs or nodes among them
    trial: int = 0  #: the job that is tried now
    trial_us: int = 0
    is_granted: bool = False  #: a fleet has the trial: its records show the outcome

    @property
    def cause(self) -> TroubleCause:
        """Its key."""
        return TroubleCause(self.failure, self.scope, self.name)


class Wait(msgspec.Struct):
    """A job that waits. `tries`: that failed; `load`, `events`: what of the open work it is."""

    cause: TroubleCause
    since_us: int
    tries: int = 0
    next_us: int = 0
    load: Hashable = None
    events: int = 0


class Reason(NamedTuple):
    """Why something failed, in words."""

    cause: TroubleCause
    message: str
    hint: str = ""


Meets = Callable[[TroubleCause], bool]
"""Whether a job would meet a cause."""


class Waits:
    """The jobs that wait at one site. `load`: their open events, by the keys of `Settlement.load` and `wide_load`."""

    def __init__(
        self,
        wait_max_s: float,
        breakers: Iterable[Breaker] = (),
        *,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self._wait_max_us = int(wait_max_s * 1e6)
        self._jitter = jitter
        self._breakers = {each.cause: each for each in breakers}
        self._jobs: dict[int, Wait] = {}
        self.load: dict[Hashable, int] = {}
        self.is_news = False  #: breakers have changed since they were written

    @property
    def breakers(self) -> list[Breaker]:
        """All that are known, closed ones included."""
        return list(self._breakers.values())

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self._breakers)

    def is_known(self, reason: Reason) -> bool:
        """Whether this cause failed jobs before, and none has succeeded since."""
        known = self._breakers.get(reason.cause)
        return known is not None and (known.is_open or known.failed > 0)

    def breaker_of(self, job: int) -> Breaker:
        """What a waiting job waits for."""
        return self._breakers[self._jobs[job].cause]

    # ---- what happened ----

    def failed(self, job: int, reason: Reason, now_us: int, *, who: str = "") -> bool:
        """A job failed for a cause of the site's. Whether it waits here: it has not waited for too long. `who`: the
        node, where that counts instead of the job."""
        breaker = self._breaker(reason, now_us)
        wait = self._jobs.get(job)
        if wait is None or wait.cause != breaker.cause:
            self._move(job, now_us)
            wait = self._jobs[job] = Wait(breaker.cause, now_us)
        wait.tries += 1
        wait.next_us = now_us + self._pause_us(breaker.failure, wait.tries)
        if breaker.is_open:
            if breaker.trial == job:
                breaker.tries += 1
                self._again(breaker, now_us)
        else:
            self._count(breaker, who or str(job), now_us)
        if not self._is_late(wait, now_us):
            return True
        self._leave(job)
        return False

    def succeeded(self, job: int, meets: Meets, now_us: int, *, ran: bool = False) -> None:
        """A job came past what it would have met. `ran`: its payload did; images are good only then."""
        wait = self._jobs.get(job)
        for breaker in list(self._breakers.values()):
            if (breaker.failure is FailureClass.IMAGE) is not ran:
                continue
            if breaker.is_open:
                if breaker.trial == job:
                    self._close(breaker, now_us)
            elif breaker.failed and meets(breaker.cause):
                breaker.failed, breaker.failing = 0, []
        if wait is not None and (wait.cause.failure is FailureClass.IMAGE) is ran:
            self._leave(job)

    def granted(self, job: int) -> None:
        """A job's work went to a fleet. One that is a trial of an image waits for what is heard of it."""
        wait = self._jobs.get(job)
        if wait is None:
            return
        self._weigh(wait, wait.load, 0)
        breaker = self._breakers[wait.cause]
        if breaker.trial == job:
            breaker.is_granted = True

    def forget(self, job: int) -> None:
        """The job is over, or went back to the server."""
        self._leave(job)

    def hasten(self, failure: FailureClass, now_us: int, *, scope: str | None = None) -> None:
        """Something was done about causes of this class (and scope): try them again now."""
        for breaker in self._breakers.values():
            if breaker.failure is failure and breaker.is_open and scope in (None, breaker.scope):
                breaker.next_us = now_us
        for wait in self._jobs.values():
            if wait.cause.failure is failure and scope in (None, wait.cause.scope):
                wait.next_us = now_us

    def tend(self, known: Container[int], now_us: int) -> list[int]:
        """Now and then: forget jobs that are not `known` any more, and causes that ended long ago; the jobs that have
        waited for too long."""
        for job in [job for job in self._jobs if job not in known]:
            self._leave(job)
        used: set[TroubleCause] = set()
        for wait in self._jobs.values():
            used.add(wait.cause)
            longest_us = POLICY[wait.cause.failure].back_off.longest_s * 1e6
            wait.next_us = min(wait.next_us, now_us + int(longest_us * HELD_MAX))
        for cause, breaker in list(self._breakers.items()):
            breaker.since_us = min(breaker.since_us, now_us)  # the clock may have been set back
            if breaker.trial and now_us - breaker.trial_us > TRIAL_S_MAX * 1e6:
                breaker.trial, breaker.is_granted = 0, False
            over_us = breaker.next_us if breaker.is_open else max(breaker.closed_us, breaker.since_us)
            if cause not in used and now_us - over_us > CLOSED_KEPT_S * 1e6:  # no job asks for it any more
                del self._breakers[cause]
                self.is_news = True
        return [job for job, wait in self._jobs.items() if self._is_late(wait, now_us)]

    # ---- what follows ----

    def step(self, now_us: int) -> None:
        """Choose the jobs with which open breakers are tried again."""
        due = {
            each.cause: each
            for each in self._breakers.values()
            if each.is_open and not each.trial and self._next_us(each, now_us) <= now_us
        }
        if due:
            self._choose(due, now_us)

    def may_try(self, job: int, meets: Meets, load: tuple[Hashable, int], now_us: int) -> bool:
        """Whether to try this job now. One that would meet an open breaker's cause waits from now on. `load`: key and
        number of its open events."""
        wait = self._jobs.get(job)
        if wait is None:
            if not any(each.is_open for each in self._breakers.values()):
                return True
            cause = next(
                (each.cause for each in self._breakers.values() if each.is_open and meets(each.cause)), None
            )
            if cause is None:
                return True
            wait = self._jobs[job] = Wait(cause, now_us)
        self._weigh(wait, *load)
        breaker = self._breakers[wait.cause]
        if breaker.is_open:
            return breaker.trial == job and not breaker.is_granted
        return wait.next_us <= now_us

    def is_trial(self, job: int) -> bool:
        """Whether a breaker is tried with this job."""
        wait = self._jobs.get(job)
        return wait is not None and self._breakers[wait.cause].trial == job

    def troubles(self, now_us: int) -> list[Trouble]:
        """What people and the server should know: open breakers, and causes for which jobs wait."""
        jobs: dict[TroubleCause, list[int]] = {}
        counts: dict[TroubleCause, int] = {}
        fresh: set[TroubleCause] = set()
        for job, wait in self._jobs.items():
            counts[wait.cause] = counts.get(wait.cause, 0) + 1
            named = jobs.setdefault(wait.cause, [])
            if len(named) < EXAMPLES_MAX:
                named.append(job)
            if not wait.tries:
                fresh.add(wait.cause)
        found = [
            Trouble(
                failure=each.failure.value, scope=each.scope, name=each.name, message=each.message[:TEXT_MAX],
                hint=each.hint[:TEXT_MAX], since_us=each.since_us, next_us=self._next_us(each, now_us),
                jobs=counts.get(each.cause, 0), examples=jobs.get(each.cause, []), is_open=each.is_open,
                room=int(each.is_open and each.cause not in fresh),
            )
            for each in self._breakers.values()
            if each.is_open or each.cause in counts
        ]  # fmt: skip
        return sorted(found, key=lambda each: (not each.is_open, each.since_us))[:TROUBLES_MAX]

    # ---- steps they share ----

    def _is_late(self, wait: Wait, now_us: int) -> bool:
        """Whether job or cause have lasted for too long. A job that was never tried has a chance yet."""
        since_us = min(self._breakers[wait.cause].since_us, wait.since_us)
        held_s = 0.0 if wait.tries else POLICY[wait.cause.failure].back_off.longest_s
        return now_us - since_us >= self._wait_max_us and now_us - wait.since_us >= held_s * 1e6

    def _move(self, job: int, now_us: int) -> None:
        """The job meets another cause than the one that it waited for: what it was a trial of is tried later."""
        wait = self._jobs.get(job)
        if wait is None:
            return
        breaker = self._breakers[wait.cause]
        if breaker.trial == job:
            breaker.next_us = now_us + self._pause_us(breaker.failure, breaker.tries)
        self._leave(job)

    def _breaker(self, reason: Reason, now_us: int) -> Breaker:
        cause = reason.cause
        known = self._breakers.get(cause)
        if known is None:
            cause = self._room_for(cause)
            known = self._breakers.get(cause)
        if known is None:
            known = self._breakers[cause] = Breaker(
                failure=cause.failure, scope=cause.scope, name=cause.name, since_us=now_us
            )
            self.is_news = True
        if not known.is_open and not known.failed:
            known.since_us = now_us
        known.message, known.hint = reason.message[:TEXT_MAX], reason.hint[:TEXT_MAX]
        return known

    def _room_for(self, cause: TroubleCause) -> TroubleCause:
        """The cause, where another breaker may be made; else the one for single jobs of its class."""
        if not cause.scope or len(self._breakers) < TROUBLES_MAX:
            return cause
        used = {wait.cause for wait in self._jobs.values()}
        idle = [each for each in self._breakers.values() if not each.is_open and each.cause not in used]
        if not idle:
            return TroubleCause(cause.failure, "")
        del self._breakers[min(idle, key=lambda each: each.closed_us).cause]
        return cause

    def _count(self, breaker: Breaker, who: str, now_us: int) -> None:
        """One more failure in a row, of a breaker that is closed."""
        threshold = POLICY[breaker.failure].back_off.breaker
        breaker.failed += 1
        if who not in breaker.failing and len(breaker.failing) < threshold:
            breaker.failing.append(who)
        is_enough = len(breaker.failing) >= threshold or (
            breaker.failure is FailureClass.IMAGE and breaker.failed >= FAILURES_MAX
        )
        if not breaker.scope or not threshold or not is_enough:
            return
        breaker.is_open, breaker.failed, breaker.failing = True, 0, []
        if now_us - breaker.closed_us > CLOSED_KEPT_S * 1e6:
            breaker.tries = 0
        breaker.tries = max(2, breaker.tries + 1)  # each of them was tried
        self._again(breaker, now_us)

    def _again(self, breaker: Breaker, now_us: int) -> None:
        breaker.trial, breaker.is_granted = 0, False
        breaker.next_us = now_us + self._pause_us(breaker.failure, breaker.tries)
        self.is_news = True

    def _close(self, breaker: Breaker, now_us: int) -> None:
        breaker.is_open, breaker.trial, breaker.is_granted = False, 0, False
        breaker.closed_us = now_us
        breaker.failed, breaker.failing = 0, []
        for wait in self._jobs.values():
            if wait.cause == breaker.cause:
                wait.next_us = now_us
        self.is_news = True

    def _choose(self, due: dict[TroubleCause, Breaker], now_us: int) -> None:
        """The job of each that was tried least, the first of them."""
        best: dict[TroubleCause, tuple[int, int]] = {}
        for job, wait in self._jobs.items():
            if wait.cause in due and wait.tries < best.get(wait.cause, (1 << 60, 0))[0]:
                best[wait.cause] = (wait.tries, job)
        for cause, (_, job) in best.items():
            due[cause].trial, due[cause].trial_us = job, now_us

    def _next_us(self, breaker: Breaker, now_us: int) -> int:
        """When it is tried next; of a closed one, the next of its jobs. A clock that was set back delays nothing."""
        longest_us = int(POLICY[breaker.failure].back_off.longest_s * 1e6 * HELD_MAX)
        return min(breaker.next_us, now_us + longest_us) if breaker.is_open else 0

    def _pause_us(self, failure: FailureClass, tries: int) -> int:
        return int(POLICY[failure].back_off.pause_s(tries) * 1e6 * self._jitter())

    def _leave(self, job: int) -> None:
        wait = self._jobs.pop(job, None)
        if wait is None:
            return
        self._weigh(wait, wait.load, 0)
        breaker = self._breakers.get(wait.cause)
        if breaker is not None and breaker.trial == job:
            breaker.trial, breaker.is_granted = 0, False

    def _weigh(self, wait: Wait, load: Hashable, events: int) -> None:
        if wait.events:
            left = self.load[wait.load] - wait.events
            if left:
                self.load[wait.load] = left
            else:
                del self.load[wait.load]
        wait.load, wait.events = load, events
        if events:
            self.load[load] = self.load.get(load, 0) + events
