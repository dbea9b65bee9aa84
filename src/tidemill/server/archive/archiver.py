"""Moves campaigns that ended long ago into the archive, a batch at a time, beside everything else the server does.

A batch is chosen and closed (from then on nothing of its campaigns changes), its files are written, then its rows are
deleted in small transactions. Each step is noted in the database when it is done (`archive_batches.phase`), and can be
repeated: a kill at any point loses nothing and doubles nothing. A job is in the database or in the archive: it leaves
the one in the transaction that enters it in the other.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidemill import clock, log
from tidemill.errors import SiteError
from tidemill.model.seed import seed
from tidemill.server.archive import operation
from tidemill.server.archive.parquet import Archive, BatchWriter, is_installed
from tidemill.server.database.rows import (
    JOB_BYTES,
    JOB_STATES,
    LEASE_STATES,
    STAY_OUTCOMES,
    JobKind,
    StoredCampaign,
    StoredJob,
    usage_of,
)
from tidemill.server.database.store import Row, Session, Store, row, value, values
from tidemill.server.database.unit_of_work import UnitOfWork

BATCH_JOBS = 200_000  #: of a batch; a larger campaign is a batch of its own
BATCH_CAMPAIGNS = 2_000
CANDIDATES = 500  #: campaigns read together
LEAVING = 50  #: campaigns that leave in one transaction, at most
CHUNK = 5_000  #: jobs of a row group, and in memory at a time
PIECE = 1_000  #: jobs deleted in one transaction, at most
WRITE_S_MAX = (
    0.1  #: one that took longer is followed by smaller ones, so that no request waits long for the writer
)
FIRST_S = 60.0
"""Before the first search. At its start a server has sites to answer; and a short-lived one, such as that of
`tidemill run`, need not load pyarrow, and pandas with it where that is installed: 1.5 s of a processor and 100 MB."""
PAUSE_S = 600.0  #: between searches for campaigns that may leave
REST_MIN_S = 0.002
JOIN_S = 10.0  #: a file system that hangs does not hold the server up
ACTIVE = 100  #: jobs whose activity is in memory at a time
NAP_S = 10.0  #: longest pause between two steps of one batch
_OF_JOBS = (
    "delete_jobs_leases", "delete_jobs_failures", "delete_jobs_outputs", "delete_jobs_deps", "delete_jobs_needs",
    "delete_jobs_stays", "delete_jobs_lost_results",
)  # fmt: skip
_OF_CAMPAIGNS = (
    "delete_campaign_counts", "delete_campaign_kinds", "delete_campaign_failures", "delete_campaign_subscriptions",
    "delete_campaign_needs", "delete_campaign_activity", "delete_campaign_activity_steps", "delete_campaigns",
)  # fmt: skip
_LOG = log.Log("archive")
T = TypeVar("T")
Write = Callable[[Callable[[UnitOfWork], T]], T]  #: runs something in a transaction and waits for its commit


class OpenBatch(NamedTuple):
    """A batch that is not finished. `phase`: 0 chosen, 1 its files are complete."""

    id: int
    month: str
    phase: int
    campaigns: int
    jobs: int


class Archiver:
    """`start` a thread that archives, `stop` it; or call `step` until it returns False."""

    def __init__(
        self,
        store: Store,
        write: Callable[[Callable[[UnitOfWork], Any]], Any],
        archive: Archive,
        *,
        keep_s: float,
        shorten: Callable[[Session, int], bool] | None = None,
    ) -> None:
        """`shorten`: makes room otherwise, in bounded steps until it returns False."""
        self._store, self._write, self._archive, self._keep_us = store, write, archive, int(keep_s * 1e6)
        self._shorten = shorten
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_installed = is_installed
        self.piece, self.first_s, self.pause_s = PIECE, FIRST_S, PAUSE_S
        #: pause as long as each piece took, so that others have the database half of the time
        self.rests = True

    def start(self) -> None:
        """Archive in a thread from now on: on the server that writes, and on no other."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="archiver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the piece that is being done. What is left goes on at the next start. A thread whose file system
        hangs is left behind: it ends when that works again, and can change nothing (`_check_open`)."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(JOIN_S)
            if thread.is_alive():
                _LOG.warning("archive.hangs", hint="does the file system of the archive's directory answer?")

    def __enter__(self) -> Archiver:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        self._stopped.wait(self.first_s)
        while not self._stopped.is_set():
            try:
                self._make_room()
                session = self._store.reader()
                try:
                    while not self._stopped.is_set() and self.step(session):
                        pass
                    if self.is_installed():
                        operation.update_files(session, self._archive, now_us=clock.now_us())
                finally:
                    session.close()
            except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                if not self._stopped.is_set():
                    self._archive.trouble = str(error)[:200] or repr(error)
                    _LOG.error("archive.failed", error=repr(error))
            self._stopped.wait(self.pause_s)

    def _make_room(self) -> None:
        """Shorten what is due. What goes wrong with it is logged, and holds up no archiving. Raises _Stopped."""
        if self._shorten is None:
            return
        try:
            session = self._store.reader()
            try:
                began_s = clock.monotonic_s()
                while self._shorten(session, clock.now_us()):
                    self._rest(began_s)
                    began_s = clock.monotonic_s()
            finally:
                session.close()
        except Exception as error:
            if self._stopped.is_set():
                raise
            _LOG.error("room.failed", error=repr(error))

    def step(self, session: Session) -> bool:
        """Do what is next; False if nothing is to be done, or not now."""
        found = row(session, "open_batch")
        if not self.is_installed():
            due = found is not None or bool(self._candidates(session, 0, 0))
            self._archive.trouble = "the package `pyarrow` is not installed" if due else ""
            return False
        if found is None:
            chosen = self._choose(session)
            self._archive.trouble = ""
            return chosen
        batch = OpenBatch(*found)
        if batch.phase == 0:
            self._write_files(session, batch)
        else:
            self._leave(batch)
        return True

    def _rest(self, began_s: float) -> None:
        """Pause as long as the last piece took. Raises _Stopped when the server ends."""
        spent_s = clock.monotonic_s() - began_s
        if self.rests:
            self._stopped.wait(min(NAP_S, max(REST_MIN_S, spent_s)))
        if self._stopped.is_set():
            raise _Stopped

    # ---- choose ----------------------------------------------------------------------------------------------

    def _candidates(self, session: Session, after_us: int, after: int) -> list[Row]:
        return session.rows(
            "archivable", before=self._before_us(), after_us=after_us, after=after, limit=CANDIDATES
        )

    def _before_us(self) -> int:
        return clock.now_us() - self._keep_us

    def _choose(self, session: Session) -> bool:
        """Close the campaigns of the next batch; False if there are none."""
        place = (0, 0)
        while rows := self._candidates(session, *place):
            place = (rows[-1].last_ended_us, rows[-1].id)
            ids = [each.id for each in rows]
            stay = set(values(session, "undelivered_campaigns", ids=ids))
            stay.update(values(session, "wanted_campaigns", ids=ids, before=self._before_us()))
            chosen, month = _batch([each for each in rows if each.id not in stay])
            if chosen and self._write(partial(_close, chosen=chosen, month=month, keep_us=self._keep_us)):
                return True
        return False

    # ---- write -----------------------------------------------------------------------------------------------

    def _write_files(self, session: Session, batch: OpenBatch) -> None:
        sites: dict[int, str] = dict(session.rows("site_names"))
        began_s = clock.monotonic_s()
        with self._archive.batch(batch.month, batch.id) as out:
            jobs = 0
            for ids in chunks_of_batch(session, batch.id, out):
                piece_s = clock.monotonic_s()
                write_chunk(session, out, ids, sites)
                jobs += len(ids)
                self._rest(piece_s)
            # A server of a pair that was paused may have been taken over: the other one has written these files, and
            # deleted rows that are missing here. So the files get their names only if this server still may write.
            self._write(partial(_check_open, batch=batch.id))
        self._write(lambda work: work.session.run("set_batch_phase", id=batch.id, phase=1, at_us=work.now_us))
        _LOG.info(
            "batch.written", batch=batch.id, month=batch.month, campaigns=batch.campaigns, jobs=jobs,
            seconds=round(clock.monotonic_s() - began_s, 1),
        )  # fmt: skip

    # ---- leave -----------------------------------------------------------------------------------------------

    def _leave(self, batch: OpenBatch) -> None:
        began_s, piece = clock.monotonic_s(), self.piece
        if not self._is_written(batch):
            return
        while True:
            piece_s = clock.monotonic_s()
            if not self._write(partial(_leave_piece, batch=batch.id, piece=piece)):
                break
            is_slow = clock.monotonic_s() - piece_s > WRITE_S_MAX
            piece = max(1, piece // 2) if is_slow else min(self.piece, 2 * piece)
            self._rest(piece_s)
        self._write(lambda work: work.session.run("set_batch_phase", id=batch.id, phase=2, at_us=work.now_us))
        _LOG.info("batch.archived", batch=batch.id, seconds=round(clock.monotonic_s() - began_s, 1))

    def _is_written(self, batch: OpenBatch) -> bool:
        """Whether its files are there, as rows are about to be deleted for them. Where nothing has left yet they are
        written again; else raises SiteError."""
        try:
            self._archive.check(batch.month, batch.id, batch.jobs)
        except SiteError as error:
            if not self._write(partial(_write_again, batch=batch.id)):
                raise
            _LOG.warning("batch.rewritten", batch=batch.id, reason=error.message)
            return False
        return True


class _Stopped(Exception):
    """The server ends."""


def _batch(rows: Sequence[Row]) -> tuple[list[int], str]:
    """The first of these campaigns that make a batch: of one month, not too many jobs, and no two of one name, by which
    the batch's files know them."""
    chosen: list[int] = []
    names: set[str] = set()
    month, jobs = "", 0
    for number, ended_us, more, name in rows:
        of = clock.utc_text(ended_us)[:7]
        is_full = of != month or jobs + more > BATCH_JOBS or len(chosen) == BATCH_CAMPAIGNS
        if chosen and (is_full or name in names):
            break
        chosen.append(number)
        names.add(name)
        month, jobs = of, jobs + more
    return chosen, month


def _close(work: UnitOfWork, *, chosen: list[int], month: str, keep_us: int) -> int:
    """Nothing of these campaigns changes from now on, of those that nothing has happened to; how many they are."""
    session, before = work.session, work.now_us - keep_us
    jobs: dict[int, int] = dict(session.rows("still_archivable", ids=chosen, before=before))
    stay = set(values(session, "open_campaigns", ids=chosen))
    stay.update(values(session, "wanted_campaigns", ids=chosen, before=before))
    ids = sorted(jobs.keys() - stay)
    if ids:
        total = sum(jobs[each] for each in ids)
        batch = value(session, "insert_batch", month=month, campaigns=len(ids), jobs=total, at_us=work.now_us)
        session.run("close_campaigns", ids=ids, batch=batch)
    return len(ids)


def _write_again(work: UnitOfWork, *, batch: int) -> bool:
    """Write a batch's files once more, if all of it is still in the database; whether it is."""
    if work.session.rows("left_of_batch", batch=batch):
        return False
    work.session.run("set_batch_phase", id=batch, phase=0, at_us=work.now_us)
    return True


def _check_open(work: UnitOfWork, *, batch: int) -> None:
    """Raises SiteError if the files of this batch are complete already."""
    found = row(work.session, "open_batch")
    if found is None or (found.id, found.phase) != (batch, 0):
        raise SiteError(f"another server has written batch {batch} of the archive meanwhile")


def _campaigns(session: Session, batch: int, limit: int) -> Iterator[list[StoredCampaign]]:
    after = 0
    statement, of = ("campaigns_of_batch", {"batch": batch}) if batch else ("unarchived_campaigns", {})
    while rows := session.rows(statement, **of, after=after, limit=limit):
        yield rows
        after = rows[-1].id


def _members(session: Session, campaign: int, after: int, limit: int) -> list[int]:
    """The next stored jobs of a campaign after an id, ascending."""
    found: list[int] = []
    for kind, state, site in session.rows("counts_of_campaign", campaign=campaign):
        found += values(session, "jobs_after_in", kind=kind, state=state, site=site, after=after, limit=limit)
    return sorted(found)[:limit]


def chunks_of_batch(session: Session, batch: int, out: BatchWriter) -> Iterator[list[int]]:
    """Jobs of all campaigns of a batch (0 = of none yet), some thousand at a time; writes the campaigns on the way."""
    ids: list[int] = []
    for rows in _campaigns(session, batch, CANDIDATES):
        out.write("campaigns", [_campaign(session, each) for each in rows])
        for each in rows:
            write_activity(session, out, each.id, each.name)
            after = 0
            while found := _members(session, each.id, after, CHUNK):
                ids += found
                after = found[-1]
                while len(ids) >= CHUNK:
                    yield ids[:CHUNK]
                    ids = ids[CHUNK:]
                if len(found) < CHUNK:
                    break
    if ids:
        yield ids


def write_activity(session: Session, out: BatchWriter, campaign: int, name: str) -> None:
    """Write what happened in a campaign and its larger jobs over time, some jobs at a time."""
    after = -1
    while jobs := values(session, "active_jobs", campaign=campaign, after=after, limit=ACTIVE):
        rows = session.rows("activity_of_campaign", campaign=campaign, first=jobs[0], last=jobs[-1])
        out.write("activity", [(name, *each) for each in rows])
        after = jobs[-1]


def _campaign(session: Session, campaign: StoredCampaign) -> list[Any]:
    """A campaign as the archive's files have it: with jobs by state and failures by class before the last column."""
    *columns, canceled = campaign
    return [*columns, *_sums(session, campaign.id), canceled]


def _sums(session: Session, campaign: int) -> tuple[str, str]:
    """Jobs by state and failures by class, as JSON."""
    states = {
        str(JOB_STATES[state]): int(jobs)
        for _, state, jobs in session.rows("counts_of_campaigns", ids=[campaign])
    }
    failures = {name: int(count) for _, name, count in session.rows("failure_counts", ids=[campaign])}
    return msgspec.json.encode(states).decode(), msgspec.json.encode(failures).decode()


class _About(NamedTuple):
    """What rows of a chunk need besides themselves."""

    kinds: dict[int, JobKind]
    campaigns: dict[int, tuple[str, str]]
    sites: dict[int, str]
    specs: dict[int, bytes]
    remarks: list[tuple[int, int, str]]  #: ranges of jobs that do not overlap, ascending
    stays: dict[int, str]  #: in wards of the hospital, by job: they stand in its remark

    def name_of(self, job: StoredJob) -> str:
        """The name of a job's campaign."""
        name, _ = self.campaigns[self.kinds[job.kind].campaign]
        return name


def write_chunk(session: Session, out: BatchWriter, ids: list[int], sites: dict[int, str]) -> None:
    """Write these jobs, and all that is known of them."""
    jobs = sorted(session.rows("jobs_by_id", ids=ids), key=lambda job: job.id)
    kinds = {
        each.id: each.kind for each in session.rows("kinds_by_id", ids=sorted({job.kind for job in jobs}))
    }
    named = session.rows("campaign_owners", ids=sorted({kind.campaign for kind in kinds.values()}))
    specs = {
        number: bytes(body)
        for number, body in session.rows("specs_by_id", ids=sorted({job.spec for job in jobs}))
    }
    remarks = sorted(session.rows("remarks_of_jobs", first=min(ids), last=max(ids)))
    about = _About(
        kinds,
        {each.id: (each.name, each.owner) for each in named},
        sites,
        specs,
        remarks,
        _stays(session, ids),
    )
    of = {job.id: job for job in jobs}
    out.write("jobs", [_job(job, about) for job in jobs])
    leases = session.rows("leases_of_jobs", ids=ids)
    leases.sort(key=lambda lease: (lease.job, lease.lease))
    out.write(
        "leases",
        [
            (
                each.job, each.lease, sites.get(each.site, ""), each.first, each.count, LEASE_STATES[each.state],
                each.leased_us, each.ended_us, each.reason, each.cores, each.event_s,
            )
            for each in leases
        ],
    )  # fmt: skip
    out.write(
        "failures",
        [
            (
                job, about.name_of(of[job]), event,
                None if event is None else seed(of[job].seed_base, event), sites.get(site, ""), final, bytes(evidence),
            )
            for _, job, event, site, final, evidence in session.rows("failures_of_jobs", ids=ids)
        ],
    )  # fmt: skip
    numbers: dict[int, int] = {}
    outputs = []
    for job, name, url, size_bytes, sha256, events in session.rows("outputs_of_jobs", ids=ids):
        number = numbers[job] = numbers.get(job, -1) + 1
        outputs.append((job, about.name_of(of[job]), number, name, url, size_bytes, sha256, events))
    out.write("outputs", outputs)
    out.write("stays", _stay_rows(session, ids, sites))


def _stay_rows(session: Session, ids: list[int], sites: dict[int, str]) -> list[tuple[Any, ...]]:
    wards: dict[int, str] = dict(session.rows("wards"))
    if not wards:
        return []
    return [
        (
            job, number, wards.get(ward, ""), cure, why, admitted_us, STAY_OUTCOMES[outcome], sites.get(site, ""),
            ended_us
        )
        for job, number, ward, cure, why, admitted_us, outcome, site, ended_us in session.rows("stays_of_jobs", ids=ids)
    ]  # fmt: skip


def _stays(session: Session, ids: list[int]) -> dict[int, str]:
    wards: dict[int, str] = dict(session.rows("wards"))
    found: dict[int, list[str]] = defaultdict(list)
    for job, _, ward, _, why, _, outcome, _, _ in session.rows("stays_of_jobs", ids=ids) if wards else ():
        found[job].append(f"ward {wards.get(ward, '')} ({why}): {STAY_OUTCOMES[outcome]}")
    return {job: "; ".join(texts) for job, texts in found.items()}


def _job(job: StoredJob, about: _About) -> tuple[Any, ...]:
    kind = about.kinds[job.kind]
    campaign, owner = about.campaigns[kind.campaign]
    at = bisect_right(about.remarks, job.id, key=itemgetter(0)) - 1
    first, count, text = about.remarks[at] if at >= 0 else (0, 0, "")
    remark = "; ".join(
        each for each in (text if job.id < first + count else "", about.stays.get(job.id, "")) if each
    )
    return (
        job.id, campaign, owner, job.name, kind.app, str(JOB_STATES[job.state]), about.sites.get(job.site, ""),
        job.events, job.n_done, job.n_failed, job.done, job.failed, -job.rank, job.seed_base, job.created_us,
        job.started_us, job.ended_us, job.reason, job.attempts, kind.cores, kind.memory_mb,
        msgspec.json.encode(kind.devices).decode(), kind.nodes, kind.ranks,
        *msgspec.structs.astuple(usage_of(job.usage)), about.specs[job.spec], remark,
        job.n_canceled, job.canceled,
    )  # fmt: skip


def _leave_piece(work: UnitOfWork, *, batch: int, piece: int) -> bool:
    """Delete some jobs of a batch, and the campaigns that have none left; False when no campaign is left."""
    session, left = work.session, piece
    rows = session.rows("campaigns_of_batch", batch=batch, after=0, limit=LEAVING)
    empty: list[StoredCampaign] = []
    for each in rows:
        ids = _members(session, each.id, 0, left)
        if ids:
            _delete_jobs(work, each.id, each.owner, ids)
        if len(ids) == left:
            break
        left -= len(ids)
        empty.append(each)
    if empty:
        _delete_campaigns(session, batch, empty)
    return bool(rows)


def _delete_jobs(work: UnitOfWork, campaign: int, owner: str, ids: list[int]) -> None:
    session = work.session
    session.many("insert_archived_jobs", [(first, last, campaign) for first, last in _ranges(ids)])
    for statement in _OF_JOBS:
        session.run(statement, ids=ids)
    specs = set(values(session, "delete_jobs", ids=ids))
    size_bytes = JOB_BYTES * len(ids)
    for number, digest, length in session.rows("delete_specs", ids=sorted(specs)):
        work.memory.forget_spec(number, bytes(digest))
        size_bytes += int(length)
    session.run("credit_stored", owner=owner, bytes=size_bytes)


def _ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of ascending numbers."""
    found: list[tuple[int, int]] = []
    for each in ids:
        if found and each == found[-1][1] + 1:
            found[-1] = (found[-1][0], each)
        else:
            found.append((each, each))
    return found


def _delete_campaigns(session: Session, batch: int, rows: list[StoredCampaign]) -> None:
    archived = []
    for each in rows:
        number, *columns = _campaign(session, each)
        archived.append((number, batch, *columns))
    session.many("insert_archived_campaigns", archived)
    ids = [each.id for each in rows]
    for statement in _OF_CAMPAIGNS:
        session.run(statement, ids=ids)
