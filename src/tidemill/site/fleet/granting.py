"""From the pool's backlog to work files: prepares jobs, stages their inputs, grants what is ready."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice

import msgspec

from tidemill import clock
from tidemill.errors import TidemillError
from tidemill.log import Log
from tidemill.model.failure import Evidence, FailureClass, FaultKind
from tidemill.model.job import rate_key
from tidemill.node.fleet import WorkOrder
from tidemill.node.journal import allocation_of
from tidemill.site import constants
from tidemill.site.applications.checksums import PendingError
from tidemill.site.applications.launching import Launching
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.staging import Stage
from tidemill.site.fleet.fleets import Fleets, GrantNeeds, OpenFleet
from tidemill.site.fleet.staged_inputs import StagedInputs
from tidemill.site.fleet.troubles import SiteTroubles
from tidemill.site.fleet.workload import event_s
from tidemill.site.state import site_state
from tidemill.site.state.growing import spec_in
from tidemill.site.state.log import SiteLog
from tidemill.wire.node import Done, End, Grant, JobDef, Program, Record, Returned, form_number, job_of

JOBS_PER_TICK = 4000
GRANTS_PER_FILE = 4000
NO_FIT_MAX = 3
"""Work goes back after this number of pilots had no room for it: each further one would hold a node for nothing."""
DEFINED_MAX = 20_000
NO_FIT = "memory no_fit: "  #: begins a pilot's note
_log = Log("granting")


class UnwrittenWork(msgspec.Struct):
    """One work file to be written, after its entry in the log is durable."""

    fleet: OpenFleet
    entry: site_state.Granted
    needs: GrantNeeds


class Granting:
    """What was prepared for the jobs in the backlog. Everything here can be prepared again after a restart."""

    def __init__(
        self, log: SiteLog, preparer: Preparer, stage: Stage, fleets: Fleets, executor: Executor
    ) -> None:
        self._log = log
        self._preparer = preparer
        self._stage = stage
        self._fleets = fleets
        self.inputs = StagedInputs(log, preparer, stage, fleets, executor)
        self.troubles = SiteTroubles(log, fleets.directory.parent, fleets.config, preparer.app_error)
        #: by job and form, with `began` of the job
        self._defined: dict[int, dict[int, tuple[int, Program, JobDef]]] = {}
        self.unwritten: list[UnwrittenWork] = []
        #: memory of pilots that all grants were compared with; None = none yet
        self._node_mb: int | None = None
        #: pilots that had no room for a job, since its last success
        self._no_fits: dict[int, dict[str, None]] = {}

    @property
    def waiting(self) -> tuple[Mapping[Hashable, int], ...]:
        """Open events that wait for a trouble of the site's or for room in its stage, by the keys of `Settlement.load`
        and `wide_load`."""
        return self.troubles.load, self.inputs.waiting_load.total

    def is_waiting(self, job: int) -> bool:
        """Whether a job waits for a trouble of the site's or for room in its stage."""
        return self.troubles.is_waiting(job) or job in self.inputs.waiting_load

    def plan(self, fleet: OpenFleet, launching: Launching) -> bool:
        """Note grants of what is ready in the log; `write` hands them out. Whether there was anything. A fleet for
        payloads that span nodes gets those of its width, started as `launching` says, another one all others."""
        pool, width = self._log.pool, fleet.record.width
        backlog = pool.settlement.wide.setdefault(width, {}) if width else pool.settlement.backlog
        self._preparer.begin(launching)
        grants: list[Grant] = []
        programs: dict[int, Program] = {}
        jobs: dict[int, JobDef] = {}
        unclean = set(pool.state.forgotten)  # what was staged before they came back is removed first
        for job_id in list(islice(backlog, JOBS_PER_TICK)):
            job = pool.state.jobs[job_id]
            is_due = job_id not in unclean and self._is_due(job) and not _runs_elsewhere(job, fleet)
            due = list(self._due(job)) if is_due else []
            # a refused job went back as a whole, even if only a later form was refused
            if job_id not in backlog:
                continue
            if not due:  # behind those that are ready
                backlog[job_id] = backlog.pop(job_id)
                continue
            for piece, count, program, definition in due:
                if count:
                    grants.append(
                        Grant(
                            grant=pool.state.next_grant + len(grants),
                            job=definition.job,
                            first=piece.first,
                            count=count,
                            chunk_max=piece.chunk_max,
                        )
                    )
                programs[program.program] = program
                jobs[definition.job] = definition
            self.troubles.granted(job_id)
            if len(grants) >= GRANTS_PER_FILE:
                break
        if not grants:
            return False
        entry = site_state.Granted(
            fleet=fleet.record.name, grants=grants, cancels=fleet.record.cancels.copy(), ended=[], close=False,
            withdrawn=fleet.record.withdrawn[:GRANTS_PER_FILE],
        )  # fmt: skip
        self._note(fleet, entry, programs, jobs)
        return True

    def _due(self, job: site_state.SiteJob) -> Iterator[tuple[site_state.UndonePiece, int, Program, JobDef]]:
        """The next pieces of a job, each with the number of events that can be granted now, its program and its
        definition."""
        forms = {held.form for held in job.grants.values()} if job.spec.running_max is not None else set()
        known: dict[int, tuple[Program, JobDef]] = {}
        for piece in list(job.ready):
            form = job.base_form if piece.form is None else piece.form
            if forms - {form}:
                return  # leads count what runs at once for each form separately
            defined = known.get(form) or self._define(job, form)
            if defined is None:
                return
            known[form] = defined
            is_trial = self.troubles.is_trial(job.id)
            count = self.inputs.covered(job, piece)
            if is_trial:
                count = min(count, 1)
            yield piece, count, *defined
            if count < piece.count or is_trial:
                return
            if job.spec.running_max is not None:
                forms.add(form)

    def orders(
        self, fleet: OpenFleet, *, ended: list[str], ends: list[End], leave: list[str], close: bool
    ) -> bool:
        """Note orders without grants for a fleet's lead, if there are any."""
        cancels = fleet.record.cancels.copy()
        withdrawn = fleet.record.withdrawn[:GRANTS_PER_FILE]
        if not (cancels or withdrawn or ended or ends or leave or (close and not fleet.record.closed)):
            return False
        entry = site_state.Granted(
            fleet=fleet.record.name,
            grants=[],
            cancels=cancels,
            ended=ended,
            ends=ends,
            leave=leave,
            close=close,
            withdrawn=withdrawn,
        )
        self._note(fleet, entry, {}, {})
        return True

    def drain(self, fleet: OpenFleet) -> None:
        """Note that a fleet's lead is to hand out nothing more."""
        entry = site_state.Granted(
            fleet=fleet.record.name, grants=[], cancels=[], ended=[], close=False, drain=True
        )
        self._note(fleet, entry, {}, {})

    def write(self) -> None:
        """Write the work files whose entries are durable. Raises SiteError: they are written later then."""
        while self.unwritten:
            work = self.unwritten[0]
            entry = work.entry
            order = WorkOrder(
                cancel_jobs=entry.cancels,
                withdrawn=entry.withdrawn,
                ended=entry.ended,
                ends=entry.ends,
                leave=entry.leave,
                drain=entry.close or entry.drain,
                close=entry.close,
            )
            self._fleets.give(work.fleet, grants=entry.grants, needs=work.needs, order=order)
            del self.unwritten[0]

    def refit(self, node_mb: int) -> None:
        """Take the memory that pilots have on the widest node. If it is less than was known, what has been granted and
        fits into no pilot goes back: no allocation is asked for it again."""
        if node_mb == self._node_mb:
            return
        is_less = self._node_mb is None or node_mb < self._node_mb
        self._node_mb = node_mb
        state = self._log.pool.state
        found: defaultdict[str, list[int]] = defaultdict(list)
        for job in state.jobs.values() if is_less else ():
            forms = {held.form for held in job.grants.values()} if job.id < site_state.STEP_BASE else ()
            whys = (
                self._preparer.misfit(spec_in(job, form), self._measured_s(job), node_mb) for form in forms
            )
            why = next(filter(None, whys), None)
            if why is not None:
                found[why].append(job.id)
        self._preparer.take_memory(node_mb)
        for why, jobs in found.items():
            self._take_back(jobs, why)

    def on_records(self, records: Sequence[Record]) -> None:
        """Take what pilots return because it fits into none of them."""
        state = self._log.pool.state
        for record in records:
            if type(record) is Done:
                self._no_fits.pop(job_of(record.job), None)
            if type(record) is not Returned or record.reason != "no_fit":
                continue
            job = state.jobs.get(job_of(record.job))
            # other forms of the job may fit, and run
            if (
                job is None
                or job.id >= site_state.STEP_BASE
                or len({held.form for held in job.grants.values()}) != 1
            ):
                continue
            pilots = self._no_fits.setdefault(job.id, {})
            pilots[record.p] = None
            if len(pilots) < NO_FIT_MAX:
                continue
            allocation = state.allocations.get(allocation_of(record.p))
            notes = [] if allocation is None else allocation.notes
            whys = [each.removeprefix(NO_FIT) for each in notes if each.startswith(NO_FIT)]
            self._take_back(
                [job.id], "; ".join([f"{NO_FIT_MAX} pilots in turn have no room for it", *whys[-1:]])
            )

    def _take_back(self, jobs: list[int], why: str) -> None:
        _log.warning("jobs.do_not_fit", jobs=len(jobs), first=jobs[0], reason=why)
        self._log.apply(site_state.Denied(jobs=jobs, reason=why))
        self.forget(*jobs)

    def tend(self) -> None:
        """Retry the troubles that are due; return to the server the work that has waited for too long."""
        for job, evidence in self.troubles.step():
            self._refuse(job, evidence)
        for job, why in self.inputs.late(constants.WAIT_MAX_S):
            evidence = Evidence(
                failure=FailureClass.STAGE_IN, message=why, at_us=clock.now_us(), fault=FaultKind.SITE.value
            )
            self._refuse(job, evidence)

    def forget(self, *jobs: int) -> None:
        """Drop what was prepared of jobs."""
        for job in jobs:
            self.troubles.forget(job)
            self._no_fits.pop(job, None)
            self._defined.pop(job, None)
        self.inputs.forget(*jobs)

    def _note(
        self,
        fleet: OpenFleet,
        entry: site_state.Granted,
        programs: dict[int, Program],
        jobs: dict[int, JobDef],
    ) -> None:
        self._log.apply(entry)
        began = {number: self._log.pool.state.jobs[job_of(number)].began for number in jobs}
        self.unwritten.append(UnwrittenWork(fleet, entry, GrantNeeds(programs, jobs, began)))

    def _is_due(self, job: site_state.SiteJob) -> bool:
        """Whether to go on with a job now: no trouble of the site's keeps it."""
        # what is on its way when a breaker opens is still taken: a later try would get that old outcome
        if self.troubles.may_try(job) or self.inputs.is_under_way(job.id):
            return True
        self.inputs.waiting_load.drop(job.id)  # it is counted there
        return False

    def _define(self, job: site_state.SiteJob, form: int) -> tuple[Program, JobDef] | None:
        """Program and definition of a form of a job. None while inputs or digests are on their way, while the job waits
        for a trouble of the site to end, and after it went back."""
        try:
            defined = self._prepare(job, form)
        except PendingError:
            return None
        except TidemillError as error:
            self._fail(job, error, staging=False)
            return None
        if defined is not None:
            self.troubles.ready(job)
        return defined

    def _prepare(self, job: site_state.SiteJob, form: int) -> tuple[Program, JobDef] | None:
        self._preparer.check_owner(job)
        has_inputs = bool(job.spec.inputs) or job.id >= site_state.STEP_BASE
        if has_inputs and self.inputs.is_blocked(
            job
        ):  # cheap: each tick asks this for thousands of waiting jobs
            return None
        number = form_number(job.id, form)
        spec, measured_s = spec_in(job, form), self._measured_s(job)
        if spec.resources.grows:  # a job that would fit no node once it has grown is not started
            self._preparer.program(
                msgspec.structs.replace(spec, resources=job.spec.resources.largest), measured_s
            )
        program = self._preparer.program(spec, measured_s)
        if has_inputs and not self._have_inputs(job):
            return None
        known = self._defined.get(job.id, {}).get(form)
        if known is not None and known[0] == job.began and known[1] is program:
            return known[1:]
        self._stage.check_places(job.spec, job.owner)
        inputs = self.inputs.inputs_of(job.id) if has_inputs else []
        definition = self._preparer.job(job, program, inputs)
        if number != job.id:
            definition = msgspec.structs.replace(definition, job=number)
        defined = (program, definition)
        if has_inputs or len(job.ready) > 1 or job.spec.events > 1:
            if len(self._defined) >= DEFINED_MAX:
                self._defined = {
                    n: each for n, each in self._defined.items() if n in self._log.pool.state.jobs
                }
            self._defined.setdefault(job.id, {})[form] = (job.began, *defined)
        return defined

    def _measured_s(self, job: site_state.SiteJob) -> float | None:
        rate = self._log.pool.state.rates.get(rate_key(job.spec.app or "", job.spec.resources.width))
        return event_s(rate.wall_s, rate.events) if rate else None

    def _have_inputs(self, job: site_state.SiteJob) -> bool:
        try:
            return self.inputs.is_ready(job)
        except TidemillError as error:
            self._fail(job, error, staging=True)
            return False

    def _fail(self, job: site_state.SiteJob, error: TidemillError, *, staging: bool) -> None:
        """The job waits for what is the site's, and goes back for what is its own."""
        evidence = self.troubles.failed(job, error, staging=staging)
        if evidence is not None:
            self._refuse(job, evidence)

    def _refuse(self, job: site_state.SiteJob, evidence: Evidence) -> None:
        _log.warning("job.refused", job=job.id, failure=evidence.failure.value, reason=evidence.message)
        self._log.apply(site_state.Refused(job=job.id, evidence=evidence))
        self.forget(job.id)


def _runs_elsewhere(job: site_state.SiteJob, fleet: OpenFleet) -> bool:
    """Whether the job waits for an earlier fleet to be done with it: each lead counts what runs at once for itself."""
    if job.spec.running_max is None:
        return False
    return any(held.fleet != fleet.record.name for held in job.grants.values())
