"""Payloads that are traced on a node: their profiles come back, and the next programs know what a start costs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.world import World, world

from tidemill.image.profile import Profile, read_profile
from tidemill.model.job import JobSpec, Resources

PROBE = """
name = "probe"
version = "7/a"
executable = "/bin/sh"
arguments = ["-c", "for k in 1 2 3; do cat /no-such-directory/{event} 2>/dev/null; done; exit 0"]
trace_every = 4
"""
OFTEN = {"site": {"MONITOR_INTERVAL_S": 1}}  #: as often the server learns what the site shows
AREA = """
[[io]]
name = "gone"
prefixes = ["/no-such-directory"]
ops_per_s = 100000
[[io]]
name = "tools"
prefixes = ["/bin", "/usr/bin"]
bytes_per_s = 1e12
"""
FAST = Resources(event_s=0.02)
EVENTS = 9


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with world(nodes=1, cores=1, extra=AREA, timing=OFTEN) as running:
        (running.home / "site" / "apps" / "probe.toml").write_text(PROBE)
        running.wait_for(lambda: offered(running), "the application is offered")
        yield running


def offered(it: World) -> bool:
    return any(each.app.name == "probe" for each in it.client.applications())


def runs(it: World) -> int:
    path = it.home / "site" / "profiles" / "probe@7%2Fa.json"
    return read_profile(path).runs if path.exists() else 0


def run(it: World, campaign: str, *, app: str | None = "probe") -> None:
    command = None if app else ["/bin/true"]
    it.submit(campaign, JobSpec(app=app, command=command, events=EVENTS, resources=FAST))
    assert it.wait_campaign(campaign).events_done == EVENTS


def told(it: World, app: str = "probe") -> list[dict[str, Any]]:
    """The programs of an application in the order in which fleets were told."""
    fleets = (it.home / "site" / "fleets").iterdir()
    files = [path for fleet in sorted(fleets) for path in sorted((fleet / "work").glob("*.json"))]
    programs = [each for path in files for each in json.loads(path.read_bytes())["programs"]]
    return [each for each in programs if each["app"] == app]


def test_profiles_of_sampled_payloads_come_back_and_later_programs_know_the_cost(it: World) -> None:
    assert (
        "about 60 s per event (assumed; the first events measure it)" in it.run("app", "show", "probe").stdout
    )
    run(it, "first")
    it.wait_for(lambda: runs(it) == 3, "the profiles of payloads 0, 4 and 8 are merged")
    profile: Profile = read_profile(it.home / "site" / "profiles" / "probe@7%2Fa.json")
    absent = [use for use in profile.paths if use.path.startswith("/no-such-directory/")]
    assert sum(use.failed for use in absent) >= 3 * 3
    assert all(use.kind == "x" for use in absent)

    it.wait_for(
        lambda: "(3 times traced)" in it.run("app", "show", "probe").stdout, "the server knows of all three"
    )
    it.wait_for(lambda: "s per event (measured)" in it.run("app", "show", "probe").stdout, "it was measured")
    shown = it.run("app", "show", "probe").stdout
    assert "(3 times traced); gone: 3" in shown

    run(it, "second")
    programs = told(it)
    assert [(each["trace_first"], each["trace_every"]) for each in programs] == [(True, 4), (False, 4)]
    assert [each["start_ops"] for each in programs] == [{}, {"gone": 3}]
    [before, after] = [each["start_bytes"] for each in programs]
    assert (before, [*after]) == ({}, ["tools"])
    assert after["tools"] >= Path("/bin/sh").stat().st_size + Path("/bin/cat").stat().st_size
    assert re.search(r"; tools: [0-9,]+, reads [0-9.]+ [kM]B", shown)


def test_commands_of_single_jobs_are_not_traced(it: World) -> None:
    run(it, "adhoc", app=None)
    programs = told(it, "command")
    assert programs
    assert {(each["trace_first"], each["trace_every"]) for each in programs} == {(False, 0)}


def test_an_application_whose_program_changed_is_listed_as_refused_until_it_is_approved(it: World) -> None:
    program, file = it.home / "me" / "tool", it.home / "site" / "apps" / "tool.toml"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    file.write_text(f'name = "tool"\nexecutable = "{program}"\ndigest = "sha256:{digest}"\n')
    it.wait_for(lambda: listed(it) == ["tool", "offered"], "the application is offered")
    program.write_text("#!/bin/sh\nexit 0  # changed\n")
    it.submit("tool-1", JobSpec(app="tool", resources=FAST))
    it.wait_for(lambda: listed(it) == ["tool", "refused"], "the refusal is listed")
    said = it.run("app", "list").stderr
    assert "tool at here is refused: application `tool`: " in said
    assert f"`tidemill app approve {file}`" in said
    assert f"refused: application `tool`: `{program}` has digest" in it.run("app", "show", "tool").stdout
    assert it.run("app", "approve", "--yes", str(file)).returncode == 0
    it.wait_for(lambda: listed(it) == ["tool", "offered"], "it is offered again")
    assert it.wait_campaign("tool-1").events_done == 1


def listed(it: World) -> list[str]:
    """Name and state of `tool` in `app list`."""
    lines = [line.split() for line in it.run("app", "list").stdout.splitlines()]
    return next(([words[0], words[3]] for words in lines if words[0] == "tool"), [])
