"""Payloads in Charliecloud containers, for real: in slots, as an ordinary user, in both modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.node.container_world import (
    contained,
    found,
    give_away,
    make_tree,
    open_directory,
    processes_with,
    users_fleet,
)
from tests.worlds.node.pilot_fleet import grants, job, output, program

from tidemill.model.application import Runtime
from tidemill.node.bundle import read_member
from tidemill.wire.node import Done, Failed, Started


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with open_directory() as top:
        yield make_tree(top / "image")


def test_a_command_sees_the_image_its_work_directory_and_what_the_slot_tells_it(tree: Path) -> None:
    wrap, env = contained(Runtime.CHARLIECLOUD, found("ch-run"), str(tree))
    script = 'cat /etc/inside >out; echo "$TIDEMILL_SEED $HOME $PWD $(id -u)" >>out; test ! -e /usr/share/doc'
    with users_fleet() as it:
        work = job(1, script, events=3)
        it.fleet.write_work(
            programs=[program(wrap=wrap, env=env, outputs=[output("out", "out")])],
            jobs=[work],
            grants=grants(work),
        )
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        assert str(it.done(1)) == "0-2", it.tails()
        first = it.of(Done)[0]
        told = read_member(it.fleet.bundle, first.outputs[0]).decode().split()
        assert told[:4] == ["yes", str(first.first + 1), "/tmp/home", "/tmp/work"]
        started = it.read()[0]
        assert isinstance(started, Started)
        assert started.isolation == "namespaces"


def test_exit_status_and_stderr_come_through(tree: Path) -> None:
    wrap, env = contained(Runtime.CHARLIECLOUD, found("ch-run"), str(tree))
    with users_fleet() as it:
        work = job(1, "echo broken >&2; exit 7", events=1)
        it.fleet.write_work(programs=[program(wrap=wrap, env=env)], jobs=[work], grants=grants(work))
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        [failed] = it.of(Failed)
        assert (failed.failure, failed.exit_status) == ("payload", 7)
        assert "broken" in failed.stderr_tail


def test_a_payload_that_is_killed_leaves_no_process(tree: Path) -> None:
    wrap, env = contained(Runtime.CHARLIECLOUD, found("ch-run"), str(tree))
    with users_fleet() as it:
        work = job(1, "sleep 98765 & sleep 98765", events=1)
        it.fleet.write_work(
            programs=[program(wrap=wrap, env=env, timeout_s=0.5)], jobs=[work], grants=grants(work)
        )
        give_away(it)
        it.lead()
        pilot = it.pilot("--cores", "1")
        it.until(lambda: bool(it.of(Failed)), "the payload is killed")
        it.until(lambda: not processes_with("sleep 98765"), "nothing is left of it")
        [failed] = it.of(Failed)
        assert failed.failure == "walltime"
        assert it.ended(pilot) == 0, it.tails()


def test_an_image_that_is_not_there_fails_with_what_the_runtime_says(tree: Path) -> None:
    wrap, env = contained(Runtime.CHARLIECLOUD, found("ch-run"), str(tree / "gone"))
    with users_fleet() as it:
        work = job(1, ":", events=1)
        it.fleet.write_work(programs=[program(wrap=wrap, env=env)], jobs=[work], grants=grants(work))
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        [failed] = it.of(Failed)
        assert str(tree / "gone") in failed.stderr_tail
