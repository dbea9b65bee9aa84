"""What a job with `at_once` weighs at a site: as many open events as may run, the rest behind them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.harvest.plan.situation import Limits
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Resources
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes.planning import backlog_of
from tidemill.site.state import site_state
from tidemill.site.state.settlement import EventLoad, Settlement

KEY = EventLoad("sim", 0)


def site_job(number: int, at_once: int, events: int) -> site_state.SiteJob:
    spec = JobSpec(app="sim", events=events, at_once=at_once)
    return site_state.SiteJob(
        id=number, campaign="c", seed_base=0, spec=spec, open=IntervalSet(), done=IntervalSet()
    )


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 30)), max_size=20),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_load_and_what_is_behind_it_are_those_of_the_open_events_whatever_happens(
    changes: list[tuple[bool, int, int]], at_once: int, respecified: int
) -> None:
    state = site_state.SiteState(site="here")
    limited, plain = site_job(1, at_once, 30), site_job(2, 100, 30)
    state.jobs |= {1: limited, 2: plain}
    settlement = Settlement(state)

    def check() -> None:
        assert settlement.load.get(KEY, 0) == min(len(limited.open), limited.spec.running_max or 99) + len(
            plain.open
        )
        assert settlement.load.get(KEY, 0) + settlement.behind.get(KEY, 0) == len(limited.open) + len(
            plain.open
        )

    for is_open, first, count in changes:
        for job in (limited, plain):
            end = min(30, first + count)
            if is_open:
                settlement.open_up(job, first, end)
            else:
                settlement.close(job, first, end)
        check()
    settlement.specify(limited, JobSpec(app="sim", events=30, at_once=respecified))
    check()
    settlement.drop(1)
    settlement.drop(2)
    assert settlement.load.get(KEY, 0) == settlement.behind.get(KEY, 0) == 0


def test_events_behind_others_of_their_job_want_nodes_for_longer_and_not_more_of_them() -> None:
    limits = Limits(nodes_max=16, allocations_max=16)
    few = Demand(events=8, core_s=4.0, slot_cores=1, cores=1)
    assert backlog_of(few, limits).nodes_max == 1  # half a second of work each
    many = backlog_of(Demand(events=8, core_s=4.0, slot_cores=1, cores=1, behind_core_s=1e5), limits)
    assert many.nodes_max == 8
    assert many.node_s > 1e5


def test_what_is_open_no_more_leaves_no_keys_that_users_chose() -> None:
    kept = Settlement(site_state.SiteState(site="here"))
    for number in range(1, 40):
        asked = Resources(nodes=2, event_s=number / 7) if number % 2 else Resources(cores=number)
        job = site_job(number, 3, 10)
        job.spec = JobSpec(app=f"app{number}", events=10, resources=asked, at_once=3)
        kept.state.jobs[number] = job
        kept.open_up(job, 0, 10)
    assert kept.load
    assert kept.wide_load
    assert kept.behind
    for job in kept.state.jobs.values():
        kept.close(job, 0, 4)
        kept.close(job, 4, 10)
    assert (kept.load, kept.wide_load, kept.behind) == ({}, {}, {})
