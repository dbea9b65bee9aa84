"""The executor's side of its workers' connections: a thread that hands out calls and resolves futures.

Knows no server. `Switchboard.wanted` says how many workers the calls could use; `crew` starts them.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import secrets
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidemill import clock
from tidemill.log import Log
from tidemill_calls import channel
from tidemill_calls.call import CallError, CallFuture, CallTimeoutError, RemoteCall, Spool, loaded
from tidemill_calls.channel import CallFrame, CallLink, LinkError

AHEAD_S = 0.02  #: a worker has calls of about this many seconds waiting
AHEAD_MAX = 200
RECALL_S = 1.0  #: calls that wait for one that runs for longer than this are given to others
LOSSES_MAX = 4  #: workers lost while they ran a call, before it is taken for the cause
SILENCE_S = 60.0  #: a worker that is silent for this time is lost
OUT_BYTES = 4 << 20  #: what waits for a worker's socket, before a large call's next part is read
STRANGERS_MAX = 64  #: connections that have not shown the key
NOTE_S = 60.0  #: interval at which strangers are logged
TICK_S = 1.0

_log = Log("executor")


class _Worker:
    """A worker that is connected."""

    def __init__(self, link: CallLink, now_s: float) -> None:
        self.link = link
        self.about: dict[str, Any] = {}
        self.calls: dict[int, RemoteCall] = {}  #: in the order in which they were sent
        self.parts: Any = None  #: what is left to send of a large call
        self.parts_of = 0
        self.heard_s = self.idle_s = self.beat_s = now_s
        self.since_s = now_s  #: when it got its first call, or ended one
        self.ended = 0  #: calls that ended in the read of this moment
        self.call_s: float | None = None  #: of its calls, on average
        self.is_leaving = False
        self.is_stuck = False  #: its other calls were recalled from behind a long one

    @property
    def is_known(self) -> bool:
        """Whether a frame of it has come: what opened the connection may be another's words, repeated."""
        return bool(self.about)

    def ahead(self) -> int:
        """How many calls it should have now."""
        if not self.is_known or self.parts is not None or self.is_leaving or self.is_stuck:
            return 0
        if self.call_s is None:
            return 1
        return 1 + min(AHEAD_MAX, int(AHEAD_S / max(self.call_s, 1e-6)))


class Switchboard:
    """Connections of workers, and the calls. All methods may be called from any thread.

    `idle_s`: a worker without calls leaves after this time. `timeout_s`: of each call; None = none.
    """

    def __init__(
        self, directory: Path, *, timeout_s: float | None, retries: int, idle_s: float, path: Sequence[str]
    ) -> None:
        self.key = secrets.token_bytes(32)
        self.directory = directory
        self._setup = json.dumps({"path": list(path), "timeout_s": timeout_s}).encode()
        self._timeout_s, self._retries, self._idle_s = timeout_s, retries, idle_s
        self._lock = threading.Lock()
        self._pending: deque[RemoteCall] = deque()
        self._number = 0
        self._unresolved = 0
        self._closed = self._aborts = False
        self.aborted = False  #: calls were canceled when it was closed
        self._checks_cancels = False
        self._looked_s = 0.0
        self._workers: dict[int, _Worker] = {}
        self._strangers: dict[int, tuple[socket.socket, bytes, float]] = {}
        self._selector = selectors.DefaultSelector()
        self._ear, self._bell = os.pipe()
        for fd in (self._ear, self._bell):
            os.set_blocking(fd, False)
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._listeners: list[socket.socket] = []
        self._why: Callable[[int], str] = lambda _job: ""
        self._on_short: Callable[[], None] = lambda: None
        self._is_short = False
        self._refused, self._noted_s = 0, -NOTE_S
        self._thread = threading.Thread(target=self._run, name="tidemill-calls", daemon=True)

    # ---- from any thread -------------------------------------------------------------------------------------

    def start(self, why: Callable[[int], str], on_short: Callable[[], None] = lambda: None) -> None:
        """Serve. `why` says what the server knows of the end of a worker's job; `on_short` is called when calls have
        come that no worker has room for."""
        self._why, self._on_short = why, on_short
        self._thread.start()

    def listen(self, address: str) -> str:
        """Accept workers at `unix:PATH`, or `tcp:HOST` on a free port; the address that they use."""
        scheme, _, rest = address.partition(":")
        if scheme == "unix":
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(rest)
            used = address
        else:
            listener = socket.create_server((rest, 0))
            used = f"tcp:{rest}:{listener.getsockname()[1]}"
        listener.listen(256)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, listener)
        self._listeners.append(listener)
        return used

    def add(self, spool: Spool, future: CallFuture[Any]) -> None:
        """One call more. Raises RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this executor was shut down")
            self._number += 1
            self._unresolved += 1
            self._pending.append(RemoteCall(self._number, spool, future))
            rings = len(self._pending) == 1
        if rings:
            self._ring()

    def cancelled(self) -> None:
        """Some future was cancelled."""
        self._checks_cancels = True
        self._ring()

    def wanted(self) -> int:
        """How many workers the calls could use now: those that wait for one, and workers that have some."""
        with self._lock:
            return len(self._pending) + sum(1 for each in list(self._workers.values()) if each.calls)

    @property
    def waits(self) -> bool:
        """Whether calls wait for a worker."""
        return bool(self._pending)

    def connected(self) -> int:
        """How many workers are here."""
        return sum(each.is_known for each in list(self._workers.values()))

    def jobs(self) -> set[int]:
        """The jobs of the workers that are here."""
        return {each.about.get("job", 0) for each in list(self._workers.values())}

    def close(self, *, cancel: bool) -> None:
        """Take no more calls; `cancel`: cancel all that are not over."""
        with self._lock:
            self._closed = True
            self._aborts = self._aborts or cancel
        self._ring()

    def join(self) -> None:
        """Wait until all calls are over after `close`."""
        if self._thread.is_alive():
            self._thread.join()

    def fail_pending(self, error: BaseException) -> None:
        """No worker will come: fail the calls that wait for one."""
        with self._lock:
            calls = list(self._pending)
            self._pending.clear()
        for call in calls:
            self._over(call, error)
        self._ring()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return self._closed and not self._thread.is_alive()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._bell, b"!")

    # ---- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._closed and not self._unresolved):
                began_s = clock.monotonic_s()
                for key, _ in self._selector.select(TICK_S):
                    self._serve(key)
                if clock.monotonic_s() - began_s < SILENCE_S / 2:  # else this process itself was stopped
                    self._check_workers(clock.monotonic_s())
                self._cancel_unwanted()
                self._hand_out()
            self._leave()
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            strangers = [connection for connection, _, _ in self._strangers.values()]
            for each in (*self._listeners, *strangers, *(one.link.socket for one in self._workers.values())):
                each.close()
            self._selector.close()

    def _give_up(self, error: BaseException) -> None:
        """No caller waits for ever for a thread that has died of a bug."""
        self._closed = True
        self.fail_pending(error)
        for worker in self._workers.values():
            for call in worker.calls.values():
                self._over(call, error)

    def _leave(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(LinkError, OSError):
                worker.link.put(channel.END)
                worker.link.socket.settimeout(1.0)
                worker.link.flush()

    def _serve(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ear, 4096)
        elif isinstance(key.data, socket.socket):
            self._accept(key.data)
        elif isinstance(key.data, int):
            self._greet(key.data)
        elif key.data.link.socket.fileno() in self._workers:  # it may have been lost in this round
            self._receive(key.data)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if not _is_own(connection):
                connection.close()
                return
            self._make_room()
            connection.setblocking(False)
            self._strangers[connection.fileno()] = (connection, b"", clock.monotonic_s())
            self._selector.register(connection, selectors.EVENT_READ, connection.fileno())

    def _make_room(self) -> None:
        """Send the oldest away where too many have not shown the key."""
        unknown = [(each.idle_s, fd) for fd, each in self._workers.items() if not each.is_known]
        unknown += [(since_s, fd) for fd, (_, _, since_s) in self._strangers.items()]
        if len(unknown) >= STRANGERS_MAX:
            fd = min(unknown)[1]
            if fd in self._strangers:
                self._dismiss(fd)
            else:
                self._lose(self._workers[fd], "it did not say who it is")

    def _note_stranger(self, why: str) -> None:
        now_s = clock.monotonic_s()
        self._refused += 1
        if now_s > self._noted_s + NOTE_S:
            _log.warning("executor.stranger", error=why, times=self._refused)
            self._refused, self._noted_s = 0, now_s

    def _dismiss(self, fd: int) -> None:
        connection, _, _ = self._strangers.pop(fd)
        self._selector.unregister(connection)
        connection.close()

    def _greet(self, fd: int) -> None:
        """Part of a stranger's handshake came; it may have been dismissed for a newer one in the same round."""
        if fd not in self._strangers:
            return
        connection, so_far, since_s = self._strangers[fd]
        try:
            data = connection.recv(channel.HELLO_BYTES - len(so_far))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._dismiss(fd)
            return
        so_far += data
        if len(so_far) < channel.HELLO_BYTES:
            self._strangers[fd] = (connection, so_far, since_s)
            return
        try:
            link = channel.accept(connection, so_far, self.key)
        except LinkError as error:
            self._note_stranger(str(error))
            self._dismiss(fd)
            return
        del self._strangers[fd]
        worker = _Worker(link, clock.monotonic_s())
        self._selector.modify(connection, selectors.EVENT_READ, worker)
        self._workers[fd] = worker
        self._hear_nothing(worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            self._send(worker)
            frames = worker.link.receive()
            worker.heard_s = clock.monotonic_s()
            returned: list[RemoteCall] = []
            for frame in frames:
                if frame.kind == channel.RETURNED and frame.number in worker.calls:
                    returned.append(worker.calls.pop(frame.number))
                else:
                    self._handle_frame(worker, frame)
            for call in reversed(returned):
                self._again(call)
            self._note_pace(worker)
        except LinkError as error:
            self._lose(worker, str(error))

    def _note_pace(self, worker: _Worker) -> None:
        """How long its calls take, after some have ended."""
        if worker.ended:
            took_s = (worker.heard_s - worker.since_s) / worker.ended
            worker.call_s = took_s if worker.call_s is None else (worker.call_s + took_s) / 2
            worker.since_s = worker.heard_s
            worker.ended, worker.is_stuck = 0, False

    def _handle_frame(self, worker: _Worker, frame: CallFrame) -> None:
        call = worker.calls.get(frame.number)
        if frame.kind == channel.HELLO:
            worker.about = json.loads(frame.content)
            worker.idle_s = clock.monotonic_s()  # it can take calls from now on
            worker.link.put(channel.SETUP, 0, self._setup)
            self._send(worker)
        if call is None:
            return  # a beat, or of a call that was cancelled meanwhile
        if frame.kind == channel.STARTED:
            call.future.runs = True
        elif frame.kind == channel.PART:
            call.result = call.result or Spool(self.directory)
            call.result.write(frame.content)
        elif frame.kind == channel.ABORTED:
            if call.result is not None:
                call.result.close()
            call.result = None
        elif frame.kind == channel.LAST:
            self._finish(worker, call, frame.content)
        elif frame.kind == channel.DIED:
            self._bury(worker, call, json.loads(frame.content))

    def _finish(self, worker: _Worker, call: RemoteCall, content: bytes) -> None:
        worker.ended += 1
        self._drop(worker, call)
        result = call.result
        if result is not None:
            result.write(content)
            call.resolve(result.load)
        else:
            call.resolve(lambda: loaded(content))
        self._resolved()

    def _bury(self, worker: _Worker, call: RemoteCall, died: dict[str, Any]) -> None:
        """The process of a call died: again, or its end."""
        worker.ended += 1
        if worker.parts is not None and worker.parts_of == call.number:
            worker.parts = None  # no reader is left for the rest of it
            worker.link.put(channel.CANCEL, call.number)
        self._drop(worker, call)
        call.died += 1
        call.future.runs = False
        if died["timed_out"]:
            self._over(call, CallTimeoutError(f"the call gave no result: {died['why']}"))
        elif call.died > self._retries:
            tail = f"\n{died['stderr']}" if died["stderr"] else ""
            self._over(call, CallError(f"the call gave no result: {died['why']}{tail}"))
        else:
            self._again(call)

    def _drop(self, worker: _Worker, call: RemoteCall) -> None:
        del worker.calls[call.number]
        if not worker.calls:
            worker.idle_s = clock.monotonic_s()

    def _again(self, call: RemoteCall) -> None:
        if call.result is not None:
            call.result.close()
        call.result = None
        call.future.runs = False
        with self._lock:
            self._pending.appendleft(call)

    def _lose(self, worker: _Worker, why: str) -> None:
        """A worker is gone: its calls wait for others, but one that loses each of them."""
        fd = worker.link.socket.fileno()
        self._selector.unregister(worker.link.socket)
        worker.link.close()
        del self._workers[fd]
        for call in reversed(worker.calls.values()):
            call.losses += call.future.runs
            if call.losses >= LOSSES_MAX:
                told = self._why(worker.about.get("job", 0)) or why
                self._over(
                    call,
                    CallError(
                        f"the call gave no result: {call.losses} workers were lost with it, the last: {told}"
                    ),
                )
            else:
                self._again(call)

    def _check_workers(self, now_s: float) -> None:
        """Beats, workers that are silent, workers that have nothing to do, strangers that say nothing; now and then."""
        if now_s < self._looked_s + TICK_S:
            return
        self._looked_s = now_s
        for fd, (_, _, since_s) in list(self._strangers.items()):
            if now_s > since_s + channel.HANDSHAKE_S:
                self._dismiss(fd)
        for worker in list(self._workers.values()):
            patience_s = SILENCE_S if worker.is_known else channel.HANDSHAKE_S
            if now_s > worker.heard_s + patience_s:
                self._lose(worker, f"it was silent for {patience_s:g} s")
                continue
            if now_s > worker.beat_s + channel.BEAT_S:
                worker.beat_s = now_s
                worker.link.put(channel.BEAT)
            is_idle = worker.is_known and not worker.calls
            if is_idle and not worker.is_leaving and now_s > worker.idle_s + self._idle_s:
                worker.is_leaving = True
                worker.link.put(channel.END)
            if len(worker.calls) > 1 and not worker.is_stuck and now_s > worker.since_s + RECALL_S:
                worker.is_stuck = True
                for number in list(worker.calls)[1:]:
                    worker.link.put(channel.RECALL, number)
            self._hear_nothing(worker)

    def _hear_nothing(self, worker: _Worker) -> None:
        try:
            self._send(worker)
        except LinkError as error:
            self._lose(worker, str(error))

    def _cancel_unwanted(self) -> None:
        if not (self._checks_cancels or self._aborts):
            return
        self._checks_cancels = False
        with self._lock:
            calls = list(self._pending)
            gone = [each for each in calls if self._aborts or each.future.cancelled()]
            if gone:
                numbers = {each.number for each in gone}
                self._pending = deque(each for each in calls if each.number not in numbers)
        self.aborted |= self._aborts and bool(gone)
        for call in gone:
            self._cancel(call)
        for worker in list(self._workers.values()):
            for call in [each for each in worker.calls.values() if self._aborts or each.future.cancelled()]:
                if worker.parts_of == call.number:
                    worker.parts = None
                self._drop(worker, call)
                worker.since_s, worker.is_stuck = clock.monotonic_s(), False
                self.aborted |= self._aborts
                worker.link.put(channel.CANCEL, call.number)
                self._cancel(call)
            self._hear_nothing(worker)

    def _cancel(self, call: RemoteCall) -> None:
        call.future.cancel()
        call.future.set_running_or_notify_cancel()  # wakes those that wait for it
        call.close()
        self._resolved()

    def _hand_out(self) -> None:
        """Give calls to workers, those with the fewest first."""
        free = [(len(each.calls), fd) for fd, each in self._workers.items() if len(each.calls) < each.ahead()]
        heapq.heapify(free)
        touched: set[int] = set()
        while free:
            calls, fd = free[0]
            worker = self._workers[fd]
            with self._lock:
                if not self._pending or (calls and not self._pending[0].spool.is_small):
                    break  # large ones go to a worker that has nothing else
                call = self._pending.popleft()
            self._give(worker, call)
            touched.add(fd)
            if len(worker.calls) < worker.ahead():
                heapq.heapreplace(free, (len(worker.calls), fd))
            else:
                heapq.heappop(free)
        for fd in touched:
            self._hear_nothing(self._workers[fd])
        is_short = bool(self._pending)
        if is_short and not self._is_short:
            self._on_short()
        self._is_short = is_short

    def _give(self, worker: _Worker, call: RemoteCall) -> None:
        if not worker.calls:
            worker.since_s = clock.monotonic_s()
        worker.calls[call.number] = call
        if call.spool.is_small:
            worker.link.put(channel.LAST, call.number, call.spool.content())
        else:
            worker.parts, worker.parts_of = call.spool.parts(), call.number
            self._pull_parts(worker)

    def _pull_parts(self, worker: _Worker) -> None:
        while worker.parts is not None and worker.link.outgoing < OUT_BYTES:
            kind, content = next(worker.parts)
            worker.link.put(kind, worker.parts_of, content)
            if kind == channel.LAST:
                worker.parts = None

    def _send(self, worker: _Worker) -> None:
        """Send what the socket takes, and be woken when it takes more."""
        worker.link.flush()
        self._pull_parts(worker)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.link.outgoing else 0)
        if self._selector.get_key(worker.link.socket).events != events:
            self._selector.modify(worker.link.socket, events, worker)

    def _over(self, call: RemoteCall, error: BaseException) -> None:
        call.fail(error)
        self._resolved()

    def _resolved(self) -> None:
        with self._lock:
            self._unresolved -= 1


def _is_own(connection: socket.socket) -> bool:
    """Whether a process of this user is at the other end, as far as the kernel says (unix(7), SO_PEERCRED)."""
    if connection.family != socket.AF_UNIX:
        return True
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.geteuid())
