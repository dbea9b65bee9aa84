"""Idle nodes and holes against a second-by-second count, and busy nodes over time against a sorted list."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidemill_study.accounting.idle import EDGES_S, STEPS, idle_of
from tidemill_study.accounting.runs import SeenRuns
from tidemill_study.simulation.timeline import BusyNodes, empty_spells, most_busy, overfull_share

NODES = 5
TIMES = st.integers(0, 3000)
JOBS = st.lists(
    st.tuples(TIMES, st.integers(1, 2000), st.integers(1, NODES)).map(
        lambda job: (job[0], job[0] + job[1], job[2])
    ),
    max_size=12,
)


def timeline_of(jobs: list[tuple[int, int, int]], *, origin_s: int = 0) -> BusyNodes:
    timeline = BusyNodes()
    for start, end, width in jobs:
        timeline.add(origin_s + start, origin_s + end, width)
    return timeline


def busy_at(jobs: list[tuple[int, int, int]], at: int) -> int:
    return sum(width for start, end, width in jobs if start <= at < end)


@given(jobs=JOBS, origin_s=st.sampled_from([0, 86_400 - 1000, 10**9]))
def test_busy_nodes_over_time_are_those_of_every_second(
    jobs: list[tuple[int, int, int]], origin_s: int
) -> None:
    timeline = timeline_of(jobs, origin_s=origin_s)
    changes = [(at - origin_s, busy) for at, busy in timeline]

    marks = sorted({edge for start, end, _ in jobs for edge in (start, end)})
    assert changes == [(at, busy_at(jobs, at)) for at in marks]
    assert most_busy(timeline) == max((busy_at(jobs, at) for at in marks), default=0)
    if jobs:
        first, last = marks[0], marks[-1]
        assert timeline.span == (origin_s + first, origin_s + last)
        over = sum(busy_at(jobs, at) > NODES for at in range(first, last))
        assert abs(overfull_share(timeline, NODES) - over / (last - first)) < 1e-9


@given(
    jobs=JOBS,
    span=st.tuples(TIMES, st.integers(1, 3000)).map(lambda each: (each[0], each[0] + each[1])),
    outage=st.none() | st.tuples(TIMES, st.integers(1, 500)).map(lambda each: (each[0], each[0] + each[1])),
)
def test_idle_time_and_holes_are_those_of_a_count_by_the_second(
    jobs: list[tuple[int, int, int]], span: tuple[int, int], outage: tuple[int, int] | None
) -> None:
    outages = [] if outage is None else [outage]
    found = idle_of(timeline_of(jobs), nodes=NODES, span=span, outages=outages)

    closed = range(*outage) if outage else range(0)
    free = [None if at in closed else max(0, NODES - busy_at(jobs, at)) for at in range(span[0], span[1])]
    seconds = [each for each in free if each is not None]
    assert round(found.idle_node_h * 3600) == sum(seconds)
    assert round(found.capacity_node_h * 3600) == NODES * len(seconds)
    counts, node_s = [0] * len(EDGES_S), [0] * len(EDGES_S)
    for k in range(1, NODES + 1):  # the k-th idle node: runs of seconds in which at least k are idle
        length = 0
        for each in [*free, None]:
            if each is not None and each >= k:
                length += 1
            elif length:
                place = max(i for i, edge in enumerate(EDGES_S) if edge <= length)
                counts[place] += 1
                node_s[place] += length
                length = 0
    assert [each.holes for each in found.holes] == counts
    assert [round(each.node_h * 3600) for each in found.holes] == node_s
    step_s = max(1.0, (span[1] - span[0]) / STEPS)
    assert abs(sum(found.course) * step_s - sum(seconds)) < 1e-6 * (1 + sum(seconds))
    if seconds:
        by_hour = [each for each in found.by_hour if each is not None]
        assert min(by_hour) >= 0
        assert max(by_hour) <= NODES


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=10
    ),
)
def test_outages_are_long_spells_without_a_job_through_which_one_waited(
    jobs: list[tuple[int, int, int]],
) -> None:
    hours = [
        (submit * 3600, (submit + wait) * 3600, (submit + wait + run) * 3600) for submit, wait, run in jobs
    ]
    timeline = timeline_of([(start, end, 1) for _, start, end in hours])

    found = empty_spells(timeline, [(submit, start) for submit, start, _ in hours])

    expected = []
    busy = sorted({hour for _, start, end in hours for hour in range(start // 3600, end // 3600)})
    for last, then in pairwise(busy):
        since, until = (last + 1) * 3600, then * 3600
        if until - since > 7200 and any(
            submit < (since + until) // 2 and start >= until for submit, start, _ in hours
        ):
            expected.append((since, until))
    assert found == expected


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["1", "2", "4096", "5_1", "8589934599"]), st.integers(0, 2)), max_size=30
    )
)
def test_runs_of_an_id_are_numbered_and_repeated_records_are_seen(rows: list[tuple[str, int]]) -> None:
    seen, known = SeenRuns(), dict[str, list[int]]()
    for id, what in rows:
        before = known.setdefault(id, [])
        assert seen.run(id, (what,)) == (-1 if what in before else len(before))
        if what not in before:
            before.append(what)
