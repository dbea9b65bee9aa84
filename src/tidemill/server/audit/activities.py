"""What payloads did over time, of campaigns and of their larger jobs: added up as sites report it, in bounded rows.

Intervals begin with a second. Where a campaign or job has more rows than it may have, its intervals are joined in
pairs: what a row costs grows neither with events nor with time.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.model.figures.activity import STEP_S, Activity, Changes, activity, coarser, merge
from tidemill.server.database.rows import Site
from tidemill.server.database.store import Session, row
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.activity import ACTIVITY_LINES_MAX, ActivityLine, ActivityReport

LINES_MAX = 2_000  #: rows of a campaign: half of them are kept when there are more
JOB_LINES_MAX = 120
STEP_S_MAX = 1 << 20  #: 12 days; a coarser step would show nothing
AHEAD_US = 86_400_000_000  #: a node's clock may be ahead of the server's by a day
FIGURE_MAX = 1 << 56
SUM_MAX = 1 << 61  #: sums that a site drives beyond it grow no more: the row is other sites', too


class Reported:
    """What the reports of one transaction add, by campaign and job (0 = the campaign's own)."""

    def __init__(self) -> None:
        self._changes: dict[tuple[int, int], Changes] = {}

    def add_report(self, work: UnitOfWork, site: Site, report: ActivityReport) -> None:
        """Take a report on a job that the site has or had a lease of; any other is dropped and logged."""
        job = work.jobs.get(report.job)
        if job is None or not any(each.site == site.id for each in work.leases_of(report.job)):
            work.complain("activity.refused", site=site.name, n=report.n, job=report.job)
            return
        latest = (work.now_us + AHEAD_US) // 1_000_000
        lines = {
            each.at_s: (each.done, each.failed, each.busy_us, each.cpu_us, each.longest_us)
            for each in report.lines[:ACTIVITY_LINES_MAX]
            if _is_believable(each, latest)
        }
        key = (work.campaign_of(job), job.id if report.of_job else 0)
        merge(self._changes.setdefault(key, {}), lines)

    def write(self, work: UnitOfWork) -> None:
        """Write all of it. Cost: the intervals that it touches; seldom, all of a campaign's."""
        steps = []
        for (campaign, job), changes in sorted(self._changes.items()):
            found = row(work.session, "activity_steps", campaign=campaign, job=job)
            step_s, lines = found if found is not None else (STEP_S, 0)
            changes = _of_step(changes, step_s)
            lines += len(changes)
            if lines > (JOB_LINES_MAX if job else LINES_MAX):
                step_s, lines = _join(work, (campaign, job), changes, step_s)
            else:
                work.session.many("add_activity", _rows(campaign, job, changes))
            steps.append((campaign, job, step_s, lines))
        work.session.many("set_activity_steps", steps)


def _is_believable(line: ActivityLine, latest_s: int) -> bool:
    figures = (line.done, line.failed, line.longest_us)
    return (
        0 < line.at_s <= latest_s
        and min(figures) >= 0
        and max(*figures, abs(line.busy_us), abs(line.cpu_us)) < FIGURE_MAX
    )


def _of_step(changes: Changes, step_s: int) -> Changes:
    while step_s > STEP_S:
        changes, step_s = coarser(changes), step_s // 2
    return changes


def _join(work: UnitOfWork, key: tuple[int, int], more: Changes, step_s: int) -> tuple[int, int]:
    """Write a campaign's or job's rows again, in longer intervals if there are too many; step and number of rows."""
    campaign, job = key
    changes = _changes(work.session, campaign, job)
    merge(changes, more)
    most = (JOB_LINES_MAX if job else LINES_MAX) // 2
    while len(changes) > most and step_s < STEP_S_MAX:
        changes, step_s = coarser(changes), step_s * 2
    work.session.run("delete_activity", campaign=campaign, job=job)
    work.session.many("add_activity", _rows(campaign, job, changes))
    return step_s, len(changes)


def _rows(campaign: int, job: int, changes: Changes) -> list[tuple[int, ...]]:
    return [
        (campaign, job, at, *(max(-SUM_MAX, min(SUM_MAX, value)) for value in each))
        for at, each in changes.items()
    ]


def _changes(session: Session, campaign: int, job: int) -> Changes:
    return {
        at: [int(each) for each in rest]
        for at, *rest in session.rows("activity_of", campaign=campaign, job=job)
    }


def read(session: Session, campaign: int, job: int = 0) -> Activity:
    """What is known of a campaign, or of one of its larger jobs; without intervals if nothing is."""
    found = row(session, "activity_steps", campaign=campaign, job=job)
    return activity(_changes(session, campaign, job), found.step_s) if found is not None else Activity()


def of_rows(rows: Sequence[dict[str, int]]) -> Activity:
    """The activity from an archive's rows of one campaign or job."""
    changes = {
        each["at"]: [each[name] for name in ("done", "failed", "busy_us", "cpu_us", "longest_us")]
        for each in rows
    }
    return activity(changes, rows[0]["step_s"]) if rows else Activity()
