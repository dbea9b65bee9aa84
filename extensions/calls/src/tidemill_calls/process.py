"""The process of a worker that runs calls: what it does, and its parent's hold on it. Standard library only,
and cloudpickle where a result needs it.

Small calls wait in a pipe of packets (pipe(2), O_DIRECT), one call each: the process takes the next one without
waiting for its parent to be scheduled, and a packet that the parent reads back has not begun. Both may read at once, so
a packet says which call it is of: how many came back does not say which. Larger calls follow a mark in that pipe
through a second one, in parts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import importlib
import io
import os
import pickle
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from tidemill_calls import channel

PACKET_BYTES = 4096  #: what one packet of a pipe holds: PIPE_BUF of pipe(7)
QUEUE_BYTES = 1 << 18  #: of the pipe of packets: a packet takes a page, so 64 calls
TAIL_BYTES = 4096
PAUSE_S = 0.2  #: how long a process may take to stop
FUNCTIONS_MAX = 64  #: functions that travelled by value and are kept
_FRAME = struct.Struct("<cI")  # of parts and results: kind, size
_PACKET = struct.Struct("<cQ")  # what a packet begins with: kind, number of the call


# ---- in the process --------------------------------------------------------------------------------------------------


class _Parts(io.RawIOBase):
    """A pickled call as it comes in parts."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._part, self._ended = source, memoryview(b""), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._part and not self._ended:
            kind, content = _read_frame(self._source)
            self._ended = kind == channel.LAST
            self._part = memoryview(content)
        size = min(len(buffer), len(self._part))
        buffer[:size] = self._part[:size]
        self._part = self._part[size:]
        return size

    def drain(self) -> None:
        """Read on to the end of this call."""
        while not self._ended:
            self._ended = _read_frame(self._source)[0] == channel.LAST
        self._part = memoryview(b"")


class _Writer:
    """Takes a pickle as it is made and passes it on in parts, so that a large one is never whole in memory twice."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink, self._waiting = sink, bytearray()

    def write(self, data: Any) -> int:
        view = memoryview(contiguous(data))
        if len(view) > channel.PART_BYTES:
            self._send(channel.PART)
            for at in range(0, len(view), channel.PART_BYTES):
                _write_frame(self._sink, channel.PART, view[at : at + channel.PART_BYTES])
            return len(view)
        self._waiting += view
        if len(self._waiting) > channel.PART_BYTES:
            self._send(channel.PART)
        return len(view)

    def end(self) -> None:
        """Nothing more comes."""
        self._send(channel.LAST)
        self._sink.flush()

    def abort(self) -> None:
        """What was written so far does not count."""
        self._waiting.clear()
        _write_frame(self._sink, channel.ABORTED, b"")

    def _send(self, kind: bytes) -> None:
        _write_frame(self._sink, kind, bytes(self._waiting))
        self._waiting.clear()


def contiguous(data: Any) -> Any:
    """What a pickler writes, as bytes or a view of bytes: buffers come with a shape of their own."""
    if isinstance(data, bytes):
        return data
    return data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data).cast("B")


def framed(kind: bytes, content: bytes) -> bytes:
    """A part, as it is written to the process."""
    return _FRAME.pack(kind, len(content)) + content


def _write_frame(sink: BinaryIO, kind: bytes, content: Any) -> None:
    sink.write(_FRAME.pack(kind, len(content)))
    sink.write(content)


def _read_frame(source: BinaryIO) -> tuple[bytes, bytes]:
    head = source.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise EOFError
    kind, size = _FRAME.unpack(head)
    return kind, source.read(size)


@functools.cache
def pickler() -> Any:
    """cloudpickle's `Pickler`, which takes lambdas and `__main__`: imported by the first call that needs it."""
    return importlib.import_module("cloudpickle").Pickler


def run_parts(source: BinaryIO, sink: BinaryIO) -> None:
    """`run_call` on what comes in parts."""
    parts = _Parts(source)

    def load() -> Any:
        try:
            return pickle.load(io.BufferedReader(parts, channel.PART_BYTES))
        finally:
            parts.drain()

    run_call(load, sink)


def run_call(load: Callable[[], Any], sink: BinaryIO) -> None:
    """Run the `(function, args, kwargs)` that `load` unpickles; the sink gets a pickled `(True, value)` or `(False,
    exception, traceback text)`. Whatever goes wrong, pickling included, is an exception in it."""
    writer = _Writer(sink)
    try:
        function, args, kwargs = load()
        if isinstance(function, bytes):
            function = _function(function)
        value = function(*args, **kwargs)
        del args, kwargs
        _dump(value, writer)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- it is a result here, and belongs to the caller
        writer.abort()
        writer.write(_exception(error))
    writer.end()


@functools.lru_cache(maxsize=FUNCTIONS_MAX)
def _function(content: bytes) -> Any:
    """A function that travelled by value, made once."""
    return pickle.loads(content)


def _dump(value: Any, writer: _Writer) -> None:
    """Pickle a result; cloudpickle, which is ten times slower, only takes what pickle does not."""
    try:
        pickle.Pickler(writer, protocol=5).dump((True, value))
    except Exception:  # noqa: BLE001 -- what pickle refuses raises anything; cloudpickle raises what it refuses
        writer.abort()
        pickler()(writer, protocol=5).dump((True, value))


def _exception(error: BaseException) -> bytes:
    where = "".join(traceback.format_exception(error))
    with contextlib.suppress(Exception):
        content = io.BytesIO()
        pickler()(content, protocol=5).dump((False, error, where))
        pickle.loads(content.getvalue())  # some exceptions pickle and cannot be made again
        return content.getvalue()
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}"), where))


def _serve(packets_fd: int, parts_fd: int, out_fd: int) -> None:
    """Run calls until there are no more."""
    faulthandler.enable()
    poll = select.poll()
    poll.register(packets_fd, select.POLLIN)
    with open(parts_fd, "rb") as parts, open(out_fd, "wb") as sink, contextlib.suppress(EOFError):
        while True:
            try:
                packet = os.read(packets_fd, PACKET_BYTES)
            except BlockingIOError:
                poll.poll()
                continue
            if not packet:
                return
            if packet[:1] == channel.LAST:
                run_call(functools.partial(pickle.loads, memoryview(packet)[_PACKET.size :]), sink)
            else:
                run_parts(parts, sink)
            sys.stdout.flush()


# ---- in its parent ---------------------------------------------------------------------------------------------------


def fits_packet(content: bytes) -> bool:
    """Whether a pickled call is small enough to wait in the pipe of packets."""
    return len(content) <= PACKET_BYTES - _PACKET.size


class CallProcess:
    """The process, as its parent knows it."""

    def __init__(self) -> None:
        packets_out, self._packets_fd = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
        self._taken_fd = packets_out  # the same end as the process reads, to take calls back
        with contextlib.suppress(OSError):  # the user has many pipes: fewer calls wait in it
            fcntl.fcntl(self._packets_fd, fcntl.F_SETPIPE_SZ, QUEUE_BYTES)
        parts_out, self.parts_fd = os.pipe()
        self.out_fd, child_out = os.pipe()
        self.err_fd, child_err = os.pipe()
        mine = (self._packets_fd, self.parts_fd, self.out_fd, self.err_fd)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()  # so that what a call has started can be ended with it
                for fd in mine:
                    os.close(fd)
                os.dup2(child_err, 2)
                os.close(child_err)
                _serve(packets_out, parts_out, child_out)
                status = 0
            except BaseException:  # noqa: BLE001 -- the top of the process: its traceback goes to the caller
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        for fd in (parts_out, child_out, child_err):
            os.close(fd)
        for fd in mine:
            os.set_blocking(fd, False)
        self.parts = bytearray()  #: of a large call, what waits to be written to it
        self.tail = b""  #: the end of its stderr
        self.speaks = True  #: it has not closed its stderr
        self._heard = bytearray()

    def push(self, number: int, content: bytes) -> bool:
        """Queue a call that fits a packet; False if the queue is full."""
        return self._push(_PACKET.pack(channel.LAST, number) + content)

    def push_parts(self, number: int) -> bool:
        """Queue a call whose parts are then written with `feed`; False if the queue is full."""
        return self._push(_PACKET.pack(channel.PART, number))

    def _push(self, packet: bytes) -> bool:
        try:
            os.write(self._packets_fd, packet)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass  # its end is heard on its other pipe
        return True

    def take_back(self) -> set[int]:
        """Empty the queue of packets: the numbers of the calls that it has not begun. It may take one in between."""
        numbers = set()
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(self._taken_fd, PACKET_BYTES):
                numbers.add(_PACKET.unpack_from(packet)[1])
        return numbers

    def feed(self) -> None:
        """Write what it takes of a large call."""
        try:
            while self.parts:
                done = os.write(self.parts_fd, memoryview(self.parts)[: 1 << 16])
                del self.parts[:done]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.parts.clear()  # its end is heard on its other pipe

    def results(self) -> list[tuple[bytes, bytes]] | None:
        """Kind and content of the frames that it has written, as far as one read goes; None after its end."""
        try:
            data = os.read(self.out_fd, channel.READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        self._heard += data
        result, at = [], 0
        while len(self._heard) - at >= _FRAME.size:
            kind, size = _FRAME.unpack_from(self._heard, at)
            end = at + _FRAME.size + size
            if len(self._heard) < end:
                break
            result.append((kind, bytes(self._heard[at + _FRAME.size : end])))
            at = end
        del self._heard[:at]
        return result

    def read_stderr(self) -> None:
        """Pass on what it wrote to stderr, and keep the end."""
        try:
            data = os.read(self.err_fd, 65536)
        except BlockingIOError:
            return
        self.speaks = bool(data)
        with contextlib.suppress(OSError):
            os.write(2, data)
        self.tail = (self.tail + data)[-TAIL_BYTES:]

    def pause(self) -> None:
        """Stop it, so that what it has written is all that it has done."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + PAUSE_S
        while not self._waited(os.WSTOPPED | os.WEXITED) and time.monotonic() < deadline:
            time.sleep(0.001)

    def go_on(self) -> None:
        """Let the process go on after `pause`."""
        self._signal(signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether it is gone: something that it has started may hold its pipes open."""
        return self._waited(os.WEXITED)

    def kill(self) -> int:
        """End it with all that it has started; its wait status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._signal(signal.SIGKILL)  # it may not have had the time for `setsid`
        status = os.waitpid(self.pid, 0)[1]
        self.read_stderr()
        for fd in (self._packets_fd, self._taken_fd, self.parts_fd, self.out_fd, self.err_fd):
            os.close(fd)
        return status

    def _waited(self, events: int) -> bool:
        """Whether one of these has happened to it; it stays to be waited for, so that its number is not used again."""
        return os.waitid(os.P_PID, self.pid, events | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
