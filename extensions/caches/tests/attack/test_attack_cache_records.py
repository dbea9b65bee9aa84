"""Records of cached files that a neighbour forged, with right checksums: nothing ends by them, and no other file goes.

What a cache refuses to its clients (other hosts, `..`, URLs in URLs, writes): tests/xcache, with a real XRootD.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill_caches.cli import ls
from tidemill_caches.contents.cinfo import SUFFIX, CacheAccess, CachedInfo, written
from tidemill_caches.contents.purging import Purge, PurgeRule
from tidemill_caches.contents.record import read_contents, write_contents
from tidemill_caches.contents.scan import ScanPace, find

BLOCK_BYTES = 4096
LAST = 2**63 - 1
GOOD = CachedInfo(BLOCK_BYTES, BLOCK_BYTES, 1_700_000_000, 1, b"\1", ())


def opened(at_s: int, closed_s: int) -> CachedInfo:
    """A file that was opened and closed then."""
    return GOOD._replace(accesses=(CacheAccess(at_s, closed_s, 1, 1, 0, 0, 0, 0),))


FORGED = {
    "created at the end of time": GOOD._replace(created_s=LAST),
    "created before time": GOOD._replace(created_s=-LAST),
    "closed at the end of time": opened(1, LAST),
    "closed before time": opened(1, -LAST),
    "opened at the end of time": opened(LAST, 0),
    "opened more often than can be": GOOD._replace(opens=2**64 - 1),
    "blocks of no byte": GOOD._replace(block_bytes=0),
    "a negative size": GOOD._replace(file_bytes=-1),
    "larger than a file can be": GOOD._replace(file_bytes=LAST, block_bytes=512 << 20),
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache's directory with one good file."""
    (tmp_path / "data" / "store").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    keep(tmp_path, "good", GOOD)
    return tmp_path


def keep(cache: Path, name: str, info: CachedInfo) -> Path:
    """Put a file with its record into a cache."""
    file = cache / "data" / "store" / name
    file.write_bytes(bytes(BLOCK_BYTES))
    file.with_name(f"{name}{SUFFIX}").write_bytes(written(info))
    return file


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_record_is_one_that_cannot_be_read(cache: Path, forged: CachedInfo) -> None:
    file = keep(cache, "forged", forged)
    write_contents(cache, cache / "data", pace=ScanPace(0))
    found = read_contents(cache)
    assert found is not None
    assert (found.total.files, found.total.unreadable) == (1, 1)
    shown = find(cache / "data", "/store/forged")
    assert shown is not None
    assert shown.info is None
    ls._time(found.total.used_s)  # as people see it
    Purge(cache, cache / "data", dry_run=False).run(PurgeRule(to_bytes=BLOCK_BYTES))
    assert not file.exists()  # what XCache would fetch again goes first
    assert (cache / "data" / "store" / "good").exists()


@pytest.mark.parametrize(
    "name", ["../out", "a\nb", "x\x1b[2J", "\udcff", "-rf", f"y{SUFFIX}", f"z{SUFFIX}{SUFFIX}"]
)
def test_hostile_names_are_listed_and_purged_as_they_are(cache: Path, name: str) -> None:
    kept = keep(cache, os.path.basename(name), GOOD)  # noqa: PTH119 -- names that are not text
    (cache / "out").write_text("not of the cache")
    write_contents(cache, cache / "data", pace=ScanPace(0))
    done = Purge(cache, cache / "data", dry_run=False).run(PurgeRule(below="/store", to_bytes=0))
    assert done.files == 2
    assert not kept.exists()
    assert (cache / "out").exists()


def test_a_link_in_a_cache_is_not_followed(cache: Path) -> None:
    outside = cache / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(bytes(BLOCK_BYTES))
    (outside / f"f{SUFFIX}").write_bytes(written(GOOD))
    (cache / "data" / "linked").symlink_to(outside)
    (cache / "data" / "store" / "f").symlink_to(outside / "f")
    (cache / "data" / "store" / f"f{SUFFIX}").symlink_to(outside / f"f{SUFFIX}")
    done = Purge(cache, cache / "data", dry_run=False).run(PurgeRule(to_bytes=0))
    assert done.files == 1
    with pytest.raises(ConfigError, match="symbolic link"):
        Purge(cache, cache / "data", dry_run=False).run(PurgeRule(below="/linked", to_bytes=0))
    assert (outside / "f").exists()
    assert (outside / f"f{SUFFIX}").exists()
