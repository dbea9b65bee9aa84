"""What payloads did over time, on both databases: added up, bounded, of sites' own jobs only, and archived."""

from __future__ import annotations

import random

import pytest
from tests.contract.server_world import Site, World, done, key_of, leases

from tidemill.model.figures.activity import Activity, Changes, Span, activity, add, counted, course
from tidemill.model.job import JobSpec
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit.activities import FIGURE_MAX, LINES_MAX
from tidemill.server.read import activity as read
from tidemill.wire.activity import ACTIVITY_LINES_MAX, ActivityLine, ActivityReport

SIM = JobSpec(app="sim", events=1_000)
START_S = 1_600_000_000


def report(job: int, spans: list[Span], *, of_job: bool = False) -> ActivityReport:
    found: Changes = {}
    for each in spans:
        add(found, each, done=1)
    return ActivityReport(
        n=0, job=job, of_job=of_job, lines=[ActivityLine(at, *line) for at, line in found.items()]
    )


def second(at_s: int, length_us: int = 400_000) -> Span:
    start = (START_S + at_s) * 1_000_000
    return Span(start, start + length_us, length_us, length_us // 2)


def of_campaign(world: World, name: str = "c") -> Activity:
    return read.of_campaign(world.reader, Archive(), key_of(world.reader, name))


def test_reports_of_sites_add_up_for_the_campaign_and_for_its_larger_jobs(world: World) -> None:
    one, two = world.submit(SIM, SIM)
    site = Site(world)
    leases(site.sync())
    site.sync(report(one, [second(0), second(1)]), report(one, [second(0)], of_job=True), want=0)
    site.sync(report(two, [second(1), second(5)]), want=0)
    found = of_campaign(world)
    assert [(each.at_s - START_S, each.done, each.busy_us, each.cpu_us) for each in found.intervals if each.done] == [
        (0, 1, 400_000, 200_000), (1, 2, 800_000, 400_000), (5, 1, 400_000, 200_000),
    ]  # fmt: skip
    assert counted([read.of_job(world.reader, Archive(), one)]) == 1
    assert read.of_job(world.reader, Archive(), two).intervals == []


def test_a_site_tells_nothing_of_campaigns_that_it_has_no_work_of(world: World) -> None:
    (job,) = world.submit(SIM)
    leases(Site(world, "one").sync())
    Site(world, "two").sync(report(job, [second(0)]), want=0)
    assert of_campaign(world).intervals == []


def test_figures_that_cannot_be_are_left_out(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    leases(site.sync())
    wrong = [
        ActivityLine(-5, 1, 0, 0, 0, 0), ActivityLine(1 << 62, 1, 0, 0, 0, 0), ActivityLine(START_S, -1, 0, 0, 0, 0),
        ActivityLine(START_S, 1, 0, 1 << 62, 0, 0), ActivityLine(START_S, 1, 0, 0, 0, -1),
    ]  # fmt: skip
    site.sync(ActivityReport(n=0, job=job, of_job=False, lines=wrong), want=0)
    assert of_campaign(world).intervals == []


def test_a_site_that_tells_nonsense_does_not_shut_out_the_others_of_a_campaign(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    leases(site.sync())
    most = FIGURE_MAX - 1
    for _ in range(2):  # rows that are joined in pairs, and added to
        lines = [ActivityLine(START_S + at, most, 0, most, -most, 0) for at in range(LINES_MAX // 2)]
        for at in range(0, len(lines), ACTIVITY_LINES_MAX):
            for _ in range(40):
                site.sync(
                    ActivityReport(n=0, job=job, of_job=False, lines=lines[at : at + ACTIVITY_LINES_MAX]),
                    want=0,
                )
    far = [ActivityLine(at << 12, most, 0, most, most, 0) for at in range(1, 1_000)]
    for _ in range(4):
        site.sync(ActivityReport(n=0, job=job, of_job=False, lines=far), want=0)
    site.sync(report(job, [second(9)]), want=0)
    found = of_campaign(world)
    assert all(type(each.done) is int and each.done < 1 << 62 for each in found.intervals)


def test_rows_are_bounded_and_the_sums_stay_exact(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    leases(site.sync())
    chosen = random.Random(7)
    spans = [second(chosen.randrange(3_000), chosen.randrange(1, 90_000_000)) for _ in range(2_500)]
    for at in range(0, 2_500, 250):
        site.sync(report(job, spans[at : at + 250]), want=0)
    found = of_campaign(world)
    assert len(found.intervals) <= LINES_MAX
    whole: Changes = {}
    for each in spans:
        add(whole, each, done=1)
    exact, kept = course([activity(whole, 1)], bins_max=20), course([found], bins_max=20)
    assert exact is not None
    assert kept is not None
    assert sum(kept.done) == sum(exact.done) == 2_500
    assert sum(kept.busy) * kept.bin_s == pytest.approx(sum(exact.busy) * exact.bin_s)
    assert found.step_s > 1


def test_a_request_that_comes_twice_counts_once(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim"))
    site = Site(world)
    (lease,) = leases(site.sync())
    reports = [report(job, [second(0)]), done(lease)]
    site.sync(*reports, want=0)
    site.n -= 2
    site.sync(*reports, want=0)
    assert counted([of_campaign(world)]) == 1
