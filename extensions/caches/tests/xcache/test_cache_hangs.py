"""An xrootd that hangs, a port that another takes in between, a proxy that ends: the supervisor goes on and says so."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from extensions.caches.tests.unit.test_cache_credentials import certificate
from tests.worlds.services.cache_world import CacheWorld, near, until

__all__ = ["near"]

CONTENT = os.urandom(3_000_000)


def checks(world: CacheWorld) -> dict[str, str]:
    return {each.check: each.found for each in world.state().findings}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.timeout(120)
@pytest.mark.timing(caches={"HANG_S": 10})  # it is named for this time: to be seen on a busy machine
def test_an_xrootd_that_hangs_is_named_then_killed_and_started_again(near: CacheWorld) -> None:
    near.make("d/f", CONTENT)
    near.init()
    near.start()
    pid = near.state().pid
    os.kill(pid, signal.SIGSTOP)

    until(lambda: "does not answer" in checks(near).get("process", ""), "it is not named")
    state = near.wait_answers(after_pid=pid)

    assert state.restarts == 1
    assert state.last_end.startswith("it was killed by SIGKILL")
    assert near.read("d/f") == CONTENT
    pid = near.state().pid
    os.kill(pid, signal.SIGSTOP)
    assert near.stop() == 0, "a supervisor that is asked to end does not wait for it"
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.timeout(120)
def test_a_port_that_another_takes_in_between_is_named_and_taken_back_once_it_is_free(
    near: CacheWorld,
) -> None:
    near.make("d/f", CONTENT)
    near.start()
    pid = near.state().pid
    supervisor = near.state().supervisor_pid
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not listens(near.port), "it still listens")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", near.port))
        thief.listen()
        os.kill(supervisor, signal.SIGCONT)
        text = f"port {near.port} is taken by another process"
        until(lambda: text in checks(near).get("process", ""), "it is not named")
        assert near.state().phase == "waiting"
        assert near.status()["runs"] is True
    state = near.wait_answers(after_pid=pid)
    assert state.phase == "running"
    assert near.read("d/f") == CONTENT


def test_a_proxy_that_ends_soon_is_named_by_status_and_in_the_state(near: CacheWorld) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=30)
    proxy = near.home / "proxy"
    proxy.write_bytes(certificate(ends))
    proxy.chmod(0o600)
    if os.getuid() == 0:
        shutil.chown(proxy, "nobody")
    near.init()
    near.set_table("credential", certificate=proxy)
    near.start()

    until(lambda: "credential" in checks(near), "it is not named")

    assert near.state().credential_ends_us == int(ends.timestamp() * 1e6)
    done: subprocess.CompletedProcess[str] = near.tidemill("cache", "status", str(near.directory))
    assert "expires  credential towards origins: good until" in done.stdout
    assert "origins refuse the cache then" in " ".join(done.stdout.split())
