"""What an Executor's jobs run: `python -m tidemill.client.calls.worker POOL`. Standard library only.

POOL is a file with the executor's addresses and key. The worker connects and takes calls until it is sent away.
It is two processes. The parent speaks to the executor and never unpickles anything; its child runs the calls, one after
the other, with all imports kept. So a call can be cancelled, time out or take its process down, and the worker lives.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import json
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from collections import deque
from typing import Any, BinaryIO

from tidemill.client.calls import channel
from tidemill.client.calls.channel import CallFrame, CallLink, LinkError

CONNECT_S = 20.0  #: how long an executor is looked for
SILENCE_S = (
    600.0  #: an executor that is silent for this time is gone; a library may hold its interpreter for minutes
)
BACKLOG_BYTES = 4 << 20  #: what may wait for a slower reader, before the faster side is not read
TAIL_BYTES = 4096
_FRAME = struct.Struct("<cI")  # between parent and child: kind, size


# ---- the child -------------------------------------------------------------------------------------------------------


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


def _write_frame(sink: BinaryIO, kind: bytes, content: Any) -> None:
    sink.write(_FRAME.pack(kind, len(content)))
    sink.write(content)


def _read_frame(source: BinaryIO) -> tuple[bytes, bytes]:
    head = source.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise EOFError
    kind, size = _FRAME.unpack(head)
    return kind, source.read(size)


def pickler() -> Any:
    """cloudpickle's `Pickler` where it is installed (it takes lambdas and `__main__`), else pickle's."""
    try:
        return importlib.import_module("cloudpickle").Pickler
    except ImportError:
        return pickle.Pickler


def run_call(source: BinaryIO, sink: BinaryIO) -> None:
    """Run one pickled `(function, args, kwargs)`; the sink gets a pickled `(True, value)` or `(False, exception,
    traceback text)`. Whatever goes wrong, pickling included, is an exception in it."""
    writer = _Writer(sink)
    parts = _Parts(source)
    try:
        try:
            function, args, kwargs = pickle.load(io.BufferedReader(parts, channel.PART_BYTES))
        finally:
            parts.drain()
        value = function(*args, **kwargs)
        del args, kwargs
        _dump(value, writer)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- it is a result here, and belongs to the caller
        writer.abort()
        writer.write(_exception(error))
    writer.end()


def _dump(value: Any, writer: _Writer) -> None:
    """Pickle a result; cloudpickle, which is ten times slower, only takes what pickle does not."""
    try:
        pickle.Pickler(writer, protocol=5).dump((True, value))
    except Exception:
        if pickler() is pickle.Pickler:
            raise
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


def _child(in_fd: int, out_fd: int) -> None:
    """Run calls until there are no more."""
    faulthandler.enable()
    with open(in_fd, "rb") as source, open(out_fd, "wb") as sink, contextlib.suppress(EOFError):
        while True:
            source.peek(1)
            if not source.peek(1):
                return
            run_call(source, sink)
            sys.stdout.flush()


# ---- the parent ------------------------------------------------------------------------------------------------------


class _Child:
    """The process that runs calls, as its parent knows it."""

    def __init__(self) -> None:
        child_in, self.in_fd = os.pipe()
        self.out_fd, child_out = os.pipe()
        self.err_fd, child_err = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()  # so that what a call has started can be ended with it
                for fd in (self.in_fd, self.out_fd, self.err_fd):
                    os.close(fd)
                os.dup2(child_err, 2)
                os.close(child_err)
                _child(child_in, child_out)
                status = 0
            except BaseException:  # noqa: BLE001 -- the top of the child: its traceback goes to the caller
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        for fd in (child_in, child_out, child_err):
            os.close(fd)
        for fd in (self.in_fd, self.out_fd, self.err_fd):
            os.set_blocking(fd, False)
        self.out = bytearray()  # what waits to be written to it
        self.heard = bytearray()
        self.tail = b""  # the end of its stderr

    def kill(self) -> int:
        """End it with all that it has started; its wait status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # it may not have had the time for `setsid`
        return self.reap()

    def reap(self) -> int:
        """Wait for its end; its wait status."""
        status = os.waitpid(self.pid, 0)[1]
        self.read_stderr()
        for fd in (self.in_fd, self.out_fd, self.err_fd):
            os.close(fd)
        return status

    def read_stderr(self) -> bool:
        """Pass on what it wrote to stderr, and keep the end; False if it has closed it."""
        try:
            data = os.read(self.err_fd, 65536)
        except BlockingIOError:
            return True
        with contextlib.suppress(OSError):
            os.write(2, data)
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        return bool(data)


class Worker:
    """Passes calls from an executor to a child and results back."""

    def __init__(self, link: CallLink) -> None:
        self._link = link
        self._selector = selectors.DefaultSelector()
        self._waiting: deque[tuple[int, deque[bytes]]] = deque()  # whole calls that the child has not got yet
        self._incoming: dict[int, deque[bytes]] = {}  # calls that are coming
        self._running: int | None = None
        self._began_s = self._heard_s = self._beat_s = time.monotonic()
        self._timeout_s: float | None = None
        self._ends = False
        self._is_set_up = False
        self._child: _Child | None = None

    def run(self) -> None:
        """Go on until the executor says END and all is done. Raises LinkError if the executor is gone."""
        self._link.put(channel.HELLO, 0, json.dumps(_about()).encode())
        try:
            while not (self._ends and self._running is None and not self._waiting):
                self._watch()
                for key, _ in self._selector.select(self._patience()):
                    self._serve(key.data)
                self._on_time()
                self._start_next()
                self._link.flush()
        finally:
            if self._child is not None:
                self._child.kill()
        deadline = time.monotonic() + channel.HANDSHAKE_S
        while self._link.outgoing and time.monotonic() < deadline:
            self._link.flush()
            time.sleep(0.01)
        self._link.close()

    def _watch(self) -> None:
        """What the next wait looks at: whoever is ahead of the other side is not read for a while."""
        child = self._child
        wanted: dict[int, tuple[int, str]] = {}
        reads = child is None or len(child.out) < BACKLOG_BYTES
        events = (selectors.EVENT_READ if reads else 0) | (
            selectors.EVENT_WRITE if self._link.outgoing else 0
        )
        if events:
            wanted[self._link.socket.fileno()] = (events, "link")
        if child is not None:
            if self._link.outgoing < BACKLOG_BYTES:
                wanted[child.out_fd] = (selectors.EVENT_READ, "child")
            wanted[child.err_fd] = (selectors.EVENT_READ, "stderr")
            if child.out:
                wanted[child.in_fd] = (selectors.EVENT_WRITE, "calls")
        for key in list(self._selector.get_map().values()):
            fd = key.fd
            if wanted.get(fd) != (key.events, key.data):
                self._selector.unregister(fd)
            else:
                del wanted[fd]
        for fd, (mask, name) in wanted.items():
            self._selector.register(fd, mask, name)

    def _patience(self) -> float:
        left = channel.BEAT_S
        if self._running is not None and self._timeout_s is not None:
            left = min(left, self._began_s + self._timeout_s - time.monotonic())
        return max(0.0, left)

    def _serve(self, name: str) -> None:
        if name == "link":
            self._link.flush()
            for frame in self._link.receive():
                self._heard_s = time.monotonic()
                self._take(frame)
        elif self._child is None:
            return
        elif name == "calls":
            self._feed(self._child)
        elif name == "stderr":
            self._child.read_stderr()
        else:
            self._hear(self._child)

    def _take(self, frame: CallFrame) -> None:
        if frame.kind in (channel.PART, channel.LAST):
            self._take_call(frame)
        elif frame.kind == channel.CANCEL:
            self._cancel(frame.number)
        elif frame.kind == channel.END:
            self._ends = True
        elif frame.kind == channel.SETUP:
            setup = json.loads(frame.content)
            sys.path[:] = setup["path"] + [each for each in sys.path if each not in setup["path"]]
            self._timeout_s = setup["timeout_s"]
            self._is_set_up = True

    def _take_call(self, frame: CallFrame) -> None:
        piece = _FRAME.pack(frame.kind, len(frame.content)) + frame.content
        if frame.number == self._running and self._child is not None:
            self._child.out += piece  # a large one, which the child takes as it comes
            return
        if frame.number not in self._incoming and frame.kind == channel.PART and self._running is None:
            self._begin(frame.number)
            if self._child is not None:
                self._child.out += piece
            return
        pieces = self._incoming.setdefault(frame.number, deque())
        pieces.append(piece)
        if frame.kind == channel.LAST:
            self._waiting.append((frame.number, self._incoming.pop(frame.number)))

    def _start_next(self) -> None:
        if self._running is None and self._waiting and self._is_set_up:
            number, pieces = self._waiting.popleft()
            self._begin(number)
            if self._child is not None:
                self._child.out += b"".join(pieces)
                self._feed(self._child)

    def _begin(self, number: int) -> None:
        self._running = number
        self._began_s = time.monotonic()
        if self._child is None:
            self._child = _Child()
        self._child.tail = b""
        self._link.put(channel.STARTED, number)

    def _feed(self, child: _Child) -> None:
        try:
            while child.out:
                done = os.write(child.in_fd, memoryview(child.out)[: 1 << 16])
                del child.out[:done]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            child.out.clear()  # its end is heard on its other pipe

    def _hear(self, child: _Child) -> None:
        try:
            data = os.read(child.out_fd, channel.READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._unwatch(child)
            self._bury(child.reap(), "")
            return
        child.heard += data
        while len(child.heard) >= _FRAME.size:
            kind, size = _FRAME.unpack_from(child.heard)
            if len(child.heard) < _FRAME.size + size:
                return
            content = bytes(child.heard[_FRAME.size : _FRAME.size + size])
            del child.heard[: _FRAME.size + size]
            if self._running is not None:
                self._link.put(kind, self._running, content)
            if kind == channel.LAST:
                self._running = None

    def _on_time(self) -> None:
        now = time.monotonic()
        timeout_s = self._timeout_s
        if self._running is not None and timeout_s is not None and now >= self._began_s + timeout_s:
            self._end_child(f"it ran for longer than {timeout_s:g} s", timed_out=True)
        if now >= self._beat_s + channel.BEAT_S:
            self._beat_s = now
            self._link.put(channel.BEAT)
        if now > self._heard_s + SILENCE_S:
            raise LinkError(f"the executor was silent for {SILENCE_S:g} s")

    def _cancel(self, number: int) -> None:
        if number == self._running:
            self._end_child("it was cancelled", timed_out=False)
        self._incoming.pop(number, None)
        self._waiting = deque(each for each in self._waiting if each[0] != number)

    def _end_child(self, why: str, *, timed_out: bool) -> None:
        if self._child is not None:
            self._unwatch(self._child)
            self._child.kill()
            self._bury(0, why, timed_out=timed_out)

    def _unwatch(self, child: _Child) -> None:
        """Before its descriptors are closed: the next child gets the same numbers, and is not what is watched now."""
        for fd in (child.in_fd, child.out_fd, child.err_fd):
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)

    def _bury(self, status: int, why: str, *, timed_out: bool = False) -> None:
        """The child has ended: say so of the call that it was at."""
        child, self._child = self._child, None
        number, self._running = self._running, None
        if child is None or number is None:
            return
        if not why and os.WIFSIGNALED(status):
            why = f"its process was killed by signal {os.WTERMSIG(status)}"
        why = why or f"its process ended with exit status {os.WEXITSTATUS(status)}"
        stderr = child.tail.decode("utf-8", "replace")
        content = {"why": why, "stderr": stderr, "timed_out": timed_out}
        self._link.put(channel.DIED, number, json.dumps(content).encode())


def _about() -> dict[str, object]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "job": int(os.environ.get("TIDEMILL_JOB", "0")),
        "python": sys.version.split()[0],
    }


def main(arguments: list[str]) -> int:
    """Serve the executor of a POOL file."""
    with open(arguments[0], "rb") as file:
        pool = json.load(file)
    try:
        link = channel.connect(
            channel.dial(pool["addresses"], patience_s=CONNECT_S), bytes.fromhex(pool["key"])
        )
        Worker(link).run()
    except LinkError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
