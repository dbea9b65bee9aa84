"""What an Executor's jobs run: `python -m tidemill_calls.worker POOL`. Standard library only.

POOL is a file with the executor's addresses and key. The worker connects and takes calls until it is sent away.
It is two processes. The parent speaks to the executor and never unpickles anything; `process` runs the calls, one after
the other, with all imports kept. So a call can be cancelled, time out or take its process down, and the worker lives.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import sys
import time
from collections import deque
from typing import NamedTuple

from tidemill_calls import channel
from tidemill_calls.channel import CallFrame, CallLink, LinkError
from tidemill_calls.process import CallProcess, fits_packet, framed

CONNECT_S = 20.0  #: how long an executor is looked for
SILENCE_S = (
    600.0  #: an executor that is silent for this time is gone; a library may hold its interpreter for minutes
)
BACKLOG_BYTES = 4 << 20  #: what may wait for a slower reader, before the faster side is not read
QUEUED_MAX = 48  #: calls that wait in the process's pipe
GATHER_S = 0.001  #: results of a process that has more to do are gathered for this time and sent together
CHECK_S = 1.0  #: interval at which a process is looked after


class _Call(NamedTuple):
    """A call that has come: whole if `content` is one piece."""

    number: int
    content: list[bytes]

    @property
    def is_small(self) -> bool:
        return len(self.content) == 1 and fits_packet(self.content[0])

    def frames(self) -> bytes:
        """The call as frames of its parts."""
        kinds = [channel.PART] * (len(self.content) - 1) + [channel.LAST]
        return b"".join(framed(kind, piece) for kind, piece in zip(kinds, self.content, strict=True))


class Worker:
    """Passes calls from an executor to a process and results back.

    A call is `coming` in parts, then `waiting`, then `queued` in the process's pipe if it is small. The first one that
    is queued runs. A large one is passed on alone, its parts as they come.
    """

    def __init__(self, link: CallLink) -> None:
        self._link = link
        self._coming: dict[int, list[bytes]] = {}
        self._waiting: deque[_Call] = deque()
        self._queued: deque[_Call] = deque()
        self._large: int | None = None
        self._large_is_whole = True  # all its parts have come
        self._dropped: int | None = None  # parts of this call belong to a process that has died
        self._reported: int | None = None  # of which call STARTED was said
        self._began_s = self._heard_s = self._beat_s = time.monotonic()
        self._gathers_until_s = 0.0
        self._timeout_s: float | None = None
        self._ends = False
        self._is_set_up = False
        self._process: CallProcess | None = None

    @property
    def running(self) -> int | None:
        """The call that the process is at."""
        if self._large is not None:
            return self._large
        return self._queued[0].number if self._queued else None

    def run(self) -> None:
        """Go on until the executor says END and all is done. Raises LinkError if the executor is gone."""
        self._link.put(channel.HELLO, 0, json.dumps(_about()).encode())
        self._link.flush()
        try:
            while not (self._ends and self.running is None and not self._waiting):
                for name in self._ready():
                    self._serve(name)
                self._on_time()
                self._start_next()
                self._tell_started()
                self._link.flush()
        finally:
            if self._process is not None:
                self._process.kill()
        deadline = time.monotonic() + channel.HANDSHAKE_S
        while self._link.outgoing and time.monotonic() < deadline:
            self._link.flush()
            time.sleep(0.01)
        self._link.close()

    # ---- what is waited for ----------------------------------------------------------------------------------

    def _ready(self) -> list[str]:
        """What can be read or written now. The side that is ahead is not read until the other has caught up."""
        process, names = self._process, {}
        poll = select.poll()

        def watch(fd: int, mask: int, name: str) -> None:
            names[fd] = name
            poll.register(fd, mask)

        reads = process is None or len(process.parts) < BACKLOG_BYTES
        mask = (select.POLLIN if reads else 0) | (select.POLLOUT if self._link.outgoing else 0)
        if mask:
            watch(self._link.socket.fileno(), mask, "link")
        if process is not None:
            if self._link.outgoing < BACKLOG_BYTES and not self._gathers():
                watch(process.out_fd, select.POLLIN, "results")
            if process.speaks:
                watch(process.err_fd, select.POLLIN, "stderr")
            if process.parts:
                watch(process.parts_fd, select.POLLOUT, "parts")
        return [names[fd] for fd, _ in poll.poll(math.ceil(1e3 * self._patience()))]

    def _gathers(self) -> bool:
        return bool(self._queued) and time.monotonic() < self._gathers_until_s

    def _patience(self) -> float:
        now = time.monotonic()
        left = channel.BEAT_S if self.running is None else CHECK_S
        if self.running is not None and self._timeout_s is not None:
            left = min(left, self._began_s + self._timeout_s - now)
        if self._queued and now < self._gathers_until_s:
            left = min(left, self._gathers_until_s - now)
        return max(0.0, left)

    def _serve(self, name: str) -> None:
        if name == "link":
            self._link.flush()
            for frame in self._link.receive():
                self._heard_s = time.monotonic()
                self._handle_frame(frame)
        elif self._process is None:
            return
        elif name == "parts":
            self._process.feed()
        elif name == "stderr":
            self._process.read_stderr()
        else:
            self._receive(self._process)

    def _on_time(self) -> None:
        now = time.monotonic()
        timeout_s = self._timeout_s
        if self.running is not None and timeout_s is not None and now >= self._began_s + timeout_s:
            self._end_call(self.running, f"it ran for longer than {timeout_s:g} s", timed_out=True)
        if self._process is not None and now >= self._began_s + CHECK_S and self._process.has_ended():
            self._receive(self._process)
            self._bury("")
        if now >= self._beat_s + channel.BEAT_S:
            self._beat_s = now
            self._link.put(channel.BEAT)
        if now > self._heard_s + SILENCE_S:
            raise LinkError(f"the executor was silent for {SILENCE_S:g} s")

    # ---- from the executor -----------------------------------------------------------------------------------

    def _handle_frame(self, frame: CallFrame) -> None:
        if frame.kind in (channel.PART, channel.LAST):
            self._take_call(frame)
        elif frame.kind == channel.CANCEL:
            self._cancel(frame.number)
        elif frame.kind == channel.RECALL:
            if frame.number != self.running and self._take_out(frame.number):
                self._link.put(channel.RETURNED, frame.number)
        elif frame.kind == channel.END:
            self._ends = True
        elif frame.kind == channel.SETUP:
            setup = json.loads(frame.content)
            sys.path[:] = setup["path"] + [each for each in sys.path if each not in setup["path"]]
            self._timeout_s = setup["timeout_s"]
            self._is_set_up = True

    def _take_call(self, frame: CallFrame) -> None:
        if frame.number == self._dropped:
            self._dropped = None if frame.kind == channel.LAST else frame.number
            return
        if frame.number == self._large and self._process is not None:
            self._process.parts += framed(frame.kind, frame.content)  # which the process takes as it comes
            self._large_is_whole = frame.kind == channel.LAST
            return
        pieces = self._coming.setdefault(frame.number, [])
        pieces.append(frame.content)
        if frame.kind == channel.LAST:
            self._waiting.append(_Call(frame.number, self._coming.pop(frame.number)))
        elif self._is_set_up and not (self._queued or self._waiting) and self._large is None:
            process = self._begin()
            if process.push_parts(frame.number):
                self._large, self._large_is_whole = frame.number, False
                process.parts += b"".join(
                    framed(channel.PART, each) for each in self._coming.pop(frame.number)
                )

    def _take_out(self, number: int) -> bool:
        """Forget a call that has not begun; False if there is none of that number."""
        if self._process is not None and any(each.number == number for each in self._queued):
            back, running = self._process.take_back(), self.running
            self._waiting.extendleft(each for each in reversed(self._queued) if each.number in back)
            self._queued = deque(each for each in self._queued if each.number not in back)
            if self.running != running:
                self._began_s = time.monotonic()  # the first one came back, and another had begun
        before = len(self._waiting)
        self._waiting = deque(each for each in self._waiting if each.number != number)
        return len(self._waiting) < before

    def _cancel(self, number: int) -> None:
        self._coming.pop(number, None)
        if number == self._dropped:
            self._dropped = None
        if not self._take_out(number) and number in (self.running, *(each.number for each in self._queued)):
            self._end_call(number, "it was cancelled", timed_out=False)

    # ---- to the process, and from it -------------------------------------------------------------------------

    def _start_next(self) -> None:
        while self._waiting and self._is_set_up and self._large is None:
            call = self._waiting[0]
            if call.is_small and len(self._queued) < QUEUED_MAX:
                if not self._begin().push(call.number, call.content[0]):
                    return
                self._queued.append(self._waiting.popleft())
            elif not self._queued:
                process = self._begin()
                if not process.push_parts(call.number):
                    return
                self._large, self._large_is_whole = call.number, True
                process.parts += self._waiting.popleft().frames()
                process.feed()
            else:
                return

    def _begin(self) -> CallProcess:
        if self._process is None:
            self._process = CallProcess()
        if self.running is None:
            self._began_s = time.monotonic()
            self._process.tail = b""
        return self._process

    def _tell_started(self) -> None:
        running = self.running
        if running is not None and running != self._reported:
            self._reported = running
            self._link.put(channel.STARTED, running)

    def _receive(self, process: CallProcess) -> None:
        found = process.results()
        if found is None:
            self._bury("")
            return
        for kind, content in found:
            running = self.running
            if running is not None:
                self._link.put(kind, running, content)
            if kind == channel.LAST:
                self._over()
                process.tail = b""
                self._began_s = time.monotonic()
                self._gathers_until_s = self._began_s + GATHER_S

    def _over(self) -> None:
        """The call that runs has ended."""
        if self._large is not None:
            self._large = None
        elif self._queued:
            self._queued.popleft()

    def _end_call(self, number: int, why: str, *, timed_out: bool) -> None:
        """End the process, unless its unread messages show that it is not at this call, or not any more."""
        process = self._process
        if process is None:
            return
        process.pause()
        self._receive(process)
        if self._process is process and self.running == number:
            self._bury(why, timed_out=timed_out)
        elif self._process is process:
            process.go_on()

    def _bury(self, why: str, *, timed_out: bool = False) -> None:
        """End the process: say so of the call that it was at; what it has not begun waits for the next one."""
        process, self._process = self._process, None
        if process is None:
            return
        status = process.kill()
        number = self.running
        if number == self._large and not self._large_is_whole:
            self._dropped = number
        self._over()
        while self._queued:
            self._waiting.appendleft(self._queued.pop())
        if number is None:
            return
        if not why and os.WIFSIGNALED(status):
            why = f"its process was killed by signal {os.WTERMSIG(status)}"
        why = why or f"its process ended with exit status {os.WEXITSTATUS(status)}"
        content = {"why": why, "stderr": process.tail.decode("utf-8", "replace"), "timed_out": timed_out}
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
        Worker(channel.join(pool["addresses"], bytes.fromhex(pool["key"]), patience_s=CONNECT_S)).run()
    except LinkError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
