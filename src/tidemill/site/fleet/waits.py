"""Jobs that wait at this site for a cause of its own, and the breakers: closed, open, trying. Pure: takes the time.

A job that fails through the site's fault is retried by itself, with pauses from seconds to an hour. Different jobs that
fail for the same cause with no success in between open its breaker, for their owner or for all (`breakers`): jobs that
would meet the cause are then tried one at a time, the owner who failed last comes last, and a success closes the
breaker. The server sends only one such job for each try, so that a few jobs that can never succeed do not keep the
breaker open. After `wait_max_s` jobs go back to the server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Hashable, Iterable

import msgspec

from tidemill.model.failure import POLICY, FailureClass
from tidemill.model.trouble import EXAMPLES_MAX, TEXT_MAX, TROUBLES_MAX, Trouble
from tidemill.site.fleet.breakers import (
    BREAKERS_MAX,
    OWN_MAX,
    Breaker,
    Reason,
    TroubleCause,
    counted,
    covers,
    is_enough,
    is_wanted,
    ladder,
    passed_over,
    threshold_of,
)

CLOSED_KEPT_S = 7200.0
"""A breaker that opens again within this time goes on with the pause that it had."""

TRIAL_S_MAX = 3600.0
"""A trial without an outcome for this time is given up: another job is tried."""

PASSED_MAX = 100_000
"""Jobs of which it is known that no open breaker concerns them."""

HELD_MAX = 1.5
"""Of the longest pause: what is further ahead is of a clock that was set back."""


class Wait(msgspec.Struct):
    """A job that waits. `tries`: that failed; `load`, `events`: what of the open work it is."""

    cause: TroubleCause
    since_us: int
    owner: str = ""
    tries: int = 0
    next_us: int = 0
    load: Hashable = None
    events: int = 0


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
        self._breakers: dict[TroubleCause, Breaker] = {}
        self._owned: dict[
            str, dict[TroubleCause, Breaker]
        ] = {}  #: by owner: thousands of jobs ask at each tick
        for each in breakers:
            self._add(each)
        self._jobs: dict[int, Wait] = {}
        self._opened = 0  #: how often any of them was opened
        self._passed: dict[int, int] = {}  #: jobs that met none of those: each tick asks for thousands
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
        known = [self._breakers.get(cause) for cause in ladder(reason)]
        return any(each is not None and (each.is_open or each.failed > 0) for each in known)

    def is_waiting(self, job: int) -> bool:
        """Whether a job waits for a trouble to end."""
        return job in self._jobs

    def breaker_of(self, job: int) -> Breaker:
        """What a waiting job waits for."""
        return self._breakers[self._jobs[job].cause]

    # ---- what happened ----

    def failed(self, job: int, reason: Reason, now_us: int, *, who: str = "") -> bool:
        """A job failed for a cause of the site's. Whether it waits here: it has not waited for too long. `who`: the
        node, where that counts instead of the job."""
        breaker = self._counted(job, reason, who or str(job), now_us)
        wait = self._jobs.get(job)
        if wait is None or wait.cause != breaker.cause:
            self._move(job, now_us)
            wait = self._jobs[job] = Wait(breaker.cause, now_us, reason.owner)
        wait.tries += 1
        wait.next_us = now_us + self._pause_us(breaker.failure, wait.tries)
        if not self._is_late(wait, now_us):
            return True
        self._leave(job)
        return False

    def probed(self, reason: Reason, now_us: int, *, is_well: bool) -> None:
        """The site asked by itself, with no word of any owner's: the cause is there, or (`is_well`) it is not."""
        known = self._breakers.get(reason.cause)
        if is_well:
            if known is not None:
                known.is_contradicted = False
                if known.is_open and known.is_probed:
                    self._close(known, now_us)
            return
        if known is not None and known.is_contradicted:
            return
        breaker = self._breaker(reason.cause, reason, now_us)
        if breaker is not None and not breaker.is_open:
            self._open(breaker, now_us, is_probed=True)

    def succeeded(self, job: int, meets: Meets, now_us: int, *, owner: str = "", ran: bool = False) -> None:
        """A job came past what it would have met. `ran`: its payload did; images are good only then."""
        wait = self._jobs.get(job)
        for breaker in self._of(owner):
            if (breaker.failure is FailureClass.IMAGE) is not ran:
                continue
            if breaker.is_open:
                if breaker.trial == job:
                    breaker.is_contradicted = breaker.is_probed
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
        self._passed.pop(job, None)
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
        if len(self._passed) > PASSED_MAX:
            self._passed.clear()
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
                self._drop(cause)
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

    def may_try(
        self, job: int, meets: Meets, load: tuple[Hashable, int], now_us: int, owner: str = ""
    ) -> bool:
        """Whether to try this job now. One that would meet an open breaker's cause waits from now on. `load`: key and
        number of its open events; `owner`: whose it is, empty = not known."""
        wait = self._jobs.get(job)
        if wait is None:
            if self._passed.get(job) == self._opened:
                return True
            met = (each.cause for each in self._of(owner) if each.is_open and meets(each.cause))
            cause = next(met, None)
            if cause is None:
                self._passed[job] = self._opened
                return True
            wait = self._jobs[job] = Wait(cause, now_us, owner)
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
        fresh: dict[TroubleCause, set[str]] = {}
        for job, wait in self._jobs.items():
            counts[wait.cause] = counts.get(wait.cause, 0) + 1
            named = jobs.setdefault(wait.cause, [])
            if len(named) < EXAMPLES_MAX:
                named.append(job)
            if not wait.tries:
                fresh.setdefault(wait.cause, set()).add(wait.owner)
        found: list[tuple[tuple[bool, bool, int, int], Trouble]] = []
        of_owner: dict[str, int] = {}
        for each in self._breakers.values():
            if not each.is_open and each.cause not in counts:
                continue
            over = passed_over(each.owners, fresh.get(each.cause, ())) if each.is_open else None
            of_owner[each.owner] = of_owner.get(each.owner, 0) + 1
            # where not all can be shown, the first of each owner come before the second of any
            turn = of_owner[each.owner] if each.owner else 0
            found.append(((not each.is_open, bool(each.owner), turn, each.since_us), Trouble(
                failure=each.failure.value, scope=each.scope, name=each.name, owner=each.owner,
                message=each.message[:TEXT_MAX], hint=each.hint[:TEXT_MAX], since_us=each.since_us,
                next_us=self._next_us(each, now_us), jobs=counts.get(each.cause, 0),
                examples=jobs.get(each.cause, []), is_open=each.is_open, room=int(over is not None),
                passed_over=over or [],
            )))  # fmt: skip
        return [each for _, each in sorted(found, key=lambda one: one[0])[:TROUBLES_MAX]]

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

    def _counted(self, job: int, reason: Reason, who: str, now_us: int) -> Breaker:
        """Count a failure; the breaker for which the job waits: the widest that is open, or the narrowest."""
        causes = ladder(reason)
        for cause in causes:  # an owner who has too many makes no more for all, either
            if self._breaker(cause, reason, now_us) is None and cause.owner and not cause.name.endswith("/"):
                self._forget_alone(causes[0], reason.owner)
        found = [self._breakers[cause] for cause in causes if cause in self._breakers]
        if not any(each.owner == reason.owner or each.is_open for each in found):
            found = [*found, self._single(reason, now_us)]
        for breaker in found:  # the widest first: where one opens, the narrower ones are of no account
            breaker.note_owner(reason.owner)
            if not breaker.is_open:
                self._count(breaker, reason, who, now_us)
            elif breaker.trial == job:
                breaker.tries += 1
                self._again(breaker, now_us)
            if breaker.is_open:
                return breaker
        return found[-1]

    def _breaker(self, cause: TroubleCause, reason: Reason, now_us: int) -> Breaker | None:
        """The breaker of a cause, with these words; None = no more can be made."""
        breaker = self._breakers.get(cause)
        if breaker is None:
            if cause.scope and not self._has_room(cause):
                return None
            breaker = self._add(
                Breaker(
                    failure=cause.failure, scope=cause.scope, name=cause.name, owner=cause.owner,
                    since_us=now_us,
                )
            )  # fmt: skip
            self.is_news = True
        if not breaker.is_open and not breaker.failed:
            breaker.since_us = now_us
        if not breaker.is_probed:
            breaker.message, breaker.hint = reason.message[:TEXT_MAX], reason.hint[:TEXT_MAX]
        return breaker

    def _single(self, reason: Reason, now_us: int) -> Breaker:
        """What the owner's jobs wait for where no more causes are told apart."""
        cause = TroubleCause(reason.cause.failure, "", "", reason.owner)
        breaker = self._breaker(cause, reason, now_us)
        assert breaker is not None  # those without a scope always have room
        return breaker

    def _has_room(self, cause: TroubleCause) -> bool:
        """Whether another breaker may be made, after one that is idle went: the owner's own first."""
        own = self._owned.get(cause.owner, {}) if cause.owner else {}
        own_max = OWN_MAX // 2 if cause.name.endswith("/") else OWN_MAX  # paths leave room for whole places
        if len(self._breakers) < BREAKERS_MAX and len(own) < own_max:
            return True
        used = {wait.cause for wait in self._jobs.values()}
        among = own if len(own) >= own_max else self._breakers
        idle = [each for each in among.values() if not each.is_open and each.cause not in used]
        if not idle:
            return False
        self._drop(min(idle, key=lambda each: each.closed_us).cause)
        return True

    def _add(self, breaker: Breaker) -> Breaker:
        self._breakers[breaker.cause] = breaker
        self._owned.setdefault(breaker.owner, {})[breaker.cause] = breaker
        return breaker

    def _drop(self, cause: TroubleCause) -> None:
        del self._breakers[cause]
        own = self._owned[cause.owner]
        del own[cause]
        if not own:
            del self._owned[cause.owner]
        self.is_news = True
        if cause.owner:
            self._forget_alone(cause._replace(owner=""), cause.owner)

    def _forget_alone(self, shared: TroubleCause, owner: str) -> None:
        """Drop what is counted for all, if only this owner's failures are."""
        breaker = self._breakers.get(shared)
        if breaker is None or breaker.is_open or any(each.owner != owner for each in breaker.failing):
            return
        if not any(wait.cause == shared for wait in self._jobs.values()):
            self._drop(shared)

    def _of(self, owner: str) -> list[Breaker]:
        """Those that jobs of this owner may meet: of all, then its own."""
        own = self._owned.get(owner, {}).values() if owner else ()
        return [*self._owned.get("", {}).values(), *own]

    def _count(self, breaker: Breaker, reason: Reason, who: str, now_us: int) -> None:
        """One more failure in a row, of a breaker that is closed."""
        cause, threshold = breaker.cause, threshold_of(breaker.cause, reason)
        one = counted(cause, reason, who)
        breaker.failed += 1
        if is_wanted(cause, one, breaker.failing, threshold):
            breaker.failing.append(one)
        if is_enough(cause, breaker.failing, breaker.failed, threshold):
            self._open(breaker, now_us)

    def _open(self, breaker: Breaker, now_us: int, *, is_probed: bool = False) -> None:
        """Open it, in the place of all narrower ones."""
        self._opened += 1
        breaker.is_open, breaker.is_probed, breaker.failed, breaker.failing = True, is_probed, 0, []
        if now_us - breaker.closed_us > CLOSED_KEPT_S * 1e6:
            breaker.tries = 0
        breaker.tries = max(2, breaker.tries + 1)  # each of them was tried
        self._again(breaker, now_us)
        for cause, each in self._breakers.items():
            if covers(breaker.cause, cause):
                each.closed_us = now_us if each.is_open else each.closed_us
                each.is_open, each.trial, each.is_granted = False, 0, False
                each.failed, each.failing = 0, []
        for wait in self._jobs.values():
            if covers(breaker.cause, wait.cause):
                wait.cause = breaker.cause

    def _again(self, breaker: Breaker, now_us: int) -> None:
        breaker.trial, breaker.is_granted = 0, False
        breaker.next_us = now_us + self._pause_us(breaker.failure, breaker.tries)
        self.is_news = True

    def _close(self, breaker: Breaker, now_us: int) -> None:
        breaker.is_open, breaker.is_probed, breaker.trial, breaker.is_granted = False, False, 0, False
        breaker.closed_us = now_us
        breaker.failed, breaker.failing, breaker.owners = 0, [], []
        for wait in self._jobs.values():
            if wait.cause == breaker.cause:
                wait.next_us = now_us
        self.is_news = True

    def _choose(self, due: dict[TroubleCause, Breaker], now_us: int) -> None:
        """The job of each that was tried least, the first of them, of the owner who has not failed for longest."""
        ranks = {cause: {owner: k for k, owner in enumerate(each.owners, 1)} for cause, each in due.items()}
        best: dict[TroubleCause, tuple[int, int, int, int]] = {}
        for number, (job, wait) in enumerate(self._jobs.items()):
            if wait.cause in due:
                mine = (ranks[wait.cause].get(wait.owner, 0), wait.tries, number, job)
                best[wait.cause] = min(mine, best.get(wait.cause, mine))
        for cause, (*_, job) in best.items():
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
