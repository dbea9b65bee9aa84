"""One suite over all ways of moving data, each with the real server: `docs/transfers.md` is what it keeps."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.contract.transfer_world import SCHEMES, SETTINGS, Server
from tests.worlds.home.small_disk import small_disk

from tidemill.model.failure import FailureClass
from tidemill.transfer.checksum import sums
from tidemill.transfer.contract import TransferError
from tidemill.transfer.mover import Moved, Mover

CONTENT = os.urandom(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ADLER = f"{zlib.adler32(CONTENT):08x}"
QUICK = msgspec.structs.replace(SETTINGS, tries_max=1)
PATIENT = msgspec.structs.replace(SETTINGS, tries_max=8, pause_s=0.3, stall_s=20)
LARGE_BYTES = 150_000_000


@pytest.fixture(scope="module", params=SCHEMES)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "s3":
        pytest.importorskip("boto3")
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # the server is another user when we are root
        made = Server(request.param, Path(folder))
        yield made
        made.stop()


def get(mover: Mover, url: str, target: Path, **expect: str) -> Moved:
    watch = mover.watch()
    return mover.sum_up(target, mover.get(url, target, watch, expect=expect), watch)


def put(mover: Mover, source: Path, url: str, before: str | None = None) -> Moved:
    return mover.put(source, url, mover.watch(), before=[] if before is None else [before])


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.part"))


def refused(error: pytest.ExceptionInfo[TransferError], failure: FailureClass) -> None:
    assert error.value.failure is failure, error.value.message
    assert error.value.hint or error.value.missing, error.value.message


# ---- in -----------------------------------------------------------------------------------------------------------


def test_a_file_comes_whole_with_its_checksums(server: Server, tmp_path: Path) -> None:
    moved = get(server.mover(), server.make("in", CONTENT), tmp_path / "in", sha256=DIGEST, adler32=ADLER)
    assert (tmp_path / "in").read_bytes() == CONTENT
    assert (moved.size_bytes, moved.sha256, moved.adler32) == (len(CONTENT), DIGEST, ADLER)
    assert left_over(tmp_path) == []


def test_what_has_another_checksum_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    url = server.make("damaged", CONTENT)
    for expect in ({"sha256": "0" * 64}, {"adler32": "00000000"}):
        with pytest.raises(TransferError, match="has checksum") as error:
            get(server.mover(), url, tmp_path / "in", **expect)
        refused(error, FailureClass.STAGE_IN)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_is_told_at_once(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TransferError) as error:
        get(server.mover(), server.address("nowhere"), tmp_path / "in")
    assert error.value.missing
    assert not error.value.transient
    assert error.value.failure is FailureClass.STAGE_IN
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_comes_and_goes(server: Server, tmp_path: Path) -> None:
    moved = get(server.mover(), server.make("empty", b""), tmp_path / "in")
    assert (moved.size_bytes, moved.sha256) == (0, hashlib.sha256(b"").hexdigest())
    put(server.mover(), tmp_path / "in", server.address("empty-out"))
    assert server.content("empty-out") == b""


@pytest.mark.parametrize(
    "name", ["a b", "a+b%20c", "ä-é-漢", "-rf", "[x]*{y}", "a'b\"c;d$(e)`f`&g", "x=1,y:2@3"]
)
def test_odd_names_are_names(server: Server, tmp_path: Path, name: str) -> None:
    if server.scheme == "ftp" and not name.isascii():
        with pytest.raises(TransferError, match="beyond ASCII"):
            get(server.mover(), server.make(f"in {name}", b"odd"), tmp_path / "in")
        return
    get(server.mover(), server.make(f"in {name}", b"odd"), tmp_path / "in")
    assert (tmp_path / "in").read_bytes() == b"odd"
    if server.scheme == "davs":  # XRootD 5.5.3 gives such names to new files only
        before = sorted(server.data.iterdir())
        with pytest.raises(TransferError, match="another name") as error:
            put(server.mover(), tmp_path / "in", server.address(f"out {name}"))
        refused(error, FailureClass.STAGE_OUT)
        assert sorted(server.data.iterdir()) == before
    mover = server.mover(rename=server.scheme != "davs")
    put(mover, tmp_path / "in", server.address(f"out {name}"))
    assert server.content(f"out {name}") == b"odd"


def test_the_longest_name_of_a_file_system_is_a_name(server: Server, tmp_path: Path) -> None:
    length = 200 if server.scheme == "s3" else 255  # s3s-fs gives objects longer names of its own
    name = "n" * (length - 4) + ".txt"
    get(server.mover(), server.make(f"longest/{name}", CONTENT), tmp_path / name)
    put(server.mover(), tmp_path / name, server.address(f"longest/out/{name}"))
    assert server.content(f"longest/out/{name}") == CONTENT
    assert left_over(server.data) == []


def test_a_file_over_the_cap_is_not_fetched(server: Server, tmp_path: Path) -> None:
    url = server.make("large", CONTENT)
    with pytest.raises(TransferError, match="at most 1000") as error:
        get(server.mover(size_max=1000), url, tmp_path / "in")
    refused(error, FailureClass.STAGE_IN)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_is_tried_again_and_then_named(server: Server, tmp_path: Path) -> None:
    url = server.make("in", CONTENT)
    server.stop()
    try:
        with pytest.raises(TransferError, match=r"after 2 tries") as error:
            get(server.mover(msgspec.structs.replace(SETTINGS, tries_max=2)), url, tmp_path / "in")
    finally:
        server.start()
    assert error.value.transient
    refused(error, FailureClass.STAGE_IN)


def test_a_server_killed_in_the_middle_and_restarted_costs_tries_only(server: Server, tmp_path: Path) -> None:
    url = server.make_large("huge", LARGE_BYTES)
    mover = server.mover(PATIENT)
    watch, begun = mover.watch(), threading.Event()
    watch.on_progress = lambda moved: begun.set()

    def kill() -> None:
        begun.wait(30)
        server.crash()
        server.start()

    with ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill)
        try:
            moved = mover.get(url, tmp_path / "in", watch)
        finally:
            killed.result()  # why the server is not there again
    assert moved.size_bytes == LARGE_BYTES
    same = subprocess.run(["cmp", str(tmp_path / "in"), str(server.data / "huge")], check=False)
    assert same.returncode == 0
    assert left_over(tmp_path) == []
    (server.data / "huge").unlink()


def test_a_broken_attempt_is_gone_on_with_by_whoever_comes_next(server: Server, tmp_path: Path) -> None:
    url = server.make_large("huge", LARGE_BYTES)
    mover = server.mover(QUICK)
    watch = mover.watch()
    watch.on_progress = lambda moved: watch.canceled.set() if moved > 10_000_000 else None
    with pytest.raises(TransferError, match="canceled"):
        mover.get(url, tmp_path / "in", watch)
    assert not (tmp_path / "in").exists()
    other = server.mover()  # xrdcp 5.5.3 at times ends with `user supplied buffer is too small`
    adler32 = sums(server.data / "huge", {"adler32"})["adler32"]  # of what came first, too
    assert get(other, url, tmp_path / "in", adler32=adler32).size_bytes == LARGE_BYTES
    same = subprocess.run(["cmp", str(tmp_path / "in"), str(server.data / "huge")], check=False)
    assert same.returncode == 0
    (server.data / "huge").unlink()


def test_a_server_that_hangs_is_given_up_after_the_configured_time(server: Server, tmp_path: Path) -> None:
    url = server.make("in", CONTENT)
    hasty = msgspec.structs.replace(SETTINGS, tries_max=1, stall_s=1.5)
    late = r"(?i)for 1\.5 s|no answer in time|time(d )?out"  # some clients report it in their own words
    with server.frozen(), pytest.raises(TransferError, match=late) as error:
        get(server.mover(hasty), url, tmp_path / "in")
    assert error.value.transient
    assert get(server.mover(), url, tmp_path / "in").sha256 == DIGEST


def test_a_full_disk_of_the_site_is_named(server: Server, tmp_path: Path) -> None:
    full = tmp_path / "full"
    with small_disk(full, "1m"):
        with pytest.raises(TransferError, match=r"(?i)no space left") as error:
            get(server.mover(QUICK), server.make("in", CONTENT), full / "in")
        refused(error, FailureClass.STAGE_IN)
        assert not (full / "in").exists()


# ---- out ----------------------------------------------------------------------------------------------------------


def test_an_output_gets_its_name_when_it_is_whole_and_compared(server: Server, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(CONTENT)
    moved = put(server.mover(), tmp_path / "out", server.address("new/deep/out"))
    assert server.content("new/deep/out") == CONTENT
    assert moved.checked, "nobody compared"
    assert left_over(server.data) == []


def test_putting_the_same_output_again_changes_nothing(server: Server, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(CONTENT)
    for _ in range(2):
        assert put(server.mover(), tmp_path / "out", server.address("twice")).sha256 == DIGEST
    assert server.content("twice") == CONTENT


def test_a_foreign_file_is_never_overwritten_an_earlier_one_of_ours_is(
    server: Server, tmp_path: Path
) -> None:
    url = server.make("taken", b"foreign")
    (tmp_path / "out").write_bytes(CONTENT)
    with pytest.raises(TransferError, match="not known to be this job's") as error:
        put(server.mover(), tmp_path / "out", url)
    refused(error, FailureClass.STAGE_OUT)
    assert server.content("taken") == b"foreign"
    put(server.mover(), tmp_path / "out", url, before=hashlib.sha256(b"foreign").hexdigest())
    assert server.content("taken") == CONTENT


def test_an_endpoint_that_is_not_to_be_written_is_not(server: Server, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(CONTENT)
    with pytest.raises(TransferError, match="does not write to") as error:
        put(server.mover(access="read"), tmp_path / "out", server.address("never"))
    refused(error, FailureClass.STAGE_OUT)
    assert not (server.data / "never").exists()


def test_a_server_killed_while_it_is_written_to_has_the_whole_file_in_the_end(
    server: Server, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as file:
        file.write(CONTENT)
        file.truncate(LARGE_BYTES)
    mover, begun = server.mover(PATIENT), threading.Event()

    def kill() -> None:
        begun.wait(30)
        for _ in range(1000):
            if any(_size(path) > 1_000_000 for path in server.folder.rglob("*")):
                break
            time.sleep(0.02)
        server.crash()
        server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    begun.set()
    put(mover, tmp_path / "out", server.address("survivor"))
    killer.join()
    same = subprocess.run(["cmp", str(tmp_path / "out"), str(server.data / "survivor")], check=False)
    assert same.returncode == 0
    (server.data / "survivor").unlink()


def test_removing_is_repeatable(server: Server, tmp_path: Path) -> None:
    url = server.make("gone", b"x")
    mover = server.mover()
    for _ in range(2):
        mover.remove(url, mover.watch())
    assert not (server.data / "gone").exists()


def _size(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:
        return 0
    return 0 if path.name in ("huge", "large") or not path.is_file() else status.st_size
