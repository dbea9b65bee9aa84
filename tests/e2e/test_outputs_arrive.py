"""Files of finished events come while their job runs, as a person sees it, also when the agent dies meanwhile."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.socket_pages import get_page
from tests.worlds.home.world import World, world

from tidemill.model.job import Deliver, JobSpec, Output, Pack

EVENTS = 24
FIRST = 4  #: events that end at once; the others wait for a file
PROGRAM = """\
[ "$1" -lt {first} ] || until [ -e {gate}/go ] || [ -e {gate}/some -a "$1" -lt {some} ]; do sleep 0.1; done
echo "result of $1" > out.txt
echo "more of $1" > more.txt
"""


@pytest.fixture(scope="module")
def home() -> Iterator[World]:
    with world(nodes=2, cores=4, timing={"site": {"OUTPUTS_EVERY_S": 0.5}}) as it:
        yield it


@pytest.fixture
def gate() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tm-") as directory:  # /tmp is the payload's own
        Path(directory).chmod(0o755)
        yield Path(directory)


def spec(gate: Path, **more: Any) -> JobSpec:
    script = gate / "program.sh"
    script.write_text(PROGRAM.format(first=FIRST, some=2 * FIRST, gate=gate))
    outputs = [Output(name="out", path="out.txt", pack=Pack.FILES), Output(name="more", path="more.txt")]
    command = ["sh", str(script), "{event}"]
    return JobSpec(command=command, events=EVENTS, outputs=outputs, **more)


def folder(home: World, campaign: str, job: int) -> Path:
    return home.home / "site" / "out" / campaign / f"{job}-out"


def listed(path: Path) -> dict[str, Any]:
    """What a manifest says, but for what differs between two jobs: numbers, names, seeds."""
    (manifest,) = path.glob("manifest-*.json")
    found = json.loads(manifest.read_text())
    for key in ("job", "campaign"):
        del found[key]
    for file in found["files"]:
        for member in file["members"]:
            del member["seed"]
    return dict(found)


def contents(path: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in path.glob("*.txt")}


def results(*events: int) -> dict[str, str]:
    return {f"out-{event}.txt": f"result of {event}\n" for event in events}


@pytest.mark.timeout(300)
def test_files_come_while_later_events_run_and_the_end_is_as_without(home: World, gate: Path) -> None:
    (job,) = home.submit("early", spec(gate))
    there = folder(home, "early", job)
    home.wait_for(lambda: contents(there) == results(*range(FIRST)), "the first files are there")
    home.wait_for(lambda: home.client.job(job).outputs, "the server knows of them")
    assert home.client.job(job).row.state == "RUNNING"
    assert not [each for each in there.iterdir() if each.name.endswith(".part")]

    explained = home.run("job", "explain", str(job))
    assert f"output out: {FIRST} of {EVENTS} events in {there}" in explained.stdout, explained.stderr
    assert "output more is packed into one archive when the job ends" in explained.stdout
    ls = home.run("outputs", "ls", str(job))
    assert "arrived" in ls.stdout, ls.stderr
    assert home.run("outputs", "get", str(job), "--to", "copies").returncode == 0
    assert contents(home.home / "me" / "copies") == results(*range(FIRST))
    one = home.run("outputs", "get", str(job), "--event", "1", "--to", "one")
    assert one.returncode == 0, one.stderr
    assert contents(home.home / "me" / "one") == results(1)
    assert home.client.job(job).kept is not None, "the delivery of the job is still to come"
    _, page = get_page(home.home, f"/jobs/{job}")
    assert f"files of {FIRST} of {EVENTS} events; more arrive while the job runs" in page
    assert "is packed into one archive when the job ends" in page

    inode = (there / "out-0.txt").stat().st_ino
    (gate / "some").touch()
    assert home.kill("agent", random.Random(1))
    home.wait_for(lambda: contents(there) == results(*range(2 * FIRST)), "an agent that follows goes on")
    (gate / "go").touch()
    row = home.wait_campaign("early")
    assert row.states == {"COMPLETED": 1}, home.tails()
    assert contents(there) == results(*range(EVENTS))
    assert (there / "out-0.txt").stat().st_ino == inode

    (whole,) = home.submit("whole", spec(gate, deliver=Deliver.COMPLETE))
    home.wait_campaign("whole")
    assert listed(there) == listed(folder(home, "whole", whole))
    rows = [
        [(each.name, each.sha256, each.events) for each in home.client.job(number).outputs]
        for number in (job, whole)
    ]
    assert [each[0] for each in rows[0]] == ["out", "more"]
    assert rows[0][0] == rows[1][0]


@pytest.mark.timeout(200)
def test_a_job_that_is_canceled_keeps_what_has_arrived_and_a_retry_adds_the_rest(
    home: World, gate: Path
) -> None:
    (job,) = home.submit("stopped", spec(gate))
    there = folder(home, "stopped", job)
    home.wait_for(lambda: contents(there) == results(*range(FIRST)), "the first files are there")
    before = {path.name: path.stat().st_ino for path in there.glob("*.txt")}
    home.client.cancel([job])
    home.wait_campaign("stopped")
    assert [each.events for each in home.client.job(job).outputs] == [f"0-{FIRST - 1}"] * 2
    assert all(each.sha256 for each in home.client.job(job).outputs)
    (gate / "go").touch()
    home.client.retry([job])
    home.wait_for(lambda: home.client.job(job).row.state == "COMPLETED", "the rest is done")
    assert contents(there) == results(*range(EVENTS))
    assert {name: (there / name).stat().st_ino for name in before} == before
    assert listed(there)["done"] == f"0-{EVENTS - 1}"


@pytest.mark.timeout(200)
def test_run_says_where_the_first_files_are(home: World, gate: Path) -> None:
    script = gate / "program.sh"
    script.write_text(PROGRAM.format(first=FIRST, some=2 * FIRST, gate=gate))
    words = (
        "run",
        "--events",
        str(EVENTS),
        "--name",
        "typed",
        "--output",
        "out.txt",
        "--",
        "sh",
        str(script),
        "{event}",
    )
    with home.running(*words) as run:
        there = home.home / "me" / "tidemill-out" / "typed"
        assert run.stderr is not None
        said = ""
        for line in run.stderr:
            said += line
            if "more files arrive while it runs" in line:
                break
        assert f"of {EVENTS} events in {there}" in said, said
        assert results(*range(FIRST)).items() <= contents(there).items()
        (gate / "go").touch()
        _, rest = run.communicate(timeout=100)
    assert run.returncode == 0, said + rest
    assert results(*range(EVENTS)).items() <= contents(there).items()
