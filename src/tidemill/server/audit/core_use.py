"""What payloads used of allocations, by campaign and application: added up as sites report it, kept as long as where
allocations were. Core-hours are read from it (`tidemill report`)."""

from __future__ import annotations

from collections import defaultdict

from tidemill.server.audit import traces
from tidemill.server.database.rows import Site, clean
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.activity import RanReport

CORE_US_MAX = 1 << 56  #: of one report: 2,284 years of a core; more is nonsense


class Used:
    """What the reports of one transaction add, by allocation and job."""

    def __init__(self) -> None:
        self._wall_us: dict[tuple[str, int], int] = defaultdict(int)

    def add_report(self, work: UnitOfWork, site: Site, report: RanReport) -> None:
        """Keep what a report says for the audit, and take its payload time, of which earlier sites say nothing."""
        if not traces.keep_ran(work, site, report):
            return
        name = clean(report.allocation)
        for each in report.ran:
            if each.wall_us > 0:
                self._wall_us[name, each.job] += min(each.wall_us, CORE_US_MAX)

    def write(self, work: UnitOfWork, site: Site) -> None:
        """Write all of it: payload time x cores of a payload. Jobs that the site never had are left out."""
        if not self._wall_us:
            return
        numbers = sorted({job for _, job in self._wall_us})
        about = {row.job: row for row in work.session.rows("leased_cores", site=site.id, ids=numbers)}
        sums: dict[tuple[str, str, str, str], int] = defaultdict(int)
        for (allocation, job), wall_us in self._wall_us.items():
            if job not in about:
                continue
            of = about[job]
            sums[allocation, of.owner, of.name, of.app] += min(wall_us * max(1, int(of.cores)), CORE_US_MAX)
        work.session.many(
            "add_core_use",
            [
                (site.id, *key, min(core_us, CORE_US_MAX), work.now_us)
                for key, core_us in sorted(sums.items())
            ],
        )
