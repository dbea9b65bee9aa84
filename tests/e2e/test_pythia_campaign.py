"""Pythia events of a campaign whose pilot, payload and agent are killed are those of one process left alone."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.worlds.home.oracle import output_bytes
from tests.worlds.home.world import World, world

from tidemill.examples import APPLICATIONS, HERE, try_ranges
from tidemill.examples.digest import digests
from tidemill.examples.try_ranges import Trial
from tidemill.model.job import Input, JobSpec
from tidemill.wire.api import JobDetail

for module in ("pythia8mc", "pyhepmc", "uproot", "hist"):
    pytest.importorskip(module, reason="needs `tidemill[examples]`")

EVENTS = 300
PARAMS: dict[str, str | int | float | bool] = {"process": "zmumu"}
ROLES = ("pilot", "payload", "agent")


def undisturbed(directory: Path, seed: int) -> dict[int, str]:
    """Number and digest of the events as one process generates them, without Tidemill."""
    directory.mkdir()
    command = [sys.executable, str(HERE / APPLICATIONS["pythia8"])]
    trial = Trial(events=EVENTS, size=EVENTS, seed=seed, params=dict(PARAMS), timeout_s=200)
    outcome = try_ranges.run(command, directory, trial)
    assert (outcome.error, outcome.exit_status, outcome.failed) == (None, 0, {})
    found: dict[int, str] = {}
    for piece in outcome.pieces:
        (directory / "piece").write_bytes(piece.outputs["events"])
        found.update(digests(directory / "piece"))
    return found


def disturb(it: World, job: int, rng: random.Random) -> list[str]:
    """Kill one process of each role, in a seeded order, when a seeded number of events is done; what was killed."""
    killed = []
    marks = sorted(rng.sample(range(10, EVENTS * 2 // 3), k=len(ROLES)))
    for role, mark in zip(rng.sample(ROLES, k=len(ROLES)), marks, strict=True):
        it.wait_for(lambda mark=mark: it.client.job(job).row.events_done >= mark, f"{mark} events are done")
        it.wait_for(lambda role=role: it.kill(role, rng), f"there is a {role} to kill")
        killed.append(f"{role} after {mark}")
    return killed


def short_ranges(it: World) -> None:
    """Ranges of 0.3 s, so that much is under way and much is kept whenever something dies."""
    path = it.home / "site" / "apps" / "pythia8.toml"
    text, replaced = re.subn(r"(?m)^range_s = .*$", "range_s = 0.3", path.read_text())
    assert replaced == 1
    path.write_text(text)
    it.restart("agent")


def check_analysis(detail: JobDetail) -> None:
    assert detail.row.state == "COMPLETED", detail.row.reason
    (summary,) = [each for each in detail.outputs if each.name == "summary"]
    found = json.loads(Path(unquote(urlsplit(summary.url).path)).read_text())
    assert found["events"] == EVENTS
    assert 85 < found["peak_gev"] < 97


@pytest.mark.fault
@pytest.mark.timeout(400)
def test_killed_parts_change_no_event_and_the_analysis_reads_them_all(
    fault_seed: int, tmp_path: Path
) -> None:
    rng = random.Random(fault_seed)
    with world(nodes=2) as it:
        short_ranges(it)
        (job,) = it.submit("c", JobSpec(app="pythia8", events=EVENTS, params=PARAMS, retries=10))
        events = Input(name="events", url=f"job:{job}/events")
        (analysis,) = it.submit("c", JobSpec(app="zpeak", inputs=[events]))
        killed = disturb(it, job, rng)
        it.wait_campaign("c")
        said = f"seed {fault_seed}, killed: {', '.join(killed)}\n{it.tails()}"
        detail = it.client.job(job)
        assert detail.row.state == "COMPLETED", said
        assert (detail.row.events_done, detail.row.events_failed) == (EVENTS, 0), said
        merged = tmp_path / "merged"
        merged.write_bytes(output_bytes(detail))
        found = list(digests(merged))
        assert Counter(number for number, _ in found) == Counter(range(EVENTS)), said
        assert dict(found) == undisturbed(tmp_path / "alone", 1 + detail.seed_base), said
        check_analysis(it.client.job(analysis))
