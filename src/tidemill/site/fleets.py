"""The fleets of a site: their directories, their leads, what comes out of their journals.

Every agent epoch has one standing fleet for new work. Fleets of earlier epochs go on with what they were granted: their
lead is kept alive and their journals are read until their allocations have ended; then what is left is taken back.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError, SiteError
from tidemill.log import Log
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.node.fleet import Fleet, WorkOrder, create_fleet, open_fleet
from tidemill.node.journal import FleetJournal, MergeState
from tidemill.site import state as s
from tidemill.site.lead import Lead
from tidemill.site.masks import masked_paths
from tidemill.wire.node import FORMAT, End, Grant, JobDef, Manifest, Program, Settings

BATCH_COMMANDS = [
    *("sbatch", "srun", "salloc", "scancel", "squeue", "scontrol", "sacct"),
    *("qsub", "qdel", "qstat", "qalter", "qrsub", "qhold", "qrls"),
    *("bsub", "bkill", "bjobs", "condor_submit", "flux"),
]
"""Programs of batch systems that payloads cannot start."""

SCRATCH = "scratch"
"""In the directory of a fleet for payloads that span nodes: their work directories, which all nodes see."""

LOST_TOLD_US = 600_000_000
"""A lead is told so late that a lost allocation has ended: once told, it gives that one's pilots nothing more."""

END_TOLD_US = 1_500_000
"""Batch systems tell ends to the second."""

WIDE_QUEUE_S = 30.0
"""Work that is queued at an allocation for payloads that span nodes: a chunk should hold an event for each rank."""

WIDE_IDLE_S = 5.0
"""Many nodes idle together: such an allocation leaves sooner than one of a single node."""

RECORDS_PER_READ = 5000
"""Records in one line of the site's log, at most."""

_log = Log("fleets")


class OpenFleet:
    """A fleet directory with its journal, its lead's process and what its lead was told."""

    def __init__(self, record: s.Fleet, fleet: Fleet, binary: Path) -> None:
        self.record = record
        self.fleet = fleet
        self.programs: set[int] = set()
        self.jobs: set[int] = set()
        seen = {pilot: str(numbers) for pilot, numbers in record.seen.items()}
        self.journal = FleetJournal(
            fleet.journal, MergeState(offsets=dict(record.offsets), seen=seen, ended=dict(record.ended))
        )
        self.offsets = dict(record.offsets)
        self.lead = Lead(fleet, binary)


class Fleets:
    """All fleets of the site that are not finished."""

    def __init__(self, directory: Path, config: SiteConfig, *, binary: Path) -> None:
        self._directory = directory
        self._config = config
        self._binary = binary
        self.open: dict[str, OpenFleet] = {}
        self._directory.mkdir(mode=0o700, exist_ok=True)

    @property
    def directory(self) -> Path:
        """Where the fleets' directories are."""
        return self._directory

    def adopt(self, state: s.SiteState) -> None:
        """Open the fleets of earlier epochs that are not finished; one that was never made is only noted."""
        for record in state.fleets.values():
            if record.finished_us is not None or record.name in self.open:
                continue
            try:
                self.open[record.name] = OpenFleet(
                    record, open_fleet(self._directory / record.name), self._binary
                )
            except ConfigError as error:
                _log.warning("fleet.absent", fleet=record.name, reason=error.message)

    def create(self, record: s.Fleet) -> OpenFleet:
        """Make the directory of a fleet that the log knows already. Raises SiteError."""
        config = self._config
        manifest = Manifest(
            format=FORMAT,
            fleet=record.name,
            site=config.name,
            epoch=record.epoch,
            created_us=record.created_us,
            lead="beside",
            listen=config.lead_listen,
            settings=Settings(
                record_flush_ms=max(1, int(config.record_flush_s * 1000)),
                output_flush_s=config.output_flush_s,
                queue_s=max(config.queue_s, WIDE_QUEUE_S) if record.width else config.queue_s,
                idle_s=min(config.idle_s, WIDE_IDLE_S) if record.width else config.idle_s,
                dead_after_s=config.yielding.dead_after_s,
                drain_s=config.yielding.drain_s,
                top_up_s=config.yielding.top_up_s,
                stop_files=[str(config.stop_file)] if config.stop_file else [],
                pilot_grace_s=config.pilot_grace_s,
                isolation="required" if config.shared and not config.allow_unisolated else "preferred",
                affinity="none" if record.width else config.affinity,
                mask=[str(path) for path in masked_paths(self._directory.parent, config)],
                batch_commands=BATCH_COMMANDS,
                bundle_bytes_max=config.bundle_bytes_max,
                scratch=str(self._directory / record.name / SCRATCH) if record.width else None,
            ),
        )
        fleet = create_fleet(self._directory / record.name, manifest)
        if record.width:
            make_private(fleet.directory / SCRATCH)
        opened = OpenFleet(record, fleet, self._binary)
        self.open[record.name] = opened
        _log.info("fleet.opened", fleet=record.name)
        return opened

    def read(self, opened: OpenFleet) -> list[s.Read]:
        """What is new in a fleet's journals, as entries for the log. Raises SiteError, ProtocolError."""
        records = opened.journal.read()
        if not records:
            return []
        offsets = opened.journal.state().offsets
        changed = {name: at for name, at in offsets.items() if opened.offsets.get(name) != at}
        opened.offsets = offsets
        pieces = [records[at : at + RECORDS_PER_READ] for at in range(0, len(records), RECORDS_PER_READ)]
        return [
            # offsets go with the last piece: a crash in between reads some records again, which are known by number
            s.Read(fleet=opened.record.name, offsets=changed if n == len(pieces) else {}, records=piece)
            for n, piece in enumerate(pieces, start=1)
        ]

    def give(
        self,
        opened: OpenFleet,
        *,
        grants: list[Grant],
        programs: dict[int, Program],
        jobs: dict[int, JobDef],
        order: WorkOrder,
    ) -> None:
        """Write one work file, with the programs and jobs that this fleet has not been told. Raises SiteError."""
        new_jobs = [job for number, job in jobs.items() if number not in opened.jobs]
        new_programs = [each for number, each in programs.items() if number not in opened.programs]
        opened.fleet.write_work(programs=new_programs, jobs=new_jobs, grants=grants, order=order)
        opened.jobs.update(job.job for job in new_jobs)
        opened.jobs.difference_update(order.cancel_jobs)
        opened.programs.update(each.program for each in new_programs)

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


def make_private(directory: Path) -> None:
    """Make a directory (0700) that may exist. Raises SiteError."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SiteError(f"failed to make `{directory}`: {error.strerror}") from error


def is_over(state: s.SiteState, fleet: str) -> bool:
    """Whether every allocation of the fleet has ended."""
    return all(a.state in ALLOCATION_FINAL for a in state.allocations.values() if a.fleet == fleet)


def orders_of(state: s.SiteState, fleet: str, *, now_us: int) -> tuple[list[str], list[End], list[str]]:
    """What the fleet's lead must still be told of its allocations: those that ended, those that end earlier than they
    were told, those that are to leave. One that was lost may come back: it is told of later."""
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
        early = a.shortened_us or (
            a.started_us and a.ends_us < a.started_us + a.walltime_s * 1e6 - END_TOLD_US
        )
        if a.ends_us and early and abs(a.ends_us - a.told_end_us) > END_TOLD_US:
            ends.append(End(allocation=a.name, at_us=a.ends_us))
        if a.leaves and not a.told_leave:
            leave.append(a.name)
    return ended, ends, leave
