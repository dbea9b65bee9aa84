"""Profiles: read, checked, merged, bounded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tidemill.errors import ConfigError
from tidemill.image.profile import (
    AreaFinder,
    PathUse,
    Profile,
    bounded,
    count_unique,
    encode_profile,
    is_library,
    merge,
    parse_profile,
    per_run,
    read_profile,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "profiles"


def fixture(name: str) -> Profile:
    return read_profile(FIXTURES / f"{name}.json")


@pytest.mark.parametrize("name", ["first", "second", "cut"])
def test_fixtures_are_consistent_in_themselves(name: str) -> None:
    profile = fixture(name)
    assert profile.ops_total == sum(use.ok + use.failed for use in profile.paths)
    assert profile.failed_total == sum(each.failed for each in profile.bins)
    unique = count_unique(profile.paths, [area.area for area in profile.areas])
    assert {area.area: (area.files, area.so, area.py) for area in profile.areas} == unique


def test_profile_is_read_as_it_was_written() -> None:
    profile = fixture("first")
    assert parse_profile(encode_profile(profile), source="again") == profile
    assert (profile.ops_total, profile.failed_total, profile.runs) == (25, 4, 1)


def test_runs_add_up_and_the_earliest_gives_command_and_environment() -> None:
    first, second = fixture("first"), fixture("second")
    both = merge([second, first])
    assert (both.runs, both.wall_us, both.host, both.cwd) == (2, 5_300_000, "nid00042", "/lustre/work/job1")
    assert (both.command, both.env) == (first.command, first.env)
    assert (both.exit, both.signal) == (None, 9)
    assert both.ops_total == first.ops_total + second.ops_total
    assert both.ops["openat"].errors == {"EACCES": 1, "ENOENT": 4}
    assert [(each.s, each.ok, each.failed) for each in both.bins] == [(0, 20, 6), (1, 4, 0), (3, 6, 0)]


def test_a_path_that_one_run_found_exists_and_a_listed_directory_stays_listed() -> None:
    uses = {use.path: use for use in merge([fixture("first"), fixture("second")]).paths}
    assert uses["/sw/rel1/python/steering.pyc"] == PathUse("/sw/rel1/python/steering.pyc", "f", 1, 2)
    assert uses["/sw/rel1/python"].kind == "D"


def test_merged_areas_count_each_file_once() -> None:
    areas = {area.area: area for area in merge([fixture("first"), fixture("second")]).areas}
    assert sorted(areas) == ["/", "/lustre", "/sw", "/tmp"]
    assert (areas["/sw"].ops, areas["/sw"].failed) == (15 + 8, 3 + 2)
    assert (areas["/sw"].files, areas["/sw"].so, areas["/sw"].py) == (9, 2, 2)


def test_mounts_keep_their_stripe() -> None:
    stripes = {mount.point: mount.stripe for mount in merge([fixture("second"), fixture("first")]).mounts}
    assert str(stripes["/lustre"]).startswith("stripe_count: 1")


def test_calls_of_areas_are_added() -> None:
    first = fixture("first")
    area = msgspec.convert(
        {**msgspec.to_builtins(first.areas[2]), "calls": {"open": {"ok": 3, "failed": 2}}},
        type(first.areas[2]),
    )
    told = msgspec.structs.replace(first, areas=[area])
    merged = merge([told, told, fixture("second")])
    (sw,) = (each for each in merged.areas if each.area == "/sw")
    assert (sw.calls["open"].ok, sw.calls["open"].failed) == (6, 4)


def test_longest_prefix_is_the_area_of_a_path() -> None:
    find = AreaFinder(["/", "/sw", "/sw/rel1/"])
    found = {path: find.area_of(path) for path in ("/sw/rel1", "/sw/rel1/x", "/sw/rel10", "/swx", "/")}
    assert found == {
        "/sw/rel1": "/sw/rel1/",
        "/sw/rel1/x": "/sw/rel1/",
        "/sw/rel10": "/sw",
        "/swx": "/",
        "/": "/",
    }
    assert AreaFinder(["/sw"]).area_of("/usr/bin/x") is None


def test_libraries_are_told_by_their_names() -> None:
    names = [
        "libm.so",
        "libm.so.6",
        "_ssl.cpython-311.so",
        "libX.so.5.0.2",
        "ld.so.cache",
        "x.sock",
        ".so",
        "a.so.py",
    ]
    assert [name for name in names if is_library(f"/lib/{name}")] == names[:4]


def test_cost_of_one_run_is_rounded_up() -> None:
    both = merge([fixture("first"), fixture("second")])
    assert per_run(both, ["/sw", "/lustre/work", "/none"]) == {
        "/sw": (12, 1_550), "/lustre/work": (2, 0), "/none": (0, 0),
    }  # fmt: skip


def test_bounded_profile_keeps_the_busiest_paths_and_says_so() -> None:
    small = bounded(fixture("first"), 3)
    assert [use.path for use in small.paths] == ["/", "/sw/rel1/python", "/sw/rel1/python/steering.py"]
    assert small.truncated
    assert small.left_out == ["paths"]
    assert bounded(fixture("first"), 16) == fixture("first")


def test_causes_of_what_is_missing_are_joined() -> None:
    whole = fixture("first")
    ring = replace(whole, truncated=True, left_out=["io_uring"])
    assert merge([ring, bounded(whole, 3), whole]).left_out == ["io_uring", "paths"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello", "is not a profile"),
        (b"[1, 2]", "is not a profile"),
        (b'{"runs": 1}', "missing required field `format`"),
        (b'{"format": 2}', "format 2, this program reads format 1"),
        (b'{"format": 1}', "missing required field"),
        (b'{"format": 1, "command": ["x"', "is cut after 29 bytes"),
        (b"\xff\xfe", "is not a profile"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_reason(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_profile(content, source="x.json")
    assert message in caught.value.message
    assert "x.json" in caught.value.message


@pytest.mark.parametrize(
    "bad", [["sw/x", "f", 1, 0], ["/x", "q", 1, 0], ["/x", "", 1, 0], ["/x", "f", -1, 0]]
)
def test_a_wrong_path_entry_is_refused(bad: list[object]) -> None:
    told = msgspec.to_builtins(fixture("cut"))
    told["paths"] = [bad]
    with pytest.raises(ConfigError, match=r"not a (valid )?profile"):
        parse_profile(msgspec.json.encode(told), source="x.json")


def test_fields_of_a_newer_tracer_are_ignored() -> None:
    told = {**msgspec.to_builtins(fixture("cut")), "new": 1}
    assert parse_profile(msgspec.json.encode(told), source="x.json") == fixture("cut")


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"failed to read profile `.*none`: No such file"):
        read_profile(tmp_path / "none")


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ConfigError, match="no profile"):
        merge([])
