"""`tidemill cache ls`, `purge` and `check` on a cache that XCache wrote and that is being read. One world for all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.cache_world import CacheWorld, cache_world, until

from tidemill.errors import TidemillError
from tidemill_caches.contents import fetching
from tidemill_caches.contents.cinfo import CachedInfo
from tidemill_caches.contents.purging import open_files, remove
from tidemill_caches.contents.scan import find, read_info

BLOCK = 1 << 20
SIZE = 5 * BLOCK + 1000
NAMES = ["flipped", "zeroed", "changed", "longer", "good", "held", "other", "kept"]
CONTENTS = {name: os.urandom(SIZE) for name in NAMES}


#: an origin that is unreachable is given up soon
pytestmark = pytest.mark.timing(caches={"ORIGIN_WAIT_S": 3, "ORIGIN_STALL_S": 15})


@pytest.fixture(scope="module")
def world() -> Iterator[CacheWorld]:
    with cache_world() as made:
        for name, content in CONTENTS.items():
            path = made.make(f"d/{name}", content)
            os.utime(path, (1_600_000_000, 1_600_000_000))
        made.init()
        made.start()
        yield made


class Reader:
    """A program that has a file open through the cache."""

    def __init__(self, world: CacheWorld, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(fetching.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**world.client_environ, "LD_PRELOAD": "libXrdPosixPreload.so"},
        )
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline()) == {"ready": True}
        self.size = self._ask(world.url(name), 0, 0)["size"]

    def read(self, offset: int, length: int) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read(self._ask("", offset, length)["length"])

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, *words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer
        return answer


def data_of(world: CacheWorld, name: str) -> Path:
    return world.directory / "data" / "d" / name


def is_open(world: CacheWorld, name: str) -> bool:
    try:
        found = data_of(world, name).stat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) in open_files(world.directory)


def cached(world: CacheWorld, name: str) -> CachedInfo | None:
    try:
        return read_info(f"{data_of(world, name)}.cinfo")
    except TidemillError:
        return None


def fill(world: CacheWorld, *names: str) -> None:
    """Read files whole through the cache, and wait until XCache has closed them."""
    for name in names:
        assert world.read(f"d/{name}") == CONTENTS[name]

    def closed() -> bool:
        return all(
            (info := cached(world, name)) is not None and info.is_complete and not is_open(world, name)
            for name in names
        )

    until(closed, "XCache does not close its files", seconds=120)


def plant(world: CacheWorld, name: str, offset: int, content: bytes) -> None:
    with data_of(world, name).open("r+b") as file:
        file.seek(offset)
        file.write(content)


def run(world: CacheWorld, verb: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = world.tidemill("cache", verb, str(world.directory), *words, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(400)
def test_what_xcache_wrote_is_listed_compared_and_dropped_if_it_differs(world: CacheWorld) -> None:
    # what other tests read stays until XCache has closed it
    until(lambda: run(world, "purge", "--to", "0")[1]["kept_files"] == 0, "files stay open", seconds=120)
    fill(world, "flipped", "zeroed", "changed", "longer", "good")
    code, listed = run(world, "ls")
    assert code == 0
    assert listed["datasets"][0]["dataset"] == "/d"
    assert listed["total"]["held_bytes"] == 5 * SIZE
    assert listed["total"]["complete"] == 5
    code, told = run(world, "check")
    assert (code, told["bad"], told["sums"]["compared_bytes"]) == (0, 0, 5 * SIZE)

    byte = CONTENTS["flipped"][2 * BLOCK + 7]
    plant(world, "flipped", 2 * BLOCK + 7, bytes([byte ^ 4]))
    plant(world, "zeroed", 5 * BLOCK, bytes(1000))
    CONTENTS["changed"] = os.urandom(SIZE)
    CONTENTS["longer"] += b"more"
    for name in ("changed", "longer"):
        world.make(f"d/{name}", CONTENTS[name])
    code, told = run(world, "check", "/d")

    assert code == 1
    found = {each["path"]: (each["verdict"], each["blocks"], each["done"]) for each in told["files"]}
    assert found["/d/flipped"] == ("corrupt", [2], "dropped")
    assert found["/d/zeroed"] == ("corrupt", [5], "dropped")
    assert found["/d/changed"][0] == found["/d/longer"][0] == "changed"
    assert "/d/good" not in found
    for name in NAMES[:5]:
        assert world.read(f"d/{name}") == CONTENTS[name]


@pytest.mark.timeout(400)
def test_what_is_open_is_never_purged_and_a_damaged_block_of_it_is_mended(world: CacheWorld) -> None:
    content = CONTENTS["held"]
    fill(world, "held", "other")
    reader = Reader(world, "d/held")
    assert reader.read(0, 1000) == content[:1000]

    plant(world, "held", 3 * BLOCK, bytes(BLOCK))
    code, told = run(world, "check", "/d/held")
    assert code == 1
    assert [(each["verdict"], each["blocks"], each["done"]) for each in told["files"]] == [
        ("corrupt", [3], "mended")
    ]
    assert reader.read(3 * BLOCK, BLOCK) == content[3 * BLOCK : 4 * BLOCK]

    _, would = run(world, "purge", "--to", "0", "--dry-run")
    code, done = run(world, "purge", "--to", "0")
    assert code == 0
    assert done["files"] >= would["files"] > 0
    assert done["kept_files"] >= 1
    assert data_of(world, "held").exists()
    assert not data_of(world, "other").exists()
    assert reader.read(BLOCK, SIZE) == content[BLOCK:]
    reader.close()
    assert world.read("d/other") == CONTENTS["other"]


@pytest.mark.timeout(400)
def test_a_reader_of_a_file_that_is_removed_at_that_moment_reads_right_bytes(world: CacheWorld) -> None:
    """The race that is left: opened between the query of xrootd's descriptors and the unlinking."""
    fill(world, "good")
    content = CONTENTS["good"]
    readers = [Reader(world, "d/good")]
    assert readers[0].read(0, 10) == content[:10]

    enough = threading.Event()

    def remove_again_and_again() -> None:
        while not enough.is_set():
            remove(world.directory / "data", "/d/good")
            time.sleep(0.002)

    thread = threading.Thread(target=remove_again_and_again)
    thread.start()
    try:
        for _ in range(5):
            readers.append(Reader(world, "d/good"))
            assert readers[-1].read(0, SIZE) == content
    finally:
        enough.set()
        thread.join()
    for reader in readers:
        assert reader.read(0, SIZE) == content
        reader.close()
    until(lambda: not is_open(world, "good"), "XCache does not close its files", seconds=120)

    assert world.read("d/good") == content


@pytest.mark.timeout(400)
def test_a_check_can_only_report_take_a_sample_and_end_in_time(world: CacheWorld) -> None:
    assert world.read("d/kept") == CONTENTS["kept"]
    until(lambda: (info := cached(world, "kept")) is not None and info.is_complete, "it is not cached", 120)
    byte = CONTENTS["kept"][BLOCK]
    plant(world, "kept", BLOCK, bytes([byte ^ 1]))
    code, told = run(world, "check", "/d/kept", "--keep")
    assert (code, told["files"][0]["blocks"], told["files"][0]["done"]) == (1, [1], "")
    assert cached(world, "kept") is not None, "it was only to be reported"

    code, told = run(world, "check", "/d/kept", "--keep", "--sample", "0.0000001%")
    assert (code, told["sums"]["compared_bytes"], told["sums"]["by_verdict"]) == (0, 0, {"skipped": 1})
    code, told = run(world, "check", "/d/kept", "--keep", "--sample", "50%")
    assert told["sums"]["compared_bytes"] < SIZE
    code, told = run(world, "check", "/d/kept", "--keep", "--time", "1h")
    assert (code, told["sums"]["ended_early"], told["sums"]["files"]) == (1, False, 1)
    for wrong in (("--sample", "nan"), ("--time", "soon")):
        done = world.tidemill("cache", "check", str(world.directory), *wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert wrong[1] in done.stderr

    code, told = run(world, "check", "/d/kept", "--sample", "1")
    assert (code, told["files"][0]["done"] in ("dropped", "mended")) == (1, True)
    assert world.read("d/kept") == CONTENTS["kept"]


@pytest.mark.timeout(400)
def test_an_origin_that_is_away_leaves_files_unread_and_drops_nothing(world: CacheWorld) -> None:
    fill(world, "other")
    world.origin.stop()
    world.line.tell("refuse")
    try:
        code, told = run(world, "check", "/d/other")
    finally:
        world.origin.start()
        world.line.tell("accept")

    assert code == 3
    assert [(each["path"], each["verdict"]) for each in told["files"]] == [("/d/other", "unread")]
    assert told["sums"]["compared_bytes"] == 0
    assert find(world.directory / "data", "/d/other") is not None


@pytest.mark.timeout(400)
def test_status_shows_what_is_cached_by_dataset(world: CacheWorld) -> None:
    until(lambda: world.status()["contents"] is not None, "the supervisor writes no summary", seconds=120)

    contents = world.status()["contents"]
    assert {each["dataset"] for each in contents["datasets"]} <= {"/d"}
    assert "contents " in world.tidemill("cache", "status", str(world.directory)).stdout


def test_a_cache_of_another_user_is_neither_purged_nor_checked(world: CacheWorld) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to be another user")
    words = [sys.executable, "-m", "tidemill.cli.main", "cache"]
    for verb in (["purge", str(world.directory), "--to", "0"], ["check", str(world.directory)]):
        done = subprocess.run([*words, *verb], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "belongs to another user" in done.stderr


def test_a_purge_makes_room_on_a_full_disk(world: CacheWorld, tmp_path: Path) -> None:
    """Nothing is written before files are removed."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a disk")
    directory = tmp_path / "c"
    shutil.copytree(world.directory, directory, ignore=shutil.ignore_patterns("data", "run"))
    (directory / "data").mkdir()
    script = (
        'mount -t tmpfs -o size=4m,mode=0700 none "$1/data" && mkdir "$1/data/d" && cp "$2" "$1/data/d/f.cinfo" && '
        '(cat /dev/zero > "$1/data/d/f" || true) 2>/dev/null; shift 2; exec "$@"'
    )
    fill(world, "other")
    record = f"{data_of(world, 'other')}.cinfo"
    command = [
        sys.executable,
        "-m",
        "tidemill.cli.main",
        "cache",
        "purge",
        str(directory),
        "--to",
        "0",
        "--json",
    ]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(directory), record, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 1
