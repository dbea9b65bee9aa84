"""The fleets of a site: their directories, their leads, what comes out of their journals.

Every agent epoch has one standing fleet for new work. Fleets of earlier epochs go on with what they were granted: their
lead is kept alive and their journals are read until their allocations have ended; then what is left is taken back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.batch.contract import BatchSubmission
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError, ProtocolError, SiteError
from tidemill.files import make_private
from tidemill.log import Log
from tidemill.model.devices import without_gpus
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.node.fleet import Fleet, WorkOrder, create_fleet, open_fleet
from tidemill.node.journal import FleetJournal, allocation_of, read_interval_s
from tidemill.routing.engine import engine
from tidemill.site import constants
from tidemill.site.applications.gpus import gpus_of_node
from tidemill.site.applications.programs import network_of
from tidemill.site.data.masks import masked_paths, view_of
from tidemill.site.fleet.at_work import read_at_work
from tidemill.site.fleet.handout import Seat
from tidemill.site.fleet.io_budget import IoShares
from tidemill.site.fleet.lead import Lead, NoLead, Serving
from tidemill.site.fleet.mailbox import Mailbox, adopt
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.wire.node import (
    FORMAT,
    End,
    Grant,
    JobDef,
    Manifest,
    NodeCacheDef,
    Program,
    Record,
    Settings,
    form_number,
)

BATCH_COMMANDS = [
    *("sbatch", "srun", "salloc", "scancel", "squeue", "scontrol", "sacct"),
    *("qsub", "qdel", "qstat", "qalter", "qrsub", "qhold", "qrls"),
    *("bsub", "bkill", "bjobs", "condor_submit", "flux"),
]
"""Programs of batch systems that payloads cannot start."""

SCRATCH = "scratch"
"""In the directory of a fleet for payloads that span nodes: their work directories, which all nodes see."""

LOST_TOLD_US = 600_000_000
"""A lead learns this late that a lost allocation has ended: from then on it gives that one's pilots nothing."""

END_TOLD_US = 1_500_000
"""Batch systems report ends to the second."""

RECORD_FLUSH_MS = 100
"""Results become durable at least this often: at most this much work is repeated after a crash, for ten flushes a
second of one file."""

FAST_BYTES_MIN = 1_000_000_000
"""Inputs of this size and more go to the site's `fast_dir`; smaller ones are read sooner from memory."""

WIDE_QUEUE_S = 30.0
"""Work that is queued at an allocation for payloads that span nodes: a chunk should hold an event for each rank."""

WIDE_IDLE_S = 5.0
"""Many nodes idle together: such an allocation leaves sooner than one of a single node."""

OPERATIONS_PER_S_MAX = 20.0
"""Without a lead: operations of the agent on the fleet's file system for reading journals; 100 pilots are read every
10 s then. A metadata server does thousands a second, and others have a right to them."""

READ_SHARE, READ_S_MIN = 1 / 12, 0.1
"""... and as often as that part of a top-up interval, which is what a result then waits."""

STAGE_READERS = 1
"""Nodes that read the same file from the shared file system at the same time: the others get it from them."""

STAGE_READERS_APART = 16
"""... where nodes do not reach each other, and each has to read: one after the other, a hundred nodes would wait for
minutes; each of them reads one file in one stream, and file systems of such machines serve thousands."""

RETIRE_S = 60.0
"""Journals of allocations that have ended are read for this time, and once more then: network file systems may show
what was written last only after their cache's time (acdirmax of nfs(5): 60 s)."""

UNKNOWN_MEMORY_MB = 1 << 40
"""Where a submission asks for no memory: what does not fit, the pilot returns."""

RECORDS_PER_READ = 5000
"""Records in one line of the site's log, at most."""

_log = Log("fleets")


class GrantNeeds(NamedTuple):
    """What pilots have to know to run what they are granted: programs and jobs by their numbers, and of each job
    `SiteJob.began`."""

    programs: dict[int, Program]
    jobs: dict[int, JobDef]
    began: dict[int, int]


class GivenJob(NamedTuple):
    """What a fleet knows of a job: `SiteJob.began` at that time, and a mark of its definition."""

    began: int
    mark: int


class OpenFleet:
    """A fleet directory with its journal, its lead's process and what its lead has received."""

    def __init__(self, record: site_state.SiteFleet, fleet: Fleet, binary: Path) -> None:
        self.record = record
        self.fleet = fleet
        self.programs: set[int] = set()
        self.jobs: dict[int, GivenJob] = {}  #: jobs that the fleet knows
        #: what it has seen is what the log has applied and, within a tick, is about to
        self.journal = FleetJournal(
            fleet.journal, offsets=record.offsets, seen=record.seen, ended=record.ended
        )
        is_closed = fleet.manifest.lead == "none"
        self.mailbox = Mailbox(fleet) if is_closed else None
        self.lead: Serving = NoLead(fleet) if is_closed else Lead(fleet, binary)
        self.next_read_s = 0.0
        self.is_paced = False  #: it has a program whose starts cost shared file systems
        self.retiring: dict[
            str, float
        ] = {}  #: allocations that have ended -> when their journals are left alone

    @property
    def has_work(self) -> bool:
        """Whether its pilots may still have something to do."""
        if self.mailbox is not None:
            return self.record.open > 0 and self.mailbox.has_work
        return self.record.open > 0


class Fleets:
    """All fleets of the site that are not finished. `devices`: of a node."""

    def __init__(
        self, directory: Path, config: SiteConfig, *, binary: Path, devices: dict[str, int] | None = None
    ) -> None:
        self._directory = directory
        self._config = config
        self._binary = binary
        self.open: dict[str, OpenFleet] = {}
        self._devices = devices or {}
        self.io = IoShares(config)
        self._node_cache = _node_cache(config)
        self._directory.mkdir(mode=0o700, exist_ok=True)

    @property
    def directory(self) -> Path:
        """Where the fleets' directories are."""
        return self._directory

    @property
    def config(self) -> SiteConfig:
        """The site's."""
        return self._config

    def adopt(self, state: site_state.SiteState) -> None:
        """Open the fleets of earlier epochs that are not finished; one that was never made is only noted."""
        for record in state.fleets.values():
            if record.finished_us is not None or record.name in self.open:
                continue
            try:
                opened = OpenFleet(record, open_fleet(self._directory / record.name), self._binary)
                if opened.mailbox is not None:
                    adopt_mailbox(opened, state)
                self.open[record.name] = opened
                self.io.adopt(record.name)
                opened.is_paced = bool(self._config.io)
            except ConfigError as error:
                _log.warning("fleet.absent", fleet=record.name, reason=error.message)

    def open_new(self, log: SiteLog, check: Callable[[], None], *, width: int = 0) -> OpenFleet:
        """A fleet for new work of this epoch, durable in the log before its directory is made. Raises SiteError."""
        state = log.pool.state
        name = f"e{state.epoch}-{state.next_fleet}"
        log.apply(site_state.FleetOpened(fleet=name, at_us=clock.now_us(), width=width))
        log.commit()
        check()
        return self.create(state.fleets[name])

    def create(self, record: site_state.SiteFleet) -> OpenFleet:
        """Make the directory of a fleet that the log knows already. Raises SiteError."""
        config = self._config
        manifest = Manifest(
            format=FORMAT,
            fleet=record.name,
            site=config.name,
            epoch=record.epoch,
            created_us=record.created_us,
            lead="beside" if config.harvest.has_lead else "none",
            listen=config.lead_listen,
            settings=Settings(
                record_flush_ms=RECORD_FLUSH_MS,
                output_flush_s=constants.OUTPUT_FLUSH_S,
                queue_s=max(constants.QUEUE_S, WIDE_QUEUE_S) if record.width else constants.QUEUE_S,
                idle_s=min(constants.IDLE_S, WIDE_IDLE_S) if record.width else constants.IDLE_S,
                dead_after_s=constants.DEAD_AFTER_S,
                drain_s=constants.DRAIN_S,
                top_up_s=constants.TOP_UP_S,
                stop_files=[str(config.stop_file)] if config.stop_file else [],
                pilot_grace_s=constants.PILOT_GRACE_S,
                isolation=_isolation(config),
                affinity="none" if record.width else config.affinity,
                gpus_per_node=gpus_of_node(config),
                network="open" if record.width else network_of(config),
                mask=[str(path) for path in masked_paths(self._directory.parent, config)],
                batch_commands=BATCH_COMMANDS,
                bundle_bytes_max=constants.BUNDLE_BYTES_MAX,
                output_bytes_max=config.output_bytes_max,
                store_mb=0,
                images="auto",
                peers=config.harvest.has_peers,
                stage_readers=STAGE_READERS if config.harvest.has_peers else STAGE_READERS_APART,
                fast_dir=config.fast_dir or None,
                fast_bytes=FAST_BYTES_MIN,
                spill=config.fast_dir or None,
                io=self.io.first(record.name),
                scratch=str(self._directory / record.name / SCRATCH) if record.width else None,
                view=view_of(self._directory.parent, config),
                storage_patience_s=constants.STORAGE_PATIENCE_S,
                node_cache=self._node_cache,
                monitor_interval_s=constants.MONITOR_INTERVAL_S,
            ),
        )
        fleet = create_fleet(self._directory / record.name, manifest)
        if record.width:
            make_private(fleet.directory / SCRATCH)
        opened = OpenFleet(record, fleet, self._binary)
        self.open[record.name] = opened
        _log.info("fleet.opened", fleet=record.name)
        return opened

    def read(self, opened: OpenFleet, *, hurry: bool = False) -> list[site_state.Read]:
        """What is new in a fleet's journals, as entries for the log. Without a lead there are as many journals as
        pilots: they are read in intervals, unless it is urgent. Raises SiteError, ProtocolError."""
        records = opened.journal.read() if opened.mailbox is None else self._read_many(opened, hurry=hurry)
        if not records:
            return []
        self.io.on_records(records)
        changed = opened.journal.moved()
        pieces = [records[at : at + RECORDS_PER_READ] for at in range(0, len(records), RECORDS_PER_READ)]
        return [
            # offsets go with the last piece: a crash in between reads some records again, which are known by number
            site_state.Read(
                fleet=opened.record.name, offsets=changed if n == len(pieces) else {}, records=piece
            )
            for n, piece in enumerate(pieces, start=1)
        ]

    def _read_many(self, opened: OpenFleet, *, hurry: bool) -> list[Record]:
        now = clock.monotonic_s()
        records: list[Record] = []
        if hurry or now >= opened.next_read_s:
            records += opened.journal.read()
            settings = opened.fleet.manifest.settings
            pause_s = read_interval_s(
                opened.journal.growing,
                operations_per_s_max=OPERATIONS_PER_S_MAX,
                interval_s=max(READ_S_MIN, settings.top_up_s * READ_SHARE),
            )
            opened.next_read_s = now + (0.0 if opened.journal.is_behind else pause_s)
        try:
            for name in [name for name, at in opened.retiring.items() if now >= at]:
                records += opened.journal.retire(name)
                del opened.retiring[name]
        except (SiteError, ProtocolError):
            if not records:  # else what was found comes first; it is tried again with the next call
                raise
        return records

    def has_ended(self, opened: OpenFleet, state: site_state.SiteState) -> bool:
        """Whether a fleet that is over has no lead any more, and no record of its pilots may still come: else what they
        have made safe would run again."""
        if not opened.lead.end():
            return False
        if opened.mailbox is None:  # what pilots had sent, the lead has written on this host
            return True
        since_us = clock.now_us() - int(RETIRE_S * 1e6)
        mine = (a for a in state.allocations.values() if a.fleet == opened.record.name)
        return all(a.ended_us < since_us or _is_all_read(a) for a in mine)

    def first_work(
        self, state: site_state.SiteState, submissions: list[BatchSubmission], check: Callable[[], None]
    ) -> list[BatchSubmission]:
        """Submissions with the work file that their pilots start with, where they read files. Where one cannot be
        written, those pilots get work once they report. `check` as for `hand_out`."""
        complete: list[BatchSubmission] = []
        for submission in submissions:
            members = [a for a in state.allocations.values() if a.submission == submission.name]
            mailbox = self.open[members[0].fleet].mailbox if members else None
            if mailbox is not None:
                check()
                seats = [_first_seat(a.name, submission, self._devices) for a in members]
                try:
                    number = mailbox.first_shares(seats)
                except SiteError as error:
                    _log.error("work.unwritten", reason=error.message, hint=error.hint)
                else:
                    command = [*submission.command, "--work-from", str(number)]
                    submission = msgspec.structs.replace(submission, command=command)
            complete.append(submission)
        return complete

    def hand_out(self, opened: OpenFleet, state: site_state.SiteState, check: Callable[[], None]) -> None:
        """Write orders and shares where pilots read files. `check` refuses where a newer agent serves the site. Raises
        SiteError: tried again with the next call."""
        if opened.mailbox is not None:
            seats = _seats(state, opened.record.name, self._devices)
            opened.mailbox.step(seats, clock.monotonic_s(), check)

    def at_work(self, name: str) -> set[int] | None:
        """The jobs that pilots of a fleet run; None = that is not known."""
        opened = self.open.get(name)
        if opened is not None and opened.mailbox is not None:
            return opened.mailbox.at_work()
        return read_at_work(self._directory / name)

    def share_io(self, state: site_state.SiteState, check: Callable[[], None]) -> None:
        """Divide what fleets may do to shared file systems: by the allocations of those that have work whose starts
        cost something there. Cost: one pass over all allocations, when it is due."""
        if not self.io.is_due:
            return
        living: dict[str, float] = {}
        for a in state.allocations.values():
            if a.state is AllocationState.ACTIVE:
                living[a.fleet] = living.get(a.fleet, 0.0) + 1.0
        served = {name: each for name, each in self.open.items() if each.record.finished_us is None}
        demands = {
            name: max(1.0, living.get(name, 0.0)) if each.is_paced and each.record.open else 0.0
            for name, each in served.items()
        }
        self.io.step(demands, {name: each.fleet for name, each in served.items()}, check)

    def give(
        self,
        opened: OpenFleet,
        *,
        grants: list[Grant],
        needs: GrantNeeds,
        order: WorkOrder,
    ) -> None:
        """Write one work file, with the programs and jobs that this fleet does not have; without a lead, leave that
        to `hand_out`. What is canceled is what was granted before. A job that began again is canceled at pilots if it
        has inputs, of which they hold the former ones, or another definition. Raises SiteError."""
        programs, jobs, began = needs
        before = {number: opened.jobs[number] for number in jobs if number in opened.jobs}
        again = {number for number, known in before.items() if known.began != began[number]}
        otherwise = {
            number for number in again if jobs[number].inputs or _mark(jobs[number]) != before[number].mark
        }
        canceled = otherwise.union(order.cancel_jobs)
        order = msgspec.structs.replace(order, cancel_jobs=sorted(canceled))
        new_jobs = [
            job
            for number, job in jobs.items()
            if number not in before or number in again or number in canceled
        ]
        if opened.mailbox is not None:
            opened.mailbox.order(order)
            opened.mailbox.grant(grants, programs.values(), jobs.values())
            at_s = clock.monotonic_s() + RETIRE_S
            opened.retiring.update(dict.fromkeys(order.ended, at_s))
        else:
            new_programs = [each for number, each in programs.items() if number not in opened.programs]
            opened.fleet.write_work(programs=new_programs, jobs=new_jobs, grants=grants, order=order)
            opened.is_paced |= any(each.start_ops or each.start_bytes for each in new_programs)
            opened.programs.update(each.program for each in new_programs)
        for number in canceled:
            opened.jobs.pop(number, None)
        opened.jobs.update((job.job, GivenJob(began[job.job], _mark(job))) for job in new_jobs)

    def remove(self, name: str) -> None:
        """Delete a finished fleet's directory. Raises SiteError."""
        self.open.pop(name, None)
        try:
            shutil.rmtree(self._directory / name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SiteError(f"failed to remove fleet `{self._directory / name}`: {error.strerror}") from error
        _log.info("fleet.removed", fleet=name)


def _mark(job: JobDef) -> int:
    """A hash of a definition; a fleet may know a million jobs."""
    return hash(msgspec.json.encode(job))


def adopt_mailbox(opened: OpenFleet, state: site_state.SiteState) -> None:
    """What an earlier agent handed out in this fleet, from files; orders that wait for a pilot are given once more.
    Raises SiteError, ProtocolError."""
    name = opened.record.name
    undone = [
        (Grant(grant=number, job=form_number(job.id, held.form), first=0, count=0, chunk_max=None), held.open)
        for job in state.jobs.values()
        for number, held in job.grants.items()
        if held.fleet == name
    ]
    opened.mailbox = adopt(opened.fleet, undone, opened.record.offsets)
    mine = [a for a in state.allocations.values() if a.fleet == name]
    living = [a for a in mine if not a.ended_us]
    opened.mailbox.order(
        WorkOrder(
            ends=[End(allocation=a.name, at_us=a.told_end_us) for a in living if a.told_end_us],
            leave=[a.name for a in living if a.told_leave],
            ended=[a.name for a in mine if a.told_lead],
            close=opened.record.closed,
        )
    )
    known = {a.name for a in mine if not a.told_lead}
    at_s = clock.monotonic_s() + RETIRE_S
    left = {allocation_of(pilot) for pilot in opened.record.seen if pilot not in opened.record.ended}
    opened.retiring.update(dict.fromkeys(left - known, at_s))


def _is_all_read(allocation: site_state.Allocation) -> bool:
    """Whether nothing more may come of an allocation that has ended: its pilot has signed off, or there was none."""
    if allocation.requeued:  # pilots that were read of may all be of an earlier run
        return False
    if allocation.pilots:
        return allocation.pilots <= allocation.pilots_ended
    is_unstarted = not allocation.started_us and not allocation.hosts
    return allocation.state is AllocationState.CANCELED and is_unstarted


def _first_seat(name: str, submission: BatchSubmission, devices: dict[str, int]) -> Seat:
    """What an allocation that is about to be asked for can run: of payloads that span its nodes, one."""
    return Seat(
        allocation=name,
        cores=submission.cores if submission.ranks else 1,
        memory_mb=submission.memory_mb or UNKNOWN_MEMORY_MB,
        devices=devices if submission.has_gpus else without_gpus(devices),
        remaining_s=submission.walltime_s,
    )


def _seats(state: site_state.SiteState, fleet: str, devices: dict[str, int]) -> Iterator[Seat]:
    """The fleet's allocations that run; their pilots report what they found there. Lazy: it takes 9 ms for 8,000."""
    now_us = clock.now_us()
    for a in state.allocations.values():
        if a.fleet == fleet and a.state is AllocationState.ACTIVE and not a.leaves and not a.canceled_us:
            end_us = end_us_of(a)
            remaining_s = max(0.0, (end_us - now_us) / 1e6) if end_us else None
            found = without_gpus(devices) if a.without_gpus else devices
            yield Seat(allocation=a.name, cores=a.cores, memory_mb=0, devices=found, remaining_s=remaining_s)


def end_us_of(allocation: site_state.Allocation) -> int:
    """When its pilots have to be gone: by its limit, or by the agent's order if that is earlier; 0 = not known.

    The batch system may have refused the new limit, or cannot lower it (elements of PBS's arrays): then the pilots
    leave by themselves, so that the nodes are free when they are needed.
    """
    return min([at for at in (allocation.ends_us, allocation.ordered_end_us) if at], default=0)


def is_over(state: site_state.SiteState, fleet: str) -> bool:
    """Whether every allocation of the fleet has ended."""
    return all(a.state in ALLOCATION_FINAL for a in state.allocations.values() if a.fleet == fleet)


def orders_of(
    state: site_state.SiteState, fleet: str, *, now_us: int
) -> tuple[list[str], list[End], list[str]]:
    """What the fleet's lead does not know yet of its allocations: those that ended, those that end earlier than it
    knows, those that are to leave. One that was lost may come back, and is reported later."""
    ended: list[str] = []
    ends: list[End] = []
    leave: list[str] = []
    for a in state.allocations.values():
        if a.fleet != fleet:
            continue
        if a.ended_us:
            is_back_soon = a.state is AllocationState.LOST and now_us - a.ended_us < LOST_TOLD_US
            if not a.told_lead and not is_back_soon:
                ended.append(a.name)
            continue
        end_us = end_us_of(a)
        early = a.shortened_us or (a.started_us and end_us < a.started_us + a.walltime_s * 1e6 - END_TOLD_US)
        if end_us and early and abs(end_us - a.told_end_us) > END_TOLD_US:
            ends.append(End(allocation=a.name, at_us=end_us))
        if a.leaves and not a.told_leave:
            leave.append(a.name)
    return ended, ends, leave


def _isolation(config: SiteConfig) -> str:
    if config.isolation == "off":
        return "off"
    return "required" if config.needs_namespaces else "preferred"


def _node_cache(config: SiteConfig) -> NodeCacheDef | None:
    """The cache that pilots run on their nodes. Raises ConfigError."""
    found = [each for each in config.caches if each.memory is not None]
    if len(found) > 1:
        raise ConfigError(
            f"`[[caches]]`: `{found[0].name}` and `{found[1].name}` are both to run on each node",
            hint="a node has one cache: give it the origins of both",
        )
    return engine().on_nodes(found[0]) if found else None
