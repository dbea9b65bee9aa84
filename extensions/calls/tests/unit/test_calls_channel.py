"""The wire between an executor and its workers, and what a worker does with a call, in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill_calls import channel
from tidemill_calls.call import pickled
from tidemill_calls.channel import CallFrame, CallLink, LinkError, accept, connect
from tidemill_calls.crew import missing
from tidemill_calls.functions import FunctionPickles
from tidemill_calls.process import _FRAME, run_parts
from tidemill_calls.switchboard import STRANGERS_MAX, Switchboard

KEY = bytes(range(32))


@pytest.fixture
def pair() -> Iterator[tuple[CallLink, CallLink]]:
    left, right = _joined(KEY, KEY)
    yield left, right
    left.close()
    right.close()


def _joined(worker_key: bytes, executor_key: bytes) -> tuple[CallLink, CallLink]:
    here, there = socket.socketpair()
    found: list[CallLink] = []
    errors: list[LinkError] = []

    def work() -> None:
        try:
            found.append(connect(here, worker_key))
        except LinkError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        theirs = accept(there, there.recv(channel.HELLO_BYTES, socket.MSG_WAITALL), executor_key)
    except LinkError:
        here.close()
        there.close()
        raise
    finally:
        thread.join()
    assert not errors
    return found[0], theirs


def test_frames_arrive_whole_and_in_order(pair: tuple[CallLink, CallLink]) -> None:
    ours, theirs = pair
    sent = [(channel.PART, k, bytes(k)) for k in range(100)] + [(channel.LAST, 7, b"x" * channel.PART_BYTES)]
    for frame in sent:
        ours.put(*frame)
    got: list[tuple[bytes, int, bytes]] = []
    while len(got) < len(sent):
        ours.flush()
        got += [(each.kind, each.number, each.content) for each in theirs.receive()]
    assert got == sent
    assert ours.outgoing == 0


def test_a_worker_with_another_key_gets_no_byte() -> None:
    with pytest.raises(LinkError, match="does not know the pool's key"):
        _joined(bytes(32), KEY)


@pytest.mark.parametrize("harm", ["changed", "repeated", "dropped"])
def test_a_frame_that_was_changed_repeated_or_dropped_ends_the_connection(
    pair: tuple[CallLink, CallLink], harm: str
) -> None:
    ours, theirs = pair
    ours.put(channel.LAST, 1, b"one")
    ours.put(channel.LAST, 2, b"two")
    first, second = (bytes(each) for each in ours._out)
    raw = {"changed": first[:-1] + b"!", "repeated": first + first, "dropped": second}[harm]
    ours.socket.sendall(raw)
    with pytest.raises(LinkError, match="check"):
        theirs.receive()


def test_a_frame_of_absurd_size_is_refused(pair: tuple[CallLink, CallLink]) -> None:
    ours, theirs = pair
    ours.socket.sendall(b"\xff" * 64)
    with pytest.raises(LinkError, match="4294967295 bytes"):
        theirs.receive()


def _result(call: object) -> tuple[object, ...]:
    content = pickle.dumps(call)
    source, sink = io.BytesIO(), io.BytesIO()
    for at in range(0, len(content), 10):  # as a large one comes
        piece = content[at : at + 10]
        source.write(_FRAME.pack(channel.PART, len(piece)) + piece)
    source.write(_FRAME.pack(channel.LAST, 0))
    source.seek(0)
    run_parts(source, sink)
    assert source.read() == b""
    sink.seek(0)
    parts = b""
    while head := sink.read(_FRAME.size):
        kind, size = _FRAME.unpack(head)
        parts = b"" if kind == channel.ABORTED else parts + sink.read(size)
    found: tuple[object, ...] = pickle.loads(parts)
    return found


def test_a_large_argument_is_pickled_into_a_file(tmp_path: Path) -> None:
    data = bytes(64 << 20)
    tracemalloc.start()
    try:
        spool = pickled((len, (data,), {}), tmp_path, FunctionPickles())
        parts = [len(content) for _, content in spool.parts()]
        peak = tracemalloc.get_traced_memory()[1]
        spool.close()
    finally:
        tracemalloc.stop()
    assert sum(parts) > len(data)
    assert peak < len(data) / 4


def test_a_call_in_pieces_gives_its_result() -> None:
    assert _result((sum, ([1, 2, 3],), {})) == (True, 6)


def test_an_exception_is_a_result_with_its_traceback() -> None:
    good, error, where = _result((int, ("x",), {}))
    assert (good, type(error)) == (False, ValueError)
    assert "Traceback" in str(where)


def test_a_call_that_cannot_be_loaded_is_an_exception_and_the_next_one_is_found() -> None:
    class Odd:
        def __reduce__(self) -> tuple[object, ...]:
            return (int, ("no number " * 20,))

    assert _result((sum, ([Odd()],), {}))[0] is False


def test_an_exception_that_cannot_be_made_again_is_told_as_text() -> None:
    good, error, _ = _result((_raise_odd, (), {}))
    assert (good, type(error)) == (False, RuntimeError)
    assert "OddError: text" in str(error)


class OddError(Exception):
    """Pickles, and cannot be loaded: its constructor wants two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__("text")


def _raise_odd() -> None:
    raise OddError("a", "b")


@pytest.mark.parametrize(
    ("wanted", "live", "count"), [(0, 0, 0), (1, 0, 1), (1_000, 0, 8), (1_000, 8, 0), (3, 2, 1), (2, 5, 0)]
)
def test_workers_are_as_many_as_calls_can_use(wanted: int, live: int, count: int) -> None:
    assert missing(wanted=wanted, workers_max=8, live=live) == count


@contextlib.contextmanager
def _worker(directory: Path, timeout_s: float | None = None) -> Iterator[CallLink]:
    """A worker in a process of its own, connected and set up."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as kept:
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        (directory / "pool").write_text(json.dumps({"addresses": [address], "key": KEY.hex()}))
        process = subprocess.Popen([sys.executable, "-m", "tidemill_calls.worker", str(directory / "pool")])
        try:
            listener.settimeout(60)
            connection = kept.enter_context(listener.accept()[0])
            link = accept(connection, connection.recv(channel.HELLO_BYTES, socket.MSG_WAITALL), KEY)
            link.put(channel.SETUP, 0, json.dumps({"path": sys.path, "timeout_s": timeout_s}).encode())
            yield link
            link.put(channel.END)
            link.flush()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


def _until(link: CallLink, kind: bytes, number: int) -> bytes:
    """The content of the first frame of a kind of a call."""
    return _all_until(link, kind, number)[-1].content


def _all_until(link: CallLink, kind: bytes, number: int) -> list[CallFrame]:
    """The frames that come, up to the first one of a kind of a call."""
    found: list[CallFrame] = []
    for frame in _frames(link):
        found.append(frame)
        if (frame.kind, frame.number) == (kind, number):
            return found
    pytest.fail(f"no frame {kind!r} of call {number} came, but {found}")


def _frames(link: CallLink) -> Iterator[CallFrame]:
    """The frames that come within a minute. Those of one read that are not asked for are lost."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        link.flush()
        if select.select([link.socket], [], [], 1)[0]:
            yield from link.receive()


def _call(link: CallLink, number: int, function: object, *args: object) -> None:
    link.put(channel.LAST, number, pickle.dumps((function, args, {})))


def test_a_call_that_comes_with_the_cancel_of_the_one_before_runs(tmp_path: Path) -> None:
    with _worker(tmp_path) as link:
        for number in (1, 3, 5):
            link.put(channel.LAST, number, pickle.dumps((time.sleep, (600,), {})))
            _until(link, channel.STARTED, number)
            link.put(channel.CANCEL, number)
            link.put(channel.LAST, number + 1, pickle.dumps((sum, ([1, 2],), {})))  # both in one read
            assert pickle.loads(_until(link, channel.LAST, number + 1)) == (True, 3)


def test_many_calls_that_wait_run_in_their_order(tmp_path: Path) -> None:
    with _worker(tmp_path) as link:
        for number in range(1, 301):
            _call(link, number, int, number)
        frames = [each for each in _all_until(link, channel.LAST, 300) if each.kind == channel.LAST]
        assert [each.number for each in frames] == list(range(1, 301))
        assert [pickle.loads(each.content) for each in frames] == [(True, k) for k in range(1, 301)]


def test_calls_behind_a_long_one_are_given_back_and_the_others_run(tmp_path: Path) -> None:
    with _worker(tmp_path) as link:
        _call(link, 1, time.sleep, 600)
        for number in range(2, 7):
            _call(link, number, int, number)
        _until(link, channel.STARTED, 1)
        for number in (1, 3, 4):
            link.put(channel.RECALL, number)  # the first one runs, and stays
        assert [each.number for each in _all_until(link, channel.RETURNED, 4)] == [3, 4]
        link.put(channel.CANCEL, 1)
        done = [each.number for each in _all_until(link, channel.LAST, 6) if each.kind == channel.LAST]
        assert done == [2, 5, 6]


def test_calls_that_come_back_while_the_process_begins_others_keep_their_results(tmp_path: Path) -> None:
    with _worker(tmp_path) as link:
        for first in range(1, 41 * 300, 41):
            _call(link, first, time.sleep, 0.001)
            for number in range(first + 1, first + 41):
                _call(link, number, int, number)
            link.flush()
            time.sleep(0.0005 + first % 7 * 0.0003)
            link.put(
                channel.RECALL, first + 40
            )  # the process and its parent read the queue, at once at times
            results: dict[int, int | None] = {}
            for frame in _frames(link):
                if frame.kind in (channel.LAST, channel.RETURNED):
                    assert frame.number not in results, f"call {frame.number} ended twice"
                    results[frame.number] = pickle.loads(frame.content)[1] if frame.content else frame.number
                if len(results) == 41:
                    break
            assert results == {first: None} | {number: number for number in range(first + 1, first + 41)}


def test_a_call_that_is_cancelled_before_the_result_of_the_one_before_is_read_does_not_run_on(
    tmp_path: Path,
) -> None:
    with _worker(tmp_path) as link:
        for first in range(1, 3 * 100, 3):
            _call(link, first, int, first)
            _call(link, first + 1, time.sleep, 600)
            _call(link, first + 2, int, first + 2)
            link.flush()
            time.sleep(
                0.0002 + first % 10 * 0.0002
            )  # the process begins the second one meanwhile, or does not
            link.put(channel.CANCEL, first + 1)
            assert pickle.loads(_until(link, channel.LAST, first + 2)) == (True, first + 2)


def test_calls_behind_one_that_dies_run_in_another_process(tmp_path: Path) -> None:
    with _worker(tmp_path) as link:
        _call(link, 1, os.getpid)
        _call(link, 2, os._exit, 7)
        _call(link, 3, os.getpid)
        frames = {(each.kind, each.number): each.content for each in _all_until(link, channel.LAST, 3)}
        assert json.loads(frames[channel.DIED, 2])["why"] == "its process ended with exit status 7"
        first, second = (pickle.loads(frames[channel.LAST, number]) for number in (1, 3))
        assert first != second


def test_only_the_call_that_runs_out_of_time_dies(tmp_path: Path) -> None:
    with _worker(tmp_path, timeout_s=0.5) as link:
        _call(link, 1, int, 1)
        _call(link, 2, time.sleep, 600)
        _call(link, 3, int, 3)
        ends = [(each.kind, each.number) for each in _all_until(link, channel.LAST, 3) if each.number]
        assert [each for each in ends if each[0] != channel.STARTED] == [
            (channel.LAST, 1), (channel.DIED, 2), (channel.LAST, 3),
        ]  # fmt: skip


def test_a_process_that_dies_while_its_child_holds_its_pipes_is_noticed(tmp_path: Path) -> None:
    with _worker(tmp_path) as link:
        _call(link, 1, _leave_a_child)
        assert json.loads(_until(link, channel.DIED, 1))["why"] == "its process ended with exit status 3"


def _leave_a_child() -> None:
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
        os._exit(0)
    os._exit(3)


def test_parts_of_a_call_whose_process_died_are_no_other_calls(tmp_path: Path) -> None:
    with _worker(tmp_path, timeout_s=0.5) as link:
        content = pickle.dumps((len, (bytes(3 << 20),), {}))
        link.put(channel.PART, 1, content[: 1 << 20])
        _until(link, channel.DIED, 1)  # the rest did not come in time
        link.put(channel.PART, 1, content[1 << 20 : 2 << 20])
        link.put(channel.LAST, 1, content[2 << 20 :])
        _call(link, 2, int, 2)
        assert [each.number for each in _all_until(link, channel.LAST, 2)] == [2, 2]  # begun, ended
        link.put(channel.PART, 3, content[: 1 << 20])
        _until(link, channel.DIED, 3)
        link.put(channel.CANCEL, 3)  # the executor gives up, and tries again
        link.put(channel.PART, 3, content[: 1 << 20])
        link.put(channel.PART, 3, content[1 << 20 : 2 << 20])
        link.put(channel.LAST, 3, content[2 << 20 :])
        assert pickle.loads(_until(link, channel.LAST, 3)) == (True, 3 << 20)


def test_strangers_who_push_each_other_out_do_not_end_an_executor(tmp_path: Path) -> None:
    board = Switchboard(tmp_path, timeout_s=None, retries=0, idle_s=60.0, path=[])
    address = board.listen(f"unix:{tmp_path}/s").removeprefix("unix:")
    with contextlib.ExitStack() as kept:

        def stranger() -> socket.socket:
            made = kept.enter_context(socket.socket(socket.AF_UNIX))
            made.connect(address)
            return made

        strangers = []
        for _ in range(STRANGERS_MAX):
            strangers.append(stranger())
            _serve(board)
        for each in strangers:
            each.send(b"x")
        stranger()
        _serve(board)  # the oldest is dismissed in the round in which it is heard
        board.start(lambda _job: "")
        board.close(cancel=True)
        board.join()


def _serve(board: Switchboard) -> None:
    """One round, connections first."""
    ready = board._selector.select(1.0)
    for key, _ in sorted(ready, key=lambda each: isinstance(each[0].data, int)):
        board._serve(key)
