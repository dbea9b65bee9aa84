"""The broker's thin loop: poll, decide, note, act. One call per poll, whatever is held; never in bursts.

Decisions are `planning` and `harvest.plan.policies.decide`, calls are `batch_calls`, what is known is in
`allocations` and the site's log. An intent is durable before its act: after a crash at any point the successor finds
each allocation by its name, or sees that it never came to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tidemill import clock
from tidemill.batch.contract import BatchSubmission, BatchSystem
from tidemill.errors import SiteError
from tidemill.harvest.account import broker_log
from tidemill.harvest.account.harm import OwnNodes, Tracker, Yielded
from tidemill.harvest.plan import phase
from tidemill.harvest.plan.pace import GlancePace, LastMinute, OwnJobs, awaited_s
from tidemill.harvest.plan.policies import Policy
from tidemill.harvest.snapshot.quarantine import QuarantineVerdict
from tidemill.log import Log
from tidemill.model.figures.awaited import Hindrance
from tidemill.model.quantities import counted_text
from tidemill.model.state import AllocationState
from tidemill.site import constants
from tidemill.site.fleet.lifecycle import Lifecycle
from tidemill.site.fleet.wide import WidePlan, plan_wide
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes import planning
from tidemill.site.nodes.allocations import AllocationRequest, Allocations, gpus_of_node
from tidemill.site.nodes.batch_calls import (
    Actions,
    ActionsDone,
    BatchCalls,
    FilesRemoved,
    Glanced,
    PollAnswer,
    Unreachable,
    plain_reply,
)
from tidemill.site.nodes.doubts import CAUSE, Doubts
from tidemill.site.nodes.evictions import Eviction, Recancels, Silence, doomed, hopeless, late, suspended
from tidemill.site.nodes.glances import Glances
from tidemill.site.nodes.plan_log import PlanLog, shown_pools
from tidemill.site.nodes.planning import Starts, pause_s_of, policy_of, poll_s_of
from tidemill.site.nodes.quarantine import owners_at_work
from tidemill.site.nodes.selection import Named
from tidemill.site.nodes.site_machine import SiteMachine
from tidemill.site.nodes.tick_state import NextPoll, TickState
from tidemill.site.nodes.unended import UnendedJob, unended
from tidemill.site.staff.drain import way_out
from tidemill.site.staff.stopping import pause_after, retreat, signs_of_cancels, warning_of
from tidemill.site.state import site_state
from tidemill.site.state.served_site import TICK_S, ServedSite
from tidemill.site.state.status import BatchOutage, LastPoll, outage_after
from tidemill.wire.monitoring import AwaitedNodes
from tidemill.wire.node import Ended, Record, Started, job_of

IDLE_FACTOR = 10
"""Where nothing is held and nothing waits, the pause between polls is longer by this factor."""

RETREAT_AGAIN_S = 10.0
"""A stopped site cancels allocations that are still there again after this time."""

TIDY_S = 5.0
"""Pause between two deletions of old files."""

FINISH_S = 5.0
RELEASE_ALL_S = 30.0
RELEASE_POLL_S = 3.0
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
    """When to poll the machine, and what follows from it."""

    def __init__(self, site: ServedSite, machine: SiteMachine, batch: BatchSystem, fleets: Lifecycle) -> None:
        config = site.config
        self._log = site.log
        self._config = config
        self.machine = machine
        self.fleets = fleets
        self.book = Allocations(
            site.log, config, binary=site.binary, fleets=site.fleets_dir, nodes=machine.quarantine
        )
        self._recancels = Recancels(site.state.allocations.values())
        self.doubts = Doubts(config)
        self.calls = BatchCalls(batch, site.epoch.check, inline=machine.is_local)
        self._policy = policy_of(config)
        self._interval_s = poll_s_of(config)
        self.glances = Glances(
            GlancePace(poll_s=self._interval_s, calls_per_min_max=config.cluster.calls_per_min_max)
        )
        self._last_poll_s: float | None = None
        self._last_minute = LastMinute()
        self._last_poll_us = 0  #: the same, since 1970
        self.state = TickState()  #: as of the last step
        self._shortened_by: dict[str, str] = {}
        self._silence = Silence(constants.FIRST_RECORD_S)
        self._plan_log = PlanLog(machine.site_dir / "harvest")
        self.harm = Tracker(self._interval_s)
        self._next_tidy_s = 0.0
        self._untidy = ""
        if machine.reads_snapshots:
            self._restore()
        self.counts = HarvestCounts()
        self._notes: list[str] = []
        known = site.state.allocations.values()
        self._asked = deque((a.intended_us, 1) for a in sorted(known, key=lambda a: a.intended_us))
        self.waits_for: str | None = None
        self._hindrances: list[Hindrance] = []  #: the same in figures, as of the last decision
        self.causes: list[str] = []  #: the same in single words, for metrics
        self._plans: list[Named] = []  #: of the last decision
        self._reported: list[Named] = []  #: the same, with what has become of their nodes since
        self.outage: BatchOutage | None = None
        self.shown = 0  #: how often there was something new of a poll that people read
        self._wide_waits: str | None = None
        self._decided_s = 0.0
        self._held: frozenset[str] = frozenset()  #: our allocations that ran by the poll of that
        self._has_news = False  #: pilots have begun or ended since that, or allocations have

    def _restore(self) -> None:
        """Go on with the jobs that earlier agents yielded to, and with the files of what they asked for, as far as
        their records can be read."""
        submitted: list[broker_log.Submitted] = []

        def records() -> Iterator[broker_log.AnyRecord]:
            for record in self._plan_log.recent():
                if isinstance(record, broker_log.Submitted):
                    submitted.append(record)
                yield record

        try:
            self.harm.restore(records())
        except SiteError as error:
            _log.error("planlog.unreadable", reason=error.message)
        self.book.leftovers.restore(submitted, self._log.pool.state.allocations, clock.now_us())

    def demand(self, *, more: bool) -> Demand:
        """What is open here. `more`: the server has more for this site."""
        return self.fleets.workload.demand(cores=self.machine.shape.cores, more=more)

    def on_records(self, records: Sequence[Record]) -> None:
        """Take what pilots record: what starts cost, and that allocations start."""
        state = self._log.pool.state

        def owner_of(number: int) -> str:
            job = state.jobs.get(job_of(number))
            return "" if job is None else job.owner

        self.machine.on_records(records)
        self.machine.costs.on_records(records, state.allocations, owner_of)
        self.doubts.on_records(records)
        self._has_news |= any(type(record) in (Started, Ended) for record in records)
        started = {record.allocation for record in records if type(record) is Started}
        if started:
            self.book.worked()
            self.glances.acted(OwnJobs(started=self.book.singles(started)))

    # ---- polling ----

    def poll(self, demand: Demand | None) -> bool:
        """Take answers that have come, poll the batch system when it is time. `demand`: None = no nodes are wanted.
        Whether anything changed."""
        self._count_commands(clock.monotonic_s())
        self.state = self.state.wants(demand is not None and self._wants_nodes(demand))
        is_due, was_busy = self._is_due(), self.calls.is_busy
        changed = self._apply_answer()
        if was_busy:  # its answer is decided on before the next poll, also where polls outlast the pause
            return changed
        now_s = clock.monotonic_s()
        is_paid = self.state.next_poll is NextPoll.PAID
        if demand is not None and not (is_due or is_paid) and self._is_awaited(demand, now_s):
            is_paid = self._pay(now_s)
        if is_due or is_paid:
            self._last_poll_s, self._last_poll_us = now_s, clock.now_us()
            self.glances.polling(now_s, at_once=is_paid)
            self.state = self.state.polling()
            self.machine.size = None  # it causes one poll, whatever is decided then
            names = [a.name for a in self.book.watched(clock.now_us())]
            checked = self.doubts.to_check(self.book.living)
            self.calls.poll(names, machine=self.machine.reads_snapshots, expected=checked)
            changed |= self._apply_answer()
        elif self._may_glance:
            self.glances.schedule(now_s, holds=self._holds, until=self._until_glance)
            if self.glances.is_due(now_s):
                self.glances.glancing(now_s)
                self.calls.glance()
                changed |= self._apply_answer()
        self._tidy()
        return changed

    def _tidy(self) -> None:
        """Delete a few files of what ended long ago, when nothing else is to be done."""
        now_s = clock.monotonic_s()
        if self.machine.is_local or self.state.owes_plan or self.calls.is_busy or now_s < self._next_tidy_s:
            return
        self._next_tidy_s = now_s + TIDY_S
        batch = self.book.leftovers.next_expired(self.book.living, clock.now_us())
        if batch is not None:
            self.calls.forget(batch.names, batch.submissions)

    def finish(self) -> None:
        """Wait, bounded, for the call under way and note its answer; what is missed the next agent finds by name."""
        self.calls.wait(FINISH_S)
        self._apply_answer()

    def close(self) -> None:
        """End the thread of the calls, and the log of plans."""
        self.calls.close()
        self._plan_log.close()

    def _wants_nodes(self, demand: Demand) -> bool:
        is_needed = demand.events > 0 or bool(self.fleets.wide.needs())
        return is_needed or self._log.pool.state.stop is not None or self._config.mode == "observe"

    def _is_due(self) -> bool:
        if self._last_poll_s is None or self.state.next_poll is NextPoll.HURRIED:
            return self.machine.reads_snapshots or bool(self.book.living)
        pause_s = self._pause_s()
        if not self.book.living and not self.state.is_wanted:
            if not self.machine.reads_snapshots:
                return False
            pause_s *= IDLE_FACTOR
        return clock.monotonic_s() >= self._last_poll_s + pause_s

    def _is_awaited(self, demand: Demand, now_s: float) -> bool:
        """Whether to poll before it is time because work waits and no pilot is at work, or too few are."""
        if not self.state.is_wanted or self._last_poll_s is None:
            return False
        takes, living = self._take_work(), len(self.book.living)
        has_new_work, has_grown = self.state.has_new_work, self._has_grown(demand, takes)
        left = living - len(takes)
        pause_s = awaited_s(has_new_work=has_new_work, has_grown=has_grown, living=living, left=left)
        factor = self.calls.batch.calls.interval_factor
        return pause_s is not None and now_s >= self._last_poll_s + pause_s * factor

    def _pay(self, now_s: float) -> bool:
        """Pay for a poll before its time with commands that the bound allows. Whether there were enough of them."""
        if self._take_work():  # one, as after a glance that shows a change: none follows until work doubles
            return self.glances.pace.react(now_s)
        total = self._count_commands(now_s)
        return self.glances.pace.hurry(now_s, last_minute=self._last_minute.commands(now_s, total))

    def _take_work(self) -> list[site_state.Allocation]:
        """Our allocations that take work, or will."""
        now_us, death_s = clock.now_us(), self.machine.death_s
        return [a for a in self.book.living if not planning.takes_no_work(a, now_us, death_s=death_s)]

    def _has_grown(self, demand: Demand, takes: Sequence[site_state.Allocation]) -> bool:
        if self._policy is Policy.DEMAND:  # which decides without polls
            return False
        return self.machine.has_grown(demand, held=sum(a.nodes for a in takes))

    def _count_commands(self, now_s: float) -> int:
        """Note how many commands the batch system got until now, for the bound of a minute."""
        calls = self.calls.batch.calls
        total = calls.queries + calls.actions
        self._last_minute.note(now_s, total)
        return total

    def awaited(self) -> AwaitedNodes | None:
        """What work waits for here while no pilot is at work; None = one is, or no work waits. As of the last tick."""
        return self._awaits() if self.state.is_wanted and not self._is_at_work else None

    def more_awaited(self) -> AwaitedNodes | None:
        """What more work waits for here while a pilot is at work; None = none is, or no work is open."""
        return self._awaits() if self.state.is_wanted and self._is_at_work else None

    @property
    def _is_at_work(self) -> bool:
        return any(map(planning.is_at_work, self.book.living))

    def _awaits(self) -> AwaitedNodes:
        stop = self._log.pool.state.stop
        if stop is not None:
            end = way_out(stop_file=self._config.stop_file)
            return AwaitedNodes(why=f"{stop.reason}; {end}", is_stopped=True)
        asked = [
            a
            for a in self.book.living
            if not (a.canceled_us or planning.has_left(a) or planning.is_at_work(a))
        ]
        reply = self.state.reply
        not_asked = reply.unreachable or self.doubts.text or reply.starts_nothing
        is_decided = self._policy is Policy.DEMAND or not self.state.has_new_work  # else no poll knew of it
        snapshot = self.machine.snapshot
        is_known = snapshot is not None and not reply.unreachable
        return AwaitedNodes(
            asked_us=min((a.intended_us for a in asked), default=0),
            next_us=self.next_poll_us,
            why=not_asked or (self.waits_for or "" if is_decided else ""),
            polled_us=int(snapshot.at_s * 1e6) if snapshot is not None and is_known else 0,
            starting=sum(a.state is AllocationState.ACTIVE for a in asked),
            asked=len(asked),
            hindrances=[Hindrance(cause=not_asked)] if not_asked else self._hindrances if is_decided else [],
            queued=self.book.queued_reasons(),
        )

    @property
    def next_poll_us(self) -> int:
        """When the batch system is polled next, at the latest: to the second, so that it changes with each poll only.
        0 = it was never polled."""
        if not self._last_poll_us:
            return 0
        return round(self._last_poll_us / 1e6 + self._pause_s()) * 1_000_000

    @property
    def _holds(self) -> bool:
        return any(a.state is AllocationState.ACTIVE and not planning.has_left(a) for a in self.book.living)

    @property
    def glance_s(self) -> float | None:
        """The pause before a glance now; None = there is none."""
        if self._policy is not Policy.YIELD:
            return None
        return self.glances.pause_s(clock.monotonic_s(), holds=self._holds)

    @property
    def _may_glance(self) -> bool:
        return self._policy is Policy.YIELD and self._last_poll_s is not None and not self.state.owes_plan

    def _until_glance(self, pause_s: float) -> float:
        """Seconds from a poll or glance to the next glance, in step with the scheduler's cycle where it is known."""
        snapshot = self.machine.snapshot
        age_s = None
        if snapshot is not None and snapshot.plan_age_s is not None:
            age_s = snapshot.plan_age_s + max(0.0, clock.now_us() / 1e6 - snapshot.at_s)
        return phase.until_glance(
            pause_s * self.calls.batch.calls.interval_factor,
            plan_age_s=age_s,
            cycle_s=constants.CYCLE_S,
            lead_s=phase.lead(self.machine.death_s),
        )

    def _pause_s(self) -> float:
        """Seconds from the last poll to the next: the interval, in step with the scheduler's cycle where it is known;
        longer while glances show no change."""
        pause_s = self._interval_s * self.calls.batch.calls.interval_factor
        if self._policy is Policy.YIELD:
            pause_s *= self.glances.poll_factor(clock.monotonic_s(), holds=self._holds)
        snapshot = self.machine.snapshot
        if snapshot is None or self._policy is Policy.DEMAND:
            return pause_s
        return phase.pause(
            pause_s,
            plan_age_s=snapshot.plan_age_s,
            cycle_s=constants.CYCLE_S,
            lead_s=phase.lead(self.machine.death_s),
        )

    def _apply_answer(self) -> bool:
        answer = self.calls.poll_answer()
        if answer is None:
            return False
        if isinstance(answer, Unreachable):
            self.glances.missed()
            if answer.error.message != self.state.reply.unreachable:
                self.state = self.state.lost(answer.error.message)
                _log.warning("batch.away", reason=answer.error.message, hint=answer.error.hint)
                hint = answer.error.hint or ""
                self._note_outage(reason=answer.error.message, hint=hint)
            return False
        if isinstance(answer, FilesRemoved):
            if answer.error is not None and answer.error.message != self._untidy:
                self._untidy = answer.error.message
                _log.warning("leftovers.stay", reason=answer.error.message)
            return False
        if isinstance(answer, Glanced):
            if self.glances.apply(answer, clock.monotonic_s()):
                self.state = self.state.seen_change()
            return False
        if isinstance(answer, ActionsDone):
            self._note(answer)
            return True
        return self._apply_poll(answer)

    def _apply_poll(self, answer: PollAnswer) -> bool:
        futile = self._recancels.futile(self.book.living, self.doubts.heard_since)
        statuses = self.doubts.judge(answer, self.book.living, futile=futile)
        foreign = len(self._log.pool.state.foreign_us)
        if answer.snapshot is not None:
            self.book.gpus_of_node = gpus_of_node(answer.snapshot)
        changed = self.book.apply_statuses(statuses)
        self._has_news |= changed
        self._send_home(futile)
        self.counts.foreign_cancels += max(0, len(self._log.pool.state.foreign_us) - foreign)
        self.machine.measured_death_s = self.calls.batch.calls.death_s
        again = self._recancels.due(
            self.book.living, clock.now_us(), pause_us=planning.dying_us(self.machine.death_s)
        )
        self._note_answer(answer, again)
        self.glances.pace.cost(answer.calls)
        if answer.snapshot is not None:
            self.glances.polled(answer.snapshot.counts)
            self.glances.is_queue_empty = not any(
                job.eligible and not job.ours for job in answer.snapshot.queued
            )
            self.machine.apply_snapshot(answer.snapshot)
        return changed

    def _note_answer(self, answer: PollAnswer, again: Sequence[str]) -> None:
        """Note what the answer calls for. Show users, if it is new, whether the batch system's replies are believed,
        and whether it starts jobs."""
        before, snapshot = self.state.reply, answer.snapshot
        self.state = self.state.answered(
            has_snapshot=snapshot is not None,
            again=tuple(again),
            doubted=self.doubts.shown,
            starts_nothing="" if snapshot is None else snapshot.starts_nothing,
        )
        reply = self.state.reply
        if reply == before:
            return
        if reply.doubted:
            self._note_outage(reason=reply.doubted, hint=self.doubts.belief.hint, answers=True, doubted=True)
        elif reply.starts_nothing:
            self._note_outage(reason=reply.starts_nothing, answers=True)
        else:
            self.outage = None

    def _note_outage(self, **outage: Any) -> None:
        self.outage = outage_after(self.outage, BatchOutage(since_us=clock.now_us(), **outage))

    def _send_home(self, names: Sequence[str]) -> None:
        """Have leads order the pilots of these allocations to leave, because cancels do not end them."""
        allocations = self._log.pool.state.allocations
        leave = [name for name in names if not allocations[name].leaves]
        if leave:
            self._log.apply(
                site_state.Ordered(at_us=clock.now_us(), leave=leave, why="cancels do not end it")
            )

    # ---- deciding ----

    def step(self, demand: Demand, *, contested: str) -> bool:
        """Decide, note and act, when there is something new to decide on. Whether anything was done.

        `contested`: why the server accepts another agent as the site's; then nodes are released, and none are asked
        for. Where the site only observes there is no fleet, and nothing is submitted.
        """
        self._follow()
        if self.calls.is_busy:
            return False
        stop = self._log.pool.state.stop
        if stop is not None:  # does not wait for the next poll
            self.causes = [planning.STOPPED]
            self.state = self.state.stopped()
            self._watch_jobs()
            return self._retreat(stop)
        if self.state.is_stopped:
            self.state = self.state.resumed()
            self.doubts.begin()
        if self.state.owes_evictions:
            self.state = self.state.evicted()
            if self._end(self._evictions()):
                return True
        is_polled = self.state.owes_plan
        if not (is_polled or self._policy is Policy.DEMAND):
            return False
        self.state = self.state.planned()
        began_s = clock.monotonic_s()
        starts = self.doubts.starts(self._starts(contested))
        self.machine.look_s = self.glance_s or self._interval_s
        plans = self.machine.plans(self._log.pool.state, demand, starts, self._policy)
        plans = [self.doubts.kept(plan) for plan in plans]
        self.counts.plans += 1
        self.counts.plan_seconds += clock.monotonic_s() - began_s
        self.glances.pace.needed(clock.monotonic_s(), self.machine.newly_yielded(plans))
        wide = self._wide_plan(starts)
        self._log_plan([self.doubts.text, *(plan.waits_for for plan in plans), wide.waits_for])
        self._plans, self._wide_waits = plans, wide.waits_for
        self.causes = planning.causes_of(plans, starts, wide_waits=bool(wide.waits_for))
        if self.doubts.text:
            self.causes = [CAUSE]
        if contested:
            self.causes = [planning.CONTESTED]
        done = self._carry_out(plans, wide)
        self._decided_s = clock.now_us() / 1e6
        snapshot = self.machine.snapshot
        self._held = frozenset(job.name for job in snapshot.running if job.ours) if snapshot else frozenset()
        self._show(is_polled=is_polled)
        return done

    def _follow(self) -> None:
        """Have people read what has become of the nodes of the last plans, also of a site that plans no more."""
        if self._has_news and self._plans:
            self._show(is_polled=self.machine.reads_snapshots)
        self._has_news = False

    def _show(self, *, is_polled: bool) -> None:
        self._reported = planning.as_reported(self._plans, self._log.pool.state.allocations, self._held)
        self._hindrances = planning.hindrances_of(self._reported, self._wide_waits, away=self.machine.away)
        self.shown += is_polled

    def last_poll(self) -> LastPoll | None:
        """What the last decision was made on, and what has become of its nodes; None = nothing was decided yet."""
        if not self._decided_s:
            return None
        return LastPoll(
            at_s=self._decided_s,
            pools=shown_pools(self._reported, at_s=self._decided_s),
            awaits=self._awaits() if self.machine.reads_snapshots else None,
            is_at_work=self._is_at_work,
            warning=warning_of(signs_of_cancels(self._log.pool.state), now_us=clock.now_us()),
        )

    def _wide_plan(self, starts: Starts) -> WidePlan:
        if self._config.mode == "observe":
            return WidePlan(cancel=[], submit=[])
        wide = self.fleets.wide
        return plan_wide(wide.needs(), wide.held(self.book.living), self.machine.wide_bounds(starts))

    def _wide_asks(self, plan: WidePlan) -> list[tuple[str, AllocationRequest]]:
        return [
            ("", self.machine.wide_ask(self.fleets.wide.fleet_of(each.nodes), each))
            for each in plan.submit
            for _ in range(each.count)
        ]

    def _retreat(self, stop: site_state.Stop) -> bool:
        """The site is stopped: everything goes."""
        now_us = clock.now_us()
        allocations = self.book.living
        again_s = max(RETREAT_AGAIN_S, self._interval_s)
        order = retreat(stop, allocations, now_us=now_us, again_s=again_s)
        return self.cancel(order.cancel, why=order.why)

    def cancel(self, names: Sequence[str], *, why: str) -> bool:
        """End allocations for another reason than a plan. Whether there was anything to end now."""
        return self._end([Eviction(names=list(names), why=why)] if names else [])

    def release_all(self, read_fleets: Callable[[], object], send_home: Callable[[], object]) -> None:
        """End all allocations and wait, bounded, for what their pilots have done until then, as `read_fleets` takes
        it. Pilots that go on after the cancel are sent home without the batch system."""
        is_asked, is_sent, next_poll_s = False, False, 0.0
        deadline_s = clock.monotonic_s() + RELEASE_ALL_S
        send_s = deadline_s - RELEASE_ALL_S / 2
        while self.book.living and clock.monotonic_s() < deadline_s:
            self.poll(None)
            if not is_asked:
                names = [a.name for a in self.book.living]
                is_asked = self.cancel(names, why="the agent ends and takes its pilots with it")
            elif clock.monotonic_s() > next_poll_s:
                next_poll_s = clock.monotonic_s() + RELEASE_POLL_S
                self.state = self.state.hurried()
            read_fleets()
            if (
                not is_sent
                and clock.monotonic_s() > send_s
                and any(map(planning.is_at_work, self.book.living))
            ):
                is_sent = True
                send_home()
            self._log.commit()
            clock.sleep_s(TICK_S)

    def unended(self) -> list[UnendedJob]:
        """Jobs that may still run after all were ordered to end, by the plain query and the pilots' records."""
        self.finish()
        living = self.book.living
        return unended(living, plain_reply(self.calls.batch, [a.name for a in living]))

    def _end(self, evictions: Sequence[Eviction]) -> bool:
        if not evictions or self.calls.is_busy:
            return False
        names = list(dict.fromkeys(name for each in evictions for name in each.names))
        at_us = clock.now_us()
        for each in evictions:
            self._log.apply(site_state.Ordered(at_us=at_us, cancel=each.names, why=each.why))
        self._log.commit()
        self._plan_log.append(
            [
                broker_log.Canceled(at_s=at_us / 1e6, plan="", names=each.names, reason=each.why)
                for each in evictions
            ]
        )
        for each in evictions:
            if each.is_failure:
                for name in each.names:
                    self.book.silent(name, each.why)
        self.counts.cancels += len(names)
        self.calls.act(Actions(cancel=names))
        self._apply_answer()
        return True

    def _evictions(self) -> list[Eviction]:
        """What has to go whatever the plan says."""
        bad, now_us = self.machine.quarantine, clock.now_us()
        living = self.book.living
        result = self._silence.find_silent(living, clock.monotonic_s())
        if self.machine.is_local:
            return result
        result += suspended(living, self.book.suspended, now_us)
        result += self._hopeless(living, now_us)
        fleets = self._log.pool.state.fleets
        waiting = [a for a in living if a.fleet not in fleets or not fleets[a.fleet].width]
        result += late(waiting, self._config.harvest, now_us)
        exclude = bad.judge(now_us / 1e6, self._owners()).exclude
        if exclude:
            result += doomed(waiting, bad.sentenced_s, exclude, now_us)
        return result

    def _hopeless(self, living: Sequence[site_state.Allocation], now_us: int) -> list[Eviction]:
        result = hopeless(living, self.book.hopeless, now_us, is_over_limit=self.machine.is_over_limit)
        for each in result:
            if not each.is_failure and each.limit:
                self.machine.met_limit(each.limit)
                _log.warning(
                    "limit.changed", reason=each.limit, allocations=each.names[:8], number=len(each.names)
                )
        return result

    def _carry_out(self, plans: Sequence[Named], wide: WidePlan) -> bool:
        """Note what is decided, then have it done: cancels of all pools, then shortenings, then submissions."""
        observes, fleet = self._config.mode == "observe", self.fleets.standing
        cancel: list[str] = [*wide.cancel]
        ends_s: dict[str, float] = {}
        asks = self._wide_asks(wide)
        records: list[broker_log.AnyRecord] = []
        if wide.cancel:
            why = "no work of its width is left"
            at_s = clock.now_us() / 1e6
            records.append(broker_log.Canceled(at_s=at_s, plan="", names=wide.cancel, reason=why))
        yielded: list[Yielded] = []
        self._plan_log.retain({plan.shape.pool for plan in plans})
        for plan in plans:
            made = self._plan_log.made(plan, epoch=self._log.pool.state.epoch, observes=observes)
            name = made.plan if made is not None else ""
            records += [made] if made is not None else []
            yielded.append(Yielded(name, plan.situation, plan.decision))
            if observes:
                continue
            cancel += plan.cancel
            ends_s.update(plan.ends_s)
            self._shortened_by.update(dict.fromkeys(plan.ends_s, name))
            if plan.cancel:
                records.append(broker_log.Canceled(at_s=clock.now_us() / 1e6, plan=name, names=plan.cancel))
            if fleet is not None:
                asks += [(name, ask) for ask in self.machine.asks(plan, fleet)]
            elif plan.submit:  # the server has work, and none of it is here yet: when it comes it is new
                self.state = self.state.wants(False)
        if self.machine.snapshot is not None:
            records += self.harm.on_poll(self.machine.snapshot, yielded, self._own_nodes())
        leave = self.machine.leaving(self._log.pool.state)
        if cancel or ends_s or leave:
            ends_us = {each: int(end_s * 1e6) for each, end_s in ends_s.items()}
            self._log.apply(
                site_state.Ordered(at_us=clock.now_us(), cancel=cancel, ends_us=ends_us, leave=leave)
            )
        again = self._canceled_again(cancel)
        if not (cancel or again or ends_s or asks):
            self._plan_log.append(records)
            return bool(leave)
        submissions = self._intend(asks, records)
        self._log.commit()
        self.counts.cancels += len(cancel)
        self.counts.shortens += len(ends_s)
        self._plan_log.append(records)
        self.calls.act(
            Actions(cancel=cancel + again, ends_s=ends_s, submissions=self.fleets.first_work(submissions))
        )
        self._apply_answer()
        return True

    def _watch_jobs(self) -> None:
        """Record regular jobs that start while the site is stopped, once it holds no nodes: none waits for it."""
        if self.state.owes_plan and not self._holds and self.machine.snapshot is not None:
            self.state = self.state.planned()
            self._plan_log.append(self.harm.on_poll(self.machine.snapshot, [], self._own_nodes()))

    def _own_nodes(self) -> OwnNodes:
        """The nodes of allocations that yield: where they queue like any user's, they keep no one waiting."""
        if self._policy is not Policy.YIELD:
            return OwnNodes()
        return planning.own_nodes(self._log.pool.state.allocations.values())

    def _canceled_again(self, cancel: Sequence[str]) -> list[str]:
        """Whom to cancel once more beside `cancel`. Their order is noted already, and its time counts."""
        again = [name for name in self.state.again if name not in cancel]
        self.state = self.state.repeated()
        if again:
            _log.warning("cancel.again", allocations=again[:8], number=len(again))
        return again

    def _intend(
        self, asks: Sequence[tuple[str, AllocationRequest]], records: list[broker_log.AnyRecord]
    ) -> list[BatchSubmission]:
        """Note the intents to submit; each goes with the plan that it follows from."""
        submissions = []
        for name, ask in asks:
            submission = self.book.intend(ask)
            submissions.append(submission)
            self.counts.starts += ask.count
            self._asked.append((clock.now_us(), ask.count))
            records.append(
                broker_log.Submitted(
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
        self.book.note(acted)
        self._recancels.sent(
            acted.acts.cancel, clock.now_us(), is_confirmed=acted.canceled, now_s=clock.monotonic_s()
        )
        self.glances.acted(
            OwnJobs(
                submitted=sum(each.count for each in acted.acts.submissions if each.name in acted.submitted),
                canceled=len(acted.acts.cancel),
                withdrawn=self.book.singles(acted.acts.cancel, waiting=True),
            )
        )
        if acted.ends_s:
            by_plan: dict[str, dict[str, float]] = {}
            for name, end_s in acted.ends_s.items():
                by_plan.setdefault(self._shortened_by.get(name, ""), {})[name] = end_s
            at_s = clock.now_us() / 1e6
            self._plan_log.append(
                [broker_log.Shortened(at_s=at_s, plan=plan, ends_s=ends) for plan, ends in by_plan.items()]
            )
        self._shortened_by.clear()
        if self.machine.is_local:
            self.state = self.state.hurried()

    def _starts(self, contested: str) -> Starts:
        """How starting went: submissions that were refused, pilots that failed wherever they started, and the bound of
        an hour."""
        self.machine.quarantine.on_first_work(self._log.pool.state.allocations)
        now_us = clock.now_us()
        verdict = self.machine.quarantine.judge(now_us / 1e6, self._owners())
        while self._asked and self._asked[0][0] <= now_us - planning.HOUR_US:
            self._asked.popleft()
        if contested:
            return Starts(
                pause_s=planning.EVER_S, why=f"the server takes another agent for this site's: {contested}"
            )
        paused = planning.withdrawn_starts(pause_after(self._log.pool.state.withdrawn_us, now_us), now_us)
        starts = paused or self._failed_starts(verdict, now_us)
        return planning.with_hour(starts, self._asked, self._config, nodes=self.machine.nodes)

    def _owners(self) -> set[str]:
        """Who has work that runs here, or could."""
        jobs, nodes = self._log.pool.state.jobs.values(), self._config.nodes_max
        return owners_at_work(jobs, self.machine.shape, nodes, self.fleets.granting.is_waiting)

    def _failed_starts(self, verdict: QuarantineVerdict, now_us: int) -> Starts:
        """The starts that are allowed after starts that failed."""
        book = self.book
        since_s = clock.monotonic_s() - book.last_failed_s
        pause_s = max(pause_s_of(book.starts_failed, since_s, config=self._config), verdict.pause_s)
        when = "one is tried now"
        if pause_s:  # up to the next second, so that it changes with each try only
            when = f"the next try at {clock.utc_text(now_us + int(pause_s * 1e6) + 999_999)}"
        if book.starts_failed:
            times = counted_text(book.starts_failed, "allocation")
            why = f"{times} in a row did not start work; {when}: {book.why_failed}"
            return Starts(pause_s=pause_s, tries=1, why=why)
        why = f"{verdict.why}; {when}" if verdict.why else ""
        return Starts(pause_s=pause_s, tries=verdict.tries, why=why)

    # ---- logging ----

    def _log_plan(self, reasons: Sequence[str]) -> None:
        notes = self.machine.ledger.notes
        if notes != self._notes:
            self._notes = notes
            for note in notes:
                _log.warning("grant.note", reason=note)
        waits_for = "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None
        if waits_for == self.waits_for:
            return
        self.waits_for = waits_for
        if self.book.starts_failed or self.machine.quarantine.verdict.pause_s:
            _log.warning("allocation.waits", reason=waits_for)
