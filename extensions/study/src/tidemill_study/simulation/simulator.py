"""A machine with a queue, a scheduler and the broker, replayed event by event. The broker runs production's `decide`.

The scheduler behaves as Slurm's does, on counts of nodes: when a job comes or ends, jobs start in order until one does
not fit; every `cycle_s` after a change, backfilling starts others that delay no reservation (EASY: one for the first
job that is blocked). Tidemill's jobs queue behind all regular jobs; to the scheduler, a running one is a job with a
limit.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from tidemill.harvest.plan.headroom import Headroom, small_width
from tidemill.harvest.plan.ours import EndOrder, Holding
from tidemill.harvest.plan.pace import POLL_CALLS, QUIET_POLLS, GlancePace
from tidemill.harvest.plan.phase import REACTION_S, glance_offsets, lead
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.profile import EVER, FreeNodes, play
from tidemill.harvest.plan.situation import (
    Backlog,
    Busy,
    Decision,
    Limits,
    Outage,
    Situation,
    Waiting,
    starts_per_hour,
)
from tidemill_study.simulation.swf import Job

HOUR_S = 3600.0
ANNOUNCED_S = 7 * 86400.0
"""Scheduler and broker know an outage this long in advance; the machine is not drained for jobs longer than that."""
PUNCTUAL_S = 1e-3
END_REGULAR, END_OURS, FREED, OUTAGE = range(4)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated, and the site's settings. Nothing of it depends on the seed."""

    nodes: int
    outages: list[tuple[int, int]] = []
    event_s: float = 300.0
    startup_s: float = 120.0
    poll_s: float = 30.0
    glance_s: float | None = None  #: least pause before a glance; None = as the agent has it, 0 = no glances
    calls_per_min_max: float = 30.0  #: as `cluster.calls_per_min_max`
    has_headroom: bool = True
    lead_s: float | None = None  #: how long a poll acts before a backfill cycle; None = `death_s` + 1
    is_aligned: bool = True  #: False: polls and cycles have nothing to do with each other
    is_order_known: bool = True  #: False: the broker does not rely on the order of the queue, as on PBS
    cycle_s: float = 30.0
    death_s: float = 5.0
    jobs_max: int = 1_000_000
    width_min: int = 1
    walltime_max_s: float = 86400.0
    horizon_s: float = EVER  #: node-seconds are counted until here


class Tally(msgspec.Struct, kw_only=True):
    """What came of a run: seconds are node-seconds before the horizon, outages left out."""

    idle_s: float = 0.0
    capacity_s: float = 0.0
    held_s: float = 0.0
    useful_s: float = 0.0
    starts: int = 0
    cancels: int = 0
    glances: float = 0.0  #: commands, until the horizon; those at which nothing has changed are counted, too
    polls: float = 0.0
    actions: int = 0
    kept_s: float = 0.0  #: node-seconds that were left idle as headroom, at most
    waits_s: list[float] = []  #: of each job, in the order of the workload
    tide: list[tuple[float, int, int]] = []  #: (time, regular nodes, Tidemill's nodes), if asked for


class Cohort:
    """Tidemill's allocations that are alike. `ends_s` is the limit, for waiting ones the walltime."""

    __slots__ = ("count", "ends_s", "key", "since_s", "waiting", "width")

    def __init__(self, key: int, width: int, count: int, ends_s: float) -> None:
        self.key = key
        self.width = width
        self.count = count
        self.waiting = True
        self.since_s = 0.0
        self.ends_s = ends_s


class SimulatedMachine:
    """One run. `policy` None: without us."""

    def __init__(self, world: World, jobs: Sequence[Job], *, policy: Policy | None, seed: str) -> None:
        chance = random.Random(f"phase {seed}")
        self.world = world
        self.jobs = jobs
        self.policy = policy
        self.next_poll_s = EVER
        self.next_cycle_s = EVER
        self.cycle_phase_s = chance.random() * world.cycle_s
        self.lead_s = lead_s = lead(world.death_s) if world.lead_s is None else world.lead_s
        unrelated_s = chance.random() * world.poll_s
        self.poll_phase_s = self.cycle_phase_s - lead_s if world.is_aligned else unrelated_s
        self.now_s = 0.0
        self.idle = world.nodes
        self.regular = 0
        self.ours = 0
        self.dying: dict[float, int] = {}
        self.events: list[tuple[float, int, int, int]] = []
        self.serial = 0
        self.queue: list[Waiting] = []
        self.busy: list[Busy] = []
        self.record: dict[int, Busy] = {}
        self.cohorts: dict[int, Cohort] = {}
        self.started: deque[tuple[float, int]] = deque()
        self.started_hour = 0
        self.out = False
        self.outages = [Outage(world.nodes, start, end) for start, end in world.outages]
        self.limits = limits_of(world)
        self.backlog = Backlog(node_s=1e18, nodes_max=world.nodes, event_s=world.event_s)
        self.tally = Tally(waits_s=[0.0] * len(jobs))
        self.pace = GlancePace(
            poll_s=world.poll_s, calls_per_min_max=world.calls_per_min_max, glance_s=world.glance_s
        )
        self.headroom = Headroom()
        self.kept = 0
        self.arrived: list[tuple[str, int]] = []
        #: regular jobs that needed nodes of Tidemill at the last poll
        self.yielded: frozenset[str] = frozenset()
        self.looked_s = 0.0
        self.is_glance = False
        self.glance_every_s: float | None = None
        self.keep_tide = False
        for start, end in world.outages:
            self._push(start, OUTAGE, 1)
            self._push(end, OUTAGE, 0)

    def run(self) -> Tally:
        """Until every job has started and the horizon is reached."""
        jobs, count, come = self.jobs, len(self.jobs), 0
        horizon = self.world.horizon_s
        while come < count or self.queue or (self.now_s < horizon < EVER):
            at = self.events[0][0] if self.events else EVER
            if come < count and jobs[come].submit_s < at:
                at = jobs[come].submit_s
            at = min(at, self.next_poll_s, self.next_cycle_s)
            if at == EVER:
                self._advance(horizon)
                break
            self._advance(at)
            changed = is_news = False
            while self.events and self.events[0][0] <= at:
                _, _, kind, argument = heappop(self.events)
                self._happen(kind, argument)
                changed = True
                is_news |= kind == END_REGULAR and bool(self.queue)
            while come < count and jobs[come].submit_s <= at:
                job = jobs[come]
                self.queue.append(Waiting(str(come), job.width, job.limit_s, job.submit_s))
                if self.policy is Policy.YIELD:
                    self.arrived.append((str(come), job.width))
                come += 1
                changed = is_news = True
            if changed:
                self._main_pass()
                self._arm(is_news=is_news)
            if self.next_poll_s <= at:
                self._glance()
            if self.next_cycle_s <= at:
                self._cycle()
        self._finish()
        return self.tally

    # -- time --------------------------------------------------------------------------------------------------------

    def _push(self, at_s: float, kind: int, argument: int) -> None:
        self.serial += 1
        heappush(self.events, (at_s, self.serial, kind, argument))

    def _advance(self, at_s: float) -> None:
        """Account for the time until `at_s`."""
        spent = min(at_s, self.world.horizon_s) - self.now_s
        if spent > 0 and not self.out:
            tally = self.tally
            tally.idle_s += spent * (self.world.nodes - self.regular)
            tally.capacity_s += spent * self.world.nodes
            tally.held_s += spent * self.ours
            tally.kept_s += spent * min(self.kept, self.idle)
            if self.glance_every_s is not None and self.ours:
                tally.glances += spent / self.glance_every_s
        self.now_s = at_s

    def _arm(self, *, is_news: bool = False) -> None:
        """Schedule the next cycle and the next poll after a change; `is_news`: a glance may react to it, too."""
        now = self.now_s
        if self.next_cycle_s == EVER:
            self.next_cycle_s = after(now, self.world.cycle_s, self.cycle_phase_s)
        if self.policy is not None:
            self._arm_look(now, is_news=is_news)
        if self.keep_tide:
            self.tally.tide.append((now, self.regular, self.ours))

    def _arm_look(self, now_s: float, *, is_news: bool) -> None:
        """The next glance or poll after a change, whichever comes first."""
        at_s = after(now_s, self.world.poll_s, self.poll_phase_s)
        is_glance = False
        if self.policy is Policy.YIELD:
            self.glance_every_s = self.pace.glance_s(now_s, holds=self.ours > 0)
            if self.glance_every_s is not None and is_news:
                glance_at_s = self._reaction_at_s(now_s + REACTION_S, self.glance_every_s)
                is_glance = glance_at_s < at_s - PUNCTUAL_S
                at_s = glance_at_s if is_glance else at_s
        if at_s < self.next_poll_s:
            self.next_poll_s, self.is_glance = at_s, is_glance

    def _reaction_at_s(self, now_s: float, pause_s: float) -> float:
        """When the next glance has led to something, as `phase.until_glance` has it."""
        world = self.world
        if world.is_aligned:
            offsets = glance_offsets(pause_s, cycle_s=world.cycle_s, lead_s=self.lead_s)
            if offsets:
                return min(after(now_s, world.cycle_s, self.cycle_phase_s + each) for each in offsets)
        return after(now_s, pause_s, self.poll_phase_s)

    def _glance(self) -> None:
        """A glance that shows a change, and the poll that it may cause; or a poll at its own time."""
        now, tally = self.now_s, self.tally
        if self.policy is not Policy.YIELD:
            self._poll()
            return
        quiet = int((now - self.looked_s) // (self.world.poll_s * QUIET_POLLS))
        is_counted = now < self.world.horizon_s and not self.out
        tally.polls += quiet if is_counted else 0
        self.looked_s = now
        if self.is_glance:
            self.pace.changed(now)
        if self.is_glance and not self.pace.react(now):
            self.next_poll_s = EVER
            self._arm_look(now, is_news=True)
            return
        if not self.is_glance:
            self.pace.polled(now)
        tally.polls += is_counted
        self._poll()

    def _learn(self, decision: Decision) -> None:
        """What has come since the last poll: nodes of small jobs that could start, jobs that need nodes of Tidemill."""
        before, self.yielded = self.yielded, frozenset(decision.yields_to)
        self.pace.needed(self.now_s, len(self.yielded - before))
        arrived, self.arrived = self.arrived, []
        if not arrived:
            return
        waiting = {job.id for job in self.queue}
        could = self.yielded.union(decision.ready)
        widest = small_width(self.world.nodes)
        wanted = sum(
            width for name, width in arrived if width <= widest and (name in could or name not in waiting)
        )
        self.headroom.note(self.now_s, wanted)

    def _happen(self, kind: int, argument: int) -> None:
        if kind == END_REGULAR:
            each = self.record.pop(argument)
            k = bisect_left(self.busy, each.ends_s, key=ends_of)
            while self.busy[k] is not each:
                k += 1
            del self.busy[k]
            self.idle += each.width
            self.regular -= each.width
        elif kind == END_OURS:
            cohort = self.cohorts.get(argument)
            if cohort is not None and cohort.ends_s <= self.now_s:
                self._end(cohort, cohort.count)
        elif kind == FREED:
            self.idle += self.dying.pop(self.now_s, 0)
        else:
            self.out = bool(argument)

    # -- Tidemill's allocations --------------------------------------------------------------------------------------

    def _end(self, cohort: Cohort, count: int) -> None:
        """End running allocations of Tidemill: count their work, free their nodes after `death_s`."""
        nodes = cohort.width * count
        cohort.count -= count
        if not cohort.count:
            del self.cohorts[cohort.key]
        self.tally.useful_s += nodes * self._done_s(cohort.since_s, self.now_s)
        self.ours -= nodes
        freed = self.now_s + self.world.death_s
        if freed not in self.dying:
            self._push(freed, FREED, 0)
        self.dying[freed] = self.dying.get(freed, 0) + nodes

    def _done_s(self, since_s: float, until_s: float) -> float:
        """Seconds of finished events of a node that we held for this time, before the horizon."""
        world = self.world
        worked = min(until_s, world.horizon_s) - since_s - world.startup_s
        return worked // world.event_s * world.event_s if worked > 0 else 0.0

    def _start_ours(self, cohort: Cohort, count: int) -> None:
        """Start `count` waiting allocations."""
        if count < cohort.count:
            cohort.count -= count
            cohort = self._new(cohort.width, count, cohort.ends_s)
        now = self.now_s
        cohort.waiting = False
        cohort.since_s = now
        cohort.ends_s += now
        self._push(cohort.ends_s, END_OURS, cohort.key)
        nodes = cohort.width * count
        self.idle -= nodes
        self.ours += nodes
        if now < self.world.horizon_s:
            self.tally.starts += count
        self.started.append((now, count))
        self.started_hour += count

    def _new(self, width: int, count: int, walltime_s: float) -> Cohort:
        self.serial += 1
        cohort = Cohort(self.serial, width, count, walltime_s)
        self.cohorts[cohort.key] = cohort
        return cohort

    # -- the scheduler -----------------------------------------------------------------------------------------------

    def _free_until_s(self) -> float:
        """Start of the next outage that is announced; now in an outage."""
        known = self._known_outages()
        return max(self.now_s, known[0].start_s) if known else EVER

    def _known_outages(self) -> list[Outage]:
        """Those that last or are announced."""
        outages = self.outages
        while outages and outages[0].end_s <= self.now_s:
            outages.pop(0)
        until_s = self.now_s + ANNOUNCED_S
        return [each for each in outages if each.start_s <= until_s] if outages else outages

    def _start_regular(self, job: Waiting) -> None:
        index = int(job.id)
        now = self.now_s
        if job.width > self.idle:
            now += self._preempt(job.width - self.idle)
        ends = now + job.walltime_s
        each = Busy(job.width, ends)
        insort(self.busy, each, key=ends_of)
        self.record[index] = each
        self.idle -= job.width
        self.regular += job.width
        self.tally.waits_s[index] = now - job.submitted_s
        self._push(now + self.jobs[index].run_s, END_REGULAR, index)

    def _preempt(self, nodes: int) -> float:
        """Let the scheduler take Tidemill's nodes, the last started first; return the seconds until they are free."""
        for cohort in sorted(self.cohorts.values(), key=lambda each: -each.since_s):
            if nodes <= 0:
                break
            if not cohort.waiting:
                count = min(cohort.count, -(-nodes // cohort.width))
                self._end(cohort, count)
                freed = self.now_s + self.world.death_s
                taken = min(nodes, count * cohort.width)  # these go straight to the job
                self.dying[freed] -= taken
                self.idle += taken
                nodes -= taken
        return self.world.death_s

    def _available(self) -> int:
        """Nodes that the scheduler may give to a regular job now."""
        return self.idle + self.ours if self.policy is Policy.PREEMPT else self.idle

    def _main_pass(self) -> None:
        """Start jobs in order until one does not fit; start Tidemill's if no regular job waits."""
        queue = self.queue
        if queue and queue[0].width <= self._available():
            free_s = self._free_until_s() - self.now_s
            started = 0
            for job in queue:
                if job.width > self._available() or job.walltime_s > free_s:
                    break
                self._start_regular(job)
                started += 1
            del queue[:started]
        if not queue and self.policy is not None and self.idle > 0:
            free_s = self._free_until_s() - self.now_s
            for cohort in [each for each in self.cohorts.values() if each.waiting]:
                count = min(cohort.count, self.idle // cohort.width) if cohort.ends_s <= free_s else 0
                if count:
                    self._start_ours(cohort, count)

    def _cycle(self) -> None:
        """One cycle of the scheduler's backfill."""
        self.next_cycle_s = EVER
        available = self._available()
        waiting = [each for each in self.cohorts.values() if each.waiting]
        if available <= 0 or not (self.queue or waiting):
            return
        profile = FreeNodes(self.now_s, available)
        ends = [(each.ends_s, each.width) for each in self.busy]
        ends += self.dying.items()
        if self.policy is not Policy.PREEMPT:
            ends += [
                (each.ends_s, each.count * each.width) for each in self.cohorts.values() if not each.waiting
            ]
        ends.sort()
        profile.release(ends)
        for outage in self._known_outages():
            profile.reserve(outage.width, max(self.now_s, outage.start_s), outage.end_s)
        starts = play(profile, self.queue, 1).starts
        if starts:
            gone = {id(job) for job in starts}
            self.queue = [job for job in self.queue if id(job) not in gone]
            for job in starts:
                self._start_regular(job)
        for cohort in waiting:
            fitting = min(self.idle, room(profile, cohort.ends_s)) // cohort.width
            count = min(cohort.count, fitting)
            if count > 0:
                profile.reserve(count * cohort.width, self.now_s, self.now_s + cohort.ends_s)
                self._start_ours(cohort, count)
                starts = starts or self.queue[:0] or [WAITING_NONE]
        if starts:
            self._arm()

    # -- the broker --------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """The broker looks, decides and acts."""
        self.next_poll_s = EVER
        assert self.policy is not None
        situation = self.situation()
        decision = decide(situation, self.policy)
        if self.policy is Policy.YIELD:
            self._learn(decision)
            self.kept = situation.headroom
            if self.now_s < self.world.horizon_s:
                self.tally.actions += commands_of(decision)
        acted = self._cancel(decision)
        for change in decision.shorten:
            cohort = self.cohorts[change.key]
            if change.count < cohort.count:
                cohort.count -= change.count
                since = cohort.since_s
                cohort = self._new(cohort.width, change.count, 0.0)
                cohort.waiting = False
                cohort.since_s = since
            cohort.ends_s = max(change.ends_s, self.now_s)
            self._push(cohort.ends_s, END_OURS, cohort.key)
            acted = True
        for order in decision.submit:
            self._new(order.width, order.count, order.walltime_s)
            acted = True
        if acted:
            self._main_pass()
            self._arm()
            self.next_poll_s = EVER if not decision.submit else self.next_poll_s
        if decision.next_s is not None:
            self.next_poll_s = min(
                self.next_poll_s, after(decision.next_s, self.world.poll_s, self.poll_phase_s)
            )

    def _cancel(self, decision: Decision) -> bool:
        for change in decision.cancel:
            self._cancel_one(change)
        return bool(decision.cancel)

    def _cancel_one(self, change: EndOrder) -> None:
        cohort = self.cohorts[change.key]
        count = min(change.count, cohort.count)
        if self.now_s < self.world.horizon_s:
            self.tally.cancels += count
        if not cohort.waiting:
            self._end(cohort, count)
            return
        cohort.count -= count
        if not cohort.count:
            del self.cohorts[cohort.key]

    def situation(self) -> Situation:
        """The machine as the broker sees it at a poll."""
        now, world = self.now_s, self.world
        busy = self.busy
        if self.dying:
            busy = busy + [Busy(nodes, at) for at, nodes in self.dying.items()]
        while self.started and self.started[0][0] <= now - HOUR_S:
            self.started_hour -= self.started.popleft()[1]
        left = starts_per_hour(world.nodes, self.limits.starts_per_node_hour) - self.started_hour
        limits = self.limits if left >= world.nodes else with_starts(self.limits, left)
        return Situation(
            now_s=now,
            nodes=world.nodes,
            idle=self.idle,
            busy=busy,
            queue=self.queue,
            outages=self._known_outages(),
            holdings=[self._holding(each) for each in self.cohorts.values()],
            backlog=self.backlog,
            limits=limits,
            is_order_known=world.is_order_known,
            headroom=self._headroom(),
        )

    def _headroom(self) -> int:
        world = self.world
        if self.policy is not Policy.YIELD or not world.has_headroom:
            return 0
        return self.headroom.nodes(
            self.now_s,
            free=world.nodes - self.regular,
            look_s=self.glance_every_s or world.poll_s,
            death_s=world.death_s,
        )

    def _holding(self, cohort: Cohort) -> Holding:
        if cohort.waiting:
            return Holding(
                key=cohort.key,
                width=cohort.width,
                count=cohort.count,
                waiting=True,
                started_s=self.now_s,
                ends_s=self.now_s + cohort.ends_s,
            )
        age = self.now_s - cohort.since_s
        work = age - self.world.startup_s
        return Holding(
            key=cohort.key,
            width=cohort.width,
            count=cohort.count,
            waiting=False,
            started_s=cohort.since_s,
            ends_s=cohort.ends_s,
            loss_s=cohort.width * (work % self.world.event_s if work > 0 else age),
        )

    def _finish(self) -> None:
        for cohort in self.cohorts.values():
            if not cohort.waiting:
                nodes = cohort.width * cohort.count
                self.tally.useful_s += nodes * self._done_s(cohort.since_s, self.now_s)


WAITING_NONE = Waiting("", 0, 0.0)


def limits_of(world: World) -> Limits:
    """The broker's limits in this world."""
    return Limits(
        nodes_max=world.nodes,
        allocations_max=world.jobs_max,
        width_min=world.width_min,
        width_max=world.nodes if world.jobs_max < world.nodes // world.width_min else world.width_min,
        walltime_max_s=world.walltime_max_s,
        startup_s=world.startup_s,
        poll_s=world.poll_s,
        cycle_s=world.cycle_s,
        death_s=world.death_s,
        reservations=1,
    )


def with_starts(limits: Limits, left: int) -> Limits:
    """The same limits with the starts that this hour still allows."""
    return msgspec.structs.replace(limits, starts_left=max(0, left))


def commands_of(decision: Decision) -> int:
    """Commands that carry out a decision: one cancels all, one for each end and for each array."""
    return bool(decision.cancel) + len({each.ends_s for each in decision.shorten}) + len(decision.submit)


def calls_of(tally: Tally) -> float:
    """Commands of a run, until the horizon."""
    return tally.glances + POLL_CALLS * tally.polls + tally.actions


def ends_of(each: Busy) -> float:
    """By what running jobs are sorted."""
    return each.ends_s


def room(profile: FreeNodes, seconds: float) -> int:
    """Nodes that are free for `seconds` from now."""
    return next((nodes for length, nodes in profile.staircase() if length >= seconds), 0)


def after(now_s: float, period_s: float, phase_s: float) -> float:
    """The next tick after `now_s`."""
    return phase_s + ((now_s - phase_s) // period_s + 1) * period_s
