"""Set-up lines of applications: run once per node type by a real pilot, their difference given to every payload."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.worlds.node.container_world import (
    as_their_owner,
    give_away,
    open_directory,
    processes_with,
    users_fleet,
)
from tests.worlds.node.pilot_fleet import Field, binary, grants, job, output, program

from tidemill.node.bundle import read_member
from tidemill.wire.node import Done, Failed, SetupDef

MODULES = Path("/usr/share/modules/init/bash")
MODULEFILE = """#%Module1.0
setenv TMTEST_ROOT /sw/tmtest/1.0
prepend-path PATH /sw/tmtest/1.0/bin
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with open_directory() as top:
        yield top


def definition(it: Field, *lines: str, timeout_s: float = 20.0, key: str = "app-1") -> SetupDef:
    return SetupDef(
        key=key, lines=list(lines), store=str(it.fleet.directory.parent / "setup"), timeout_s=timeout_s
    )


def run(it: Field, setup: SetupDef, script: str = 'echo "$TMTEST_ROOT $PATH" >out', events: int = 3) -> None:
    work = job(1, script, events=events)
    it.fleet.write_work(
        programs=[program(setup=setup, outputs=[output("out", "out")])], jobs=[work], grants=grants(work)
    )
    give_away(it)
    it.lead()
    assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()


def told(it: Field) -> str:
    done = it.of(Done)[0]
    return read_member(it.fleet.bundle, done.outputs[0]).decode()


def test_a_module_is_loaded_once_and_every_payload_has_its_environment(place: Path) -> None:
    if not MODULES.is_file():
        pytest.skip(f"no {MODULES}: environment-modules is not installed")
    (place / "tmtest").mkdir()
    (place / "tmtest" / "1.0").write_text(MODULEFILE)
    with users_fleet() as it:
        setup = definition(it, f"module use {place}", "module load tmtest/1.0")
        run(it, setup)
        assert str(it.done(1)) == "0-2", it.tails()
        assert told(it).startswith("/sw/tmtest/1.0 /sw/tmtest/1.0/bin:")
        assert [each.mode for each in it.noted("setup")] == ["run"]
        [stored] = (it.fleet.directory.parent / "setup").iterdir()
        variables = json.loads(stored.read_text())["variables"]
        assert variables["TMTEST_ROOT"] == "/sw/tmtest/1.0"
        assert not [name for name in variables if name.startswith(("BASH_FUNC_", "TIDEMILL_"))]


def test_a_stored_difference_is_read_and_no_shell_is_started(place: Path) -> None:
    counter = place / "runs"
    counter.touch()
    counter.chmod(0o666)
    lines = (f"echo x >>{counter}", "export TMTEST_ROOT=/a DB_PASSWORD=secret; f() { :; }; export -f f")
    with users_fleet() as it:
        setup = definition(it, *lines)
        run(it, setup)
        again = it.pilot("--cores", "1", allocation="tm-here-e1-2")
        work = job(2, 'test "$TMTEST_ROOT" = /a', events=2, of=2)
        with as_their_owner():
            it.fleet.write_work(programs=[program(2, setup=setup)], jobs=[work], grants=grants(work))
        assert it.ended(again) == 0, it.tails()
        assert str(it.done(2)) == "0-1", it.tails()
        assert counter.read_text() == "x\n"
        assert sorted(each.mode for each in it.noted("setup")) == ["run", "stored"]
        [stored] = (it.fleet.directory.parent / "setup").iterdir()
        found = json.loads(stored.read_text())
        assert found["variables"] == {"TMTEST_ROOT": "/a"}
        assert found["left_out"] == ["DB_PASSWORD"]


def test_a_line_that_fails_fails_the_work_with_the_shells_words(place: Path) -> None:
    with users_fleet() as it:
        # a busy machine, too, reads the lines in this time, which also bounds the pauses
        run(it, definition(it, "export A=1", f"source {place}/gone.sh", timeout_s=2.0), events=2)
        failed = it.of(Failed)
        assert {each.failure for each in failed} == {"payload_setup"}
        assert f"source {place}/gone.sh" in failed[0].message
        assert "No such file" in failed[0].message
        assert failed[0].message.endswith("(tried 4 times)"), failed[0].message
        assert [(each.mode, re.sub(r".*\((.*)\)$", r"\1", each.message)) for each in it.noted("setup")] == [
            ("failed", "tried again in 1 s, 1 of 3 times"),
            ("failed", "tried again in 2 s, 2 of 3 times"),
            ("failed", "tried again in 2 s, 3 of 3 times"),
            ("failed", "tried 4 times"),
        ]
        assert not list((it.fleet.directory.parent / "setup").iterdir())  # neither result nor claim


def test_lines_that_failed_for_a_moment_are_run_again_by_the_same_pilot(place: Path) -> None:
    with users_fleet() as it:
        counter = place / "runs"
        counter.touch()
        counter.chmod(0o666)
        moment = f"echo x >>{counter}; test $(wc -l <{counter}) = 2"
        run(it, definition(it, moment, "export TMTEST_ROOT=/a", timeout_s=2.0), events=2)
        assert str(it.done(1)) == "0-1", it.tails()
        assert [each.mode for each in it.noted("setup")] == ["failed", "run"]
        assert not it.of(Failed)


def test_lines_that_do_not_end_are_ended_with_all_that_they_started() -> None:
    with users_fleet() as it:
        run(it, definition(it, "sleep 87654 & sleep 87654", timeout_s=0.5), events=1)
        [failed] = it.of(Failed)
        assert "did not end within 0.5 s" in failed.message
        it.until(lambda: not processes_with("sleep 87654"), "nothing is left of it")


@pytest.mark.parametrize(
    ("ends", "line"), [("deaf", "sleep 76541 & sleep 76541"), ("killed", "exec sleep 76542")]
)
def test_lines_end_with_whoever_waits_for_them(place: Path, ends: str, line: str) -> None:
    setup = SetupDef(key="a", lines=[f'echo "$_tm_to" >{place}/to', line], store=str(place), timeout_s=60.0)
    sleep = line[-11:]
    child = subprocess.Popen([binary(), "setup"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(msgspec.json.encode(setup))
        child.stdin.close()
        until(lambda: any(each.startswith(sleep) for each in processes_with(sleep)))
        scratch = Path((place / "to").read_text().strip())
        assert scratch.is_dir()
        if ends == "deaf":
            child.stdout.close()  # as the pilot's end does
            child.wait(10)
            assert not scratch.exists()
        else:
            child.kill()
        until(lambda: not processes_with(sleep))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    shutil.rmtree(scratch, ignore_errors=True)


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_what_the_application_says_itself_counts_more_than_a_line() -> None:
    with users_fleet() as it:
        work = job(1, 'test "$A-$B" = app-line', events=1)
        setup = definition(it, "export A=line B=line")
        it.fleet.write_work(
            programs=[program(setup=setup, env={"A": "app"})], jobs=[work], grants=grants(work)
        )
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        assert str(it.done(1)) == "0", it.tails()
