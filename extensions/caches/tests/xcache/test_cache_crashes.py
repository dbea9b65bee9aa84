"""Caches and origins that die in the middle, limits that are reached: no wrong byte, and each case has a name."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.cache_world import CacheWorld, cache_world, far, near, until

from tidemill.routing.contact import HANDSHAKE

__all__ = ["far", "near"]

LARGE = os.urandom(40_000_000)
SMALL = os.urandom(300_000)
MEGABYTE = 1_000_000


def reading(world: CacheWorld, name: str) -> subprocess.Popen[bytes]:
    """An xrdcp that has begun to read a file through the cache."""
    before = world.sent()["down"]
    target = world.folder / "got"
    process = subprocess.Popen(
        ["xrdcp", "--silent", "--force", world.url(name), str(target)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=world.client_environ,
    )  # fmt: skip
    until(lambda: world.sent()["down"] > before + 5 * MEGABYTE, "nothing is read")
    return process


def ended(world: CacheWorld, process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Exit status of that xrdcp, and what it has written."""
    process.communicate(timeout=110)
    target = world.folder / "got"
    return process.returncode, target.read_bytes() if target.exists() else b""


def found(world: CacheWorld, check: str) -> list[dict[str, Any]]:
    """What `status` says of one subject."""
    return [each for each in world.status()["process"]["findings"] if each["check"] == check]


@pytest.mark.timeout(300)
def test_a_read_survives_a_cache_that_is_killed_and_started_again(far: CacheWorld) -> None:
    far.make("f", LARGE)
    far.start()
    process = reading(far, "f")

    pid = far.kill_xrootd()
    state = far.wait_answers(after_pid=pid)

    assert ended(far, process) == (0, LARGE)
    assert state.restarts == 1
    assert state.last_end.startswith("it was killed by SIGKILL")
    assert far.read("f") == LARGE


@pytest.mark.timeout(300)
def test_a_supervisor_that_is_killed_takes_xrootd_with_it_and_its_successor_goes_on(near: CacheWorld) -> None:
    near.make("f", SMALL)
    near.start()
    assert near.read("f") == SMALL
    pid = near.state().pid
    assert near.process is not None

    near.process.kill()
    near.process.wait()
    near.process = None
    until(lambda: not Path(f"/proc/{pid}").exists(), "xrootd outlives its supervisor")
    assert near.status()["runs"] is False
    near.start()

    assert near.read("f") == SMALL


@pytest.mark.timeout(300)
@pytest.mark.timing(caches={"ORIGIN_WAIT_S": 3, "ORIGIN_STALL_S": 10})
def test_an_origin_that_dies_breaks_only_what_is_not_cached_and_is_named(far: CacheWorld) -> None:
    far.make("cached", SMALL)
    far.make("f", LARGE)
    far.init()
    far.start()
    assert far.read("cached") == SMALL
    process = reading(far, "f")

    far.origin.crash()
    far.line.tell("cut")
    status, got = ended(far, process)

    assert got == LARGE if status == 0 else LARGE.startswith(got)
    assert far.read("cached") == SMALL
    assert far.copy(far.url("never")).returncode != 0
    far.line.tell("refuse")
    until(lambda: bool(found(far, "origin")), "status does not name the origin", seconds=90)
    assert "does not answer since" in found(far, "origin")[0]["found"]

    far.origin.start()
    far.line.tell("accept")
    # XCache answers "resource temporarily unavailable" until it has let go of the file that broke
    until(lambda: far.copy(far.url("f")).returncode == 0, "the file cannot be read again", seconds=90)
    assert far.read("f") == LARGE
    until(lambda: not found(far, "origin"), "status still names the origin", seconds=90)


@pytest.mark.timeout(300)
def test_a_cache_that_outgrows_its_space_is_purged_while_it_is_read(near: CacheWorld) -> None:
    contents = {f"d/f{index}": os.urandom(10 * MEGABYTE) for index in range(8)}
    for name, content in contents.items():
        near.make(name, content)
    near.init(size="40MB")
    near.start()

    end = time.monotonic() + 200
    seen: list[int] = []
    while time.monotonic() < end and not (seen and seen[-1] < 40 * MEGABYTE < max(seen)):
        for name, content in contents.items():
            assert near.read(name) == content
        time.sleep(2)
        seen.append(stored_bytes(near))
        if max(seen) > 40 * MEGABYTE:  # let it be purged: what is being read stays
            until(lambda: stored_bytes(near) < 40 * MEGABYTE, "not purged", seconds=150)
            seen.append(stored_bytes(near))

    assert seen[-1] < 40 * MEGABYTE < max(seen)
    for name, content in contents.items():
        assert near.read(name) == content


def stored_bytes(world: CacheWorld) -> int:
    """Bytes of files in the cache."""
    data = world.directory / "data"
    return sum(each.stat().st_blocks * 512 for each in data.rglob("*") if each.is_file())


@pytest.mark.timeout(300)
def test_a_cache_without_descriptors_says_so_and_serves_no_wrong_byte(near: CacheWorld) -> None:
    near.make("f", SMALL)
    near.init()
    near.start(descriptors=240)
    assert near.read("f") == SMALL
    held = []
    try:
        for _ in range(215):
            held.append(socket.create_connection(("127.0.0.1", near.port)))
            held[-1].sendall(HANDSHAKE)
        until(lambda: bool(found(near, "descriptors")), "status does not name the descriptors")
        named = found(near, "descriptors")[0]
        done = subprocess.run(
            ["xrdcp", "--silent", "--force", near.url("f"), "-"], capture_output=True, check=False, timeout=100,
            env={**near.client_environ, "XRD_CONNECTIONWINDOW": "5", "XRD_CONNECTIONRETRY": "1"},
        )  # fmt: skip
    finally:
        for each in held:
            each.close()

    assert "of 240 descriptors open" in named["found"]
    assert done.stdout == SMALL if done.returncode == 0 else SMALL.startswith(done.stdout)
    until(lambda: not found(near, "descriptors"), "still named")
    assert near.read("f") == SMALL


def test_a_limit_that_is_too_low_is_refused_before_the_start(near: CacheWorld) -> None:
    near.init()

    done = near.tidemill("cache", "run", str(near.directory), descriptors=229)

    assert done.returncode == 2
    assert "a cache needs 230 descriptors at least, and this system allows 229" in done.stderr


def test_a_port_that_is_taken_is_named(near: CacheWorld) -> None:
    near.init()
    with socket.create_server(("127.0.0.1", near.port)):
        done = near.tidemill("cache", "run", str(near.directory))

    assert done.returncode == 3
    assert f"port {near.port} is taken by another process" in done.stderr


def test_a_second_run_in_the_same_directory_is_refused(near: CacheWorld) -> None:
    near.start()

    done = near.tidemill("cache", "run", str(near.directory))

    assert done.returncode == 2
    assert f"a cache runs in `{near.directory}` already" in done.stderr
    assert near.status()["process"]["restarts"] == 0


@pytest.mark.timeout(300)
def test_blocks_that_were_noted_before_a_crash_are_not_fetched_again() -> None:
    content = os.urandom(160 << 20)
    with cache_world() as world:
        world.make("f", content)
        world.start()
        process = reading(world, "f")
        until(lambda: world.sent()["down"] > 130 << 20, "not read")

        world.kill_xrootd()

        assert ended(world, process) == (0, content)
        assert world.sent()["down"] < len(content) + (110 << 20)  # 100 blocks of 1 MiB, and those under way
