"""What a cache holds, and what a purge removes: on caches made of sparse files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from extensions.caches.tests.cached_files import BLOCK, info_of, make_cached

from tidemill import clock
from tidemill.errors import ConfigError, ProtocolError, SiteError
from tidemill_caches.cli.ls import _show_files
from tidemill_caches.contents import purging, scan
from tidemill_caches.contents.purging import Ages, Memory, Purge, Purged, PurgeRule
from tidemill_caches.contents.record import cached_share, held, read_contents, write_contents
from tidemill_caches.contents.scan import ScanPace
from tidemill_caches.engine.directory import DATA_MARK, locked, make_data
from tidemill_caches.engine.origins import parse_origin
from tidemill_caches.engine.state import CacheState, host_name, write_state
from tidemill_caches.settings import CacheConfig, CacheSpace


def names(data: Path, below: str = "/") -> list[str]:
    return sorted(each.path for _, files in scan.directories(data, below=below) for each in files)


def purged(directory: Path, rule: PurgeRule, *, dry_run: bool = False) -> Purged:
    return Purge(directory, directory / "data", dry_run=dry_run).run(rule)


def test_datasets_are_summed_and_the_largest_listed(tmp_path: Path) -> None:
    make_cached(tmp_path, "/store/a/1", info_of(4 * BLOCK, held=[0, 1]))
    make_cached(tmp_path, "/store/a/2", info_of(4 * BLOCK + 10, held=[4]))
    make_cached(tmp_path, "/store/b/1", info_of(BLOCK))

    found = scan.summary(scan.datasets(scan.directories(tmp_path)), count_max=1)

    assert [each.dataset for each in found.datasets] == ["/store/a"]
    assert found.datasets[0].held_bytes == 2 * BLOCK + 10
    assert found.datasets[0].complete == 0
    assert found.left_out == 1
    assert (found.total.files, found.total.complete) == (3, 1)
    assert found.total.file_bytes == 9 * BLOCK + 10


def test_what_has_no_valid_record_is_counted_apart(tmp_path: Path) -> None:
    make_cached(tmp_path, "/d/torn", info_of(BLOCK)).with_name("torn.cinfo").write_bytes(b"\x04\0\0")
    make_cached(tmp_path, "/d/alone", info_of(BLOCK)).with_name("alone.cinfo").unlink()
    make_cached(tmp_path, "/d/empty", info_of(BLOCK)).unlink()

    (sums,) = scan.datasets(scan.directories(tmp_path))

    assert (sums.files, sums.unreadable, sums.held_bytes) == (0, 3, 0)


def test_a_file_whose_name_ends_like_a_record_is_a_file(tmp_path: Path) -> None:
    make_cached(tmp_path, "/d/x.cinfo", info_of(BLOCK))

    assert names(tmp_path) == ["/d/x.cinfo"]
    found = scan.find(tmp_path, "/d/x.cinfo")
    assert found is not None
    assert found.info is not None
    assert found.info.is_complete


def test_a_listing_follows_no_symbolic_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make_cached(outside, "/secret", info_of(BLOCK))
    data = tmp_path / "data"
    make_cached(data, "/d/f", info_of(BLOCK))
    (data / "link").symlink_to(outside)
    (data / "d" / "g.cinfo").symlink_to(outside / "secret.cinfo")

    assert names(data) == ["/d/f"]
    found = scan.find(data, "/d/g")
    assert found is not None
    assert found.info is None


def test_a_fifo_in_the_place_of_a_record_blocks_nothing(tmp_path: Path) -> None:
    make_cached(tmp_path, "/d/f", info_of(BLOCK)).with_name("f.cinfo").unlink()
    os.mkfifo(tmp_path / "d" / "f.cinfo")

    assert [each.info for _, files in scan.directories(tmp_path) for each in files] == []


def test_directories_without_end_are_refused(tmp_path: Path) -> None:
    make_cached(tmp_path, "/" + "d/" * 620 + "f", info_of(1))

    with pytest.raises(SiteError, match="directories deep"):
        names(tmp_path)


def test_another_version_of_a_record_is_named(tmp_path: Path) -> None:
    path = make_cached(tmp_path, "/f", info_of(1)).with_name("f.cinfo")
    path.write_bytes(b"\x03" + path.read_bytes()[1:])

    with pytest.raises(ProtocolError, match="version is 3, not 4"):
        scan.read_info(str(path))


def test_a_record_is_read_in_one_piece_or_many(tmp_path: Path) -> None:
    info = info_of(8192 * 8 * 5 * 4096, block=4096)
    path = make_cached(tmp_path, "/f", info).with_name("f.cinfo")

    assert path.stat().st_size > 40_000
    assert scan.read_info(str(path)) == info


# ---- purging -------------------------------------------------------------------------------------


def aged(data: Path, ages: dict[str, int]) -> None:
    for path, used_s in ages.items():
        make_cached(data, path, info_of(BLOCK, used_s=used_s))


def test_a_purge_by_age_removes_what_was_not_used_since(tmp_path: Path) -> None:
    aged(tmp_path / "data", {"/a/old": 100, "/a/new": 300, "/b/old": 50})

    done = purged(tmp_path, PurgeRule(before_s=200))

    assert names(tmp_path / "data") == ["/a/new"]
    assert (done.files, done.held_bytes, done.left_files) == (2, 2 * BLOCK, 1)
    assert not (tmp_path / "data/a/old").exists()


def test_a_purge_of_a_dataset_leaves_others_that_begin_alike(tmp_path: Path) -> None:
    aged(tmp_path / "data", {"/a/f": 1, "/ab/f": 1, "/a/c/f": 1})

    purged(tmp_path, PurgeRule(below="/a"))

    assert names(tmp_path / "data") == ["/ab/f"]


def test_a_dry_run_removes_nothing_and_says_what_it_would(tmp_path: Path) -> None:
    aged(tmp_path / "data", {"/a/1": 1, "/a/2": 2, "/a/3": 3})

    done = purged(tmp_path, PurgeRule(to_bytes=BLOCK), dry_run=True)

    assert (done.files, done.left_files) == (2, 1)
    assert len(names(tmp_path / "data")) == 3


@pytest.mark.parametrize("seed", range(6))
def test_a_purge_to_a_size_removes_the_least_recently_used(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    times = rng.sample(range(1, 1_000_000), 60)
    aged(tmp_path / "data", {f"/d{k % 3}/f{k}": times[k] for k in range(60)})

    few = Memory(buckets=8, oldest=5)  # as many files and times would need with the usual bounds
    done = Purge(tmp_path, tmp_path / "data", dry_run=False, memory=few).run(PurgeRule(to_bytes=25 * BLOCK))

    kept = {
        each.info.used_s for _, files in scan.directories(tmp_path / "data") for each in files if each.info
    }
    assert kept == set(sorted(times)[35:])
    assert (done.files, done.left_files, done.left_bytes) == (35, 25, 25 * BLOCK)


def test_a_cutoff_frees_at_most_and_at_least_what_is_wanted() -> None:
    ages = Ages()
    for used in range(100):
        ages.add(used, 10)

    before, some = ages.cutoff(305)

    assert before * 10 <= 305 <= some * 10
    assert ages.cutoff(0) == ages.cutoff(-5) == (0, 0)
    assert min(ages.cutoff(10_000)) >= 99


def test_data_without_a_record_go_with_every_purge(tmp_path: Path) -> None:
    aged(tmp_path / "data", {"/a/new": 300, "/a/stray": 300})
    (tmp_path / "data/a/stray.cinfo").unlink()

    purged(tmp_path, PurgeRule(before_s=200))

    assert names(tmp_path / "data") == ["/a/new"]


def test_the_record_goes_before_the_data(tmp_path: Path) -> None:
    """A record that outlived its data for a moment would have XCache serve zeros."""
    aged(tmp_path, {"/a/f": 1})
    (tmp_path / "a/f").unlink()
    (tmp_path / "a/f").mkdir()  # cannot be unlinked

    with pytest.raises((SiteError, ConfigError)):
        purging.remove(tmp_path, "/a/f")

    assert not (tmp_path / "a/f.cinfo").exists()


# ---- the summary -----------------------------------------------------------------------------------


def test_the_summary_says_what_share_of_a_dataset_is_cached(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    make_cached(tmp_path / "data", "/store/a/1", info_of(4 * BLOCK, held=[0]))
    make_cached(tmp_path / "data", "/other/1", info_of(BLOCK))
    write_contents(tmp_path, tmp_path / "data", pace=ScanPace(0))

    contents = read_contents(tmp_path)

    assert contents is not None
    assert cached_share(contents, "/store/a/2") == 0.25
    assert cached_share(contents, "/store/b/1") == 0.0
    origins = [parse_origin("root://far.example:1095//store/"), parse_origin("root://two.example//")]
    assert held(contents, origins) == [
        ("root://two.example:1094//other", 1.0),
        ("root://far.example:1095//store/a", 0.25),
        ("root://two.example:1094//store/a", 0.25),
    ]


def test_a_dataset_that_a_bounded_summary_leaves_out_is_unknown(tmp_path: Path) -> None:
    make_cached(tmp_path, "/a/1", info_of(2 * BLOCK))
    make_cached(tmp_path, "/b/1", info_of(BLOCK))

    contents = scan.summary(scan.datasets(scan.directories(tmp_path)), count_max=1)

    assert cached_share(contents, "/a/1") == 1.0
    assert cached_share(contents, "/b/1") is None


def test_a_broken_summary_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/contents.json").write_text("{")

    with pytest.raises(ProtocolError, match=r"contents\.json"):
        read_contents(tmp_path)


def test_others_go_in_the_place_of_what_is_open(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    aged(tmp_path / "data", {"/a/1": 1, "/a/2": 2, "/a/3": 3})
    with (tmp_path / "data/a/1").open("rb"), locked(tmp_path):
        now = clock.now_us()
        state = CacheState(
            host=host_name(), port=1, phase="running", at_us=now, supervisor_pid=1, supervisor_started_us=now,
            pid=os.getpid(),
        )  # fmt: skip
        write_state(tmp_path, state, durable=False)
        done = purged(tmp_path, PurgeRule(to_bytes=2 * BLOCK))

        assert names(tmp_path / "data") == ["/a/1", "/a/3"]
        assert (done.files, done.kept_files) == (1, 1)
        aged(tmp_path / "data", {"/a/0": 0})
        done = purged(tmp_path, PurgeRule(to_bytes=0))
        assert names(tmp_path / "data") == ["/a/1"]
        assert (done.files, done.kept_files, done.left_files) == (2, 1, 0)


def test_where_the_cache_runs_on_another_host_nothing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    aged(tmp_path / "data", {"/a/1": 1})
    now = clock.now_us()
    state = CacheState(
        host="elsewhere.example", port=1, phase="running", at_us=now, supervisor_pid=1, supervisor_started_us=now,
        pid=os.getpid(),
    )  # fmt: skip
    write_state(tmp_path, state, durable=False)

    with pytest.raises(SiteError, match="elsewhere"):
        purged(tmp_path, PurgeRule())
    assert names(tmp_path / "data") == ["/a/1"]


def test_a_name_that_is_not_utf8_is_summed_listed_and_removed_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    odd = os.fsdecode(b"/d\xff\x1b[2J/f\xe9")
    make_cached(data, odd, info_of(BLOCK))
    (tmp_path / "run").mkdir()

    found = write_contents(tmp_path, data, pace=ScanPace(0))

    assert [each.dataset for each in found.datasets] == ["/d\\xff\x1b[2J"]
    assert read_contents(tmp_path) == found
    _show_files([each for _, files in scan.directories(data) for each in files], more=False, as_json=True)
    assert "\\\\xff\\u001b[2J/f\\\\xe9" in capsys.readouterr().out
    assert purged(tmp_path, PurgeRule()).files == 1
    assert names(data) == []


def test_nothing_is_removed_or_listed_through_a_symbolic_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make_cached(outside, "/store/secret", info_of(BLOCK))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(outside)

    for below in ("/link", "/link/store"):
        with pytest.raises(ConfigError, match="symbolic link"):
            purged(tmp_path, PurgeRule(below=below))
    with pytest.raises(ConfigError, match="symbolic link"):
        scan.find(tmp_path / "data", "/link/store/secret")
    assert (outside / "store" / "secret").exists()


def test_directories_as_deep_as_xrootd_allows_hide_no_others(tmp_path: Path) -> None:
    deep = "/a" * 500
    make_cached(tmp_path, f"{deep}/f", info_of(BLOCK))
    make_cached(tmp_path, "/z/f", info_of(BLOCK))

    assert sorted(names(tmp_path), key=len) == ["/z/f", f"{deep}/f"]
    assert names(tmp_path, "/z") == ["/z/f"]


def test_the_mark_of_the_directory_is_no_cached_file_and_outlives_every_purge(tmp_path: Path) -> None:
    config = CacheConfig(origins=["root://a.example//store/"], space=CacheSpace(max=10**8))
    data = make_data(tmp_path, config)
    make_cached(data, "/store/f", info_of(BLOCK))
    make_cached(data, f"/store/{DATA_MARK}", info_of(BLOCK))

    assert [each.dataset for each in scan.datasets(scan.directories(data))] == ["/store"]
    assert purged(tmp_path, PurgeRule(to_bytes=0)).files == 2

    assert make_data(tmp_path, config) == data, "the cache starts again"
