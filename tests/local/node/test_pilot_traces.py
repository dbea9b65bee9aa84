"""Traced payloads: their profile is in the bundle and their numbers in the journal, and they end as always."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.node.pilot_fleet import Field, field, grants, job, program

from tidemill.image.profile import Profile, parse_profile
from tidemill.node.bundle import IndexTail, bundles, member_of, read_member
from tidemill.wire.node import Done, Failed, IndexEntry

LOOK = "for i in 1 2 3 4 5 6 7; do test -e /no/such/place; done; :"


def profiles(it: Field) -> list[tuple[IndexEntry, Profile]]:
    """Members of the bundles that are profiles, read by offset."""
    found = []
    for bundle in bundles(it.fleet.bundle):
        for entry in IndexTail(bundle).read():
            if entry.kind == "profile":
                content = read_member(bundle.parent, member_of(bundle.name, entry))
                found.append((entry, parse_profile(content, source=str(bundle))))
    return found


def test_the_first_payload_of_a_slot_and_every_so_many_th_leave_a_profile(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        once, often = job(1, LOOK, events=12), job(2, LOOK, events=12, of=2)
        programs = [program(trace_first=True), program(2, trace_first=True, trace_every=5)]
        it.fleet.write_work(programs=programs, jobs=[once, often], grants=grants(once, often))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()

        assert (str(it.done(1)), str(it.done(2))) == ("0-11", "0-11")
        found = profiles(it)
        assert [(entry.job, entry.name, entry.first) for entry, _ in found] == [
            (1, "profile", 0),
            (2, "profile", 0),
            (2, "profile", 5),
            (2, "profile", 10),
        ]
        for entry, profile in found:
            absent = {use.path: use.failed for use in profile.paths}
            assert absent["/no/such/place"] == 7
            assert (profile.command[0], profile.exit, entry.count) == ("/bin/sh", 0, 1)
        records = it.noted("trace")
        assert [(record.job, record.program, record.mode) for record in records] == [
            (1, 1, "ptrace"),
            *[(2, 2, "ptrace")] * 3,
        ]
        assert [record.numbers["ops"] for record in records] == [each.ops_total for _, each in found]
        assert [record.numbers["failed"] for record in records] == [each.failed_total for _, each in found]
        assert all(record.user_us + record.system_us > 0 for record in it.of(Done))


def test_of_all_slots_of_a_node_one_traces_the_first_payload(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, f"sleep 0.1; {LOOK}", events=12)
        it.fleet.write_work(programs=[program(trace_first=True)], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "4")) == 0, it.tails()

        assert str(it.done(1)) == "0-11"
        assert len({record.slot for record in it.of(Done)}) > 1
        assert len(profiles(it)) == len(it.noted("trace")) == 1


def test_a_traced_payload_fails_with_its_own_status_and_evidence(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        fails, dies = job(1, "echo words >&2; exit 7", events=1), job(2, "kill -SEGV $$", events=1, of=2)
        programs = [program(trace_first=True), program(2, trace_first=True)]
        it.fleet.write_work(programs=programs, jobs=[fails, dies], grants=grants(fails, dies))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()

        failed = {record.job: record for record in it.of(Failed)}
        assert (failed[1].exit_status, failed[1].stderr_tail) == (7, "words\n")
        assert (failed[2].signal, failed[2].failure) == (11, "payload")
        assert [profile.exit for _, profile in profiles(it)] == [7, None]


def test_what_a_traced_payload_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "sleep 600 & exit 0", events=2)
        it.fleet.write_work(programs=[program(trace_first=True)], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "1"), timeout_s=20) == 0, it.tails()
        assert str(it.done(1)) == "0-1"


def test_a_traced_payload_that_idles_is_killed_and_the_next_one_is_traced_instead(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "test {event} = 0 && exec sleep 600; exit 0", events=2)
        of = program(trace_first=True, looping_s=2.0)  # so long no payload waits for a CPU
        it.fleet.write_work(programs=[of], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()

        [failed] = it.of(Failed)
        assert "used no CPU" in failed.message
        assert [(record.mode, record.message) for record in it.noted("trace")] == [
            ("none", "the payload was killed"),
            ("ptrace", ""),
        ]
        assert [entry.first for entry, _ in profiles(it)] == [1]


def test_a_traced_payload_of_the_range_protocol_works_as_ever(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        script = (
            "echo ready >&4; echo next >&4; while read word first count seed <&3; do "
            "test $word = end && exit 0; test -e /no/such/place; echo done $first $count >&4; echo next >&4; done"
        )
        work = job(1, script, events=30)
        of = program(mode="range", trace_first=True, chunk_max=1)
        it.fleet.write_work(programs=[of], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        assert str(it.done(1)) == "0-29"
        [(entry, profile)] = profiles(it)
        assert (entry.job, profile.exit) == (1, None)  # told while it ran
        assert {use.path: use.failed for use in profile.paths}["/no/such/place"] >= 10
