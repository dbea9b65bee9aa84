"""Properties of the hospital's pure parts: no job bounces for ever, and none is passed over."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.timing import timing

from tidemill.config.hospital import Ward
from tidemill.server.hospital.admission import Patient, admission, goes_home
from tidemill.server.hospital.datasets import dataset_of, parents, spelled
from tidemill.server.hospital.nearness import DataGate, Place, Tier, is_better, leg_after

NOW_US = 1_800_000_000_000_000
WARDS = st.lists(
    st.builds(
        Ward,
        name=st.just("w"), waited_s=st.none() | st.floats(0, 1e6), home_down=st.booleans(),
        failures=st.lists(st.sampled_from(["memory", "walltime"]), max_size=2),
    ),
    max_size=4,
).map(lambda wards: dict(enumerate(wards, 1)))  # fmt: skip


@given(
    WARDS,
    st.lists(st.tuples(st.booleans(), st.sampled_from(["", "memory", "walltime"])), max_size=60),
    st.integers(1, 5),
)
def test_no_job_is_moved_more_often_than_the_bound_says(
    wards: dict[int, Ward], happens: list[tuple[bool, str]], most: int
) -> None:
    moves = ward = 0
    for is_down, failure in happens:
        down = "silent" if is_down else ""
        patient = Patient(0, moves, failure, ward)
        with timing(server={"MOVES_MAX": most}):
            found = admission(wards, patient, home_down=down, now_us=NOW_US, treatable=lambda _: True)
        if found is not None:
            assert found.ward != ward
            moves, ward = moves + 1, found.ward
        elif ward and goes_home(wards[ward], "home_down: x", home_down=down):
            ward = 0
    assert moves <= most


@given(WARDS)
def test_a_job_is_never_admitted_where_nobody_could_treat_it(wards: dict[int, Ward]) -> None:
    patient = Patient(0, 0)
    assert admission(wards, patient, home_down="x", now_us=NOW_US, treatable=lambda _: False) is None


@settings(max_examples=200)
@given(
    st.dictionaries(st.integers(1, 5), st.sampled_from(Tier), min_size=1),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=60),
    st.integers(1, 7),
)
def test_the_scans_of_tiers_together_pass_over_no_job_and_read_none_twice(
    tiers: dict[int, Tier], made: list[tuple[int, int]], limit: int
) -> None:
    jobs = [(kind, rank, number) for number, (kind, rank) in enumerate(made, 1) if kind in tiers]
    wanted = sorted((rank, tiers[kind], number) for kind, rank, number in jobs)
    after: Place | None = (-(2**62), 0, 0)
    read: list[Place] = []
    while after is not None:
        window: list[Place] = []
        ends: list[Place] = []
        for kind, tier in tiers.items():
            rows = sorted((rank, number) for of, rank, number in jobs if of == kind)
            rows = [each for each in rows if each > leg_after(after, tier)][:limit]
            window += [(rank, tier, number) for rank, number in rows]
            if len(rows) == limit:
                ends.append((rows[-1][0], tier, rows[-1][1]))
        after = min(ends, default=None)
        read += sorted(each for each in window if after is None or each <= after)
    assert read == wanted


@given(st.lists(st.integers(0, 1_000), max_size=30), st.integers(0, 1_000), st.booleans())
def test_a_job_waits_for_nearer_data_no_longer_than_it_is_told(
    since_s: list[int], wait_s: int, is_bound: bool
) -> None:
    now_s = 1_000
    passed: dict[int, int] = {}
    gate = DataGate(passed, now_us=now_s * 1_000_000, wait_s=wait_s)
    gate.tiers[1] = Tier.FAR
    for each in since_s:
        admitted = gate.admits(1, since_us=each * 1_000_000, is_bound=is_bound)
        assert admitted == (is_bound or now_s - each >= wait_s)
    gate.close([1])
    if since_s and not is_bound and all(now_s - each < wait_s for each in since_s):
        assert passed[1] <= (min(since_s) + wait_s) * 1_000_000
    else:
        assert not passed


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_of_two_sites_at_most_one_is_clearly_nearer(one: float, other: float) -> None:
    assert not (is_better(one, other) and is_better(other, one))


@given(
    st.text(max_size=80)
    | st.from_regex(r"(root|https)://[a-zA-Z0-9.]{1,10}(:\d{1,5})?(/{1,2}[a-z.]{0,4}){0,6}(\?x=1)?")
)
def test_datasets_have_one_spelling_without_credentials_and_parents_end(url: str) -> None:
    text = spelled(url)
    if text is None:
        return
    assert spelled(text) == text
    assert "@" not in text.partition("://")[2].partition("/")[0]
    chain = list(parents(text))
    assert chain[0] == text
    assert all(text.startswith(each) for each in chain)
    dataset = dataset_of(url)
    assert dataset is None or text.startswith(dataset)
