"""Who ran what, where and when: kept as sites report it, joined on request (`tidemill audit`)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from tidemill.model.intervals import IntervalSet
from tidemill.server.database.rows import Site, clean
from tidemill.server.database.store import Session, values
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.activity import RanRange, RanReport
from tidemill.wire.api import AllocationReport, AppOffer, AuditRow

HOSTS_MAX = 10_000
ALLOCATIONS_MAX = 50  #: in one answer
SUBMITS_PRUNED_MAX = 10_000  #: at a time
ROWS_MAX = 10_000  #: of one allocation
TRACED_BYTES_MAX = 500_000_000  #: that a site may write at once; a million jobs in an hour are 20 MB
TRACED_BYTES_PER_S = 5_000.0  #: and from then on: 173 GB in the 400 days for which traces are kept
_ENCODER = msgspec.json.Encoder()
_RAN = msgspec.json.Decoder(list[RanRange])


def keep_allocation(work: UnitOfWork, site: Site, report: AllocationReport) -> None:
    """Where and when an allocation is. The last report of a name counts. How long it is kept is counted from when it
    came: by its site's clock, one that is years behind would be forgotten at once."""
    hosts = [clean(each, 256) for each in report.hosts[:HOSTS_MAX] if each and " " not in each]
    name = clean(report.name)
    if not _has_room(work, site, sum(map(len, hosts)) + len(name) + len(report.batch_id)):
        return
    work.upserts["upsert_placements"][site.id, name] = (
        site.id, name, clean(report.batch_id), f" {' '.join(hosts)} " if hosts else "",
        report.started_us, report.ended_us, work.now_us, report.held_cores, report.held_gpus,
    )  # fmt: skip


def keep_ran(work: UnitOfWork, site: Site, report: RanReport) -> bool:
    """Keep what pilots of an allocation have recorded. Whether there was room for it."""
    body = _ENCODER.encode(report.ran)
    if not _has_room(work, site, len(body) + len(report.allocation)):
        return False
    work.change_rows["insert_ran"].append((site.id, clean(report.allocation), work.now_us, body))
    return True


def _has_room(work: UnitOfWork, site: Site, size_bytes: int) -> bool:
    """Whether a site may have a trace of this size kept: one site must not fill the disk of all. What is left out is
    logged."""
    passed_s = max(0, work.now_us - site.traced_us) / 1e6
    held = max(0.0, site.traced_bytes - passed_s * TRACED_BYTES_PER_S) if site.traced_us else 0.0
    site.traced_bytes, site.traced_us = held, work.now_us
    if held + size_bytes > TRACED_BYTES_MAX:
        work.complain("trace.left_out", site=site.name, bytes=size_bytes)
        return False
    site.traced_bytes += size_bytes
    return True


def keep_offers(work: UnitOfWork, site: Site, offers: Iterable[AppOffer]) -> None:
    """Since when a site's applications are what they are: those that differ from what it offered before."""
    new = [
        (site.id, clean(each.name), work.now_us, clean(each.version), clean(each.digest))
        for each in offers
        if (before := site.offers.get(each.name)) is None
        or (before.version, before.digest) != (each.version, each.digest)
    ]
    work.session.many("insert_approved", new)


def prune(work: UnitOfWork, before_us: int) -> None:
    """Forget what is older than that, also the keys of submissions: no client sends one again after a year."""
    work.session.run("prune_submits", before=before_us, limit=SUBMITS_PRUNED_MAX)
    work.session.run("prune_ran", before=before_us)
    work.session.run("prune_placements", before=before_us)
    work.session.run("prune_core_use", before=before_us)


JobAbout = tuple[str, str, str]
"""Campaign, owner and application of a job."""

Archived = Callable[[str, Sequence[int]], dict[int, JobAbout | None]]
"""Of these jobs those that are in the archive and that a site had; None: it was not read, as there are too many."""


class TraceQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which allocations: of an id of the batch system, or of a node at a time. `site`: only of this one."""

    batch_id: str | None = None
    node: str | None = None
    at_us: int | None = None
    site: str | None = None


class PlacementQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which allocations held nodes between two times; a page of those after a name."""

    since_us: int
    until_us: int
    after: str = ""
    limit: int


def find(
    session: Session, question: TraceQuestion, archived: Archived = lambda site, jobs: {}
) -> list[AuditRow]:
    """Every job that ran there, newest allocation first; one in which nothing ran has a row without a job."""
    names: dict[int, str] = dict(session.rows("site_names"))
    only = (
        0
        if question.site is None
        else next((each for each, name in names.items() if name == question.site), -1)
    )
    rows: list[AuditRow] = []
    for site, name, batch_id, hosts, started_us, ended_us in _placements(session, question, only):
        row = AuditRow(
            site=names.get(site, ""), allocation=name, batch_id=batch_id, nodes=hosts.split(),
            started_us=started_us, ended_us=ended_us or None,
        )  # fmt: skip
        rows += _jobs_in(session, site, row, archived) or [row]
    return rows


def between(
    session: Session, site: int, question: PlacementQuestion
) -> list[tuple[str, str, int, int, int, int | None]]:
    """(name, batch id, nodes, cores of a node, start, end) of a site's allocations, by name. `cores` 0: the allocation
    itself is forgotten, and its nodes are counted by their names."""
    rows = session.rows(
        "placements_between",
        site=site,
        since=question.since_us,
        until=question.until_us,
        after=question.after,
        limit=question.limit,
    )
    return [
        (name, batch_id, nodes or len(hosts.split()), cores, started_us, ended_us or None)
        for name, batch_id, hosts, started_us, ended_us, nodes, cores in rows
    ]


def _placements(session: Session, question: TraceQuestion, site: int) -> list[Any]:
    """Rows of one site's allocations, or of all (0)."""
    about = {"site": site, "at_us": question.at_us or 0, "limit": ALLOCATIONS_MAX}
    if question.batch_id is not None:
        return session.rows("placements_of_batch", batch_id=question.batch_id, **about)
    node = question.node or ""
    held = node.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    rows = session.rows("placements_at", bare=f"% {held} %", domain=f"% {held}.%", **about)
    return [row for row in rows if any(_same(each, node) for each in row.hosts.split())]


def _same(host: str, node: str) -> bool:
    """A node is named with or without its domain."""
    return host == node or host.partition(".")[0] == node


def _jobs_in(session: Session, site: int, row: AuditRow, archived: Archived) -> list[AuditRow]:
    ran: dict[tuple[int, int], IntervalSet] = defaultdict(IntervalSet)
    last_us: dict[int, int] = {}
    for at_us, body in session.rows("ran_in", site=site, allocation=row.allocation, limit=ROWS_MAX):
        for each in _RAN.decode(body):
            last_us[each.job] = at_us
            events = ran[each.job, each.step]
            for first, end in IntervalSet.parse(each.events) if each.step < 0 else ():
                events.add(first, end)
    numbers = sorted(last_us)
    if not numbers:
        return []
    # a site may only report jobs that it had: it must not learn who owns the others
    had = set(values(session, "leased_to", site=site, ids=numbers))
    rows = session.rows("campaigns_of_jobs", ids=sorted(had)) if had else []
    about: dict[int, JobAbout | None] = {number: (name, owner, app) for number, name, owner, app in rows}
    old = archived(row.site, [each for each in numbers if each not in about])
    about |= old
    known = _Known(session, site)
    result = []
    for (number, step), events in sorted(ran.items()):
        if number not in about:
            continue
        known_as = about[number]
        if known_as is None:
            shown = {
                "job": number,
                "events": str(events),
                "step": None if step < 0 else step,
                "archived": True,
            }
            result.append(msgspec.structs.replace(row, **shown))
            continue
        campaign, owner, app = known_as
        version, digest = known.app(app, row.started_us or last_us[number])
        subject, credential = known.submitter(number)
        result.append(
            msgspec.structs.replace(
                row, job=number, events=str(events), step=None if step < 0 else step, campaign=campaign, owner=owner,
                subject=subject, credential=credential, app=app, version=version, digest=digest,
                archived=number in old,
            )
        )  # fmt: skip
    return result


class _Known:
    """What several jobs share, looked up once."""

    def __init__(self, session: Session, site: int) -> None:
        self._session = session
        self._apps: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        for app, since_us, version, digest in session.rows("approved_of", site=site):
            self._apps[app].append((since_us, version, digest))
        self._submit = (0, 0, "", "")

    def app(self, name: str, at_us: int) -> tuple[str, str]:
        """Version and digest at a time; the first that is known, if that was later."""
        entries = self._apps.get(name)
        if not entries:
            return "", ""
        at = max(bisect_right([each[0] for each in entries], at_us) - 1, 0)
        return entries[at][1], entries[at][2]

    def submitter(self, job: int) -> tuple[str, str]:
        """Subject and credential that brought a job."""
        first, count, subject, credential = self._submit
        if not first <= job < first + count:
            rows = self._session.rows("submitter_of", job=job)
            first, count, subject, credential, _ = rows[0] if rows else (job, 1, "", "", "")
            self._submit = (first, count, subject, credential)
        return (subject, credential) if first <= job < first + count else ("", "")
