"""What a payload imports to ask for ranges of events and to report them; the pilot offers it as `tidemill_payload`.

    import tidemill_payload as tidemill
    for r in tidemill.ranges():
        with open("out.txt", "w") as out:
            for event in r.events():
                out.write("%d %d\n" % (event, r.seed_of(event)))
        r.done(outputs={"text": "out.txt"})

One file, standard library only, Python 3.6 or newer, nothing of Tidemill: it is copied to bare nodes.
Without a pilot (no TIDEMILL_IN) it runs TIDEMILL_FIRST, TIDEMILL_COUNT, TIDEMILL_SEED (default: one event, 0) and
says on stderr what it would report, so that a payload can be tried on a laptop and be used as a plain command.
The protocol underneath is described in docs/range-protocol.md.
"""

import collections
import contextlib
import gc
import json
import mmap
import os
import re
import select
import signal
import struct
import sys
import threading
import traceback
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Tuple, cast

__all__ = ["Error", "Range", "beat", "forked", "inputs", "log", "params", "ranges", "ready"]

PREFETCH = 2  # ranges asked for and not yet settled: the next one waits in the pipe while one is worked on
LINE_BYTES_MAX = 65536  # of one protocol line
MESSAGE_BYTES_MAX = 4000  # of a `failed` or `log` message; the rest is cut off
IDLE_DEATHS_MAX = 3  # forked mode: the payload fails when this many copies in a row die before a range
KEPT = "tidemill-kept"  # directory of outputs that the pilot has not taken yet
REAP_MS = 1000  # forked mode: dead copies whose pipe another process holds open are found after this time
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
_Whole = Optional[int]
_Outputs = Optional[Mapping[str, str]]
_ROOT = os.getcwd()  # the work directory: outputs are named relative to it


class Error(Exception):
    """The payload used the library wrongly, or the pilot is gone or sent what cannot be read."""


class Range(object):
    """Consecutive events to work on. Settle every event, with `done` or `failed`, before taking the next range."""

    def __init__(self, first: int, count: int, seed: int, link: "_Link") -> None:
        self.first = first  #: number of the first event
        self.count = count  #: how many events
        self.seed = seed  #: seed of the first event
        self._open = [(first, first + count)]
        self._link = link

    def events(self) -> Iterator[int]:
        """The numbers of the events that are not settled yet, ascending."""
        for event in range(self.first, self.first + self.count):
            if any(low <= event < end for low, end in self._open):
                self._link.at(event)
                yield event

    def seed_of(self, event: int) -> int:
        """The seed of an event: it depends on the job and the event alone, never on how ranges are cut."""
        return self.seed + (event - self.first)

    def done(self, first: _Whole = None, count: _Whole = None, outputs: _Outputs = None) -> None:
        """Report events as done: the whole rest of the range, or `count` events from `first`.

        `outputs`: name -> path of the closed file that holds these events' output. It is moved away for the pilot, so
        that the next range may write a file of the same name. Raises Error if an event is settled already or a file is
        missing.
        """
        pieces = list(self._open)
        if first is not None and count is not None:
            pieces = [(first, first + count)]
        elif first is not None or count is not None:
            raise Error("`done` takes both `first` and `count`, or neither")
        elif not pieces:
            raise Error("every event of %s is settled already" % self)
        elif outputs and len(pieces) > 1:
            left = "events %s of %s are left" % (_intervals(pieces), self)
            raise Error(left + ": a file cannot belong to pieces; use `r.done(first, count, outputs)`")
        for name, path in (outputs or {}).items():
            _check_output(name, path)
        for low, end in pieces:
            self._settle(low, end)
        kept = [(name, self._link.keep(name, path, pieces[0][0])) for name, path in (outputs or {}).items()]
        tail = "".join(" %s=%s" % (name, _encode_path(path)) for name, path in kept)
        self._send(["done %d %d%s" % (low, end - low, tail) for low, end in pieces])

    def failed(self, event: int, message: str) -> None:
        """Report one event as failed and go on; report the events around it by `done` pieces or one `done()`."""
        self._settle(event, event + 1)
        self._send(["failed %d %s" % (event, _one_line(message) or "failed")])

    def unsettled(self) -> List[Tuple[int, int]]:
        """The events that are neither done nor failed, as pairs (first, end)."""
        return list(self._open)

    def _settle(self, first: int, end: int) -> None:
        with self._link.lock:
            for k, (low, high) in enumerate(self._open):
                if low <= first < end <= high:
                    pieces = [(low, first), (end, high)]
                    self._open[k : k + 1] = [piece for piece in pieces if piece[0] < piece[1]]
                    return
        raise Error("events %s are not unsettled events of %s" % (_intervals([(first, end)]), self))

    def _send(self, lines: List[str]) -> None:
        with self._link.lock:
            if not self._open:
                lines = lines + self._link.settled()
            self._link.send(lines)

    def __str__(self) -> str:
        return "the range of events %s" % _intervals([(self.first, self.first + self.count)])


def _intervals(pieces: List[Tuple[int, int]]) -> str:
    return ",".join("%d-%d" % (low, end - 1) if end > low + 1 else "%d" % low for low, end in pieces)


def _one_line(message: str) -> str:
    data = " ".join(str(message).split()).encode("utf-8", "replace")
    return data[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore")


def _relative(path: str) -> str:
    return os.path.relpath(os.path.abspath(path), _ROOT)


def _check_output(name: str, path: str) -> None:
    if not _NAME.match(name):
        raise Error("`%s` is not a name of an output: letters, digits and `._+-`, at most 100" % name)
    if _relative(path).split(os.sep)[0] in (os.curdir, os.pardir):
        raise Error("output `%s`: `%s` is not below the work directory `%s`" % (name, path, _ROOT))
    if os.path.islink(path) or not os.path.isfile(path):
        raise Error("output `%s`: `%s` is not a regular file" % (name, path))


def _encode_path(path: str) -> str:
    plain = (chr(b) if 0x21 <= b <= 0x7E and b != 0x25 else "%%%02X" % b for b in os.fsencode(path))
    return "".join(plain)


# ---- where ranges come from ------------------------------------------------------------------------------------------


class _Link(object):
    """Where a range's reports go. By hand: to stderr."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.failed = 0

    def at(self, event: int) -> None:
        """Note that `event` is being worked on."""

    def settled(self) -> List[str]:
        """A range is settled: what else to send with its last report."""
        return []

    def keep(self, name: str, path: str, first: int) -> str:
        """Put an output where nothing writes to it any more; its path relative to the work directory."""
        return _relative(path)

    def send(self, lines: List[str]) -> None:
        """Report these lines."""
        for line in lines:
            self.failed += line.startswith("failed ")
            sys.stderr.write("tidemill: %s\n" % line)

    def ready(self) -> None:
        """Set-up is over."""

    def ranges(self, size: _Whole, limit: _Whole) -> Iterator[Range]:
        """The events of the environment, cut into pieces of `size`."""
        first, count = _environment_int("TIDEMILL_FIRST", 0), _environment_int("TIDEMILL_COUNT", 1)
        seed = _environment_int("TIDEMILL_SEED", 1 + first)
        step = size or max(count, 1)
        for low in list(range(first, first + count, step))[:limit]:
            r = Range(low, min(step, first + count - low), seed + low - first, self)
            yield r
            _check_settled(r)
        if self.failed:
            sys.exit("tidemill: %d of %d events failed" % (self.failed, count))


class _Channel(_Link):
    """The line protocol over two file descriptors."""

    def __init__(
        self, in_fd: int, out_fd: int, prefetch: int = PREFETCH, position: Optional[mmap.mmap] = None
    ) -> None:
        _Link.__init__(self)
        self.in_fd, self.out_fd = in_fd, out_fd
        self._prefetch = prefetch
        self._position = position  # a forked copy's: shared with its parent
        self._is_ready = position is not None
        self._lines = _Lines()
        self._waiting: Deque[str] = collections.deque()
        self._ended = False
        self._asked = 0  # requests without an answer
        self._may_ask = 0  # further requests that a limit leaves
        self._next = "next"

    def at(self, event: int) -> None:
        if self._position is not None:
            self._position[:8] = struct.pack("q", event)

    def settled(self) -> List[str]:
        return self._ask(self._prefetch - self._asked)

    def keep(self, name: str, path: str, first: int) -> str:
        os.makedirs(KEPT, exist_ok=True)
        kept = os.path.join(KEPT, "%d-%s" % (first, name))
        os.rename(path, kept)
        return _relative(kept)

    def _ask(self, count: int) -> List[str]:
        count = max(0, min(count, self._may_ask)) if not self._ended else 0
        self._asked += count
        self._may_ask -= count
        return [self._next] * count

    def send(self, lines: List[str]) -> None:
        if lines:
            with self.lock:
                _write(self.out_fd, "".join(line + "\n" for line in lines).encode("utf-8"))

    def ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self.send(["ready"])

    def ranges(self, size: _Whole, limit: _Whole) -> Iterator[Range]:
        """Ranges until the pilot says `end` or `limit` ranges were taken."""
        self.ready()
        self._next = "next" if size is None else "next %d" % size
        self._may_ask = sys.maxsize if limit is None else limit
        self.send(self._ask(self._prefetch))
        while self._asked and not self._ended:
            while not self._waiting:
                self._waiting.extend(self._lines.read(self.in_fd))
            line = self._waiting.popleft()
            if line == "end":
                self._ended = True
                return
            self._asked -= 1
            r = Range(*_parse_range(line), link=self)
            yield r
            _check_settled(r)


class _Lines(object):
    """Cuts what is read into lines, however it arrives."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, fd: int) -> List[str]:
        """The lines that came to an end with what can be read now; waits for something. Raises Error at the end."""
        data = os.read(fd, 65536)
        if not data:
            raise Error("the pilot closed the protocol without `end`")
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        if len(self._rest) > LINE_BYTES_MAX:
            raise Error("a protocol line is longer than %d bytes: %r..." % (LINE_BYTES_MAX, self._rest[:60]))
        return [part.decode("utf-8", "replace") for part in parts]


def _parse_range(line: str) -> Tuple[int, int, int]:
    match = re.match(r"^range (\d+) ([1-9]\d*) (\d+)$", line)
    if match is None:
        raise Error("expected `range FIRST COUNT SEED` or `end` from the pilot, got `%s`" % line[:200])
    return int(match.group(1)), int(match.group(2)), int(match.group(3))


def _check_settled(r: Range) -> None:
    if r.unsettled():
        left = "events %s of %s were left without `done` or `failed`" % (_intervals(r.unsettled()), r)
        raise Error(left + ": report them before taking the next range")


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        raise Error("the pilot is gone: this payload's reports have no reader") from None


def _environment_int(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise Error("environment variable %s is `%s`, not a whole number" % (name, text)) from None


_Work = Callable[[Range], None]
_link: Optional[_Link] = None


def _the_link() -> _Link:
    global _link
    if _link is None and "TIDEMILL_IN" in os.environ:
        fds = [_environment_int("TIDEMILL_IN", 3), _environment_int("TIDEMILL_OUT", 4)]
        for fd in fds:
            os.set_inheritable(fd, False)  # programs that this one starts must not hold the protocol open
        _link = _Channel(fds[0], fds[1])
    _link = _link or _Link()
    return _link


# ---- what payloads call ----------------------------------------------------------------------------------------------


def ready() -> None:
    """Say that set-up is over, so that its time is not counted as event time. The first `ranges()` says it, too."""
    _the_link().ready()


def ranges(size: _Whole = None, limit: _Whole = None) -> Iterator[Range]:
    """Iterate over the ranges that the pilot gives, until there is no more work.

    `size`: the most events in a range; None = the pilot chooses, aiming at the application's range_s. `limit`: the
    number of ranges after which to end (a program that leaks memory starts afresh). Do not leave the loop by `break`:
    a range that already waits for this process would count as failed. Raises Error if the previous range is not
    settled.
    """
    if size is not None and size < 1:
        raise Error("`size` is %d, not a positive number of events" % size)
    return _the_link().ranges(size, limit)


def log(message: str) -> None:
    """Put a line into the payload's log."""
    _the_link().send(["log " + _one_line(line) for line in str(message).splitlines() if line.strip()])


def beat() -> None:
    """Say that this process is alive although it computes for long: starts the looping time-out anew."""
    _the_link().send(["beat"])


def params() -> Dict[str, Any]:
    """The job's parameters; by hand: the JSON object in TIDEMILL_PARAMS, or none."""
    text = os.environ.get("TIDEMILL_PARAMS") or "{}"
    try:
        return cast(Dict[str, Any], json.loads(text))
    except ValueError as error:
        raise Error("TIDEMILL_PARAMS is not a JSON object: %s: `%s`" % (error, text[:200])) from error


class _Inputs(object):
    """Paths of staged inputs by name: `inputs["events"]`."""

    def __getitem__(self, name: str) -> str:
        upper = "TIDEMILL_INPUT_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()
        for variable in (upper, "TIDEMILL_INPUT_" + name):
            if os.environ.get(variable):
                return os.path.join(_ROOT, os.environ[variable])
        path = os.path.join(_ROOT, name)
        if os.path.exists(path):
            return path
        raise Error("no input `%s`: %s is not set and there is no file `%s`" % (name, upper, path))


inputs = _Inputs()


# ---- forked mode -----------------------------------------------------------------------------------------------------


def forked(
    work: _Work, cores: _Whole = None, setup: Optional[Callable[[], None]] = None, size: _Whole = None
) -> None:
    """Initialise once, then fork one copy of this process per core, which share their memory pages.

    `setup` runs once; then each copy calls `work(r)` for its ranges, in a directory of its own, and settles them as
    usual. A copy that dies costs the event that `r.events()` was at (else the first that is left), the rest of its
    range is given to a new copy. `cores` None = TIDEMILL_CORES, or all this process may use. By hand: no fork.
    """
    if setup is not None:
        setup()
    link = _the_link()
    if isinstance(link, _Channel):
        gc.collect()
        if hasattr(gc, "freeze"):  # 3.7: the collector leaves the parent's pages alone, so they stay shared
            gc.freeze()
        count = cores or _environment_int("TIDEMILL_CORES", 0) or len(os.sched_getaffinity(0))
        _Parent(link, work, size).run(count)
    else:
        for r in link.ranges(size, None):
            work(r)


class _Copy(object):
    """What the parent knows of one forked copy."""

    def __init__(self, number: int) -> None:
        self.directory = os.path.join(_ROOT, "copy-%06d" % number)
        self.pid = self.in_fd = self.out_fd = -1
        self.lines = _Lines()
        self.range: Optional[Range] = None
        self.position = mmap.mmap(
            -1, 8
        )  # the copy writes the event it is at: survives any death, costs no call
        self.message = ""  # its last words
        self.fresh = True  # has never had a range


class _Parent(object):
    """Shares one pilot's protocol between forked copies."""

    def __init__(self, pilot: _Channel, work: _Work, size: _Whole) -> None:
        self._pilot, self._work, self._size = pilot, work, size
        self._copies: Dict[int, _Copy] = {}  # by the descriptor that they are heard on
        self._waiting: Deque[_Copy] = collections.deque()
        self._stock: Deque[Tuple[int, int, int]] = collections.deque()
        self._asked = self._made = self._idle_deaths = 0
        self._ended = False
        self._lines = _Lines()
        self._poll = select.poll()

    def run(self, count: int) -> None:
        """Go on until the pilot said `end` and every copy has left."""
        self._pilot.ready()
        self._poll.register(self._pilot.in_fd, select.POLLIN)
        try:
            for _ in range(count):
                self._fork()
            while self._copies:
                self._hand_out()
                self._listen()
        finally:
            for copy in self._copies.values():
                os.kill(copy.pid, signal.SIGKILL)
                os.waitpid(copy.pid, 0)

    def _hand_out(self) -> None:
        while self._stock and self._waiting:
            copy = self._waiting.popleft()
            self._idle_deaths, copy.fresh = 0 if copy.fresh else self._idle_deaths, False
            copy.range = Range(*self._stock[0], link=self._pilot)
            copy.position[:8] = struct.pack("q", -1)
            self._tell(copy, "range %d %d %d" % self._stock.popleft())
        if self._ended and not self._stock and all(copy.range is None for copy in self._copies.values()):
            while self._waiting:
                self._tell(self._waiting.popleft(), "end")
        wanted = len(self._waiting) + 1 - len(self._stock) - self._asked
        if wanted > 0 and not self._ended:
            self._asked += wanted
            self._pilot.send(["next" if self._size is None else "next %d" % self._size] * wanted)

    def _tell(self, copy: _Copy, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died: its other pipe reports end of file
            os.write(copy.in_fd, (line + "\n").encode("ascii"))

    def _listen(self) -> None:
        events = self._poll.poll(REAP_MS)
        for fd, _ in events:
            if fd == self._pilot.in_fd:
                self._hear_pilot()
            elif not self._hear(self._copies[fd]):
                self._bury(self._copies[fd], os.waitpid(self._copies[fd].pid, 0)[1])
        for copy in [] if events else list(self._copies.values()):
            pid, status = os.waitpid(copy.pid, os.WNOHANG)
            if pid:
                self._bury(copy, status)

    def _hear_pilot(self) -> None:
        for line in self._lines.read(self._pilot.in_fd):
            if line == "end":
                self._ended = True
                self._poll.unregister(self._pilot.in_fd)
                return
            self._stock.append(_parse_range(line))
            self._asked -= 1

    def _hear(self, copy: _Copy) -> bool:
        """Keep account of what a copy says and pass it on; False when it has closed its end."""
        passed_on = []
        try:
            lines = copy.lines.read(copy.out_fd)
        except Error:
            return False
        for line in lines:
            words = line.split(" ", 3)
            if words[0] == "next":
                copy.range = None
                self._waiting.append(copy)
            elif words[0] == "dying":
                copy.message = line[len("dying ") :]
            else:
                passed_on.append(line)
                if copy.range is not None and words[0] in ("done", "failed"):
                    first, count = int(words[1]), int(words[2]) if words[0] == "done" else 1
                    copy.range._settle(first, first + count)
        self._pilot.send(passed_on)
        return True

    def _bury(self, copy: _Copy, status: int) -> None:
        """A copy has ended: fail the event that it was at, give the rest to another one."""
        while select.select([copy.out_fd], [], [], 0)[0] and self._hear(copy):
            pass
        self._poll.unregister(copy.out_fd)
        del self._copies[copy.out_fd]
        os.close(copy.in_fd)
        os.close(copy.out_fd)
        if copy in self._waiting:
            self._waiting.remove(copy)
        if os.WIFSIGNALED(status):
            end = "the forked copy was killed by signal %d" % os.WTERMSIG(status)
        else:
            end = "the forked copy ended with exit status %d" % os.WEXITSTATUS(status)
        self._idle_deaths += copy.fresh and status != 0
        if copy.range is not None and copy.range.unsettled():
            self._blame(copy.range, struct.unpack("q", copy.position[:8])[0], copy.message or end)
        if self._idle_deaths >= IDLE_DEATHS_MAX:
            raise Error("%d copies in a row died before they took a range: %s" % (self._idle_deaths, end))
        if self._stock or not self._ended:
            self._fork()

    def _blame(self, r: Range, at: int, message: str) -> None:
        left = r.unsettled()
        culprit = at if any(low <= at < end for low, end in left) else left[0][0]
        r._settle(culprit, culprit + 1)
        self._pilot.send(["failed %d %s" % (culprit, message)])
        for low, end in reversed(r.unsettled()):
            self._stock.appendleft((low, end - low, r.seed_of(low)))

    def _fork(self) -> None:
        copy = _Copy(self._made)
        self._made += 1
        child_in, copy.in_fd = os.pipe()
        copy.out_fd, child_out = os.pipe()
        os.mkdir(copy.directory)
        sys.stdout.flush()
        sys.stderr.flush()
        copy.pid = os.fork()
        if copy.pid == 0:
            try:
                for other in [copy, *self._copies.values()]:
                    os.close(other.in_fd)
                    os.close(other.out_fd)
                os.close(self._pilot.in_fd)
                os.close(self._pilot.out_fd)
                os.chdir(copy.directory)
                link = _Channel(child_in, child_out, prefetch=1, position=copy.position)
                os._exit(_copy_main(link, self._work, self._size))
            finally:
                os._exit(1)  # never into the parent's frames
        os.close(child_in)
        os.close(child_out)
        self._copies[copy.out_fd] = copy
        self._poll.register(copy.out_fd, select.POLLIN)


def _copy_main(link: _Channel, work: _Work, size: _Whole) -> int:
    global _link
    _link = link
    status = 0
    try:
        for r in link.ranges(size, None):
            work(r)
    except BaseException as error:  # noqa: BLE001  the top of the copy's loop: its parent names the event
        traceback.print_exc()
        link.send(["dying " + _one_line("%s: %s" % (type(error).__name__, error))])
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status
