"""Which entries of search paths cause failing look-ups, and the environment without them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tidemill.image.profile import Operation, PathUse, Profile
from tidemill_images.explain import EntryVerdict, Explanation, Search, explain
from tidemill_images.inferred import Group

Path = tuple[str, str, int, int]


def profile_of(
    paths: Iterable[Path],
    *,
    env: dict[str, str],
    command: str = "prog",
    cwd: str = "/job",
    truncated: bool = False,
) -> Profile:
    uses = sorted(PathUse(*path) for path in paths)
    return Profile(
        format=1,
        command=command.split(),
        runs=1,
        wall_us=1,
        exit=0,
        signal=None,
        host="h",
        started_us=1,
        cwd=cwd,
        env=env,
        mounts=[],
        ops={
            "openat": Operation(
                ok=sum(use.ok for use in uses), errors={"ENOENT": sum(use.failed for use in uses)}
            )
        },
        areas=[],
        bins=[],
        paths=uses,
        truncated=truncated,
    )


def storm(dead: int = 20, libraries: int = 30) -> Profile:
    """Dead entries before the one that has the libraries, and as many for Python."""
    paths: list[Path] = [("/sw/bin/prog", "f", 1, 0), ("/sw/lib", "d", 1, 0), ("/sw/python", "D", 4, 0)]
    for k in range(dead):
        for n in range(libraries):
            paths.append((f"/dead/lib{k}/libx{n}.so.1", "x", 0, 1))
            paths.append((f"/dead/python{k}/module{n}.py", "x", 0, 2))
        paths.append((f"/dead/lib{k}/glibc-hwcaps/x86-64-v3/libx0.so.1", "x", 0, 1))
        paths.append((f"/dead/lib{k}/glibc-hwcaps/x86-64-v3", "x", 0, 1))
        paths.append((f"/dead/python{k}", "d", 3, 0))
        paths.append((f"/dead/bin{k}/prog", "x", 0, 1))
    for n in range(libraries):
        paths.append((f"/sw/lib/libx{n}.so.1", "f", 1, 0))
        paths.append((f"/sw/python/module{n}.py", "f", 2, 0))
    env = {
        "PATH": ":".join([*(f"/dead/bin{k}" for k in range(dead)), "/sw/bin", "/usr/bin"]),
        "LD_LIBRARY_PATH": ":".join([*(f"/dead/lib{k}" for k in range(dead)), "/sw/lib"]),
        "PYTHONPATH": ":".join([*(f"/dead/python{k}" for k in range(dead)), "/sw/python"]),
    }
    return profile_of(paths, env=env)


def search(found: Explanation, name: str) -> Search:
    return next(each for each in found.searches if each.name == name)


def group(found: Explanation, name: str) -> Group:
    return next(each for each in found.groups if each.name == name)


def verdicts(found: Explanation, name: str) -> dict[str, str]:
    return {entry.entry: entry.verdict.value for entry in search(found, name).entries}


def test_dead_entries_are_left_out_and_everything_else_stays() -> None:
    found = explain(storm())
    assert found.environment == {
        "PATH": "/sw/bin:/usr/bin",
        "LD_LIBRARY_PATH": "/sw/lib",
        "PYTHONPATH": "/sw/python",
    }
    assert found.explained == found.failed == found.saves_failed == 20 * (30 * 3 + 3)
    assert found.saves_ops == found.saves_failed + 20 * 3  # the directories that exist and hold nothing


def test_entries_that_were_never_searched_stay() -> None:
    found = explain(storm())
    assert verdicts(found, "PATH")["/usr/bin"] == EntryVerdict.IDLE
    assert verdicts(found, "PATH")["/dead/bin3"] == EntryVerdict.DEAD
    assert verdicts(found, "PATH")["/sw/bin"] == EntryVerdict.USED


def test_each_entry_has_its_look_ups_failures_hits_and_share() -> None:
    found = explain(storm())
    entries = {entry.entry: entry for entry in search(found, "LD_LIBRARY_PATH").entries}
    dead, live = entries["/dead/lib0"], entries["/sw/lib"]
    assert (dead.lookups, dead.failed, dead.hits) == (32, 32, 0)
    assert (live.lookups, live.failed, live.hits) == (31, 0, 30)
    assert dead.share == pytest.approx(32 / found.ops)


def test_nothing_is_proposed_where_nothing_fails() -> None:
    found = explain(profile_of([("/sw/bin/prog", "f", 1, 0)], env={"PATH": "/sw/bin:/usr/bin"}))
    assert (found.environment, found.saves_ops, found.explained) == ({}, 0, 0)


def test_a_variable_whose_entries_are_all_dead_is_unset_but_never_path() -> None:
    paths: list[Path] = [("/a/libz.so", "x", 0, 1), ("/b/prog", "x", 0, 1)]
    found = explain(profile_of(paths, env={"LD_LIBRARY_PATH": "/a", "PATH": "/b"}))
    assert found.environment == {"LD_LIBRARY_PATH": None}
    assert found.saves_failed == 1


def test_duplicates_are_left_out_with_what_is_dead() -> None:
    paths: list[Path] = [("/a/liba.so", "f", 1, 0), ("/d/liba.so", "x", 0, 1)]
    found = explain(profile_of(paths, env={"LD_LIBRARY_PATH": "/d:/a:/b:/a/"}))
    assert verdicts(found, "LD_LIBRARY_PATH") == {
        "/d": "dead",
        "/a": "used",
        "/b": "idle",
        "/a/": "duplicate",
    }
    assert found.environment == {"LD_LIBRARY_PATH": "/a:/b"}


def test_a_directory_that_path_names_twice_is_searched_twice() -> None:
    paths: list[Path] = [("/a/prog", "f", 1, 0), ("/a/other", "x", 0, 6), ("/b/other", "f", 3, 0)]
    found = explain(profile_of(paths, env={"PATH": "/a:/a:/b"}))
    assert (found.environment, found.saves_failed) == ({"PATH": "/a:/b"}, 3)


def test_what_saves_nothing_is_not_proposed() -> None:
    found = explain(profile_of([("/a/liba.so", "f", 1, 0)], env={"LD_LIBRARY_PATH": "/a:/a"}))
    assert found.environment == {}


def test_an_empty_entry_is_the_working_directory_as_the_seed_of_this_found() -> None:
    env = {"LD_LIBRARY_PATH": ":/sw/lib"}
    paths: list[Path] = [("/job/libx.so", "x", 0, 5), ("/sw/lib/libx.so", "f", 5, 0)]
    found = explain(profile_of(paths, env=env))
    assert found.environment == {"LD_LIBRARY_PATH": "/sw/lib"}
    assert any("has an empty entry" in line for line in found.advice)


def test_an_empty_entry_that_hits_stays_even_alone() -> None:
    paths: list[Path] = [("/job/libx.so", "f", 1, 0), ("/dead/libx.so", "x", 0, 1)]
    found = explain(profile_of(paths, env={"LD_LIBRARY_PATH": "/dead:"}))
    assert found.environment == {"LD_LIBRARY_PATH": "."}


def test_relative_entries_stay_where_the_program_changes_its_directory() -> None:
    profile = profile_of([("/job/libx.so", "x", 0, 5)], env={"LD_LIBRARY_PATH": "."})
    assert explain(profile).environment == {"LD_LIBRARY_PATH": None}
    profile.ops["chdir"] = Operation(ok=1, errors={})
    assert explain(profile).environment == {}


def test_entries_with_variables_of_the_loader_are_left_alone() -> None:
    found = explain(profile_of([("/b/libx.so", "x", 0, 5)], env={"LD_LIBRARY_PATH": "$ORIGIN/../lib:/b"}))
    assert found.environment == {"LD_LIBRARY_PATH": "$ORIGIN/../lib"}


def test_a_profile_with_gaps_calls_nothing_dead() -> None:
    found = explain(profile_of([("/b/libx.so", "x", 0, 5)], env={"LD_LIBRARY_PATH": "/b"}, truncated=True))
    assert found.environment == {}
    assert "left out" in found.advice[-1]


def late_hits() -> Profile:
    paths: list[Path] = [("/a/liba.so", "f", 1, 0), ("/b/libb.so", "f", 1, 0)]
    for n in range(10):
        paths += [(f"/a/lib{n}.so", "x", 0, 1), (f"/b/lib{n}.so", "x", 0, 1), (f"/c/lib{n}.so", "f", 1, 0)]
    paths.append(("/a/libb.so", "x", 0, 1))
    return profile_of(paths, env={"LD_LIBRARY_PATH": "/a:/b:/c"})


def test_an_entry_that_mostly_hits_is_moved_first_where_it_hides_nothing() -> None:
    names = {"/a": {"liba.so"}, "/b": {"libb.so"}, "/c": {f"lib{n}.so" for n in range(10)}}
    found = explain(late_hits(), listing=lambda directory: frozenset(names.get(directory, ())))
    assert found.environment == {"LD_LIBRARY_PATH": "/c:/a:/b"}
    assert search(found, "LD_LIBRARY_PATH").moved == ["/c"]
    assert found.saves_failed == 20 - 2


def test_an_entry_is_not_moved_past_one_whose_files_it_would_hide() -> None:
    names = {"/c": {"libb.so", *(f"lib{n}.so" for n in range(10))}}
    found = explain(late_hits(), listing=lambda directory: frozenset(names.get(directory, ())))
    assert found.environment == {}


def test_nothing_is_moved_where_directories_cannot_be_listed() -> None:
    assert explain(late_hits()).environment == {}


def test_a_hit_below_an_entry_keeps_it_whatever_it_was_for() -> None:
    paths: list[Path] = [("/p/pkg/data.txt", "f", 1, 0), ("/p/numpy.py", "x", 0, 3)]
    assert explain(profile_of(paths, env={"PYTHONPATH": "/p"})).environment == {}


def test_unknown_variables_are_shown_and_never_changed() -> None:
    paths: list[Path] = [("/m/x", "x", 0, 3)]
    found = explain(profile_of(paths, env={"SOME_PATH": "/m:/n", "ONE_PATH": "/m"}))
    assert verdicts(found, "SOME_PATH") == {"/m": "dead", "/n": "idle"}
    assert (found.environment, len(found.searches)) == ({}, 1)


def test_runs_of_the_loader_are_found_without_a_variable() -> None:
    paths: list[Path] = [("/opt/lib/libx.so.1", "f", 1, 0)]
    for level in ("x86-64-v4", "x86-64-v3", "x86-64-v2"):
        paths.append((f"/opt/r1/glibc-hwcaps/{level}/libx.so.1", "x", 0, 1))
        paths.append((f"/opt/r1/glibc-hwcaps/{level}", "x", 0, 1))
    paths += [("/opt/r1/libx.so.1", "x", 0, 1), ("/opt/r2/tls/x86_64/libx.so.1", "x", 0, 1)]
    found = explain(profile_of(paths, env={}))
    places = [(place.directory, place.failed) for place in group(found, "RPATH").places]
    assert places == [("/opt/r1", 7), ("/opt/r2", 1)]
    assert any("patchelf" in line for line in found.advice)


def test_include_paths_are_told_from_what_was_found_elsewhere() -> None:
    paths: list[Path] = [
        ("/usr/include/c++/12/bits/os.h", "f", 1, 0),
        ("/opt/a/include/bits/os.h", "x", 0, 1),
        ("/opt/a/include/zlib.h", "f", 1, 0),
        ("/usr/include/c++/12/bits/locale_facets.h", "f", 1, 0),
        ("/opt/a/include/bits/locale_facets.h", "x", 0, 1),
    ]
    (place,) = group(explain(profile_of(paths, env={})), "include").places
    assert (place.directory, place.failed, place.hits) == ("/opt/a/include", 2, 1)


def test_entries_of_sys_path_are_told_by_their_names() -> None:
    paths: list[Path] = [
        ("/usr/lib/python311.zip", "x", 0, 2),
        ("/usr/lib/python3.11/os.py", "f", 2, 0),
        ("/usr/lib/python3.11/site-packages/six.py", "x", 0, 1),
        ("/users/u/.local/lib/python3.11/site-packages", "x", 0, 4),
    ]
    found = explain(profile_of(paths, env={}))
    places = {place.directory: place.failed for place in group(found, "sys.path").places}
    assert places == {
        "/usr/lib/python311.zip": 2,
        "/usr/lib/python3.11/site-packages": 1,
        "/users/u/.local/lib/python3.11/site-packages": 4,
    }
    assert found.environment == {"PYTHONNOUSERSITE": "1"}
    assert found.saves_failed == 4


SAFE: list[Path] = [
    ("/job", "d", 40, 0),
    ("/job/numpy.so", "x", 0, 3),
    ("/usr/lib/python3.11/os.py", "f", 2, 0),
    ("/job/data.txt", "f", 1, 0),
]


@pytest.mark.parametrize(
    ("command", "more", "proposed"),
    [
        ("python3 -c pass", [], True),
        ("/usr/bin/python3.11 prog.py", [("/job/prog.py", "f", 1, 0)], True),
        ("python3 prog.py", [("/job/prog.py", "f", 1, 0), ("/job/mine.py", "f", 1, 0)], False),
        ("python3 -c pass", [("/x/lib/python3.9/os.py", "f", 1, 0)], False),
        ("python3 -I -c pass", [], False),
        ("prog", [], False),
    ],
)
def test_the_working_directory_leaves_sys_path_where_nothing_came_from_it(
    command: str, more: list[Path], proposed: bool
) -> None:
    found = explain(profile_of([*SAFE, *more], env={}, command=command))
    assert found.environment == ({"PYTHONSAFEPATH": "1"} if proposed else {})
    if proposed:
        assert found.saves_ops == 40


def test_failing_operations_on_paths_that_exist_are_a_storm() -> None:
    paths: list[Path] = [
        ("/usr", "d", 5, 400),
        ("/usr/include", "d", 0, 300),
        ("/usr/include/x.h", "f", 9, 2),
    ]
    found = explain(profile_of(paths, env={}, command="/usr/bin/g++ -c x.cc"))
    assert [(each.path, each.failed) for each in found.storms][:2] == [("/usr", 400), ("/usr/include", 300)]
    assert found.explained == found.storm_failed == 702
    assert any("-fno-canonical-system-headers" in line for line in found.advice)


def test_missing_compiled_modules_are_told() -> None:
    paths: list[Path] = [
        ("/sw/m.py", "f", 1, 0),
        ("/sw/__pycache__/m.cpython-311.pyc", "x", 0, 1),
    ]
    assert any("compileall" in line for line in explain(profile_of(paths, env={})).advice)


def old_subdirectories(*more: Path) -> Profile:
    paths: list[Path] = [("/sw/libx.so", "f", 1, 0), ("/dead/libx.so", "x", 0, 1), *more]
    for directory in ("/sw", "/dead"):
        for level in ("tls/x86_64", "avx512_1", "haswell"):
            paths += [(f"{directory}/{level}/libx.so", "x", 0, 5), (f"{directory}/{level}", "x", 0, 5)]
    return profile_of(paths, env={"LD_LIBRARY_PATH": "/dead:/sw"})


def test_subdirectories_for_processors_are_masked_where_nothing_was_found_there() -> None:
    found = explain(old_subdirectories())
    assert found.environment == {"LD_LIBRARY_PATH": "/sw", "GLIBC_TUNABLES": "glibc.cpu.hwcap_mask=0"}
    assert found.saves_failed == 1 + 6 * 5 + 4 * 5


def test_subdirectories_for_processors_stay_where_a_library_came_from_one() -> None:
    found = explain(old_subdirectories(("/sw/avx512_1/liby.so", "f", 1, 0)))
    assert found.environment == {"LD_LIBRARY_PATH": "/sw"}
