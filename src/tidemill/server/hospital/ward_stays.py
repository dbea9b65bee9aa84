"""A job's stays in wards: admitted, discharged, ended. Every stay is a row; running sums by ward and outcome are among
the totals, so that no page reads history. Works on a `UnitOfWork`; writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tidemill.config.hospital import Ward
from tidemill.server.database.rows import (
    CANCELED,
    COMPLETED,
    PARTIAL,
    STAY_OUTCOMES,
    JobKind,
    Site,
    StoredJob,
    clean,
)
from tidemill.server.database.store import Session
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.hospital import cures
from tidemill.server.hospital.admission import Admission, Patient, admission
from tidemill.wire.hospital import StayRow

Fits = Callable[[Site, JobKind], bool]
"""Whether a site could run a kind of jobs now."""

OUTCOMES = STAY_OUTCOMES
THERE, CURED, UNCURED, UNFINISHED, HOME = range(5)


def admit(work: UnitOfWork, job: StoredJob, admission: Admission) -> None:
    """The job is in a ward from now on. What its sites have leased goes on there."""
    if job.ward:
        _end(work, job, UNCURED)
    ward = work.memory.wards[admission.ward]
    job.ward, job.told = admission.ward, 0
    job.moves += 1
    if not job.home:
        job.place = job.berth
    row = (
        job.id,
        job.moves,
        admission.ward,
        ward.cure.text,
        clean(admission.why),
        work.now_us,
        THERE,
        0,
        None,
    )
    work.upserts["insert_stays"][job.id, job.moves] = row
    work.tally(f"ward/{admission.ward}/{THERE}", 1)
    work.touch(job)


def discharge(work: UnitOfWork, job: StoredJob) -> None:
    """The job goes home: no site of its ward has it."""
    _end(work, job, HOME)
    job.ward, job.told = 0, 0
    if not job.home:
        job.place = job.berth
    work.touch(job)


def ended(work: UnitOfWork, job: StoredJob) -> None:
    """A job in a ward has ended, wherever that was."""
    kind, ward = work.memory.kinds[job.kind], work.memory.wards.get(job.ward)
    site = work.memory.sites.get(job.site)
    if job.state in (COMPLETED, PARTIAL):
        is_away = job.site != kind.home_site
        is_treated = is_away if ward is None or site is None else cures.treats(ward, site, kind)
        _end(work, job, CURED if is_treated else HOME)
    else:
        _end(work, job, UNFINISHED if job.state == CANCELED else UNCURED)


def outcomes_of(session: Session, jobs: Iterable[StoredJob]) -> dict[int, int]:
    """How the last stay of jobs ended that have ended in a ward."""
    moves = {job.id: job.moves for job in jobs if job.ward and job.ended_us is not None}
    rows = session.rows("stays_of_jobs", ids=sorted(moves)) if moves else []
    return {row.job: row.outcome for row in rows if row.number == moves[row.job]}


def go_on(work: UnitOfWork, job: StoredJob, outcome: int) -> None:
    """A job whose stay had ended so goes on in its ward: what it has done is kept where it was treated."""
    work.upserts["end_stays"][job.id, job.moves] = (job.id, job.moves, THERE, 0, None)
    work.tally(f"ward/{job.ward}/{outcome}", -1)
    work.tally(f"ward/{job.ward}/{THERE}", 1)


def _end(work: UnitOfWork, job: StoredJob, outcome: int) -> None:
    key = (job.id, job.moves)
    fresh = work.upserts["insert_stays"].get(key)
    if fresh is None:
        work.upserts["end_stays"][key] = (*key, outcome, job.site, work.now_us)
    else:  # it began in this transaction
        work.upserts["insert_stays"][key] = (*fresh[:6], outcome, job.site, work.now_us)
    work.tally(f"ward/{job.ward}/{THERE}", -1)
    work.tally(f"ward/{job.ward}/{outcome}", 1)


class FailedEvents(NamedTuple):
    """Events that failed for good: at which site, in which class. `leased`: events of the job that sites still have
    when these are free."""

    site: int
    failure: str
    leased: int


def rescue(work: UnitOfWork, job: StoredJob, failed: FailedEvents, *, fits: Fits) -> bool:
    """Whether events that failed for good run again in a ward instead. A job whose outputs lie at a site is treated
    there, or not at all."""
    failure = failed.failure
    kind, wards = work.memory.kinds[job.kind], work.memory.wards
    if not kind.home_site or not wards or job.ends:
        return False
    bound = job.place if job.home and (job.kept or failed.leased) else 0
    here, at = wards.get(job.ward), work.memory.sites[failed.site]
    if here is not None and failure in here.failures and not bound and not cures.treats(here, at, kind):
        return True  # it is to be treated already: this was a lease of before
    patient = Patient(job.waits_since_us, job.moves, failure, job.ward)

    def treatable(number: int) -> bool:
        ward = wards[number]
        able = [each for each in work.memory.sites.values() if bound in (0, each.id)]
        return is_treatable(ward, kind, able, fits)

    found = admission(wards, patient, home_down="", now_us=work.now_us, treatable=treatable)
    if found is None:
        return False
    if not bound:
        job.home = 0
    admit(work, job, found)
    return True


def is_treatable(ward: Ward, kind: JobKind, sites: Iterable[Site], fits: Fits) -> bool:
    """Whether one of these sites could run jobs of a kind in a ward now."""
    return any(
        cures.treats(ward, each, kind) and fits(each, cures.kind_in(ward, each, kind)) for each in sites
    )


def stays_of(session: Session, jobs: list[int]) -> dict[int, list[StayRow]]:
    """The stays of jobs, in their order."""
    rows = session.rows("stays_of_jobs", ids=jobs) if jobs else []
    wards: dict[int, str] = dict(session.rows("wards")) if rows else {}
    sites: dict[int, str] = dict(session.rows("site_names")) if rows else {}
    found: dict[int, list[StayRow]] = {}
    for job, _, ward, cure, why, admitted_us, outcome, site, ended_us in rows:
        found.setdefault(job, []).append(
            StayRow(
                ward=wards.get(ward, ""),
                cure=cure,
                why=why,
                admitted_us=admitted_us,
                outcome=OUTCOMES[outcome],
                site=sites.get(site, ""),
                ended_us=ended_us,
            )
        )
    return found


def number_wards(work: UnitOfWork) -> bool:
    """Whether every ward of server.toml has its number, which is durable; else it gets one now. Rows of wards that
    server.toml names no more stay: jobs were in them."""
    rules, memory = work.memory.ward_rules, work.memory
    known: dict[str, int] = {name: number for number, name in work.session.rows("wards")}
    memory.wards = {known[each.name]: each for each in rules if each.name in known}
    for each in rules:
        if each.name not in known:
            work.session.run("insert_ward", name=each.name)
    return len(memory.wards) == len(rules)


def sums(totals: dict[str, Any]) -> dict[int, list[int]]:
    """Stays by ward and outcome, from the running sums."""
    found: dict[int, list[int]] = {}
    for name, value in totals.items():
        if name.startswith("ward/"):
            ward, outcome = map(int, name.split("/")[1:])
            found.setdefault(ward, [0] * len(OUTCOMES))[outcome] = int(value)
    return found


def share(cured: int, failed: int, canceled: int) -> float | None:
    """Cured, of the jobs whose end was in the ward."""
    ended_there = cured + failed + canceled
    return cured / ended_there if ended_there else None


def ward_text(ward: Ward) -> str:
    """What a ward does with a job, for people."""
    return ward.cure.text or "the same settings, elsewhere"
