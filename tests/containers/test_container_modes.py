"""The range protocol's descriptors, and tracing, through real container runtimes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.containers.test_container_podman import GLOBAL, before
from tests.local.node.test_pilot_traces import profiles
from tests.worlds.node.container_world import (
    contained,
    found,
    give_away,
    make_tree,
    open_directory,
    users_fleet,
)
from tests.worlds.node.pilot_fleet import binary, grants, job, program

from tidemill.model.application import Runtime
from tidemill.wire.node import Failed

RANGES = """
test -e /etc/inside || exit 9
echo ready >&4
while :; do
  echo next >&4
  read -r word first count seed <&3
  test "$word" = range || exit 0
  echo "done $first $count" >&4
done
"""
PODMAN = pytest.param(
    Runtime.PODMAN, "podman", marks=pytest.mark.skipif(os.geteuid() != 0, reason="tested as another user")
)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with open_directory() as top:
        yield make_tree(top / "image")


RUNTIMES = pytest.mark.parametrize(("runtime", "name"), [(Runtime.CHARLIECLOUD, "ch-run"), PODMAN])


@RUNTIMES
def test_the_first_payload_in_a_container_is_traced_and_ends_as_ever(
    tree: Path, runtime: Runtime, name: str
) -> None:
    options = GLOBAL if runtime is Runtime.PODMAN else []
    wrap, env = contained(runtime, found(name), str(tree), before_verb=options)
    with users_fleet() as it:
        script = "cat /etc/inside || exit 9; test -e /no/such/place; echo words >&2; exit {event}"
        work = job(1, script, events=2)
        of = program(wrap=wrap, env=env, memory_mb=300, scratch_mb=200, trace_first=True, chunk_max=1)
        it.fleet.write_work(programs=[of], jobs=[work], grants=grants(work))
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1", before=before()), 60) == 0, it.tails()
        assert str(it.done(1)) == "0", it.tails()
        [failed] = it.of(Failed)
        assert (failed.exit_status, failed.first) == (1, 1)
        assert "words" in failed.stderr_tail
        assert [(record.mode, record.message) for record in it.noted("trace")] == [("ptrace", "")], it.tails()
        [(entry, profile)] = profiles(it)
        assert (entry.first, profile.exit) == (0, 0)
        used = {use.path: use for use in profile.paths}
        assert used["/etc/inside"].ok
        assert used["/no/such/place"].failed == 1


@RUNTIMES
@pytest.mark.parametrize("traced", [False, True])
def test_a_payload_in_a_container_asks_for_its_events(
    tree: Path, runtime: Runtime, name: str, traced: bool
) -> None:
    path = found(name)
    options = GLOBAL if runtime is Runtime.PODMAN else []
    wrap, env = contained(runtime, path, str(tree), range_mode=True, before_verb=options)
    with users_fleet() as it:
        work = job(1, RANGES, events=200)
        it.fleet.write_work(
            programs=[
                program(
                    wrap=wrap,
                    env=env,
                    mode="range",
                    chunk_max=20,
                    range_s=0.1,
                    memory_mb=300,
                    scratch_mb=200,
                    event_s=0.001,
                    trace_first=traced,
                )
            ],
            jobs=[work],
            grants=grants(work),
        )
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1", before=before())) == 0, it.tails()
        assert str(it.done(1)) == "0-199", it.tails()
        assert [record.mode for record in it.noted("trace")] == ["ptrace"] * traced, it.tails()


def test_a_rootless_container_is_traced_with_the_paths_inside_of_it(tree: Path, tmp_path: Path) -> None:
    path = found("ch-run")
    profile = tmp_path / "profile.json"
    traced = [str(binary()), "trace", "-o", str(profile), "--"]
    command = [path, str(tree), "--", "/bin/sh", "-c", "cat /etc/inside; exit 7"]
    plain = subprocess.run(command, capture_output=True, text=True, check=False, env={"USER": "x"})
    done = subprocess.run([*traced, *command], capture_output=True, text=True, check=False, env={"USER": "x"})
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (7, "yes\n"), done.stderr
    paths = {each[0] for each in json.loads(profile.read_text())["paths"]}
    assert "/etc/inside" in paths


@pytest.mark.parametrize(("isolation", "flag"), [("off", "0"), ("required", "1")])
def test_set_user_id_programs_have_an_effect_only_where_the_site_switched_isolation_off(
    isolation: str, flag: str
) -> None:
    with users_fleet(isolation) as it:
        work = job(1, f'while read -r name value; do test "$name" != NoNewPrivs: || test "$value" = {flag} || exit 1; '
                   "done </proc/self/status", events=1)  # fmt: skip
        it.fleet.write_work(programs=[program()], jobs=[work], grants=grants(work))
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        assert str(it.done(1)) == "0", it.tails()
