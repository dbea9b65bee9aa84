"""Which moves may start: bounded in all and for each endpoint; what may not be moved is told at once."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint, Transfer
from tidemill.errors import ConfigError, SiteError
from tidemill.model.failure import FailureClass
from tidemill.model.job import Input, JobSpec
from tidemill.site.data.moves import LocalMoves, MoveOrder, MoveOutcome, make, order_id
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import Stage
from tidemill.site.data.transfer_node import TransferNodeMoves, _step
from tidemill.site.state.epoch import claim
from tidemill.transfer.contract import Direction, TransferError
from tidemill.transfer.file import Roots
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience
from tidemill.transfer.sharing import MoveLimits, RunningMove, WaitingMove, due, makes_way


def config(*endpoints: Endpoint) -> SiteConfig:
    return SiteConfig(name="s", server="unix:/x", endpoints=list(endpoints))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ada", "eve"])), max_size=30),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ada", "eve"])), max_size=6),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4)),
    st.integers(1, 8),
    st.booleans(),
)
def test_no_endpoint_has_more_than_its_share_and_no_place_stays_empty_but_the_last_for_others(
    wanted: list[tuple[str, str]],
    have: list[tuple[str, str]],
    endpoints: dict[str, int],
    total: int,
    is_shared: bool,
) -> None:
    waiting = [WaitingMove(f"w{n}", *each) for n, each in enumerate(wanted)]
    running = [RunningMove(f"r{n}", *each) for n, each in enumerate(have)]
    limits = MoveLimits(endpoints, total, is_shared)
    starts = due(waiting, running, limits)
    started = {each.id: each for each in waiting if each.id in starts}
    assert len(starts) == len(started) <= max(0, total - len(running))
    before = Counter(each.endpoint for each in running)
    busy = before + Counter(each.endpoint for each in started.values())
    for place in "abc":
        assert busy[place] <= max(limits.at(place), before[place])
    left = [each for each in waiting if each.id not in starts]
    if len(running) + len(starts) < limits.own(total):
        assert all(busy[each.endpoint] >= limits.own(limits.at(each.endpoint)) for each in left)


def test_slots_go_to_the_owner_who_has_the_fewest_and_none_takes_the_last_of_several() -> None:
    limits = MoveLimits({"a": 4}, 8, is_shared=True)
    eves = [WaitingMove(f"e{n}", "a", "eve") for n in range(9)]
    assert due(eves, [], limits) == ["e0", "e1", "e2"]
    assert len(due(eves, [], limits._replace(is_shared=False))) == 4, "alone it has all"
    running = [RunningMove(f"e{n}", "a", "eve") for n in range(3)]
    assert due([*eves, WaitingMove("ada", "a", "ada")], running, limits) == ["ada"]


def test_a_move_that_hangs_makes_way_for_an_owner_who_waits_in_vain() -> None:
    limits = MoveLimits({"a": 2}, 8, is_shared=True)
    ada = [WaitingMove("ada", "a", "ada", since_s=100)]
    hangs, moves = RunningMove("hangs", "a", "eve", idle_s=60), RunningMove("moves", "a", "eve", idle_s=1)
    assert makes_way(ada, [hangs, moves], limits, 105) is None, "it may come to its turn by itself"
    assert makes_way(ada, [hangs, moves], limits, 111) == "hangs"
    slow = [RunningMove("much", "a", "eve", 0.1, 10**9), RunningMove("little", "a", "eve", 0.1, 10**3)]
    assert makes_way(ada, slow, limits, 111) == "little", "who drips for two holds up the other one no more"
    fair = [RunningMove("e", "a", "eve", 0.1), RunningMove("b", "a", "bob", 0.1)]
    assert makes_way(ada, fair, limits, 111) is None, "one each"
    assert makes_way([WaitingMove("more", "a", "eve", since_s=0)], [hangs, moves], limits, 111) is None


@pytest.mark.parametrize("first_byte_s", [0, 30, 60, 110])
def test_moves_from_slow_servers_all_end_though_more_owners_wait_than_there_are_slots(
    first_byte_s: int,
) -> None:
    limits = MoveLimits({"a": 4}, 8, is_shared=True)
    waiting = [WaitingMove(f"{owner}{n}", "a", owner) for n in range(6) for owner in "abcde"]
    started: dict[str, tuple[WaitingMove, int]] = {}
    yields: Counter[str] = Counter()
    done = 0
    for now_s in range(6 * 3600):
        for name, (_, since_s) in list(started.items()):
            if now_s - since_s >= first_byte_s + 20:
                del started[name]
                done += 1
        running = [
            RunningMove(
                name,
                "a",
                each.owner,
                now_s - since_s if now_s - since_s < first_byte_s else 0.0,
                max(0, now_s - since_s - first_byte_s),
                yields[name],
            )
            for name, (each, since_s) in started.items()
        ]
        gone = makes_way(waiting, running, limits, now_s)
        if gone is not None:
            yields[gone] += 1
            waiting.append(started.pop(gone)[0]._replace(since_s=now_s))
            running = [each for each in running if each.id != gone]
        for name in due(waiting, running, limits):
            (each,) = (one for one in waiting if one.id == name)
            waiting.remove(each)
            started[name] = each, now_s
        if not waiting and not started:
            break
    assert done == 30, f"{done} ended, {yields.total()} were broken off"
    assert max(yields.values(), default=0) <= 2


def test_a_move_that_made_way_may_be_idle_for_longer_and_one_whose_bytes_are_all_moved_does_not_hang() -> (
    None
):
    limits = MoveLimits({"a": 1}, 8, is_shared=True, stall_s=60)
    ada = [WaitingMove("ada", "a", "ada", since_s=0)]
    again = RunningMove("again", "a", "eve", idle_s=30)
    assert makes_way(ada, [again], limits, 99) == "again"
    assert makes_way(ada, [again._replace(yields=1)], limits, 99) is None
    assert makes_way(ada, [again._replace(yields=1, idle_s=40)], limits, 99) == "again"
    assert makes_way(ada, [again._replace(yields=2000, idle_s=59)], limits, 99) is None
    assert makes_way(ada, [again._replace(yields=2000, idle_s=60)], limits, 99) == "again", "it has stalled"
    assert makes_way(ada, [again._replace(is_whole=True, idle_s=500)], limits, 99) is None


def test_of_thousands_of_orders_only_the_first_of_each_endpoint_and_owner_are_asked_about(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}/in/"
        here = LocalMoves(config(Endpoint(url=url, transfers_max=2)))
        try:
            for n in range(300):
                order = MoveOrder(
                    id=f"o{n}", direction=Direction.IN, url=f"{url}{n}", path=str(tmp_path / f"{n}"),
                    owner="ada" if n % 2 else "eve",
                )  # fmt: skip
                here.submit(order)
            assert here._running.keys() == {"o0", "o1"}, "one each: nothing else started"
            assert [each.id for each in here._first(1)] == ["o2", "o3"]
            for n in range(2, 300):
                here.cancel(f"o{n}")
            assert here._first(9) == []
            assert here.known() == {"o0", "o1"}
        finally:
            here.close()


def test_what_no_endpoint_permits_fails_at_once_and_nothing_is_moved(tmp_path: Path) -> None:
    here = LocalMoves(config(Endpoint(url="https://h.example.org/in/")))
    try:
        for url in ("https://elsewhere.example.org/in/x", "https://h.example.org/in/../x"):
            order = MoveOrder(
                id=order_id(Direction.IN, url), direction=Direction.IN, url=url, path=str(tmp_path / "x")
            )
            here.submit(order)
            outcome = here.pop_outcome(order.id)
            assert outcome is not None
            assert outcome.failure is FailureClass.STAGE_IN
            with pytest.raises(TransferError):
                outcome.check()
        assert not here.is_busy
    finally:
        here.close()


def until(what: Callable[[], bool]) -> None:
    while not what():
        time.sleep(0.01)


@pytest.mark.timing(transfer={"STALL_S": 2.0, "TRIES_MAX": 1})
def test_a_move_that_was_canceled_and_is_wanted_again_is_made_again(tmp_path: Path) -> None:
    """An agent that restarts orders the same files again, while its mover still breaks off what nobody wanted."""
    silent = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
    here = LocalMoves(
        SiteConfig(
            name="s", server="unix:/x", endpoints=[Endpoint(url=url)], transfer=Transfer()
        )
    )  # fmt: skip
    order = MoveOrder(id="again", direction=Direction.IN, url=url, path=str(tmp_path / "x"))
    try:
        here.submit(order)
        until(lambda: bool(here.under_way()))
        here.cancel(order.id)
        here.submit(order)  # counts as the one that runs
        until(lambda: not here.is_busy)
        assert here.pop_outcome(order.id) is None
        here.submit(order)
        assert here.is_busy
    finally:
        here.close()
        silent.close()


def test_a_bug_in_a_move_is_told_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A path that no file can have stands for one: nothing expects the ValueError."""
    url = "https://h.example.org/out/x"
    here = LocalMoves(config(Endpoint(url=url, access="both")))
    order = MoveOrder(id="bug", direction=Direction.OUT, url=url, path=f"{tmp_path}/x\0y")
    try:
        with caplog.at_level("ERROR", "tidemill.moving"):
            here.submit(order)
            until(lambda: not here.is_busy)
        outcome = here.pop_outcome("bug")
        assert outcome is not None
        assert "met a bug" in outcome.error
        assert [record.message for record in caplog.records] == ["move.bug"]
    finally:
        here.close()


def test_an_order_that_no_agent_writes_is_refused_and_holds_up_nothing(tmp_path: Path) -> None:
    url = "https://h.example.org/in/x"
    site = SiteConfig(name="s", server="unix:/x", endpoints=[Endpoint(url="https://other.example.org/")])
    folder, stage = tmp_path / "transfer", tmp_path / "stage"
    for each in (folder / "orders", folder / "done", stage):
        each.mkdir(parents=True)
    (folder / "orders" / "bad.json").write_bytes(b"{")
    for name, path in (("good", stage / "x"), ("stray", tmp_path / "x")):
        order = MoveOrder(id=name, direction=Direction.IN, url=url, path=str(path))
        (folder / "orders" / f"{name}.json").write_bytes(msgspec.json.encode(order))
    here = LocalMoves(site)
    identity = claim(folder, take_over=False, heartbeat_s=1, dead_s=10)
    try:
        assert _step(folder, stage, here, identity)
        assert _step(folder, stage, here, identity)  # tells what came of those that the first one took
        assert not _step(folder, stage, here, identity)
    finally:
        here.close()
    told = {
        path.stem: msgspec.json.decode(path.read_bytes(), type=MoveOutcome)
        for path in (folder / "done").glob("*.json")
    }
    assert not any(outcome.transient for outcome in told.values())
    assert "does not read from there" in told.pop("good").error
    assert "not in the stage" in told.pop("stray").error
    assert "failed to read" in told.pop("bad").error
    assert not told


def test_a_job_that_names_a_foreign_host_is_refused_for_good(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    stage = Stage(
        tmp_path / "stage", config(Endpoint(url="https://h.example.org/")), OwnedPlaces(Roots([tmp_path]))
    )
    spec = JobSpec(app="a", inputs=[Input(name="x", url="https://evil.example.net/x")])
    with pytest.raises(TransferError, match="does not read from there") as error:
        stage.stage(1, spec, [(0, 1)])
    assert not error.value.transient


def test_an_endpoint_that_cannot_be_meant_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="user name"):
        LocalMoves(config(Endpoint(url="https://me@h.example.org/")))


class Quiet(SimpleHTTPRequestHandler):
    """Serves a directory without a word."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Endpoint, bytes]]:
    """An endpoint that takes one move at a time, and the content of the files `a` and `b` there."""
    content = os.urandom(3_000_000)
    (tmp_path / "there").mkdir()
    for name in "ab":
        (tmp_path / "there" / name).write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "there")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Endpoint(url=f"http://127.0.0.1:{server.server_port}/", transfers_max=1), content
    server.shutdown()
    server.server_close()
    thread.join()


def order_of(endpoint: Endpoint, name: str, target: Path) -> MoveOrder:
    url = endpoint.url + name
    return MoveOrder(id=order_id(Direction.IN, url), direction=Direction.IN, url=url, path=str(target))


def test_the_bytes_are_here_and_whole_before_their_digest_is_made(
    served: tuple[Endpoint, bytes], tmp_path: Path
) -> None:
    endpoint, content = served
    target, seen = tmp_path / "a", list[bytes]()
    mover = Mover([endpoint], MovePatience(), size_max=1 << 30)
    outcome = make(
        mover, order_of(endpoint, "a", target), mover.watch(), lambda: seen.append(target.read_bytes())
    )
    assert seen == [content]
    assert outcome.moved is not None
    assert outcome.moved.sha256 == hashlib.sha256(content).hexdigest()


def test_moves_from_an_endpoint_that_takes_one_at_a_time_all_end_with_a_digest(
    served: tuple[Endpoint, bytes], tmp_path: Path
) -> None:
    endpoint, content = served
    here = LocalMoves(config(endpoint))
    first, second = (order_of(endpoint, name, tmp_path / name) for name in "ab")
    try:
        here.submit(first)
        here.submit(second)
        until(lambda: not here.is_busy)
        for each in (first, second):
            outcome = here.pop_outcome(each.id)
            assert outcome is not None
            assert outcome.moved is not None
            assert outcome.moved.sha256 == hashlib.sha256(content).hexdigest()
    finally:
        here.close()


def test_a_look_fetches_nothing_and_a_file_larger_than_what_is_reserved_is_not_fetched(
    served: tuple[Endpoint, bytes], tmp_path: Path
) -> None:
    endpoint, content = served
    mover = Mover([endpoint], MovePatience(), size_max=1 << 30)
    order = order_of(endpoint, "a", tmp_path / "a")
    for changes in ({"look": True}, {"bytes_max": len(content) - 1}):
        outcome = make(mover, msgspec.structs.replace(order, **changes), mover.watch())
        assert (outcome.size_bytes, outcome.moved, outcome.error) == (len(content), None, "")
        assert outcome.version
        assert not (tmp_path / "a").exists()
    outcome = make(mover, msgspec.structs.replace(order, bytes_max=len(content)), mover.watch())
    assert outcome.moved is not None


def test_a_move_that_no_job_wants_any_more_leaves_no_order_for_the_mover(tmp_path: Path) -> None:
    endpoint = Endpoint(url="https://h.example.org/")
    agent = TransferNodeMoves(tmp_path, config(endpoint))
    order = order_of(endpoint, "a", tmp_path / "a")
    agent.submit(order)
    assert list((tmp_path / "orders").iterdir())
    agent.cancel(order.id)
    assert not list((tmp_path / "orders").iterdir())
    assert not agent.is_busy
    agent.submit(order)
    assert list((tmp_path / "orders").iterdir())


def test_a_move_whose_outcome_nobody_takes_any_more_keeps_nobody_busy(tmp_path: Path) -> None:
    """A job was stopped while its output was on its way: `tidemill site run --once` ran to its limit."""
    endpoint = Endpoint(url="https://h.example.org/")
    agent = TransferNodeMoves(tmp_path, config(endpoint))
    order = order_of(endpoint, "a", tmp_path / "a")
    agent.submit(order)
    assert agent.is_busy
    (tmp_path / "done" / f"{order.id}.json").write_bytes(msgspec.json.encode(MoveOutcome(id=order.id)))
    until(lambda: not agent.is_busy)
    assert agent.pop_outcome(order.id) is not None, "who comes later takes it"


def test_what_came_of_a_canceled_move_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    """Its mover wrote it down before it knew."""
    endpoint = Endpoint(url="https://h.example.org/")
    agent = TransferNodeMoves(tmp_path, config(endpoint))
    order = order_of(endpoint, "a", tmp_path / "a")
    agent.submit(order)
    agent.cancel(order.id)
    late = tmp_path / "done" / f"{order.id}.json"
    late.write_bytes(msgspec.json.encode(MoveOutcome(id=order.id, error="it was broken off")))
    assert agent.pop_outcome(order.id) is None
    agent.submit(order)
    assert agent.pop_outcome(order.id) is None
    assert not agent.is_done([order.id])
    assert not late.exists(), "the mover makes no move that has an outcome"


def test_an_order_that_could_not_be_written_is_not_wanted_and_is_written_the_next_time(
    tmp_path: Path,
) -> None:
    """Its delivery waited for a move that no mover knew, until the agent was restarted."""
    endpoint = Endpoint(url="https://h.example.org/")
    agent = TransferNodeMoves(tmp_path, config(endpoint))
    order = order_of(endpoint, "a", tmp_path / "a")
    orders = tmp_path / "orders"
    orders.rmdir()
    with pytest.raises(SiteError) as raised:
        agent.submit(order)
    assert raised.value.transient
    was_busy = [agent.is_busy]
    orders.mkdir()
    agent.submit(order)
    was_busy.append(agent.is_busy)
    assert was_busy == [False, True]
    assert [path.name for path in orders.iterdir()] == [f"{order.id}.json"]


def test_what_came_of_a_canceled_move_and_cannot_be_removed_is_an_error_of_the_site(tmp_path: Path) -> None:
    """It was none that the agent knows, and ended it."""
    endpoint = Endpoint(url="https://h.example.org/")
    agent = TransferNodeMoves(tmp_path, config(endpoint))
    order = order_of(endpoint, "a", tmp_path / "a")
    late = tmp_path / "done" / f"{order.id}.json"
    late.mkdir()  # unlink(2) removes no directory
    with pytest.raises(SiteError, match=order.id) as raised:
        agent.submit(order)
    assert raised.value.transient
    assert not list((tmp_path / "orders").iterdir())
    late.rmdir()
    agent.submit(order)
    assert list((tmp_path / "orders").iterdir())


def test_an_agent_that_cannot_see_what_came_of_its_moves_is_busy(tmp_path: Path) -> None:
    """It is asked for outside the steps of which an error ends only that step."""
    endpoint = Endpoint(url="https://h.example.org/")
    agent = TransferNodeMoves(tmp_path, config(endpoint))
    agent.submit(order_of(endpoint, "a", tmp_path / "a"))
    (tmp_path / "done").rmdir()
    (tmp_path / "done").write_text("")
    assert agent.is_busy
