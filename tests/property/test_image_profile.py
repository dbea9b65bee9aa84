"""Merging of profiles: the order, and what was merged before, make no difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.image.profile import (
    KINDS,
    Area,
    Bin,
    Calls,
    Mount,
    Operation,
    PathUse,
    Profile,
    RemoteReads,
    count_unique,
    merge,
)

COUNT = st.integers(0, 5)
NAMES = st.sampled_from(["/", "/a", "/a/b", "/a/b/c.so", "/c", "/c/d.py", "/c/e.pyc"])
AREAS = st.sampled_from(["/", "/a", "/c"])
END = st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.integers(1, 15)))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    paths = [
        PathUse(path, draw(st.sampled_from(KINDS)), draw(COUNT), draw(COUNT), draw(COUNT))
        for path in sorted(draw(st.sets(NAMES)))
    ]
    areas = [
        Area(
            area=area,
            ops=draw(COUNT),
            failed=draw(COUNT),
            files=files,
            so=so,
            py=py,
            bytes_read=draw(st.one_of(st.none(), COUNT)),
            calls=draw(st.dictionaries(st.just("open"), st.builds(Calls, ok=COUNT, failed=COUNT))),
        )
        for area, (files, so, py) in sorted(count_unique(paths, draw(st.sets(AREAS))).items())
    ]
    exit_, signal = draw(END)
    return Profile(
        format=1,
        command=draw(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2)),
        runs=draw(st.integers(1, 3)),
        wall_us=draw(COUNT),
        exit=exit_ if signal is None else None,
        signal=signal,
        host=draw(st.sampled_from(["h1", "h2"])),
        started_us=draw(COUNT),
        cwd=draw(st.sampled_from(["/a", "/c"])),
        env=draw(st.dictionaries(st.just("PATH"), st.sampled_from(["/a", "/c"]))),
        mounts=[
            Mount(
                point=point,
                type=draw(st.sampled_from(["nfs", "lustre"])),
                stripe=draw(st.sampled_from([None, "1", "2"])),
            )
            for point in sorted(draw(st.sets(AREAS)))
        ],
        ops={
            name: Operation(
                ok=draw(COUNT), errors=draw(st.dictionaries(st.sampled_from(["ENOENT", "EACCES"]), COUNT))
            )
            for name in sorted(draw(st.sets(st.sampled_from(["openat", "stat"]))))
        },
        bins=[Bin(s=s, ok=draw(COUNT), failed=draw(COUNT)) for s in sorted(draw(st.sets(COUNT)))],
        areas=areas,
        paths=paths,
        truncated=draw(st.booleans()),
        reads=[
            RemoteReads(
                address=address,
                port=1094,
                connections=draw(COUNT),
                reads=draw(COUNT),
                bytes=draw(COUNT),
                waits=draw(COUNT),
                wait_us=draw(COUNT),
                wait_log2_us=draw(st.lists(COUNT, max_size=3)),
            )
            for address in sorted(draw(st.sets(st.sampled_from(["", "10.0.0.1", "10.0.0.2"]))))
        ],
        reads_missed=draw(COUNT),
    )


@given(profiles(), profiles())
def test_merging_is_commutative(a: Profile, b: Profile) -> None:
    assert merge([a, b]) == merge([b, a])


@given(profiles(), profiles(), profiles())
def test_merging_is_associative(a: Profile, b: Profile, c: Profile) -> None:
    whole = merge([a, b, c])
    assert merge([merge([a, b]), c]) == whole
    assert merge([a, merge([b, c])]) == whole


@given(st.lists(profiles(), min_size=1, max_size=4))
def test_runs_and_operations_add_up(several: list[Profile]) -> None:
    merged = merge(several)
    assert merged.runs == sum(each.runs for each in several)
    assert merged.ops_total == sum(each.ops_total for each in several)
    assert merged.failed_total == sum(each.failed_total for each in several)
    assert sum(use.ok for use in merged.paths) == sum(use.ok for each in several for use in each.paths)
