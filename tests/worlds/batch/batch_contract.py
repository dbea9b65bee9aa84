"""What every batch system must do. A file `test_batch_contract.py` in the group of each runs all of it there:

from tests.worlds.batch.batch_contract import *
bench = bench_on("NAME", world)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.batch.batch_world import BatchWorld, Bench, Can

from tidemill import clock
from tidemill.batch import processes
from tidemill.batch.contract import Answer, Ending
from tidemill.errors import SiteError
from tidemill.model.machine import JobCounts, NodeState
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

ACTIVE, QUEUED = AllocationState.ACTIVE, AllocationState.QUEUED


def bench_on(
    name: str, world: Callable[[pytest.FixtureRequest, Path], AbstractContextManager[BatchWorld]]
) -> Any:
    """The fixture `bench` of the suite on one batch system; a test that needs what this one lacks is skipped."""

    @pytest.fixture(params=[name])
    def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
        with world(request, tmp_path) as made:
            needed = next((mark.args for mark in request.node.iter_markers("needs")), ())
            missing = [can for can in needed if can not in made.can]
            if missing:
                pytest.skip(f"{name}: not {missing[0]}")
            it = Bench(made)
            yield it
            it.batch.cancel(it.names)

    return bench


needs = pytest.mark.needs


def shown(bench: Bench) -> JobCounts:
    """What a glance shows now."""
    counts = bench.batch.glance()
    assert counts is not None
    return counts


def hold(bench: Bench, *shorts: str) -> Callable[[], None]:
    """Occupy all nodes by allocations of these names; the result frees them."""
    for short in shorts:
        bench.submit(
            short, f"while [ ! -e {bench.path('go')} ]; do sleep 0.02; done", nodes=bench.world.nodes
        )
        bench.wait(short, ACTIVE)
    return lambda: bench.path("go").touch()


def test_command_that_succeeds_is_completed_and_its_output_kept(bench: Bench) -> None:
    bench.submit("a", "echo hello $0")
    status = bench.wait_end("a")
    assert (status.state, status.ending) == (AllocationState.COMPLETED, Ending.DONE)
    assert bench.batch.output(bench.name("a")).read_text() == f"hello {bench.name('a')}\n"


def test_command_that_fails_is_failed_and_its_last_words_are_told(bench: Bench) -> None:
    bench.submit("a", "echo no licence >&2; exit 7")
    status = bench.wait_end("a")
    assert (status.state, status.ending) == (AllocationState.FAILED, Ending.FAILED)
    assert status.reason
    assert "no licence" in status.output_tail


def test_running_allocation_is_told_with_its_number_nodes_and_limit(bench: Bench) -> None:
    assert bench.submit("a", "sleep 600")
    status = bench.wait("a", ACTIVE)
    assert status.batch_id
    assert status.ending is Ending.NONE
    assert len(status.nodes) == 1
    assert status.started_s is not None
    assert status.ends_s is not None
    assert abs(status.started_s - clock.now_s()) < bench.world.deadline_s
    assert 500 < status.ends_s - status.started_s < 700


def test_unknown_name_is_gone_and_known_ones_are_told_in_one_call(bench: Bench) -> None:
    bench.submit("a", "sleep 60")
    answers = bench.batch.status([bench.name("a"), bench.name("never")])
    assert answers[bench.name("a")].answer is Answer.FOUND
    assert answers[bench.name("never")].answer is Answer.GONE


def test_the_plain_query_shows_what_runs_and_nothing_that_has_ended(bench: Bench) -> None:
    for short in ("a", "b"):
        bench.submit(short, "sleep 600")
        bench.wait(short, ACTIVE)
    names = [bench.name(short) for short in ("a", "b", "never")]
    running = {bench.name("a"), bench.name("b")}
    # `local` finds a process by its environment, which exec(2) sets
    bench.until(lambda: set(bench.batch.plain(names).shown) == running, "both show")
    told = bench.batch.plain(names)
    assert set(told.shown) == running
    assert all(told.shown.values())
    assert told.command != told.usual
    assert set(bench.world.open().plain(names).shown) == set(told.shown), (
        "a restarted agent knows the numbers"
    )
    bench.batch.cancel([bench.name("a")])
    bench.until(lambda: set(bench.batch.plain(names).shown) == {bench.name("b")}, "the end shows")


@needs(Can.ARRAYS)
def test_the_plain_query_tells_a_running_element_from_one_that_has_ended(bench: Bench) -> None:
    bench.submit("a", "[ ${0##*.} = 0 ] || sleep 600", count=2)
    bench.wait("a.0", *ALLOCATION_FINAL)
    bench.wait("a.1", ACTIVE)
    names = [bench.name("a.0"), bench.name("a.1")]
    bench.batch.status(names)
    assert bench.name("a.0") not in bench.batch.plain([names[0]]).shown
    bench.batch.cancel(names)
    bench.until(lambda: not bench.batch.plain(names).shown, "the end shows")


def test_a_glance_shows_arrivals_and_ends_by_one_query(bench: Bench) -> None:
    if Can.GLANCE not in bench.world.can:
        assert bench.batch.glance() is None
        return
    bench.until(lambda: shown(bench) == shown(bench), "the jobs of an earlier test have gone")
    before, queries = shown(bench), bench.batch.calls.queries
    bench.submit("a", "sleep 600")
    bench.wait("a", ACTIVE)
    asked = bench.batch.calls.queries
    came = shown(bench)
    assert bench.batch.calls.queries == asked + 1
    assert bench.batch.calls.glances < bench.batch.calls.queries > queries
    assert before != came
    bench.batch.cancel([bench.name("a")])
    bench.until(lambda: came != shown(bench), "the end shows")


@needs(Can.FORGET)
def test_what_is_forgotten_leaves_no_file_and_others_keep_theirs(bench: Bench) -> None:
    for short, count in (("a", 2), ("b", 1)):
        bench.submit(short, "echo x", count=count if Can.ARRAYS in bench.world.can else 1)
    names = [name for name in bench.names if name.startswith(bench.name("a"))]
    bench.until(
        lambda: all(each.state in ALLOCATION_FINAL for each in bench.batch.status(bench.names).values()),
        "all have ended",
    )
    files = bench.batch.output(names[0]).parents[1]
    before = {path for path in files.rglob("*") if path.is_file()}
    assert {path.name for path in before if bench.name("a") in path.name} >= set(names)
    bench.batch.forget(names[:1], [])
    assert not bench.batch.output(names[0]).exists()
    assert bench.batch.status([bench.name("b")])[bench.name("b")].state is AllocationState.COMPLETED
    bench.batch.forget(names, [bench.name("a")])
    bench.batch.forget(names, [bench.name("a")])
    after = {path for path in files.rglob("*") if path.is_file()}
    assert before - after == {path for path in before if bench.name("a") in path.name}


def test_same_name_again_is_the_same_allocation(bench: Bench) -> None:
    script = f"echo x >> {bench.path('ran')}"
    first = bench.submit("a", script)
    assert bench.submit("a", script) == first
    bench.wait_end("a")
    bench.batch = bench.world.open()
    assert bench.submit("a", script) == first
    assert bench.wait_end("a").state is AllocationState.COMPLETED
    assert bench.path("ran").read_text() == "x\n"


def test_new_client_finds_all_allocations_by_name(bench: Bench) -> None:
    bench.submit("a", "sleep 600")
    bench.submit("b", "exit 0")
    bench.wait("a", ACTIVE)
    bench.wait_end("b")
    bench.batch = bench.world.open()
    assert bench.state("a") is ACTIVE
    assert bench.state("b") is AllocationState.COMPLETED
    bench.batch.cancel([bench.name("a")])
    assert bench.wait_end("a").state is AllocationState.CANCELED


@needs(Can.ORDER)
def test_allocations_wait_for_nodes_first_in_first_out(bench: Bench) -> None:
    free = hold(bench, "wide")
    for short in ("b", "c", "d"):
        script = f"echo {short} >> {bench.path('order')}; sleep 0.05"
        bench.submit(short, script, nodes=bench.world.nodes, ranks=False)
    assert bench.state("b") is QUEUED
    bench.until(lambda: bench.batch.machine().nodes_free == 0, "no node is free")  # Slurm tells a second late
    free()
    bench.wait_end("d")
    assert list(dict.fromkeys(bench.path("order").read_text().split())) == ["b", "c", "d"]


@needs(Can.WALLTIME)
def test_limit_ends_an_allocation_with_term_first(bench: Bench) -> None:
    script = f"trap 'echo term > {bench.path('term')}; exit 0' TERM; while :; do sleep 0.05; done"
    bench.submit("a", script, walltime_s=bench.world.short_s)
    assert bench.wait_end("a").ending is Ending.WALLTIME
    assert bench.path("term").read_text() == "term\n"


@needs(Can.SIGNAL)
def test_usr1_comes_before_the_end(bench: Bench) -> None:
    script = f"trap 'echo usr1 > {bench.path('usr1')}' USR1; while :; do sleep 0.05; done"
    # the limit is far away: `script` has to hear the signal, and to be asked for, before that, however busy the machine
    limit_s = bench.world.short_s + bench.world.deadline_s
    bench.submit("a", script, walltime_s=limit_s, signal_before_s=limit_s - 3.0)
    bench.until_file("usr1", "usr1\n")
    assert bench.state("a") is ACTIVE


def test_cancel_sends_term_to_the_command(bench: Bench) -> None:
    heard = f"trap 'echo term > {bench.path('term')}; exit 0' TERM"
    script = f"{heard}; : > {bench.path('up')}; while :; do sleep 0.05; done"
    bench.submit("a", script)
    bench.until_file("up", "")
    bench.batch.cancel([bench.name("a")])
    status = bench.wait_end("a")
    assert (status.state, status.ending) == (AllocationState.CANCELED, Ending.CANCELED)
    bench.until_file("term", "term\n")


def test_command_that_does_not_hear_term_is_killed(bench: Bench) -> None:
    assert is_killed(bench, "a") or is_killed(bench, "b")


def is_killed(bench: Bench, short: str) -> bool:
    """Whether a canceled command that does not hear TERM ends; False = the batch system has lost its own KILL."""
    number = bench.submit(short, f"trap '' TERM; : > {bench.path(short)}; while :; do sleep 0.05; done")
    bench.until_file(short, "")
    bench.batch.cancel([bench.name(short)])
    bench.until(
        lambda: bench.state(short) in ALLOCATION_FINAL or bench.world.has_lost_kill(number), "KILL ends it"
    )
    if bench.state(short) not in ALLOCATION_FINAL:
        return False
    assert bench.state(short) is AllocationState.CANCELED
    return True


@needs(Can.CONTAIN)
def test_canceled_allocation_leaves_no_process_behind(bench: Bench) -> None:
    pid = bench.path("pid")
    bench.submit("a", f"setsid sleep 1000 & echo $! > {pid}; (trap '' TERM; sleep 1000) & wait")
    bench.until(lambda: pid.exists() and pid.read_text() != "", "it started")
    escaped = int(pid.read_text())
    bench.batch.cancel([bench.name("a"), bench.name("never")])
    assert bench.wait_end("a").state is AllocationState.CANCELED
    assert processes.start_of(escaped) is None


def test_allocation_that_is_canceled_before_it_runs_never_runs(bench: Bench) -> None:
    hold(bench, "wide")
    bench.submit("b", f"touch {bench.path('ran')}", nodes=bench.world.nodes)
    assert bench.state("b") is QUEUED
    bench.batch.cancel([bench.name("b")])
    assert bench.wait_end("b").state is AllocationState.CANCELED
    assert not bench.path("ran").exists()


def test_cancel_of_what_has_ended_or_never_was_is_no_error(bench: Bench) -> None:
    bench.submit("a", "exit 0")
    bench.wait_end("a")
    bench.batch.cancel([bench.name("a"), bench.name("never")])
    bench.batch.cancel([])
    assert bench.state("a") is AllocationState.COMPLETED


@needs(Can.REFUSE)
def test_allocation_that_cannot_ever_run_is_refused(bench: Bench) -> None:
    with pytest.raises(SiteError) as caught:
        bench.submit("a", "true", nodes=bench.world.nodes + 1000)
    assert not caught.value.transient


@needs(Can.NAMES)
def test_name_that_would_break_a_command_is_refused(bench: Bench) -> None:
    with pytest.raises(SiteError, match="cannot be named") as caught:
        bench.batch.submit(bench.submission("a", "true", name="tm-a b;touch x-e1-1"))
    assert not caught.value.transient


def test_words_and_environment_reach_the_command_as_they_are(bench: Bench) -> None:
    odd = "a b'c\"d$(touch gone)`touch gone`\\e*?;|&<>#~é\t!"
    script = 'printf "%s\\n" "$1" "$ODD" "$2"'
    out = bench.path("odd")
    words = [
        "/bin/sh",
        "-c",
        f"({script}) > {out}.part && mv {out}.part {out}",
        "{allocation}",
        odd,
        "x {allocation} y",
    ]
    bench.submit("a", "", environment={"ODD": odd}, command=words)
    bench.wait_end("a")
    assert out.read_text() == f"{odd}\n{odd}\nx {bench.name('a')} y\n"


def test_wide_allocation_runs_the_command_on_each_node(bench: Bench) -> None:
    width = bench.world.nodes
    bench.submit("a", f"echo x >> {bench.path('ranks')}", nodes=width)
    assert bench.wait_end("a").state is AllocationState.COMPLETED
    assert bench.path("ranks").read_text() == "x\n" * width


def test_wide_allocation_without_ranks_runs_the_command_once(bench: Bench) -> None:
    bench.submit("a", f"echo x >> {bench.path('ranks')}", nodes=bench.world.nodes, ranks=False)
    assert bench.wait_end("a").state is AllocationState.COMPLETED
    assert bench.path("ranks").read_text() == "x\n"


@needs(Can.ARRAYS)
def test_array_is_one_submission_of_allocations_with_names_of_their_own(bench: Bench) -> None:
    bench.submit(
        "a", f"echo $0 > {bench.path('ran')}.$0; [ $0 != {bench.name('a.1')} ] || sleep 600", count=3
    )
    bench.wait("a.1", ACTIVE)
    bench.wait_end("a.0")
    bench.wait_end("a.2")
    for index in range(3):
        name = bench.name(f"a.{index}")
        bench.until_file(f"ran.{name}", f"{name}\n")
    bench.batch.cancel([bench.name("a.1")])
    assert bench.wait_end("a.1").state is AllocationState.CANCELED
    assert [bench.state(f"a.{index}") for index in (0, 2)] == [AllocationState.COMPLETED] * 2
    bench.until(lambda: bench.status("a.3").answer is Answer.GONE, "there is no fourth")


@needs(Can.ARRAYS)
def test_waiting_elements_of_an_array_are_told_and_canceled_one_by_one(bench: Bench) -> None:
    hold(bench, "wide")
    bench.submit("a", f"touch {bench.path('ran')}", count=5)
    names = [bench.name(f"a.{index}") for index in range(5)]
    before = bench.batch.calls.queries
    assert {each.state for each in bench.batch.status(names).values()} == {QUEUED}
    assert bench.batch.calls.queries - before == 1
    before = bench.batch.calls.actions
    bench.batch.cancel([names[0], names[2], names[3]])
    assert bench.batch.calls.actions - before == 1
    for index in (0, 2, 3):
        assert bench.wait_end(f"a.{index}").state is AllocationState.CANCELED
    assert {bench.state("a.1"), bench.state("a.4")} == {QUEUED}
    assert not bench.path("ran").exists()


@needs(Can.NODE_COUNTS)
def test_allocation_takes_fewer_nodes_where_that_will_do(bench: Bench) -> None:
    bench.submit("one", "sleep 600")
    bench.wait("one", ACTIVE)
    bench.submit("a", "sleep 600", nodes=bench.world.nodes, nodes_min=1)
    assert len(bench.wait("a", ACTIVE).nodes) == bench.world.nodes - 1


@needs(Can.FEATURES)
def test_allocation_runs_where_the_feature_is(bench: Bench) -> None:
    left, right = bench.world.features
    first, second = (
        bench.submit(short, "sleep 600", features=(each,)) for short, each in (("a", left), ("b", right))
    )
    assert first != second
    machine = bench.batch.snapshot()
    having = {feature: {n.name for n in machine.nodes if feature in n.features} for feature in (left, right)}
    assert set(bench.wait("a", ACTIVE).nodes) <= having[left]
    assert set(bench.wait("b", ACTIVE).nodes) <= having[right]


@needs(Can.EXCLUDE)
def test_allocation_stays_off_excluded_nodes(bench: Bench) -> None:
    bench.submit("a", "sleep 600")
    (taken,) = bench.wait("a", ACTIVE).nodes
    bench.batch.cancel([bench.name("a")])
    bench.wait_end("a")
    bench.submit("b", "sleep 600", exclude=(taken,))
    assert taken not in bench.wait("b", ACTIVE).nodes


@needs(Can.START_BY)
def test_allocation_that_cannot_start_in_time_never_runs(bench: Bench) -> None:
    free = hold(bench, "wide")
    bench.submit("b", f"touch {bench.path('ran')}", walltime_s=60, start_by_s=clock.now_s() + 2.0)
    assert bench.wait_end("b").ending in (Ending.DEADLINE, Ending.CANCELED)
    free()
    bench.wait_end("wide")
    assert not bench.path("ran").exists()


@needs(Can.SHORTEN)
def test_limit_of_a_running_allocation_is_lowered_and_never_raised(bench: Bench) -> None:
    for short in ("a", "b"):
        bench.submit(short, "sleep 600", walltime_s=1200.0)
    before = {short: bench.wait(short, ACTIVE) for short in ("a", "b")}
    started_s = before["a"].started_s
    assert started_s is not None
    actions = bench.batch.calls.actions
    asked = {
        bench.name("a"): started_s + 300,
        bench.name("b"): started_s + 300,
        bench.name("never"): started_s + 300,
    }
    ends = bench.batch.shorten(asked)
    # PBS sets lengths, not ends: alike are those that began in the same second
    alike = 1 if before["b"].started_s == started_s else 2
    assert 1 <= bench.batch.calls.actions - actions <= alike, "alike: by one call"
    assert set(ends) == {bench.name("a"), bench.name("b")}
    for short in ("a", "b"):
        status = bench.status(short)
        assert status.state is ACTIVE
        assert status.ends_s == pytest.approx(ends[bench.name(short)], abs=1)
        assert started_s + 299 <= ends[bench.name(short)] <= started_s + 361
    raised = bench.batch.shorten({bench.name("a"): started_s + 900})
    assert raised.get(bench.name("a"), started_s + 300) <= started_s + 361
    ends_s = bench.status("a").ends_s
    assert ends_s is not None
    assert ends_s <= started_s + 361


@needs(Can.FOREIGN)
def test_jobs_that_are_not_ours_are_neither_told_nor_touched(bench: Bench) -> None:
    """One of another user with our name and our comment; one of our user with our name and another key."""
    bench.submit("a", "sleep 600")
    bench.wait("a", ACTIVE)
    theirs = bench.world.plant(name=bench.name("b"), comment="their own words", stranger=True)
    copied = bench.world.plant(
        name=bench.name("a"), comment="tidemill 0123456789abcdef contract", stranger=True
    )
    similar = bench.world.plant(name=bench.name("c"), comment="tidemill fedcba9876543210 x", stranger=False)
    names = [bench.name(short) for short in "abc"]
    answers = bench.batch.status(names)
    assert [answers[name].answer for name in names] == [Answer.FOUND, Answer.GONE, Answer.GONE]
    bench.batch.cancel(names)
    assert bench.wait_end("a").state is AllocationState.CANCELED
    bench.batch.shorten(dict.fromkeys(names, clock.now_s() + 60.0))
    assert all(bench.world.lives(number) for number in (theirs, copied, similar))


@needs(Can.AWAY)
def test_batch_system_that_is_away_is_never_taken_for_gone(bench: Bench) -> None:
    bench.submit("a", "sleep 600")
    bench.wait("a", ACTIVE)
    with bench.world.away():
        for ask in (
            lambda: bench.batch.status([bench.name("a")]),
            lambda: bench.batch.cancel([bench.name("a")]),
            lambda: bench.submit("b", "sleep 600"),
            lambda: bench.batch.snapshot(),
        ):
            with pytest.raises(SiteError) as caught:
                ask()
            assert caught.value.transient
    bench.until(lambda: bench.state("a") is ACTIVE, "it is found again")
    bench.submit("b", "sleep 600")
    bench.wait("b", ACTIVE)


@needs(Can.SNAPSHOT)
def test_snapshot_shows_nodes_and_jobs_and_knows_which_are_ours(bench: Bench) -> None:
    bench.submit("a", "sleep 600", walltime_s=1200.0)
    (node,) = bench.wait("a", ACTIVE).nodes
    bench.submit("wide", "sleep 600", nodes=bench.world.nodes, walltime_s=600.0)
    bench.until(lambda: len(bench.batch.snapshot().queued) == 1, "the wide one waits")
    before_s = clock.now_s()
    machine = bench.batch.snapshot()
    assert before_s <= machine.at_s <= clock.now_us() / 1e6
    states = {each.name: each.state for each in machine.nodes}
    assert len(states) == len(machine.nodes), "a node once"
    assert states[node] is NodeState.BUSY
    assert sum(state is NodeState.IDLE for state in states.values()) == bench.world.nodes - 1
    (running,) = machine.running
    assert (running.name, running.nodes, running.width, running.ours) == (bench.name("a"), (node,), 1, True)
    assert running.ends_s - running.started_s == pytest.approx(1200, abs=60)
    (queued,) = machine.queued
    assert (queued.name, queued.width, queued.ours) == (bench.name("wide"), bench.world.nodes, True)
    assert queued.walltime_s == 600.0
    assert any(each.is_default and set(each.nodes) == set(states) for each in machine.partitions)


@needs(Can.SNAPSHOT, Can.ARRAYS)
def test_snapshot_names_each_element_of_an_array_as_status_does(bench: Bench) -> None:
    names = [f"a.{index}" for index in range(bench.world.nodes + 1)]
    bench.submit("a", "sleep 600", count=len(names))
    for name in names[:-1]:
        bench.wait(name, ACTIVE)
    machine = bench.batch.snapshot()
    assert {each.name for each in machine.running} == {bench.name(name) for name in names[:-1]}
    assert [each.name for each in machine.queued] == [bench.name(names[-1])]
    assert all(each.ours for each in machine.running)
    assert all(each.ours for each in machine.queued)


@needs(Can.SNAPSHOT)
def test_facts_name_the_system_and_its_partitions(bench: Bench) -> None:
    facts = bench.batch.facts()
    assert any(char.isdigit() for char in facts.system)
    (default,) = [each for each in facts.partitions if each.is_default]
    assert default.nodes == bench.world.nodes
    assert default.cores_per_node >= bench.world.cores
    assert facts.array_max > 0 or Can.ARRAYS not in bench.world.can
    assert bench.batch.snapshot().array_max in (None, facts.array_max)


def test_ended_allocations_stay_ended(bench: Bench) -> None:
    bench.submit("a", "exit 0")
    bench.wait_end("a")
    for _ in range(3):
        assert bench.state("a") in ALLOCATION_FINAL
