"""What a site does for payloads that span nodes, whatever its MPI: room, limits, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.mpi_world import darts, mpi_world
from tests.worlds.home.world import World

from tidemill.model.job import JobSpec, Resources


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with mpi_world("mpich") as running:
        yield running


def test_an_ad_hoc_command_may_span_nodes_and_learns_its_width(it: World) -> None:
    script = "echo $TIDEMILL_NODES $TIDEMILL_RANKS $TIDEMILL_CORES {cores} ${{#TIDEMILL_ALLOCATION}} $SLURM_X"
    spec = JobSpec(
        command=["/bin/sh", "-c", script.replace("{{", "{").replace("}}", "}")],
        resources=Resources(nodes=3, ranks=6),
        keep_stdout=True,
    )
    (job,) = it.submit("adhoc", spec)
    it.wait_campaign("adhoc")
    detail = it.client.job(job)
    assert detail.row.state == "COMPLETED", detail.row.reason
    tar = Path(detail.outputs[0].url.removeprefix("file://")).read_bytes()
    assert tar.count(b"3 6 1 1 ") == 6


def test_ordinary_work_makes_room_for_a_wide_job_and_goes_on(it: World) -> None:
    plain = JobSpec(
        command=["/bin/sleep", "0.2"], events=60, resources=Resources(event_s=0.2), name="plain", retries=0
    )
    (filler,) = it.submit("filler", plain)
    it.wait_for(lambda: it.client.job(filler).row.events_done > 4, "ordinary work runs")
    (wide,) = it.submit("wide", darts(nodes=4, ranks=8, events=8))
    assert it.wait_campaign("wide").states == {"COMPLETED": 1}, it.client.job(wide).row.reason
    row = it.wait_campaign("filler")
    assert row.states == {"COMPLETED": 1}
    assert not row.failures


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "-2"], "--nodes"),
        (["--nodes", "4", "--ranks", "2"], "every node needs at least one rank"),
        (["--nodes", "2", "--ranks", "3"], "2 or 4 can"),
        (["--nodes", "2000"], "may span 1024 nodes, the job asks for 2000"),
    ],
)
def test_wrong_widths_are_refused_at_submit(it: World, words: list[str], told: str) -> None:
    done = it.run("submit", "--app", "mpi-darts", *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_an_application_that_no_launcher_may_start_is_refused(it: World) -> None:
    done = it.run("submit", "--app", "pi", "--nodes", "2")
    assert done.returncode == 2
    assert "not approved for an MPI launcher" in done.stderr


def test_more_nodes_than_the_site_has_wait_and_say_so(it: World) -> None:
    (job,) = it.submit("broad", darts(nodes=5, ranks=5))
    it.wait_for(lambda: it.client.job(job).waits_for == "too_few_nodes", "the cause is named")
    assert "spans 5 nodes, this site gives it at most 4" in str(it.client.job(job).waits_hint)
    it.client.cancel([job])
