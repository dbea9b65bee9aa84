"""A bad week in a minute: parts are killed while storage fails or hangs, the proxy expires and the stage is too small.

Every event counts once, its output is there once, and no job fails.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.timing import Values
from tests.worlds.home.faults import Act, Trouble, perform, schedule
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.troubles import STORAGE, all_troubles, https_server
from tests.worlds.home.world import Options, World
from tests.worlds.node.faulty_fs import faulty_fs

from tidemill.model.job import Input, JobSpec

EVENTS = 120
DARTS = 60_000  # about 10 ms an event
INPUT_BYTES = 1_000_000

pytestmark = pytest.mark.fault

SITE = """endpoints = [{{ url = "{url}/", ca = "{ca}", certificate = "{pem}" }}]
stage_bytes_max = {stage}"""
TIMING: Values = {
    "site": {"STAGE_FREE_BYTES_MIN": 0, "STORAGE_PATIENCE_S": 20},
    "transfer": {"TRIES_MAX": 2, "PAUSE_S": 0.1},
}


@contextmanager
def bad_site() -> Iterator[tuple[World, dict[str, Trouble], str, Path]]:
    """A world whose fleets lie on a file system that fails on command, with room for the inputs of two jobs."""
    place = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    home = place / "h"
    try:
        with https_server(place) as (url, data, ca):
            troubles_of = place / "proxy.pem"
            extra = SITE.format(url=url, ca=ca, pem=troubles_of, stage=INPUT_BYTES * 5 // 2)
            it = World(home, Options(nodes=2, extra=extra, timing=TIMING))
            app = home / "site" / "apps" / "pi.toml"
            app.write_text(app.read_text().replace('mode = "range"', 'mode = "range"\ninputs = ["in"]'))
            with faulty_fs(place / "fleets", home / "site" / "fleets") as fs:
                troubles = all_troubles(fs, troubles_of)
                troubles["expired proxy"].end(it)
                try:
                    it.start()
                    yield it, troubles, url, data
                finally:
                    fs.heal()
                    it.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def jobs_of(it: World, act: int, url: str, data: Path) -> int:
    """A job for the act and one behind it, each with an input of its own: both do not fit besides those before."""
    first = 0
    for name in (f"in{act}a", f"in{act}b"):
        (data / name).write_bytes(name.encode().ljust(INPUT_BYTES))
        inputs = [Input(name="in", url=f"{url}/{name}")]
        spec = JobSpec(app="pi", events=EVENTS, params={"darts": DARTS}, retries=50, inputs=inputs)
        (job,) = it.submit("c", spec)
        first = first or job
    return first


def under_fire(it: World, acts: list[Act], troubles: dict[str, Trouble], url: str, data: Path) -> list[str]:
    met: list[str] = []
    for number, act in enumerate(acts):
        job = jobs_of(it, number, url, data)
        it.wait_for(
            lambda job=job, act=act: it.client.job(job).row.events_done >= act.done,
            f"{act.done} events of job {job} are done; met {met}",
            timeout_s=120,
        )
        met += perform(it, act, troubles)
    return met


@pytest.mark.timeout(400)
def test_a_bad_week_loses_doubles_and_fails_nothing(fault_seed: int) -> None:
    names = [*STORAGE, "expired proxy"]
    acts = schedule(fault_seed, events=EVENTS, troubles=names)
    with bad_site() as (it, troubles, url, data):
        met = under_fire(it, acts, troubles, url, data)
        row = it.wait_campaign("c", timeout_s=180)
        told = f"seed {fault_seed}, met {met}\n{it.tails()}"
        assert row.states == {"COMPLETED": 2 * len(acts)}, told
        assert (row.events_done, row.events_failed) == (2 * len(acts) * EVENTS, 0), told
        for each in it.client.jobs(campaign="c"):
            detail = it.client.job(each.id)
            assert output_bytes(detail) == expected_hits(detail.seed_base, EVENTS, DARTS), told
