"""Large inputs come to nodes once, by way of a real lead and real pilots."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.node.node_images import software
from tests.worlds.node.pilot_fleet import Field, field, grants, job, program

from tidemill.node.bundle import read_member
from tidemill.node.fleet import WorkOrder
from tidemill.wire.node import Done, Failed, InputDef, JobDef, Share

MIB = 1 << 20


def with_input(work: JobDef, path: Path, sha256: str | None = None) -> JobDef:
    """The job with the file as its shared input `cards`, as the agent tells of it."""
    content = path.read_bytes()
    cards = InputDef(
        name="cards",
        kind="shared",
        path=str(path),
        lines=None,
        first=0,
        sha256=sha256 or hashlib.sha256(content).hexdigest(),
        bytes=len(content),
    )
    return msgspec.structs.replace(work, inputs=[cards])


def shared_file(directory: Path, size: int) -> Path:
    path = directory / "cards"
    path.write_bytes(os.urandom(size))
    return path


def start(it: Field, work: JobDef, **changes: Any) -> None:
    it.fleet.write_work(programs=[program(event_s=1.0, **changes)], jobs=[work], grants=grants(work))
    it.lead()


CHECK = "sha256sum < cards | grep -q {sum} && sleep {sleep}"


def check(path: Path, sleep_s: float) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return CHECK.replace("{sum}", digest).replace("{sleep}", str(sleep_s))


def test_sixteen_nodes_read_the_shared_file_once(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 20 * MIB + 11)
    with field(tmp_path, idle_s=3.0, queue_s=1.0) as it:
        start(it, with_input(job(1, check(path, 1.5), events=48), path))
        pilots = [it.pilot("--cores", "1", allocation=f"tm-here-e1-{k}") for k in range(16)]
        for pilot in pilots:
            assert it.ended(pilot, 90) == 0, it.tails()
        assert str(it.done(1)) == "0-47", it.tails()
        told = it.noted("stage")
        nodes = {record.p for record in it.read() if isinstance(record, Done)}
        assert len(nodes) >= 8, "else this shows little"
        assert len(told) >= len(nodes)
        assert sum(record.numbers["shared_bytes"] for record in told) == 20 * MIB + 11, told
        assert sorted(record.mode for record in told) == ["peer"] * (len(told) - 1) + ["shared"]


def test_a_slot_that_was_made_before_any_input_came_reads_the_original(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 2 * MIB)
    with field(tmp_path, idle_s=3.0, queue_s=1.0) as it:
        first, second = job(1, "true", events=2), with_input(job(2, check(path, 0.1), events=6), path)
        it.fleet.write_work(programs=[program(event_s=1.0)], jobs=[first], grants=grants(first))
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: str(it.done(1)) == "0-1", "the first job is done")
        it.fleet.write_work(jobs=[second], grants=grants(second))
        assert it.ended(pilot, 60) == 0, it.tails()
        assert str(it.done(2)) == "0-5", it.tails()
        assert not it.of(Failed), it.tails()


def test_an_image_comes_from_another_node_too(tmp_path: Path) -> None:
    with software() as sw, field(tmp_path, idle_s=2.0, queue_s=1.0) as it:
        image = sw.image(extra_bytes=3 * MIB)
        hello = program(event_s=1.0, executable=str(sw.area / "bin/hello"), images=[image])
        work = msgspec.structs.replace(job(1, "", events=9), argv=["x"])
        naps = program(2, event_s=1.0)
        nap = job(2, "sleep 1.5", events=6, of=2)
        it.fleet.write_work(programs=[hello, naps], jobs=[nap, work], grants=grants(nap, work))
        it.lead()
        pilots = [it.pilot("--cores", "1", allocation=f"tm-here-e1-{k}") for k in range(3)]
        for pilot in pilots:
            assert it.ended(pilot, 60) == 0, it.tails()
        assert (str(it.done(1)), str(it.done(2))) == ("0-8", "0-5"), it.tails()
        shared = [record.numbers["shared_bytes"] for record in it.noted("stage")]
        assert sum(shared) == image.file.bytes, it.tails()


def test_where_nodes_cannot_reach_each_other_they_read_in_turns(tmp_path: Path) -> None:
    size = 32 * MIB  # long enough to be read by two at once, were it not for turns
    path = shared_file(tmp_path, size)
    with field(tmp_path, idle_s=2.0, queue_s=1.0, peers=False) as it:
        start(it, with_input(job(1, check(path, 1), events=8), path))
        pilots = [it.pilot("--cores", "1", allocation=f"tm-here-e1-{k}") for k in range(4)]
        for pilot in pilots:
            assert it.ended(pilot, 60) == 0, it.tails()
        assert str(it.done(1)) == "0-7"
        told = it.noted("stage")
        assert {record.mode for record in told} == {"shared"}
        assert {record.numbers["shared_bytes"] for record in told} == {size}
        reads = sorted((record.at_us - 1000 * record.numbers["ms"], record.at_us) for record in told)
        assert len(reads) == 4
        assert all(ended <= begun for (_, ended), (begun, _) in pairwise(reads)), reads


def test_without_a_lead_an_allocation_takes_an_image_from_the_node_of_another(tmp_path: Path) -> None:
    with software() as sw, field(tmp_path, lead="none", idle_s=20.0, top_up_s=0.2) as it:
        image = sw.image(extra_bytes=3 * MIB)
        made = program(executable=str(sw.area / "bin/hello"), images=[image])
        pilots = []
        for number in (1, 2):
            name = f"tm-here-e1-{number}"
            work = msgspec.structs.replace(job(number, "", events=2), argv=["x"])
            order = WorkOrder(shares=[Share(allocation=name, grants=[0])])
            it.fleet.write_work(programs=[made], jobs=[work], grants=grants(work), order=order)
            pilots.append(it.pilot("--cores", "1", "--work-from", str(number), allocation=name))
            it.until(lambda number=number: str(it.done(number)) == "0-1", "its work is done")  # type: ignore[misc]
        told = [(record.p, record.mode, record.numbers["shared_bytes"]) for record in it.noted("stage")]
        assert told == [
            ("tm-here-e1-1.r0.i1", "shared", image.file.bytes),
            ("tm-here-e1-2.r0.i1", "peer", 0),
        ], it.tails()
        digest = image.file.sha256
        peers = it.fleet.directory / "peers"
        it.until(lambda: len(json.loads((peers / digest).read_text())["holders"]) == 2, "both are named")
        # not before: the second one is named by a file that replaces the first
        assert {path.name for path in peers.iterdir()} == {digest, f"{digest}.claim1"}
        for pilot in pilots:
            it.signal(pilot, signal.SIGTERM)
            assert it.ended(pilot) == 0, it.tails()


def test_without_a_lead_the_node_of_an_allocation_that_is_gone_costs_a_read(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 2 * MIB)
    with field(tmp_path, lead="none", idle_s=0.2, top_up_s=0.1) as it:
        for number in (1, 2):
            name = f"tm-here-e1-{number}"
            work = with_input(job(number, check(path, 0), events=2), path)
            order = WorkOrder(shares=[Share(allocation=name, grants=[0])])
            it.fleet.write_work(programs=[program()], jobs=[work], grants=grants(work), order=order)
            pilot = it.pilot("--cores", "1", "--work-from", str(number), allocation=name)
            assert it.ended(pilot) == 0, it.tails()
            assert str(it.done(number)) == "0-1", it.tails()
        assert [record.mode for record in it.noted("stage")] == ["shared", "shared"]
        [peers] = [each for each in (it.fleet.directory / "peers").iterdir() if not each.suffix]
        assert len(json.loads(peers.read_text())["holders"]) == 1


def test_without_a_lead_where_nodes_cannot_reach_each_other_each_reads_for_itself(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 2 * MIB)
    with field(tmp_path, lead="none", idle_s=1.0, top_up_s=0.2, peers=False) as it:
        work = with_input(job(1, check(path, 0), events=2), path)
        shares = [Share(allocation="tm-here-e1-1", grants=[0])]
        order = WorkOrder(shares=shares)
        it.fleet.write_work(programs=[program()], jobs=[work], grants=grants(work), order=order)
        assert it.ended(it.pilot("--cores", "1", "--work-from", "1")) == 0, it.tails()
        assert str(it.done(1)) == "0-1", it.tails()
        assert [record.mode for record in it.noted("stage")] == ["shared"]
        assert not (it.fleet.directory / "peers").exists()


@pytest.mark.parametrize("user", [False, True])
def test_slots_of_a_node_share_one_copy_and_other_work_goes_on(tmp_path: Path, user: bool) -> None:
    path = shared_file(tmp_path, 8 * MIB)
    with field(tmp_path, idle_s=1.0) as it:
        links = "stat -Lc '%h %s' cards; ls /tmp/.tidemill/in/1; (: >> cards) 2> /dev/null && echo changed; :"
        work = with_input(job(1, links, events=4), path)
        plain = job(2, ":", events=20)
        # a work directory of 4 MB has no room for a copy
        made = program(event_s=0.2, scratch_mb=4, stdout_output=True)
        it.fleet.write_work(programs=[made], jobs=[work, plain], grants=grants(work, plain))
        it.lead()
        assert it.ended(it.pilot("--cores", "2", user=user)) == 0, it.tails()
        assert str(it.done(1)) == "0-3", it.tails()
        assert str(it.done(2)) == "0-19"
        assert len(it.noted("stage")) == 1
        done = [record for record in it.of(Done) if record.job == 1]
        told = [read_member(it.fleet.bundle, ref).decode() for record in done for ref in record.outputs]
        assert told, it.tails()
        for lines in "".join(told).splitlines():
            assert lines == "cards" or lines.endswith(f" {8 * MIB}"), (
                "one copy of its size, which nobody may write"
            )


def test_a_file_that_is_not_what_it_was_fails_as_stage_in_and_says_what_was_tried(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 2 * MIB)
    with field(tmp_path, idle_s=1.0) as it:
        start(it, with_input(job(1, ":", events=2), path, sha256="ab" * 32))
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        failed = it.of(Failed)
        assert sum(record.count for record in failed if isinstance(record, Failed)) == 2, it.tails()
        for record in failed:
            assert record.failure == "stage_in"
            assert re.search(r"input `cards`: .*the shared file system has digest sha256:", record.message), (
                record
            )
        assert [record.mode for record in it.noted("stage")] == ["failed"]


def test_a_full_store_is_named_and_slots_read_the_file_themselves(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 3 * MIB)
    with field(tmp_path, idle_s=1.0, store_mb=2) as it:
        start(it, with_input(job(1, check(path, 0), events=2), path))
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        assert str(it.done(1)) == "0-1"
        [told] = it.noted("stage")
        assert (told.mode, "in the 2 MB" in told.message) == ("direct", True), told


def test_a_killed_stage_is_started_again_and_keeps_what_was_whole(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 2 * MIB)
    # the pilot must not leave for want of work before its stage was killed twice, on a busy machine either
    with field(tmp_path, idle_s=12.0, queue_s=1.0) as it:
        start(it, with_input(job(1, check(path, 1), events=4), path))
        first = it.pilot("--cores", "1")
        it.until(lambda: bool(it.noted("stage")), "it is staged")
        for _ in range(2):
            killed = stage_of(it, first)
            os.kill(killed, signal.SIGKILL)
            it.until(lambda killed=killed: stage_of(it, first) != killed, "the next one lives")  # type: ignore[misc]
        more = Path(tmp_path / "more")
        more.mkdir()
        new = shared_file(more, 3 * MIB)
        second, third = (
            with_input(job(2, check(path, 1), events=6), path),
            with_input(job(3, check(new, 0), events=2), new),
        )
        it.fleet.write_work(programs=[], jobs=[second, third], grants=grants(second, third))
        other = it.pilot("--cores", "1", allocation="tm-here-e1-2")
        assert [it.ended(pilot, 90) for pilot in (first, other)] == [0, 0], it.tails()
        assert [str(it.done(k)) for k in (1, 2, 3)] == ["0-3", "0-5", "0-1"], it.tails()
        # what the first node holds is read by nobody again, and given to the other node
        shared = sum(record.numbers.get("shared_bytes", 0) for record in it.noted("stage"))
        assert shared == 5 * MIB, it.tails()
        again = [record.message for record in it.noted("stage") if record.mode == "again"]
        assert ["signal 9" in text for text in again] == [True, True], again
        assert again[1].endswith("(tried again in 4 s, 2 of 3 times)"), again


def test_large_inputs_go_to_the_fast_tier_and_nothing_stays_there(tmp_path: Path) -> None:
    path = shared_file(tmp_path, 2 * MIB)
    fast = tmp_path / "burst"
    fast.mkdir()
    with field(tmp_path, idle_s=1.0, fast_dir="${BB}/in", fast_bytes=MIB, store_mb=1) as it:
        shown = "grep -q 'burst/in/tidemill-stage-[^/]*/.* /tmp/.tidemill/in/1/cards' /proc/self/mountinfo"
        start(it, with_input(job(1, f"{shown} && {check(path, 0)}", events=2), path))
        assert it.ended(it.pilot("--cores", "1", env={"BB": str(fast)})) == 0, it.tails()
        assert str(it.done(1)) == "0-1", it.tails()
        assert list((fast / "in").iterdir()) == []


def stage_of(it: Field, pilot: subprocess.Popen[bytes]) -> int:
    """The process that brings files to this pilot's node, once there is one."""
    found: list[int] = []

    def lives() -> bool:
        pids = [int(entry.parent.name) for entry in Path("/proc").glob("[0-9]*/cmdline") if is_stage(entry)]
        found[:] = [pid for pid in pids if is_below(pid, pilot.pid)]
        return len(found) == 1

    it.until(lives, "there is a stage")
    return found[0]


def is_stage(cmdline: Path) -> bool:
    try:
        return cmdline.read_bytes().split(b"\0")[1:-1] == [b"stage"]
    except OSError:
        return False


def is_below(pid: int, ancestor: int) -> bool:
    """Whether the process descends from the other."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False
