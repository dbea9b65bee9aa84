"""Files of 1 GB by every protocol, also with a server that is killed on the way. `make large` runs this."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.contract.transfer_world import SCHEMES, SETTINGS, Server

GIGABYTE = 1_000_000_000
PATIENT = msgspec.structs.replace(SETTINGS, tries_max=8, pause_s=0.3, stall_s=60, deadline_s=600)


@pytest.fixture(scope="module", params=SCHEMES)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        made = Server(request.param, Path(folder))
        yield made
        made.stop()


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["cmp", str(one), str(other)], check=False).returncode == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_killed", [False, True], ids=["calm", "killed"])
def test_a_gigabyte_comes_and_goes_whole(server: Server, tmp_path: Path, is_killed: bool) -> None:
    url = server.make_large("huge", GIGABYTE)
    mover = server.mover(PATIENT)
    watch, begun = mover.watch(), threading.Event()
    watch.on_progress = lambda moved: begun.set() if moved > GIGABYTE // 10 else None

    def kill() -> None:
        begun.wait(300)
        server.crash()
        server.start()

    killer = threading.Thread(target=kill)
    if is_killed:
        killer.start()
    moved = mover.sum_up(tmp_path / "in", mover.get(url, tmp_path / "in", watch), watch)
    if is_killed:
        killer.join()
    assert moved.size_bytes == GIGABYTE
    assert same(tmp_path / "in", server.data / "huge")
    (server.data / "huge").unlink()
    assert (
        mover.put(tmp_path / "in", server.address(f"back-{is_killed}"), mover.watch()).sha256 == moved.sha256
    )
    assert same(tmp_path / "in", server.data / f"back-{is_killed}")
    (server.data / f"back-{is_killed}").unlink()
