"""What keeps this site's jobs from starting: errors judged, jobs that wait, breakers kept over restarts.

SITE/troubles.json      breakers for the next agent

`waits` decides; this module feeds it with errors of staging and of defining jobs, and with pilots' records of images.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import UNDECODABLE, JobError, SiteError, TidemillError, UnfitError
from tidemill.files import read_bounded, write_durable
from tidemill.log import Log
from tidemill.model.failure import POLICY, Evidence, FailureClass, FaultKind
from tidemill.model.quantities import duration_text
from tidemill.model.trouble import Scope, Trouble, concerns, meets, place_of, prefix_of
from tidemill.site import constants
from tidemill.site.fleet.breakers import Breaker, Reason, TroubleCause
from tidemill.site.fleet.own_probe import AppProbes, OwnProbes, ProbeTarget, asker
from tidemill.site.fleet.waits import Meets, Waits
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.site.state.settlement import at_once, load_key
from tidemill.transfer.contract import TransferError
from tidemill.transfer.credentials import secret_files
from tidemill.wire.node import Done, Failed, Record

NAME = "troubles.json"
BYTES_MAX = 4 << 20
TEND_S = 5.0
PROBE_STEP_S = 0.5  #: whether the site's own probes are due is asked this often
PROBE_FAILED = 2  #: failures in a row after which the site asks by itself
_PROBED = (Scope.INPUT, Scope.INPUTS)
_CREDENTIAL = FailureClass.CREDENTIAL
_OF_DEFINING = (FailureClass.DISPATCH,)
_STEP = ("step:",)
_URL = re.compile(r"`([a-z][a-z0-9+.-]{0,20}://[^`\s]+|/[^`]+)`", re.IGNORECASE)
_log = Log("troubles")


class TroublesRecord(msgspec.Struct, kw_only=True):
    """The content of the file with the site's troubles."""

    at_us: int = 0
    breakers: list[Breaker] = []


class Judgement(NamedTuple):
    """What an error means for a job. `reason`: what it can wait for here; None = it goes back with the evidence."""

    evidence: Evidence
    reason: Reason | None = None


def judge(job: site_state.SiteJob, error: TidemillError, *, staging: bool) -> Judgement:
    """Whose fault an error is that came of defining a job, or of staging its inputs."""
    message = error.message + (f" ({error.hint})" if error.hint else "")
    at_us = clock.now_us()
    if not isinstance(error, SiteError):
        is_own = isinstance(error, JobError) and not isinstance(error, UnfitError)
        fault = "" if is_own else FaultKind.SITE
        return Judgement(
            Evidence(failure=FailureClass.DISPATCH, message=message, at_us=at_us, fault=str(fault))
        )
    failure = FailureClass.STAGE_IN if staging else FailureClass.DISPATCH
    kind = None
    if isinstance(error, TransferError):
        failure, kind = error.failure or failure, error.fault
    if not error.transient and POLICY[failure].fault is not FaultKind.CREDENTIAL:
        fault = "" if kind is None else kind
        return Judgement(Evidence(failure=failure, message=message, at_us=at_us, fault=str(fault)))
    fault = POLICY[failure].fault if failure is FailureClass.CREDENTIAL else FaultKind.SITE
    scope, name, prefix = _scope(job, error, staging=staging)
    return Judgement(
        Evidence(failure=failure, message=message, at_us=at_us, fault=str(fault)),
        Reason(TroubleCause(failure, scope, name), error.message, error.hint or "", job.owner, prefix),
    )


def _scope(job: site_state.SiteJob, error: SiteError, *, staging: bool) -> tuple[str, str, str]:
    """Which other jobs would meet the same: scope, name, and the path there."""
    if not staging:
        return (Scope.APP, job.spec.app, "") if job.spec.app else ("", "", "")
    named = _URL.findall(error.message)
    if isinstance(error, TransferError):
        urls = [each for each in (*named, *_urls(job)) if not place_of(each).startswith("file:")]
    elif error.message.startswith("failed to stage") or "no space left" in error.message.lower():
        return Scope.INPUTS, "", ""
    else:
        urls = named
    url = next((each for each in urls if place_of(each)), "")
    return (Scope.INPUT, place_of(url), prefix_of(url)) if url else ("", "", "")


def _meets(job: site_state.SiteJob) -> Meets:
    """Whether this job would meet a cause."""
    return lambda cause: (
        concerns(cause.owner, job.owner) and meets(cause.scope, cause.name, app=job.spec.app, urls=_urls(job))
    )


def _place(cause: TroubleCause) -> str:
    """The place of a cause that may be a path there."""
    return place_of(cause.name) if cause.scope == Scope.INPUT and cause.name.endswith("/") else cause.name


def _urls(job: site_state.SiteJob) -> Iterable[str]:
    return _STEP if job.id >= site_state.STEP_BASE else (each.url for each in job.spec.inputs)


def read_troubles(site_dir: Path) -> TroublesRecord:
    """What the site's file says; nothing where none can be read."""
    try:
        content = read_bounded(site_dir / NAME, BYTES_MAX)
        return TroublesRecord() if content is None else msgspec.json.decode(content, type=TroublesRecord)
    except (SiteError, *UNDECODABLE) as error:
        _log.warning("troubles.unreadable", reason=str(error))
        return TroublesRecord()


class SiteTroubles:
    """The troubles of one agent's epoch. Which jobs wait is found again after a restart; the breakers are kept, and are
    tried at once then. Those for credentials are when a file of a credential changes. `app_error`: what the site finds
    wrong with an application of its own, for jobs of all owners."""

    def __init__(
        self,
        log: SiteLog,
        site_dir: Path,
        config: SiteConfig,
        app_error: Callable[[str], SiteError | None] = lambda _: None,
    ) -> None:
        self._log = log
        self._path = site_dir / NAME
        self._waits = Waits(constants.WAIT_MAX_S, _restored(read_troubles(site_dir)))
        self._credentials = _files_of(config.endpoints)
        self._marks = self._marks_now()
        self._open = {each.cause for each in self._waits.breakers if each.is_open}
        self.written: list[Trouble] = []  #: as of the last time that anything was new
        self._next_tend_s = 0.0
        self._app_probes = AppProbes(app_error)
        self._probes = OwnProbes(asker(config, site_dir / "stage"))
        self._next_probe_s = 0.0

    @property
    def load(self) -> Mapping[Hashable, int]:
        """Open events of the jobs that wait, by the keys of `Settlement.load` and `wide_load`."""
        return self._waits.load

    def shown(self) -> list[Trouble]:
        """For the server and for people."""
        return self._waits.troubles(clock.now_us())

    def step(self) -> list[tuple[site_state.SiteJob, Evidence]]:
        """Choose what is tried again; the jobs that go back, because they have waited for too long."""
        now_us, now_s = clock.now_us(), clock.monotonic_s()
        self._probe(now_us, now_s)
        self._waits.step(now_us)
        self._log_changes()
        if now_s < self._next_tend_s and not self._waits.is_news:
            return []
        late = []
        if now_s >= self._next_tend_s:
            self._next_tend_s = now_s + TEND_S
            jobs = self._log.pool.state.jobs
            late = [(jobs[job], self._given_up(job)) for job in self._waits.tend(jobs, now_us)]
            self._look_for_renewals(now_us)
        self._write(now_us)
        return late

    # ---- jobs ----

    def may_try(self, job: site_state.SiteJob) -> bool:
        """Whether to define the job and stage its inputs now."""
        if not self._waits.is_needed:
            return True
        events = at_once(job.spec, sum(piece.count for piece in job.ready))
        return self._waits.may_try(
            job.id, _meets(job), (load_key(job.spec), events), clock.now_us(), job.owner
        )

    def failed(self, job: site_state.SiteJob, error: TidemillError, *, staging: bool) -> Evidence | None:
        """The job could not be defined, or its inputs staged: the evidence with which it goes back, None = it waits."""
        evidence, reason = judge(job, error, staging=staging)
        if reason is None:
            return evidence
        is_first = not self._waits.is_known(reason)
        if not self._waits.failed(job.id, reason, clock.now_us()):
            return evidence
        if is_first:
            _log.warning("job.waits", job=job.id, failure=evidence.failure.value, reason=evidence.message)
        return None

    def ready(self, job: site_state.SiteJob) -> None:
        """The job is defined and its inputs are there."""
        if self._waits.is_needed:
            self._waits.succeeded(job.id, _meets(job), clock.now_us(), owner=job.owner)

    def granted(self, job: int) -> None:
        """Events of the job were granted."""
        self._waits.granted(job)

    def is_waiting(self, job: int) -> bool:
        """Whether the job waits for a trouble to end."""
        return self._waits.is_waiting(job)

    def is_trial(self, job: int) -> bool:
        """Whether one event of it suffices for now: its image is tried."""
        return self._waits.is_trial(job)

    def forget(self, job: int) -> None:
        """The job is over, or went back."""
        self._waits.forget(job)

    def freed(self) -> None:
        """Inputs of jobs that are over were deleted: there may be space for others."""
        if self._waits.is_needed:
            self._waits.hasten(FailureClass.STAGE_IN, clock.now_us(), scope=Scope.INPUTS)

    def on_records(self, records: Iterable[Record]) -> None:
        """Images that could not be used on nodes: several nodes in a row are the site's image."""
        jobs = self._log.pool.state.jobs
        now_us = clock.now_us()
        for record in records:
            if type(record) is Failed and record.failure == FailureClass.IMAGE:
                job = jobs.get(record.job)
                if job is not None and job.spec.app:
                    cause = TroubleCause(FailureClass.IMAGE, Scope.APP, job.spec.app)
                    hint = POLICY[FailureClass.IMAGE].next_step
                    reason = Reason(cause, record.message, hint, job.owner)
                    self._waits.failed(job.id, reason, now_us, who=record.p)
            elif type(record) is Done and self._waits.is_needed:
                job = jobs.get(record.job)
                if job is not None:
                    self._waits.succeeded(job.id, _meets(job), now_us, owner=job.owner, ran=True)

    # ---- steps they share ----

    def _probe(self, now_us: int, now_s: float) -> None:
        """Ask by ourselves where jobs fail: whether that is so for all is not left to one owner's jobs."""
        if now_s < self._next_probe_s or not self._waits.is_needed:
            return
        self._next_probe_s = now_s + PROBE_STEP_S
        in_doubt = [
            each.cause for each in self._waits.breakers if each.is_open or each.failed >= PROBE_FAILED
        ]
        apps = {each.name for each in in_doubt if each.scope == Scope.APP and each.failure in _OF_DEFINING}
        findings = self._app_probes.step(apps, now_s)
        places = {ProbeTarget(each.scope, _place(each)) for each in in_doubt if each.scope in _PROBED}
        findings += self._probes.step(places, now_s)
        for finding in findings:
            credential = isinstance(finding.error, TransferError) and finding.error.failure is _CREDENTIAL
            usual = FailureClass.DISPATCH if finding.target.scope == Scope.APP else FailureClass.STAGE_IN
            for failure in (usual, _CREDENTIAL):
                is_it = failure is (_CREDENTIAL if credential else usual)
                if finding.error is None or is_it:
                    self._waits.probed(finding.reason(failure), now_us, is_well=finding.error is None)

    def _look_for_renewals(self, now_us: int) -> None:
        if not self._waits.is_needed:
            return
        marks = self._marks_now()
        if marks != self._marks:
            self._marks = marks
            self._waits.hasten(FailureClass.CREDENTIAL, now_us)

    def _marks_now(self) -> list[tuple[int, int]]:
        """What changes when a credential is renewed."""
        found: list[tuple[int, int]] = []
        for path in self._credentials:
            try:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_ino))
            except OSError:
                found.append((0, 0))
        return found

    def _given_up(self, job: int) -> Evidence:
        breaker = self._waits.breaker_of(job)
        waited = duration_text(max(0, clock.now_us() - breaker.since_us) / 1e6)
        fault = FaultKind.CREDENTIAL if breaker.failure is FailureClass.CREDENTIAL else FaultKind.SITE
        return Evidence(
            failure=breaker.failure,
            message=f"this site has waited {waited} for it to end: {breaker.message}"
            + (f" ({breaker.hint})" if breaker.hint else ""),
            at_us=clock.now_us(),
            fault=fault.value,
        )

    def _log_changes(self) -> None:
        if not self._waits.is_news:
            return
        now = {each.cause: each for each in self._waits.breakers if each.is_open}
        for cause in now.keys() - self._open:
            each = now[cause]
            _log.warning(
                "breaker.open", failure=cause.failure.value, scope=cause.scope, name=cause.name, owner=cause.owner,
                reason=each.message, hint=each.hint,
            )  # fmt: skip
        for cause in self._open - now.keys():
            _log.info(
                "breaker.closed", failure=cause.failure.value, scope=cause.scope, name=cause.name, owner=cause.owner
            )  # fmt: skip
        self._open = set(now)

    def _write(self, now_us: int) -> None:
        shown = self._waits.troubles(now_us)
        if not self._waits.is_news and shown == self.written:
            return
        self._waits.is_news, self.written = False, shown
        record = TroublesRecord(at_us=now_us, breakers=self._waits.breakers)
        try:
            write_durable(self._path, msgspec.json.encode(record))
        except SiteError as error:  # it costs some tries after a restart
            _log.error("troubles.unwritten", reason=error.message)


def _restored(record: TroublesRecord) -> list[Breaker]:
    """Breakers of an earlier agent: which job they were tried with does not count any more, and something may have been
    mended before the restart."""
    for each in record.breakers:
        each.trial, each.trial_us, each.is_granted, each.next_us = 0, 0, False, 0
    return record.breakers


def _files_of(endpoints: Iterable[Endpoint]) -> list[Path]:
    """The credentials that endpoints show, and those of the agent's environment."""
    named = [
        path
        for each in endpoints
        for path in (each.certificate, each.key, each.token_path, each.credentials_file)
        if path is not None
    ]
    return list(dict.fromkeys([*named, *secret_files(os.environ)]))
