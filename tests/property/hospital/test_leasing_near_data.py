"""Jobs go where their data are, and none waits for that for ever: real dispatch, two sites, one near to the data."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.hospital.hospital_world import Hospital
from tests.contract.server_world import Site, leases

from tidemill.model.job import Input, JobSpec
from tidemill.server.database.store import Store
from tidemill.wire.api import Capacity
from tidemill.wire.far import NearData

WAIT_S, STEP_S, YOUNG_STEPS = 600.0, 60.0, 12
PLACES = {"near": "root://near:1//d/f", "also near": "root://near:1//e/f", "unknown": "root://else:1//d/f"}


def job_of(data: str, priority: int) -> JobSpec:
    inputs = [Input(name="in", url=PLACES[data])] if data in PLACES else []
    return JobSpec(app="sim", inputs=inputs, priority=priority)


def capacity(*near: NearData, ranges: int, wants: bool) -> Capacity:
    return Capacity(
        want_core_s=1e6 if wants else 0.0, want_ranges_max=ranges, slot_cores_max=4, slot_memory_mb_max=4000,
        devices={}, event_s={}, nodes=1, busy_cores=0, adhoc=False, near=list(near),
    )  # fmt: skip


@given(
    jobs=st.lists(st.tuples(st.sampled_from([*PLACES, "none"]), st.integers(-1, 2)), min_size=1, max_size=40),
    ranges=st.integers(1, 6),
    young=st.integers(0, 6),
    near_wants=st.booleans(),
)
@settings(max_examples=10, deadline=None)
def test_every_job_is_leased_in_the_end_while_young_ones_that_wait_for_a_nearer_site_keep_coming(
    jobs: Sequence[tuple[str, int]], ranges: int, young: int, near_wants: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(path=Path(folder) / "t.db")
        store.init()
        world = Hospital(store, data_wait_s=WAIT_S)
        try:
            _run(world, [job_of(*each) for each in jobs], ranges, young, near_wants=near_wants)
        finally:
            world.reader.close()
            world.dispatcher.close()


def _run(world: Hospital, jobs: list[JobSpec], ranges: int, young: int, *, near_wants: bool) -> None:
    waiting = set(world.submit(*jobs))
    near, far = Site(world, "near"), Site(world, "far")
    here = capacity(NearData("root://near:1/", 0.0), ranges=ranges, wants=near_wants)
    there = capacity(ranges=ranges, wants=True)
    steps = YOUNG_STEPS + int(WAIT_S / STEP_S) + -(-(len(jobs) + young * YOUNG_STEPS) // ranges) + 2
    for step in range(steps):
        if step < YOUNG_STEPS and young:
            waiting.update(world.submit(*[job_of("near", 9)] * young))
        for site, said in ((near, here), (far, there)):
            got = [each.job for each in leases(site.sync(capacity=msgspec.structs.replace(said)))]
            assert len(got) == len(set(got) & waiting), "no job is leased twice"
            waiting.difference_update(got)
        if not waiting and step >= YOUNG_STEPS:
            break
        world.pass_time(STEP_S)
    assert not waiting
