"""Nodes that give files to each other, as processes: ends, deaths, rights."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.node.pilot_fleet import binary
from tests.worlds.node.stage_nodes import BLOCK_BYTES, Stage, content, staged

Start = Callable[..., Stage]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts stages; all end with the test."""
    node = binary()
    started: list[Stage] = []

    def start(**changes: object) -> Stage:
        started.append(Stage(node, tmp_path / f"store-{len(started)}", **changes))
        return started[-1]

    yield start
    for stage in started:
        stage.close()


def until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.005)


def test_a_parent_that_is_killed_in_mid_transfer_costs_what_had_not_come(
    start: Start, tmp_path: Path
) -> None:
    whole = content(6, 17)
    file = staged(tmp_path / "shared", whole)
    # the reader has three blocks and will have no more: its children wait in mid-transfer
    broken = file | {"pieces": [{"path": str(tmp_path / "short"), "offset": 0, "length": len(whole)}]}
    (tmp_path / "short").write_bytes(whole[: 3 * BLOCK_BYTES])
    reader, child, grandchild, other = start(), start(), start(), start()
    reader.fetch(broken)
    assert "the file ends before" in reader.report()["message"]
    child.fetch(file, reader.address)
    grandchild.fetch(file, child.address)
    for each in (child, grandchild):
        part = each.directory / f".{file['sha256']}.part"
        until(lambda part=part: part.exists() and part.stat().st_size == 3 * BLOCK_BYTES, "three blocks")  # type: ignore[misc]
    reader.process.kill()
    lost = child.report()
    assert (lost["m"], lost["kind"], lost["avoid"]) == ("failed", "peer", [reader.address])
    other.fetch(file)
    assert other.report()["shared_bytes"] == len(whole)
    child.fetch(file, other.address)
    for each, sources in ((child, [reader.address, other.address]), (grandchild, [child.address])):
        held = each.report()
        assert (held["m"], held["shared_bytes"], held["from"]) == ("held", 0, sources)
        assert Path(held["path"]).read_bytes() == whole


def test_a_stage_ends_with_its_pilot_and_lets_nobody_in_who_has_no_secret(
    start: Start, tmp_path: Path
) -> None:
    stage = start()
    file = staged(tmp_path / "shared", b"precious")
    stage.fetch(file)
    stage.report()
    host, port = stage.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as stranger:
        greeting = json.loads(stranger.makefile("r").readline())
        wish = {
            "name": "x",
            "nonce": "0" * 32,
            "proof": "0" * 64,
            "sha256": file["sha256"],
            "bytes": 8,
            "block": 0,
        }
        stranger.sendall(json.dumps(wish).encode() + b"\n")
        assert set(greeting) == {"nonce", "block_bytes"}
        assert stranger.recv(100) == b""
    os.kill(stage.process.pid, 15)  # a batch system's TERM is for the pilot to decide on
    stage.fetch(file)
    assert stage.report()["m"] == "held"
    stage.close()
    assert stage.process.returncode == 0


def test_large_inputs_are_held_in_the_fast_tier(start: Start, tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    fast.mkdir()
    stage = start(fast=str(fast), bytes_max=10)
    file = staged(tmp_path / "shared", content(1))
    stage.fetch(file, fast=True)
    held = stage.report()
    assert Path(held["path"]).parent == fast, held
    stage.fetch(staged(tmp_path / "second", content(1)))
    assert stage.report()["kind"] == "full"
