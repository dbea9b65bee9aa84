"""What ran where is told by allocation, whatever the order of the records."""

from tidemill.site.state import site_state
from tidemill.site.state.results import RANGES_MAX, Ran
from tidemill.wire.activity import RanRange
from tidemill.wire.node import Done


def done(pilot: str, job: int, first: int, count: int) -> Done:
    return Done(
        p=pilot, s=1, grant=1, job=job, first=first, count=count, payloads=1, slot=0, started_us=0,
        ended_us=1, wall_us=1, setup_us=0, user_us=0, system_us=0, rss_kb=0, read_bytes=0, write_bytes=0, outputs=[],
    )  # fmt: skip


def test_events_are_joined_by_allocation_and_job() -> None:
    ran = Ran()
    for record in (done("a1.0.i1", 7, 3, 2), done("a1.0.i1", 7, 0, 3), done("a2.0.i1", 7, 5, 1)):
        ran.add(record)
    assert [(each.allocation, each.ran) for each in ran.reports()] == [
        ("a1", [RanRange(7, "0-4", wall_us=2)]),
        ("a2", [RanRange(7, "5", wall_us=1)]),
    ]


def test_a_merge_step_is_told_as_a_step_of_its_job() -> None:
    ran = Ran()
    ran.add(done("a1.0.i1", site_state.STEP_BASE + 7 * site_state.STEPS_MAX + 2, 0, 1))
    assert ran.reports()[0].ran == [RanRange(7, "", 2, 1)]


def test_many_jobs_make_several_reports() -> None:
    ran = Ran()
    for job in range(1, RANGES_MAX + 2):
        ran.add(done("a1.0.i1", job, 0, 1))
    assert [len(each.ran) for each in ran.reports()] == [RANGES_MAX, 1]
