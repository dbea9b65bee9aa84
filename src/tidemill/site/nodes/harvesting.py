"""The broker's thin loop: look, decide, note, act. One look per poll, whatever is held; never in bursts.

Decisions are `planning` and `harvest.plan.decide`, calls are `errands`, what is known is in `allocations` and the
site's log. An intent is durable before its act: after a crash at any point the successor finds each allocation by its
name, or sees that it never came to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tidemill import clock
from tidemill.batch.contract import Submission
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.harvest import phase
from tidemill.harvest import records as r
from tidemill.harvest.harm import Tracker, Yielded
from tidemill.harvest.plan import Policy
from tidemill.log import Log
from tidemill.site.fleet.wide import Wide, WidePlan, plan_wide
from tidemill.site.nodes import planning
from tidemill.site.nodes.allocations import AllocationRequest, Allocations
from tidemill.site.nodes.batch_calls import (
    Actions,
    ActionsDone,
    BatchCalls,
    FilesRemoved,
    PollAnswer,
    Unreachable,
)
from tidemill.site.nodes.evictions import Eviction, Silence, doomed, late
from tidemill.site.nodes.machine import CYCLE_S, SiteMachine
from tidemill.site.nodes.outage import clear_away, show_away
from tidemill.site.nodes.plan_log import PlanLog
from tidemill.site.nodes.planning import Demand, Starts, pause_s_of, policy_of, poll_s_of
from tidemill.site.nodes.selection import Named
from tidemill.site.staff.manners import retreat
from tidemill.site.state import site_state as s
from tidemill.site.state.log import SiteLog

IDLE_FACTOR = 10
"""Where nothing is held and nothing waits, the machine is looked at so many times more rarely."""

FIRST_WORK_S = 2.0
"""Where nothing was held, work that comes makes us look so long after the last look, not at the next one."""

RETREAT_AGAIN_S = 10.0
"""A stopped site tells allocations that are still there to end again after so long."""

TIDY_S = 5.0
"""Pause between two deletions of old files."""

FINISH_S = 5.0
HOUR_US = 3_600_000_000
_log = Log("harvest")


class HarvestCounts(msgspec.Struct):
    """Counted since the agent started, for metrics."""

    plans: int = 0
    plan_seconds: float = 0.0
    starts: int = 0
    cancels: int = 0
    shortens: int = 0
    foreign_cancels: int = 0


class Harvesting:
    """When to look at the machine, and what follows from it."""

    def __init__(
        self,
        log: SiteLog,
        book: Allocations,
        *,
        config: SiteConfig,
        errands: BatchCalls,
        machine: SiteMachine,
    ) -> None:
        self._log = log
        self._book = book
        self._config = config
        self._errands = errands
        self._machine = machine
        self._policy = policy_of(config)
        self._interval_s = poll_s_of(config)
        self._last_look_s: float | None = None
        self._hurries = False
        self._wanted = False  #: as of the last tick
        self._begins = False  #: work has come since the last look
        self._is_fresh = False
        self._away = ""
        self._plans = 0
        self._told: dict[str, tuple[object, ...]] = {}
        self._shortened_by: dict[str, str] = {}
        self._silence = Silence(config.harvest.first_record_s)
        self._looked = False
        self.planlog = PlanLog(machine.site_dir / "harvest")
        self.harm = Tracker(self._interval_s)
        self._next_tidy_s = 0.0
        self._untidy = ""
        if machine.reads_snapshots:
            self._restore()
        self.figures = HarvestCounts()
        self.wide: Wide | None = None  #: payloads that span nodes, once the agent has them
        self.outfit: Callable[[list[Submission]], list[Submission]] = list  #: adds what pilots start with
        self._notes: list[str] = []
        known = log.pool.state.allocations.values()
        self._asked = deque((a.intended_us, 1) for a in sorted(known, key=lambda a: a.intended_us))
        self.waits_for: str | None = None
        self.causes: list[str] = []  #: the same in single words, for metrics
        self.contested = ""  #: why the server takes another agent for the site's: nothing is submitted

    def _restore(self) -> None:
        """Go on with the jobs that earlier agents yielded to, and with the files of what they asked for, as far as
        their records can be read."""
        submitted: list[r.Submitted] = []

        def records() -> Iterator[r.AnyRecord]:
            for record in self.planlog.recent():
                if isinstance(record, r.Submitted):
                    submitted.append(record)
                yield record

        try:
            self.harm.restore(records())
        except SiteError as error:
            _log.error("planlog.unreadable", reason=error.message)
        self._book.leftovers.restore(submitted, self._log.pool.state.allocations, clock.now_us())

    # ---- looking ----

    def poll(self, *, wants: bool) -> bool:
        """Take answers that have come, look at the machine when it is time. `wants`: there is work for nodes. Whether
        anything changed."""
        is_due, was_busy = self._is_due(wants=wants), self._errands.is_busy
        changed = self._take()
        if was_busy:  # what it told is decided on before the next look, also where looks outlast the pause
            return changed
        if is_due:
            self._last_look_s = clock.monotonic_s()
            self._hurries = self._begins = False
            names = [a.name for a in self._book.watched(clock.now_us())]
            self._errands.look(names, machine=self._machine.reads_snapshots)
            changed |= self._take()
        self._tidy()
        return changed

    def _tidy(self) -> None:
        """Delete a few files of what ended long ago, when nothing else is to be done."""
        now_s = clock.monotonic_s()
        if self._machine.is_local or self._is_fresh or self._errands.is_busy or now_s < self._next_tidy_s:
            return
        self._next_tidy_s = now_s + TIDY_S
        batch = self._book.leftovers.take(self._book.living, clock.now_us())
        if batch is not None:
            self._errands.forget(batch.names, batch.submissions)

    def finish(self) -> None:
        """Wait, bounded, for what is under way and note it; what is missed the next agent finds by name."""
        self._errands.wait(FINISH_S)
        self._take()

    def hurry(self) -> None:
        """Look again as soon as may be."""
        self._hurries = True

    def _is_due(self, *, wants: bool) -> bool:
        self._begins = wants and (self._begins or not self._wanted)
        self._wanted = wants
        if self._last_look_s is None or self._hurries:
            return self._machine.reads_snapshots or bool(self._book.living)
        pause_s = self._pause_s()
        if not self._book.living:
            if self._begins:  # the first work for a while should not wait for the next look
                pause_s = min(pause_s, FIRST_WORK_S)
            elif not wants:
                if not self._machine.reads_snapshots:
                    return False
                pause_s *= IDLE_FACTOR
        return clock.monotonic_s() >= self._last_look_s + pause_s

    def _pause_s(self) -> float:
        """From the last look to the next: the interval, in step with the scheduler's cycle where that is seen."""
        pause_s = self._interval_s * self._errands.batch.calls.interval_factor
        snapshot, harvest = self._machine.snapshot, self._config.harvest
        if snapshot is None or self._policy is Policy.DEMAND:
            return pause_s
        return phase.pause(
            pause_s,
            plan_age_s=snapshot.plan_age_s,
            cycle_s=harvest.cycle_s or CYCLE_S,
            lead_s=phase.lead(harvest.death_s),
        )

    def _take(self) -> bool:
        answer = self._errands.take()
        if answer is None:
            return False
        if isinstance(answer, Unreachable):
            if answer.error.message != self._away:
                self._away = answer.error.message
                _log.warning("batch.away", reason=answer.error.message, hint=answer.error.hint)
                show_away(self._machine.site_dir, answer.error.message, answer.error.hint)
            return False
        if isinstance(answer, FilesRemoved):
            if answer.error is not None and answer.error.message != self._untidy:
                self._untidy = answer.error.message
                _log.warning("leftovers.stay", reason=answer.error.message)
            return False
        if isinstance(answer, ActionsDone):
            self._note(answer)
            return True
        return self._look(answer)

    def _look(self, look: PollAnswer) -> bool:
        if self._away:
            clear_away(self._machine.site_dir)
        self._away = ""
        self._looked = True
        foreign = len(self._log.pool.state.foreign_us)
        changed = self._book.take(look.statuses)
        self.figures.foreign_cancels += max(0, len(self._log.pool.state.foreign_us) - foreign)
        if look.snapshot is not None:
            self._machine.take(look.snapshot)
            self._is_fresh = True
        return changed

    # ---- deciding ----

    def step(self, fleet: str | None, demand: Demand) -> bool:
        """Decide, note and act, when there is something new to decide on. Whether anything was done.

        `fleet` is where new pilots work; None = nothing is submitted.
        """
        if self._errands.is_busy:
            return False
        stop = self._log.pool.state.stop
        if stop is not None:  # does not wait for the next look
            self.causes = [planning.STOPPED]
            return self._retreat(stop)
        if self._looked:
            self._looked = False
            if self._end(self._evictions()):
                return True
        if not (self._is_fresh or self._policy is Policy.DEMAND):
            return False
        self._is_fresh = False
        began_s = clock.monotonic_s()
        plans = self._machine.plans(self._log.pool.state, demand, self._starts(), self._policy)
        self.figures.plans += 1
        self.figures.plan_seconds += clock.monotonic_s() - began_s
        wide = self._wide_plan()
        self._tell([*(plan.waits_for for plan in plans), wide.waits_for])
        self.causes = planning.causes_of(plans, wide_waits=bool(wide.waits_for))
        if self.contested:
            self.causes = [planning.CONTESTED]
        return self._carry_out(plans, fleet, wide)

    def _wide_plan(self) -> WidePlan:
        if self.wide is None or self._config.mode == "observe":
            return WidePlan(cancel=[], submit=[])
        held = self.wide.held(self._book.living)
        return plan_wide(self.wide.needs(), held, self._machine.wide_bounds(self._starts()))

    def _wide_asks(self, plan: WidePlan) -> list[tuple[str, AllocationRequest]]:
        if self.wide is None:
            return []
        return [
            ("", self._machine.wide_ask(self.wide.fleet_of(each.nodes), each))
            for each in plan.submit
            for _ in range(each.count)
        ]

    def _retreat(self, stop: s.Stop) -> bool:
        """The site is stopped: everything goes."""
        now_us = clock.now_us()
        allocations = self._book.living
        again_s = max(RETREAT_AGAIN_S, self._interval_s)
        order = retreat(stop, allocations, self._config.yielding, now_us=now_us, again_s=again_s)
        return self.cancel(order.cancel, why=order.why)

    def cancel(self, names: Sequence[str], *, why: str) -> bool:
        """End allocations because somebody says so, not a plan. Whether there was anything to end now."""
        return self._end([Eviction(names=list(names), why=why)] if names else [])

    def _end(self, evictions: Sequence[Eviction]) -> bool:
        if not evictions or self._errands.is_busy:
            return False
        names = list(dict.fromkeys(name for each in evictions for name in each.names))
        at_us = clock.now_us()
        for each in evictions:
            self._log.apply(s.Ordered(at_us=at_us, cancel=each.names, why=each.why))
        self._log.commit()
        self._write(
            [r.Canceled(at_s=at_us / 1e6, plan="", names=each.names, reason=each.why) for each in evictions]
        )
        for each in evictions:
            if each.is_failure:
                for name in each.names:
                    self._book.silent(name, each.why)
        self.figures.cancels += len(names)
        self._errands.act(Actions(cancel=names))
        self._take()
        return True

    def _evictions(self) -> list[Eviction]:
        """What has to go whatever the plan says."""
        bad, now_us = self._machine.bad, clock.now_us()
        living = self._book.living
        found = self._silence.look(living, clock.monotonic_s())
        if self._machine.is_local:
            return found
        fleets = self._log.pool.state.fleets
        waiting = [a for a in living if a.fleet not in fleets or not fleets[a.fleet].width]
        found += late(waiting, self._config.harvest, now_us)
        exclude = bad.judge(now_us / 1e6).exclude
        if exclude and self._config.batch != "pbs":  # which cannot be told to leave nodes out
            found += doomed(waiting, bad.sentenced_s, exclude, now_us)
        return found

    def _carry_out(self, plans: Sequence[Named], fleet: str | None, wide: WidePlan) -> bool:
        """Note what is decided, then have it done: cancels of all pools, then shortenings, then submissions."""
        observes = self._config.mode == "observe"
        cancel: list[str] = [*wide.cancel]
        ends_s: dict[str, float] = {}
        asks = self._wide_asks(wide)
        records: list[r.AnyRecord] = []
        if wide.cancel:
            why = "no work of its width is left"
            at_s = clock.now_us() / 1e6
            records.append(r.Canceled(at_s=at_s, plan="", names=wide.cancel, reason=why))
        yielded: list[Yielded] = []
        for plan in plans:
            name = self._record(plan, records)
            yielded.append(Yielded(name, plan.situation, plan.decision))
            if observes:
                continue
            cancel += plan.cancel
            ends_s.update(plan.ends_s)
            self._shortened_by.update(dict.fromkeys(plan.ends_s, name))
            if plan.cancel:
                records.append(r.Canceled(at_s=clock.now_us() / 1e6, plan=name, names=plan.cancel))
            if fleet is not None:
                asks += [(name, ask) for ask in self._machine.asks(plan, fleet)]
        if self._machine.snapshot is not None:
            records += self.harm.look(self._machine.snapshot, yielded)
        leave = self._machine.leaving(self._log.pool.state)
        if cancel or ends_s or leave:
            ends_us = {each: int(end_s * 1e6) for each, end_s in ends_s.items()}
            self._log.apply(s.Ordered(at_us=clock.now_us(), cancel=cancel, ends_us=ends_us, leave=leave))
        if not (cancel or ends_s or asks):
            self._write(records)
            return bool(leave)
        submissions = self._intend(asks, records)
        self._log.commit()
        self.figures.cancels += len(cancel)
        self.figures.shortens += len(ends_s)
        self._write(records)
        self._errands.act(Actions(cancel=cancel, ends_s=ends_s, submissions=self.outfit(submissions)))
        self._take()
        return True

    def _intend(
        self, asks: Sequence[tuple[str, AllocationRequest]], records: list[r.AnyRecord]
    ) -> list[Submission]:
        """Note the intents to submit; each goes with the plan that it follows from."""
        submissions = []
        for name, ask in asks:
            submission = self._book.intend(ask)
            submissions.append(submission)
            self.figures.starts += ask.count
            self._asked.append((clock.now_us(), ask.count))
            records.append(
                r.Submitted(
                    at_s=clock.now_us() / 1e6,
                    plan=name,
                    name=submission.name,
                    count=ask.count,
                    width=ask.nodes,
                    walltime_s=ask.walltime_s,
                    account=ask.account,
                )
            )
        return submissions

    def _note(self, acted: ActionsDone) -> None:
        self._book.note(acted)
        if acted.ends_s:
            by_plan: dict[str, dict[str, float]] = {}
            for name, end_s in acted.ends_s.items():
                by_plan.setdefault(self._shortened_by.get(name, ""), {})[name] = end_s
            at_s = clock.now_us() / 1e6
            self._write([r.Shortened(at_s=at_s, plan=plan, ends_s=ends) for plan, ends in by_plan.items()])
        self._shortened_by.clear()
        if self._machine.is_local:
            self._hurries = True

    def _starts(self) -> Starts:
        """How starting went: submissions that were refused, and pilots that failed wherever they started."""
        self._machine.bad.heard(self._log.pool.state.allocations)
        book, verdict = self._book, self._machine.bad.judge(clock.now_us() / 1e6)
        since_us = clock.now_us() - HOUR_US
        while self._asked and self._asked[0][0] < since_us:
            self._asked.popleft()
        hour = sum(count for _, count in self._asked)
        if self.contested:
            why = f"the server takes another agent for this site's: {self.contested}"
            return Starts(pause_s=planning.EVER_S, why=why, hour=hour)
        pause_s = pause_s_of(
            book.starts_failed, clock.monotonic_s() - book.last_failed_s, config=self._config
        )
        if not book.starts_failed:
            return Starts(pause_s=verdict.pause_s, tries=verdict.tries, why=verdict.why, hour=hour)
        when = f"next try in {pause_s:.0f} s" if pause_s else "one is tried"
        why = f"{book.starts_failed} allocations in a row did not start work: {when}: {book.why_failed}"
        return Starts(pause_s=max(pause_s, verdict.pause_s), tries=1, why=why, hour=hour)

    # ---- telling ----

    def _tell(self, reasons: Sequence[str]) -> None:
        notes = self._machine.ledger.notes
        if notes != self._notes:
            self._notes = notes
            for note in notes:
                _log.warning("grant.note", reason=note)
        waits_for = "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None
        if waits_for == self.waits_for:
            return
        self.waits_for = waits_for
        if self._book.starts_failed or self._machine.bad.verdict.pause_s:
            _log.warning("allocation.waits", reason=waits_for)

    def _record(self, plan: Named, records: list[r.AnyRecord]) -> str:
        """Note a plan that acts, yields or is another than the last one of its pool; its name."""
        decision, situation = plan.decision, plan.situation
        told = (plan.waits_for, len(plan.cancel), len(plan.ends_s), tuple(plan.submit), *decision.yields_to)
        is_news = self._told.get(plan.shape.pool) != told
        if not (is_news or (plan.acts and self._config.mode != "observe") or decision.yields_to):
            return ""
        self._told[plan.shape.pool] = told
        self._plans += 1
        name = r.plan_name(self._log.pool.state.epoch, self._plans)
        held = [each for each in situation.holdings if not each.waiting]
        records.append(
            r.PlanMade(
                at_s=clock.now_us() / 1e6,
                plan=name,
                pool=plan.shape.pool,
                snapshot_s=situation.now_s,
                nodes=situation.nodes,
                idle=situation.idle,
                busy=sum(each.width for each in situation.busy),
                held=sum(each.width * each.count for each in held),
                waiting=sum(each.width * each.count for each in situation.holdings if each.waiting),
                queue=len(situation.queue),
                yields_to=decision.yields_to,
                cancel=len(plan.cancel),
                shorten=len(plan.ends_s),
                submit=sum(count for _, count, _ in plan.submit),
                waits_for=plan.waits_for,
                why=decision.why,
            )
        )
        return name

    def _write(self, records: Sequence[r.AnyRecord]) -> None:
        """Evidence is not worth stopping for."""
        try:
            self.planlog.append(records)
        except SiteError as error:
            _log.error("planlog.unwritten", reason=error.message)
