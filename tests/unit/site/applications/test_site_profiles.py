"""Profiles that came back in bundles: merged per version of an application, once, and told to programs."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.wire_values import program

from tidemill import clock
from tidemill.image.profile import Mount, read_profile
from tidemill.node.framed import frame
from tidemill.site.applications.profiles import NOTED_LOOKS_MAX, VERSIONS_MAX, Profiles, Version, cost_of
from tidemill.wire.api import AppOffer
from tidemill.wire.node import IndexEntry, Noted, Program, Returned

FIXTURES = Path(__file__).parents[3] / "fixtures" / "profiles"
AREAS = {"software": ["/sw", "/opt"], "work": ["/lustre"]}
PILOT = "a.r0.i1"


class AtOnce(Executor):
    """Helpers that have done everything when they are asked."""

    def submit(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **named))
        except Exception as error:  # noqa: BLE001 -- as a real executor does
            future.set_exception(error)
        return future


class World:
    """A site directory with a fleet of two applications, and its profiles."""

    def __init__(self, site: Path) -> None:
        self.fleet = site / "fleets" / "e1-1"
        (self.fleet / "bundle").mkdir(parents=True)
        (self.fleet / "work").mkdir()
        programs = [
            {"program": 1, "app": "sim", "version": "2/b", "more": 1},
            {"program": 2, "app": "command", "version": "1"},
            {"program": 3, "app": "other", "version": "1"},
        ]
        jobs = [{"job": 7 + number, "program": 1 + number} for number in range(3)]
        for number, told in enumerate(jobs, start=1):
            text = {"programs": programs[number - 1 : number], "jobs": [told], "number": number}
            (self.fleet / "work" / f"{number:06d}.json").write_bytes(msgspec.json.encode(text))
        self.site = site
        self.profiles = self.opened()

    def opened(self) -> Profiles:
        return Profiles(self.site / "profiles", self.site / "fleets", AREAS)

    def put(self, name: str = "first", *, job: int = 7, pilot: str = PILOT, **fields: Any) -> None:
        """A profile at the end of a pilot's bundle."""
        content = (FIXTURES / f"{name}.json").read_bytes()
        bundle = self.fleet / "bundle" / f"{pilot}.tar"
        offset = bundle.stat().st_size if bundle.exists() else 0
        with bundle.open("ab") as file:
            file.write(content)
        entry = IndexEntry(
            kind="profile",
            job=job,
            first=0,
            count=1,
            name="profile",
            offset=offset,
            length=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            truncated=False,
        )
        entry = msgspec.structs.replace(entry, **fields)
        with bundle.with_suffix(".idx").open("ab") as file:
            file.write(frame(msgspec.json.encode(entry)))

    def look(self, profiles: Profiles | None = None) -> bool:
        """One look, and its result."""
        it = profiles or self.profiles
        it._next_s = 0.0
        it.step(AtOnce())
        it._next_s = clock.monotonic_s() + 100
        return it.step(AtOnce())

    def did_something(self, pilot: str = PILOT, profiles: Profiles | None = None) -> None:
        record = Returned(p=pilot, s=1, grant=1, job=7, first=0, count=1, reason="drain")
        (profiles or self.profiles).on_records("e1-1", [record])

    def noted(self, pilot: str = PILOT, *, mode: str = "ptrace") -> None:
        record = Noted(
            p=pilot, s=1, topic="trace", program=1, job=7, mode=mode, message="", numbers={}, at_us=1
        )
        self.profiles.on_records("e1-1", [record])


@pytest.fixture
def it(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_profile_that_came_back_tells_what_a_start_costs(it: World) -> None:
    assert (it.profiles.wants_first("sim", "2/b"), it.profiles.start_ops("sim", "2/b")) == (True, {})
    it.put()
    it.noted()
    assert it.look()
    assert not it.profiles.wants_first("sim", "2/b")
    assert it.profiles.start_ops("sim", "2/b") == {"software": 15, "work": 3}
    assert read_profile(it.site / "profiles" / "sim@2%2Fb.json").runs == 1


def test_runs_are_merged_and_the_cost_is_their_mean(it: World) -> None:
    it.put("first")
    it.put("second", pilot="b.r0.i1.2")
    it.noted()
    it.did_something("b.r0.i1")
    assert it.look()
    cost = it.profiles.cost("sim", "2/b")
    assert cost is not None
    assert (cost.runs, cost.ops, cost.failed, cost.areas) == (2, 18, 3, {"software": 12, "work": 2})
    assert cost.bytes == {"software": 1550, "work": 0}


def test_profiles_of_a_tracer_that_tells_no_sizes_say_nothing_of_bytes(it: World) -> None:
    it.put("second")
    it.noted()
    assert it.look()
    assert it.profiles.start_ops("sim", "2/b") == {"software": 8, "work": 0}
    assert it.profiles.start_bytes("sim", "2/b") == {}


def test_each_profile_counts_once_also_for_the_next_agent(it: World) -> None:
    it.put()
    it.did_something()
    it.look()
    later = it.opened()
    it.did_something(profiles=later)
    assert not it.look(later)
    it.put("second")
    it.did_something(profiles=later)
    assert it.look(later)
    cost = later.cost("sim", "2/b")
    assert cost is not None
    assert cost.runs == 2


def test_the_next_agent_knows_the_costs_from_the_files(it: World) -> None:
    it.put()
    it.noted()
    it.look()
    assert it.opened().start_ops("sim", "2/b") == {"software": 15, "work": 3}


def test_a_note_is_remembered_until_the_profile_is_on_disk(it: World) -> None:
    it.noted()
    assert not it.look()
    it.put()
    assert it.look()


def test_a_note_without_a_profile_is_forgotten(it: World) -> None:
    it.noted()
    for _ in range(NOTED_LOOKS_MAX + 1):
        it.look()
    it.put()
    assert not it.look()


def test_nothing_is_opened_where_nobody_did_anything(it: World) -> None:
    it.put()
    assert not it.look()
    assert not (it.site / "profiles").exists()


def test_commands_of_a_single_job_are_nobodys_profile(it: World) -> None:
    it.put(job=8)
    it.noted()
    assert not it.look()
    assert not it.profiles.wants_first("command", "1")


@pytest.mark.parametrize("fields", [{"truncated": True}, {"sha256": "0" * 64}, {"length": 100}, {"job": 99}])
def test_a_damaged_profile_is_passed_over(it: World, fields: dict[str, Any]) -> None:
    it.put(**fields)
    it.put("second")
    it.noted()
    assert it.look()
    cost = it.profiles.cost("sim", "2/b")
    assert cost is not None
    assert cost.runs == 1


def test_a_bundle_that_is_shorter_than_its_index_is_read_again(it: World) -> None:
    it.put()
    bundle = it.fleet / "bundle" / f"{PILOT}.tar"
    whole = bundle.read_bytes()
    bundle.write_bytes(whole[:100])
    it.noted()
    assert not it.look()
    bundle.write_bytes(whole)
    assert it.look()


def test_a_version_that_cannot_be_kept_takes_no_other_one_with_it(it: World) -> None:
    (it.site / "profiles" / "other@1.json" / "in the way").mkdir(parents=True)
    it.put(job=9)
    it.put()
    it.noted()
    assert it.look()
    it.did_something()
    it.look()
    cost = it.profiles.cost("sim", "2/b")
    assert cost is not None
    assert cost.runs == 1
    assert it.profiles.wants_first("other", "1")


def test_how_far_was_read_is_written_with_profiles_and_else_now_and_then(it: World) -> None:
    taken = it.site / "profiles" / "taken"
    it.put(kind="log")
    it.did_something()
    it.look()
    assert not taken.exists()
    it.put()
    it.did_something()
    it.look()
    told = taken.read_bytes()
    it.put(kind="log")
    it.did_something()
    it.look()
    assert taken.read_bytes() == told
    it.profiles._next_taken_s = 0.0
    it.did_something()
    it.look()
    assert taken.read_bytes() != told


def test_a_damaged_file_of_the_site_is_begun_anew(it: World) -> None:
    (it.site / "profiles").mkdir()
    (it.site / "profiles" / "sim@2%2Fb.json").write_text("{")
    assert it.profiles.cost("sim", "2/b") is None
    it.put()
    it.noted()
    assert it.look()


def test_programs_carry_orders_to_trace_and_costs(it: World) -> None:
    program = _program()
    before = it.profiles.outfit(program, 50)
    assert (before.trace_first, before.trace_every, before.start_ops) == (True, 50, {})
    assert not it.profiles.outfit(program, 0).trace_first
    it.put()
    it.noted()
    mark = it.profiles.mark("sim", "2/b")
    it.look()
    after = it.profiles.outfit(program, 50)
    assert (after.trace_first, after.start_ops) == (False, {"software": 15, "work": 3})
    assert after.start_bytes == {"software": 3099, "work": 0}
    assert it.profiles.mark("sim", "2/b") != mark


def _program() -> Program:
    return program(app="sim", version="2/b", executable="/sw/sim")


def test_what_an_image_shows_costs_shared_file_systems_nothing(it: World) -> None:
    profile = read_profile(FIXTURES / "first.json")
    mounts = [Mount(point="/sw", type="overlay"), Mount(point="/lustre", type="lustre")]
    traced_inside = msgspec.structs.replace(profile, mounts=mounts)
    assert cost_of(profile, AREAS).areas == {"software": 15, "work": 3}
    assert cost_of(traced_inside, AREAS).areas == {"software": 0, "work": 3}
    assert cost_of(traced_inside, AREAS).bytes == {"software": 0, "work": 0}


def test_small_changes_of_a_cost_do_not_make_new_programs(it: World) -> None:
    it.put()
    it.noted()
    it.look()
    mark = it.profiles.mark("sim", "2/b")
    it.put()
    it.noted()
    assert not it.look()
    assert it.profiles.mark("sim", "2/b") == mark


def test_a_profile_that_changes_no_cost_is_still_news_for_the_server_once(it: World) -> None:
    it.put()
    it.did_something()
    assert it.look()
    assert it.profiles.take_news()
    it.put()
    it.did_something()
    assert not it.look(), "programs stay as they are"
    assert it.profiles.take_news(), "the number of traced starts is another"
    assert not it.profiles.take_news()


def test_offers_tell_the_cost(it: World) -> None:
    it.put()
    it.noted()
    it.look()
    offer = AppOffer(
        name="sim",
        version="2/b",
        digest="",
        mode="command",
        parameters={},
        outputs=[],
        cores=1,
        memory_mb=1,
        event_s=1,
    )
    (told,) = it.profiles.offers([offer])
    assert told.start is not None
    assert told.start.ops == 25


def test_versions_have_names_that_are_files() -> None:
    assert Version("a", "../../x y").file_name == "a@..%2F..%2Fx%20y.json"


def test_the_number_of_versions_is_bounded(it: World) -> None:
    (it.site / "profiles").mkdir()
    for k in range(VERSIONS_MAX):
        old = it.site / "profiles" / f"old@{k}.json"
        old.touch()
        os.utime(old, (k, k))
    it.put()
    it.noted()
    assert it.look()
    names = {path.name for path in (it.site / "profiles").glob("*@*.json")}
    assert len(names) == VERSIONS_MAX
    assert "sim@2%2Fb.json" in names
    assert "old@0.json" not in names
