"""A campaign of Pythia jobs through Slurm, through Grid Engine, and with pilots that mpiexec starts on two nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.fault.oracle import output_bytes
from tests.fault.slurm_world import REACH, slurm_world
from tests.fault.world import Options, World, world
from tests.integration.slurm_cluster import SlurmCluster

from tidemill.examples.digest import digests
from tidemill.model.job import Input, JobSpec
from tidemill.wire.api import JobDetail

for module in ("pythia8mc", "pyhepmc", "uproot", "hist"):
    pytest.importorskip(module, reason="needs `tidemill[examples]`")

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(os.geteuid() != 0, reason="the clusters' daemons need root"),
]
JOBS, EVENTS = 2, 60
FILE = f"""campaign = "c"
[[job]]
app = "pythia8"
repeat = {JOBS}
events = {EVENTS}
params = {{process = "zmumu"}}
"""
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


def check(details: list[JobDetail], directory: Path) -> None:
    """Every event is there once, and no two jobs have the same."""
    assert len(details) == JOBS
    contents: set[str] = set()
    for detail in details:
        assert detail.row.state == "COMPLETED", detail.row.reason
        merged = directory / f"merged-{detail.row.id}"
        merged.write_bytes(output_bytes(detail))
        found = list(digests(merged))
        assert Counter(number for number, _ in found) == Counter(range(EVENTS))
        contents.update(digest for _, digest in found)
    assert len(contents) == JOBS * EVENTS


def test_slurm(start_slurm: Callable[..., SlurmCluster], tmp_path: Path) -> None:
    cluster = start_slurm("--nodes", "2", "--cores", "2", *REACH)
    with slurm_world(cluster) as it:
        it.submit_file(FILE)
        check(it.wait_jobs("c"), tmp_path)


@pytest.mark.parametrize("mpiexec", ["mpich", "openmpi"])
def test_mpiexec_on_two_nodes_of_slurm(
    start_slurm: Callable[..., SlurmCluster], tmp_path: Path, mpiexec: str
) -> None:
    program = shutil.which(f"mpiexec.{mpiexec}")
    if program is None:
        pytest.fail(f"there is no mpiexec.{mpiexec}; hint: apt-get install mpich openmpi-bin")
    cluster = start_slurm("--nodes", "2", "--cores", "2", *REACH)
    chosen = cluster.directory / "mpi"
    chosen.mkdir(mode=0o755)
    # a link would hide MPICH's own programs
    (chosen / "mpiexec").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    (chosen / "mpiexec").chmod(0o755)
    path = {"PATH": f"{chosen}:{os.environ['PATH']}"}
    launcher = 'launcher = "mpiexec"'
    with slurm_world(cluster, cluster_keys=launcher, harvest="width = 2", environment=path) as it:
        it.submit_file(FILE)
        check(it.wait_jobs("c"), tmp_path)
        ranks = {path.stem.split(".")[-2] for path in (it.home / "site" / "fleets").glob("*/bundle/*.tar")}
        assert ranks == {"r0", "r1"}, it.tails()


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
