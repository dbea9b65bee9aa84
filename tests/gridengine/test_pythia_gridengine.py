"""A campaign of Pythia jobs through Grid Engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.worlds.home.pythia import EVENTS, JOBS, check, needs_pythia
from tests.worlds.home.world import Options, World, world

from tidemill.model.job import Input, JobSpec
from tidemill.wire.api import JobDetail

needs_pythia()

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(os.geteuid() != 0, reason="the clusters' daemons need root"),
]
GRID_ENGINE = Path(__file__).parents[2] / "scripts" / "gridengine.sh"
GRID_ENGINE_SITE = """batch = "gridengine"
[cluster]
parallel_environment = "node"
calls_per_min_max = 1200
nice = 0
[harvest]
policy = "demand"
poll_s = 0.5
"""


@pytest.fixture
def grid_engine() -> Iterator[dict[str, str]]:
    """The environment of a one-node Grid Engine."""
    directory = Path(tempfile.mkdtemp(prefix="tm-ge-", dir="/tmp"))
    directory.chmod(0o755)
    words = [str(GRID_ENGINE), "start", str(directory / "c"), "--slots", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        if done.returncode:
            reason = f"Grid Engine does not start: {done.stderr.strip()}"
            pytest.skip(reason)
        show = ["sh", "-c", '. "$1" && env', "sh", done.stdout.strip()]
        lines = subprocess.run(show, capture_output=True, text=True, check=True).stdout.splitlines()
        yield dict(line.split("=", 1) for line in lines if line.startswith("SGE_"))
    finally:
        subprocess.run([GRID_ENGINE, "stop", directory / "c"], check=False, capture_output=True)
        shutil.rmtree(directory, ignore_errors=True)


def run_here(it: World) -> list[JobDetail]:
    """The campaign where the test is the site's user."""
    spec = JobSpec(app="pythia8", events=EVENTS, params={"process": "zmumu"})
    jobs = it.submit("c", *[spec] * JOBS)
    (analysis,) = it.submit(
        "d", JobSpec(app="zpeak", inputs=[Input(name="events", url=f"job:{jobs[0]}/events")])
    )
    it.wait_campaign("c")
    it.wait_campaign("d")
    (summary,) = [each for each in it.client.job(analysis).outputs if each.name == "summary"]
    assert json.loads(Path(unquote(urlsplit(summary.url).path)).read_text())["events"] == EVENTS
    return [it.client.job(job) for job in jobs]


def test_grid_engine(grid_engine: dict[str, str], tmp_path: Path) -> None:
    with world(options=Options(nodes=1, extra=GRID_ENGINE_SITE, environment=grid_engine)) as it:
        check(run_here(it), tmp_path)
