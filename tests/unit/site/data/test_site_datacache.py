"""The site's copies of inputs: each content once, pinned while jobs link to it, gone by age and size."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import SiteError
from tidemill.site.data.budget import StageRoom
from tidemill.site.data.cache import CachedCopy, CacheLimits, CopyRecord, DataCache, evict

ROOMY = CacheLimits(total_bytes=1000, idle_bytes=1000, age_s=1e9)
DAY_US = 86400 * 1_000_000


def entries(*rows: tuple[int, int, bool]) -> list[CachedCopy]:
    return [CachedCopy(f"n{i}", size, used, pinned) for i, (size, used, pinned) in enumerate(rows)]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.booleans()), max_size=20),
    st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 100)),
    st.integers(0, 200),
)
def test_what_is_evicted_is_idle_oldest_first_and_no_more_than_needed(
    rows: list[tuple[int, int, bool]], bounds: tuple[int, int, int], wanted: int
) -> None:
    known = entries(*rows)
    limits = CacheLimits(bounds[0], bounds[1], float(bounds[2]))
    now_us = 100 * 1_000_000
    gone = evict(
        [each._replace(used_us=each.used_us * 1_000_000) for each in known],
        now_us=now_us,
        limits=limits,
        wanted=StageRoom(wanted, 1),
    )
    idle = sorted((each for each in known if not each.is_pinned), key=lambda each: (each.used_us, each.name))
    assert gone == [each.name for each in idle[: len(gone)]]
    left = idle[len(gone) :]
    pinned_bytes = sum(each.size_bytes for each in known if each.is_pinned)
    idle_bytes = sum(each.size_bytes for each in left)
    assert not left or idle_bytes <= limits.idle_bytes
    assert not left or pinned_bytes + idle_bytes + wanted <= limits.total_bytes
    assert all(100 - each.used_us <= limits.age_s for each in left)
    if gone:  # the last one had to go
        last = idle[len(gone) - 1]
        was_idle, was_all = idle_bytes + last.size_bytes, pinned_bytes + idle_bytes + last.size_bytes
        is_old = 100 - last.used_us > limits.age_s
        assert is_old or was_idle > limits.idle_bytes or was_all + wanted > limits.total_bytes


def put(cache: DataCache, folder: Path, url: str, content: bytes, version: str = "1") -> str:
    path = folder / "in"
    path.write_bytes(content)
    return cache.adopt(path, url, version=version, sha256=hashlib.sha256(content).hexdigest())


def test_one_content_of_many_urls_is_one_copy(tmp_path: Path) -> None:
    cache = DataCache(tmp_path / "c", ROOMY)
    names = {put(cache, tmp_path, f"https://h/{n}", b"same") for n in range(40)}
    assert len(names) == 1
    assert (cache.files, cache.bytes) == (1, 4)
    assert cache.find("https://h/39", "1", None) in names
    assert cache.find("https://h/39", "2", None) is None, "another version is another file"
    assert cache.find("https://h/39", "1", "0" * 64) is None
    assert cache.find_content(hashlib.sha256(b"same").hexdigest()) in names


def test_a_copy_is_pinned_while_a_job_has_it_and_goes_when_its_bytes_are_needed(tmp_path: Path) -> None:
    cache = DataCache(tmp_path / "c", ROOMY)
    pinned, idle = put(cache, tmp_path, "a", b"a" * 500), put(cache, tmp_path, "b", b"b" * 400)
    cache.link(pinned, tmp_path / "job", hit=False)
    put(cache, tmp_path, "c", b"c" * 450)
    assert cache.find("b", "1", None) is None
    assert cache.find("a", "1", None) == pinned
    assert not (tmp_path / "c" / idle).exists()
    with pytest.raises(SiteError, match="exceed"):
        put(cache, tmp_path, "d", b"d" * 600)
    assert (tmp_path / "job").read_bytes() == b"a" * 500


def test_copies_survive_a_restart_and_half_written_ones_do_not(tmp_path: Path) -> None:
    name = put(DataCache(tmp_path / "c", ROOMY), tmp_path, "a", b"whole")
    (tmp_path / "c" / "v-lost").write_bytes(b"without its description")
    (tmp_path / "c" / ".v-gone.json").write_bytes(b"{}")
    (tmp_path / "c" / "sha256-torn").write_bytes(b"short")
    (tmp_path / "c" / ".sha256-torn.json").write_bytes(
        msgspec.json.encode(CopyRecord(size_bytes=99, sha256=None, sources={}, boot=""))
    )
    cache = DataCache(tmp_path / "c", ROOMY)
    assert cache.find("a", "1", None) == name
    assert {path.name for path in (tmp_path / "c").iterdir()} == {name, f".{name}.json"}


def test_after_a_restart_of_the_host_a_copy_is_read_before_it_is_used(tmp_path: Path) -> None:
    cache = DataCache(tmp_path / "c", ROOMY)
    for url, content in (("good", b"good"), ("bad", b"fine")):
        name = put(cache, tmp_path, url, content)
        about = tmp_path / "c" / f".{name}.json"
        kept = msgspec.json.decode(about.read_bytes(), type=CopyRecord)
        about.write_bytes(msgspec.json.encode(msgspec.structs.replace(kept, boot="another")))
        if url == "bad":
            (tmp_path / "c" / name).chmod(0o600)
            (tmp_path / "c" / name).write_bytes(b"\0\0\0\0")
    cache = DataCache(tmp_path / "c", ROOMY)
    assert cache.find("good", "1", None) is not None
    assert cache.find("bad", "1", None) is None
    assert cache.files == 1


def test_what_is_too_old_goes_without_being_in_the_way(tmp_path: Path) -> None:
    cache = DataCache(tmp_path / "c", CacheLimits(total_bytes=1000, idle_bytes=1000, age_s=0.0))
    put(cache, tmp_path, "a", b"old")
    cache.tidy(at_once=True)
    assert (cache.files, cache.figures.evicted, cache.figures.evicted_bytes) == (0, 1, 3)
