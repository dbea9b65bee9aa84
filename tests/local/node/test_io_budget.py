"""Starts that cost shared file systems are paced: over pilots of a lead, in a pilot without one, in a whole site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from bench.slowfs import mount
from tests.local.node.test_wire_node_lead import Pilot
from tests.worlds.node.pilot_fleet import ROOT, Field, binary, field, grants, job, program

from tidemill.node.fleet import WorkOrder
from tidemill.wire.node import Done, Ended, Grant, IoArea, Permit, Returned, Share, Started, Usage, Want, Work

COST = 25
AREA = {"name": "sw", "prefixes": ["/sw"], "ops_per_s": 100.0, "bytes_per_s": None}
STARTS_PER_S = 100.0 / COST


BYTES_AREA = {"name": "data", "prefixes": ["/data"], "ops_per_s": None, "bytes_per_s": 40e6}


def area(ops_per_s: float) -> IoArea:
    return IoArea(name="sw", prefixes=["/sw"], ops_per_s=ops_per_s, bytes_per_s=None)


def starts_s(it: Field) -> dict[str, list[float]]:
    """When payloads started, per pilot. Outputs keep records of neighbours apart."""
    found: dict[str, list[float]] = {}
    for record in it.of(Done):
        assert record.count == 1
        found.setdefault(record.p, []).append(record.started_us / 1e6)
    return found


def assert_paced(times: list[float], *, per_s: float) -> None:
    """Never more in any 2 s than the budget, what was saved up, and one."""
    times = sorted(times)
    for first in times:
        inside = [at for at in times if first <= at < first + 2.0]
        assert len(inside) <= 2.0 * per_s + 0.2 * per_s + 2, times
    assert times[-1] - times[0] >= (len(times) - 2) / per_s - 0.5, times


def test_three_pilots_start_in_turn_within_the_budget_of_their_fleet(tmp_path: Path) -> None:
    with field(tmp_path, io=[AREA], idle_s=30.0) as it:
        it.lead()
        pilots = [it.pilot("--cores", "2", allocation=f"tm-{n}") for n in range(3)]
        # one that is alone for a moment would be given everything
        it.until(lambda: len(it.of(Started)) == 3, "all have started")
        work = job(1, "echo here", events=24)
        paced = program(start_ops={"sw": COST}, stdout_output=True)
        it.fleet.write_work(programs=[paced], jobs=[work], grants=grants(work), order=WorkOrder(close=True))
        assert [it.ended(pilot) for pilot in pilots] == [0, 0, 0], it.tails()
        assert len(it.done(1)) == 24
        found = starts_s(it)
        assert len(found) == 3
        assert min(len(times) for times in found.values()) >= 4
        assert_paced([at for times in found.values() for at in times], per_s=STARTS_PER_S)


def test_a_fleet_without_a_part_starts_nothing_until_it_is_given_one_and_a_stop_file_ends_the_waiting(
    tmp_path: Path,
) -> None:
    with field(tmp_path, io=[{**AREA, "ops_per_s": 0.0}]) as it:
        free, paced = job(1, "echo free", events=1), job(2, "echo paced", events=40, of=2)
        programs = [program(), program(2, start_ops={"sw": COST}, stdout_output=True)]
        it.fleet.write_work(programs=programs, jobs=[free, paced], grants=grants(free, paced))
        it.lead()
        pilot = it.pilot("--cores", "1")
        it.until(lambda: len(it.done(1)) == 1, "what costs nothing has run")
        assert not it.done(2)
        it.fleet.write_work(order=WorkOrder(io=[area(100.0)]))
        it.until(lambda: len(it.done(2)) >= 2, "the new part is used")
        it.fleet.stop("test")
        assert it.ended(pilot) == 0, it.tails()
        given_back = sum(record.count for record in it.of(Returned))
        assert len(it.done(2)) + given_back == 40
        assert given_back > 10
        [ended] = it.of(Ended)
        assert ended.reason == "stop"


@pytest.mark.parametrize("kind", ["ops", "bytes"])
def test_without_a_lead_a_pilot_keeps_to_its_allocations_share(tmp_path: Path, kind: str) -> None:
    paced = program(start_ops={"sw": COST}, stdout_output=True)
    if kind == "bytes":
        paced = program(start_bytes={"data": 10_000_000}, stdout_output=True)
    areas = [AREA, BYTES_AREA]
    with field(tmp_path, lead="none", io=areas, idle_s=0.5, top_up_s=0.3, output_flush_s=0.3) as it:
        work = job(1, "echo here", events=12)
        grant = Grant(grant=1, job=1, first=0, count=12, chunk_max=None)
        shares = [Share(allocation="tm-1", grants=[0])]
        it.fleet.write_work(
            programs=[paced], jobs=[work], grants=[grant], order=WorkOrder(shares=shares, close=True)
        )
        pilot = it.pilot("--cores", "4", "--work-from", "1", allocation="tm-1")
        assert it.ended(pilot) == 0, it.tails()
        [times] = starts_s(it).values()
        assert len(times) == 12
        assert_paced(times, per_s=STARTS_PER_S)


def test_starts_of_pilots_keep_to_the_slower_of_operations_and_bytes(tmp_path: Path) -> None:
    with field(tmp_path, io=[{**AREA, "ops_per_s": 1000.0}, BYTES_AREA]) as it:
        work = job(1, "echo here", events=16)
        paced = program(start_ops={"sw": COST}, start_bytes={"data": 10_000_000}, stdout_output=True)
        it.fleet.write_work(programs=[paced], jobs=[work], grants=grants(work))
        it.lead()
        pilots = [it.pilot("--cores", "2", allocation=f"tm-{n}") for n in range(2)]
        assert [it.ended(pilot) for pilot in pilots] == [0, 0], it.tails()
        assert len(it.done(1)) == 16
        assert_paced([at for times in starts_s(it).values() for at in times], per_s=4.0)


def test_nodes_that_count_more_than_was_forecast_slow_starts_down_and_are_told(tmp_path: Path) -> None:
    quick = {**AREA, "ops_per_s": 1000.0}
    with field(tmp_path, io=[quick, {**quick, "name": "other", "prefixes": ["/other"]}]) as it:
        works = [job(number, "echo here", events=1, of=number) for number in (1, 2)]
        # one that four times the forecast slows down to the pace of the other
        programs = [program(start_ops={"sw": 10}), program(2, start_ops={"other": 40})]
        it.fleet.write_work(programs=programs, jobs=works, grants=grants(*works))
        it.lead()
        address = it.fleet.lead_address()
        assert address is not None
        secret = it.fleet.secret.read_text().strip()
        pilot = Pilot(address, "tm-1.r0.i1", secret=secret)
        pilot.send(
            Usage(over_us=10_000_000, ops={"sw": 20_000}, bytes={}, starts={"1": 500})
        )  # four times the forecast
        wants = [msgspec.json.encode(Want(program=number, starts=100)) for number in (1, 2)]
        pilot.socket.sendall(b"\n".join([*wants, b""]))  # both begin at once
        starts = Counter[int]()
        while min(starts[1], starts[2]) < 30:
            message = pilot.receive()
            if not isinstance(message, Work):
                assert isinstance(message, Permit)
                assert message.over == {"sw": 2000}
                starts[message.program] += message.starts
        # as fast as the other, however late a busy machine permits both; without a correction, four times as fast
        assert starts[1] < 2 * starts[2]
        pilot.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "options",
    [["--starts", "20", "--budget", "1000"], ["--starts", "40", "--of", "bytes", "--budget", "50e6"]],
    ids=["ops", "bytes"],
)
def test_a_site_keeps_a_campaign_within_the_budget_by_the_servers_own_count(options: list[str]) -> None:
    if why := mount.missing():
        pytest.skip(why)
    bench = [sys.executable, "bench/io_budget.py", "--json", "--only", "with"]
    done = subprocess.run(
        [*bench, "--nodes", "3", "--cores", "2", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
        env={**os.environ, "TIDEMILL_NODE_BINARY": str(binary())},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    found, of = told["with"], told["of"]
    assert found[of] > told["starts"] * found[f"start_{of}"] / 2, found
    assert found["worst_10s"] <= 1.10, found
