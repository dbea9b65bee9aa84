"""Servers that lie, networks that break in the middle, uploads that take long; nobody sees half a file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from tests.contract.transfer_world import SETTINGS, Server

from tidemill.config.transfer import Endpoint
from tidemill.model.failure import FailureClass
from tidemill.transfer.contract import TransferError
from tidemill.transfer.mover import Mover

CONTENT = os.urandom(2_000_000)
ONCE = msgspec.structs.replace(SETTINGS, tries_max=1)
PATIENT = msgspec.structs.replace(SETTINGS, tries_max=6)
CUT_BYTES = 60_000_000


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], Server]]:
    """Servers by scheme, started when they are first asked for."""
    made: dict[str, Server] = {}
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as text:
        Path(text).chmod(0o711)

        def server(scheme: str) -> Server:
            if scheme == "s3":
                pytest.importorskip("boto3")
            if scheme not in made:
                (Path(text) / scheme).mkdir(mode=0o711)
                made[scheme] = Server(scheme, Path(text) / scheme)
            return made[scheme]

        yield server
        for each in made.values():
            each.stop()


def refuses(server: Server, mover: Mover, tmp_path: Path, url: str, out: str) -> None:
    """What has another checksum than its server says neither comes nor stays."""
    (tmp_path / "out").write_bytes(CONTENT)
    with pytest.raises(TransferError, match="has checksum") as error:
        mover.get(url, tmp_path / "in", mover.watch())
    assert error.value.failure is FailureClass.STAGE_IN
    with pytest.raises(TransferError, match="has other bytes") as error:
        mover.put(tmp_path / "out", out, mover.watch())
    assert error.value.failure is FailureClass.STAGE_OUT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert not list(server.data.rglob("out*")), "it stayed under its name"
    assert not list(server.data.rglob("*.part"))


def test_an_httpd_that_lies_about_checksums_gives_and_keeps_nothing(
    servers: Callable[[str], Server], tmp_path: Path
) -> None:
    https = servers("https")
    https.make("told", CONTENT)
    base = https.base + "lies/"
    refuses(https, https.mover(ONCE), tmp_path, base + "told", base + "out")


def test_an_xrootd_that_lies_about_checksums_gives_and_keeps_nothing(
    servers: Callable[[str], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as text:
        place = Path(text)
        place.chmod(0o711)
        liar = place / "liar"
        liar.write_text("#!/bin/sh\necho deadbeef\n")
        liar.chmod(0o755)
        monkeypatch.setenv("XROOTD_CHKSUM", f"max 2 adler32 {liar}")
        (place / "server").mkdir(mode=0o711)
        server = Server("root", place / "server")
        try:
            url = server.make("told", CONTENT)
            refuses(server, server.mover(ONCE), tmp_path, url, server.address("out"))
        finally:
            server.stop()


@pytest.mark.parametrize("scheme", ["https", "root", "gsiftp", "s3"])
def test_nobody_sees_half_an_output_under_its_name(
    servers: Callable[[str], Server], tmp_path: Path, scheme: str
) -> None:
    server, seen, names = servers(scheme), set[int](), set[str]()
    with (tmp_path / "out").open("wb") as file:
        file.write(CONTENT)
        file.truncate(CUT_BYTES)
    ended = threading.Event()
    before = {path.name for path in server.data.iterdir()}

    def look() -> None:
        while not ended.is_set():
            for path in server.data.iterdir():
                if path.name not in {*before, "slowly"} and not path.name.startswith(
                    ".davfs."
                ):  # Apache's own
                    names.add(path.suffix)
                if path.name == "slowly":
                    with suppress(FileNotFoundError):
                        seen.add(path.stat().st_size)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        mover = server.mover()
        mover.put(tmp_path / "out", server.address("slowly"), mover.watch())
    finally:
        ended.set()
        looker.join()
    assert seen <= {CUT_BYTES}
    if scheme != "s3":  # objects appear whole
        assert names == {".part"}
    assert {path.name for path in server.data.iterdir()} - before == {"slowly"}


@pytest.mark.parametrize("scheme", ["http", "https", "root", "s3"])
@pytest.mark.parametrize("way", ["in", "out"])
def test_a_connection_that_is_cut_costs_tries_only(
    servers: Callable[[str], Server], tmp_path: Path, scheme: str, way: str
) -> None:
    server = servers("https" if scheme == "http" else scheme)
    started = server.started[1 if scheme == "http" else 0].rstrip("/")
    port = int(started.rsplit(":", 1)[1])
    with passing(port, cut_after_bytes=15_000_000, cuts=2) as (near, cut):
        endpoint = through(server, scheme, near)
        mover = Mover([endpoint], PATIENT, size_max=10**9)
        name = f"cut-{scheme}-{way}"
        if way == "in":
            server.make_large(name, CUT_BYTES)
            mover.get(endpoint.url + name, tmp_path / "file", mover.watch())
        else:
            with (tmp_path / "file").open("wb") as file:
                file.write(CONTENT)
                file.truncate(CUT_BYTES)
            mover.put(tmp_path / "file", endpoint.url + name, mover.watch())
        mover.close()
    assert cut[0] > 0, "nothing was cut"
    same = subprocess.run(["cmp", str(tmp_path / "file"), str(server.data / name)], check=False)
    assert same.returncode == 0
    assert not list(server.data.rglob(".cut*"))


def through(server: Server, scheme: str, port: int) -> Endpoint:
    """The server's endpoint by another port of this host."""
    if scheme == "s3":
        return msgspec.structs.replace(server.endpoint, service=f"http://127.0.0.1:{port}")
    near = {
        "http": f"http://127.0.0.1:{port}/open/",
        "https": f"https://localhost:{port}/open/",
        "root": f"root://127.0.0.1:{port}//",
    }
    return msgspec.structs.replace(server.endpoint, url=near[scheme])


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_gridftp_session_that_is_killed_costs_tries_only(
    servers: Callable[[str], Server], tmp_path: Path, way: str
) -> None:
    server = servers("gsiftp")
    url, killed = server.make_large("session", 300_000_000), [0]
    mover = server.mover(PATIENT)
    watch = mover.watch()

    def kill(moved: int) -> None:
        if moved > 20_000_000 and killed[0] < 2:
            for pid in server.sessions():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed[0] += 1

    watch.on_progress = kill
    if way == "in":
        mover.get(url, tmp_path / "file", watch)
    else:
        subprocess.run(["cp", str(server.data / "session"), str(tmp_path / "file")], check=True)
        mover.put(tmp_path / "file", server.address("session-out"), watch)
        (server.data / "session-out").rename(server.data / "session")
    assert killed[0] > 0, "nothing was killed"
    same = subprocess.run(["cmp", str(tmp_path / "file"), str(server.data / "session")], check=False)
    assert same.returncode == 0
    (server.data / "session").unlink()


def test_an_upload_that_takes_longer_than_the_stall_time_is_no_stall(
    servers: Callable[[str], Server], tmp_path: Path
) -> None:
    server = servers("root")
    port = int(server.started[0].rstrip("/").rsplit(":", 1)[1])
    with (tmp_path / "out").open("wb") as file:
        file.write(CONTENT)
        file.truncate(48_000_000)
    stall_s, bytes_per_s = 10, 3e6
    assert 32_000_000 / bytes_per_s > stall_s, (
        "xrdcp reads 32 MB ahead: it has read all of the file long before the end"
    )
    with passing(port, bytes_per_s=bytes_per_s) as (near, _):
        endpoint = through(server, "root", near)
        mover = Mover([endpoint], msgspec.structs.replace(ONCE, stall_s=stall_s), size_max=10**9)
        mover.put(tmp_path / "out", endpoint.url + "long", mover.watch())
    assert (server.data / "long").stat().st_size == 48_000_000


def test_an_upload_whose_server_hangs_when_all_of_the_file_is_read_is_a_stall(
    servers: Callable[[str], Server], tmp_path: Path
) -> None:
    server = servers("root")
    port = int(server.started[0].rstrip("/").rsplit(":", 1)[1])
    size = 48_000_000
    with (tmp_path / "out").open("wb") as file:
        file.truncate(size)
    with ExitStack() as hung, passing(port, bytes_per_s=16e6) as (near, _):
        endpoint = through(server, "root", near)
        mover = Mover([endpoint], msgspec.structs.replace(ONCE, stall_s=4), size_max=10**9)
        watch = mover.watch()
        watch.on_progress = lambda moved: hung.enter_context(server.frozen()) if moved == size else None
        with pytest.raises(TransferError, match=f"nothing was moved for 4 s, after {size} bytes"):
            mover.put(tmp_path / "out", endpoint.url + "hangs", watch)


class Network:
    """Leads connections to `port`; slow, or ends `cuts` of them after so many bytes. `done`: how many it cut."""

    def __init__(self, port: int, *, cut_after_bytes: int, cuts: int, bytes_per_s: float | None) -> None:
        self._port, self._cut_after_bytes, self._cuts = port, cut_after_bytes, cuts
        self._bytes_per_s = bytes_per_s
        self.done = [0]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self.listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        end(*self._sockets)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets.extend((near, far))
                for come, go in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(come, go), daemon=True).start()

    def _pass_on(self, come: socket.socket, go: socket.socket) -> None:
        moved = 0
        with suppress(OSError):
            while (piece := come.recv(1 << 16)) and not self._is_cut(moved := moved + len(piece)):
                if self._bytes_per_s is not None:
                    time.sleep(len(piece) / self._bytes_per_s)
                go.sendall(piece)
        end(come, go)

    def _is_cut(self, moved: int) -> bool:
        if self.done[0] >= self._cuts or moved <= self._cut_after_bytes:
            return False
        self.done[0] += 1
        return True


@contextmanager
def passing(
    port: int, *, cut_after_bytes: int = 0, cuts: int = 0, bytes_per_s: float | None = None
) -> Iterator[tuple[int, list[int]]]:
    network = Network(port, cut_after_bytes=cut_after_bytes, cuts=cuts, bytes_per_s=bytes_per_s)
    try:
        yield network.listener.getsockname()[1], network.done
    finally:
        network.close()


def end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
