"""Inputs whose server does not say how large they are: room is reserved in steps, and a file that is cut off fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import SiteError
from tidemill.model.job import Input, JobSpec
from tidemill.site.data.budget import StageRoom
from tidemill.site.data.moves import LocalMoves, MovesPendingError
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import NoRoomError, Stage
from tidemill.transfer.contract import TransferError
from tidemill.transfer.file import Roots
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience
from tidemill.transfer.program import size_of

pytestmark = pytest.mark.timing(
    site={"STAGE_FREE_BYTES_MIN": 0, "STAGE_CACHE_BYTES_MAX": 0}, transfer={"TRIES_MAX": 1}
)

MB = 1_000_000


class _Generated(BaseHTTPRequestHandler):
    """`/SIZE`: so many bytes in chunks, without a word of how many; `/SIZE/cut`: the last chunk does not come;
    `/SIZE/plain`: no chunks, the connection ends."""

    protocol_version = "HTTP/1.1"
    gets: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._head()

    def do_GET(self) -> None:
        self.gets.append(self.path)
        self.close_connection = True
        try:
            self._head()
            self._body()
        except OSError:  # a look reads no byte
            return

    def _body(self) -> None:
        size = int(self.path.split("/")[1])
        for at in range(0, size, 65536):
            piece = b"x" * min(65536, size - at)
            head = b"" if self.path.endswith("plain") else b"%x\r\n" % len(piece)
            self.wfile.write(head + piece + (b"\r\n" if head else b""))
        if not self.path.endswith(("cut", "plain")):
            self.wfile.write(b"0\r\n\r\n")

    def _head(self) -> None:
        self.send_response(200)
        if self.path.endswith("plain"):
            self.send_header("Connection", "close")
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    _Generated.gets.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Generated) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class UntoldStage:
    """A stage of 16 MB, 1 MB of which is reserved for such a file at first."""

    def __init__(self, tmp_path: Path, url: str) -> None:
        config = SiteConfig(
            name="s", server="unix:/x", stage_bytes_max=16 * MB, endpoints=[Endpoint(url=url)]
        )
        (tmp_path / "stage").mkdir()
        self.moves = LocalMoves(config)
        self.stage = Stage(tmp_path / "stage", config, OwnedPlaces(Roots([tmp_path])), self.moves)
        self.reserved: list[int] = []
        self.files = tmp_path / "stage" / "files"

    def ask(self, job: int, url: str) -> int:
        """Bytes of the input once it is there."""
        spec = JobSpec(app="a", events=1, inputs=[Input(name="in", url=url)])
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                (found,) = self.stage.stage(job, spec, [(0, 1)], is_begun=False)
            except NoRoomError:
                raise
            except MovesPendingError:
                taken = self.stage.budget.taken.bytes
                if taken and taken not in self.reserved:
                    self.reserved.append(taken)
                on_disk = sum(map(size_of, self.files.glob(".*.part")))
                assert on_disk <= taken + 1 or not taken
                time.sleep(0.005)
                continue
            assert found.bytes is not None
            return found.bytes
        pytest.fail("it does not come")


@pytest.fixture
def it(tmp_path: Path, url: str) -> Iterator[UntoldStage]:
    made = UntoldStage(tmp_path, url)
    yield made
    made.moves.close()


@pytest.mark.parametrize("size", [0, 10, MB, 3 * MB])
def test_room_for_a_file_of_unknown_size_grows_until_it_fits(it: UntoldStage, url: str, size: int) -> None:
    assert it.ask(1, f"{url}{size}") == size
    assert it.reserved == ([MB, 4 * MB] if size > MB else [MB])
    assert it.stage.budget.taken == StageRoom(0, 0)
    assert it.stage.cache.bytes == size, "what was too much is given back"
    assert not list(it.files.glob(".*.part"))


def test_a_file_of_unknown_size_waits_for_room_that_its_next_step_needs(it: UntoldStage, url: str) -> None:
    assert it.ask(1, f"{url}{14 * MB}") == 14 * MB
    with pytest.raises(NoRoomError):
        it.ask(2, f"{url}{3 * MB}")
    assert "room for 4 MB" in it.stage.waits_for(2)
    it.stage.clean(1)
    it.stage.look_for_room()
    it.stage._next_admit_s = 0.0
    assert it.stage.may_try(2)
    assert it.ask(2, f"{url}{3 * MB}") == 3 * MB


def test_a_file_of_unknown_size_that_is_larger_than_the_stage_is_refused_in_the_end(
    it: UntoldStage, url: str
) -> None:
    with pytest.raises(SiteError, match="at most 16000000 bytes") as error:
        it.ask(1, f"{url}{17 * MB}")
    assert not error.value.transient
    assert it.reserved == [MB, 4 * MB, 16 * MB]
    assert not list(it.files.iterdir())


def test_a_file_of_unknown_size_that_is_cut_off_or_has_no_end_mark_is_not_used(
    it: UntoldStage, url: str
) -> None:
    with pytest.raises(TransferError, match="failed to read") as error:
        it.ask(1, f"{url}500000/cut")
    assert error.value.transient
    with pytest.raises(TransferError, match="the server reports no size") as error:
        it.ask(2, f"{url}500000/plain")
    assert not error.value.transient
    assert it.stage.cache.files == 0


def test_no_more_is_read_of_a_file_of_unknown_size_than_the_site_moves(tmp_path: Path, url: str) -> None:
    mover = Mover([Endpoint(url=url)], MovePatience(tries_max=3), size_max=MB)
    with pytest.raises(TransferError, match="more bytes, this site moves at most 1000000"):
        mover.get(f"{url}{2 * MB}", tmp_path / "in", mover.watch())
    assert len(_Generated.gets) == 2, "one look, one try"
    assert not list(tmp_path.iterdir())
    assert mover.get(f"{url}{MB}", tmp_path / "in", mover.watch()).size_bytes == MB
