"""A campaign of Pythia jobs through Grid Engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from extensions.gridengine.tests.sge.batch_gridengine import environment
from tests.worlds.home.pythia import EVENTS, JOBS, check, needs_pythia
from tests.worlds.home.world import Options, World, world

from tidemill.model.job import Input, JobSpec
from tidemill.wire.api import JobDetail

needs_pythia()

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(os.geteuid() != 0, reason="the clusters' daemons need root"),
]
GRID_ENGINE_SITE = """batch = "gridengine"
[gridengine]
parallel_environment = "node"
[cluster]
calls_per_min_max = 1200
directives = ["-p 0"]
[harvest]
policy = "demand"
"""


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


def test_grid_engine(gridengine_here: Path, tmp_path: Path) -> None:
    with world(
        options=Options(nodes=1, extra=GRID_ENGINE_SITE, environment=environment(gridengine_here))
    ) as it:
        check(run_here(it), tmp_path)
