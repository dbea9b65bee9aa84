"""A call on its way: its pickle, in memory or in a file, its future, and how its result becomes the future's."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, TypeVar

from tidemill.errors import ConfigError, JobError
from tidemill_calls import channel
from tidemill_calls.functions import FunctionPickles
from tidemill_calls.process import contiguous, pickler

T = TypeVar("T")
MEMORY_BYTES = 4 << 20  #: a pickled call or result that is larger is held in a file


class CallError(JobError):
    """A call gave no result: its process died, or its workers were lost; the message holds the evidence."""


class CallTimeoutError(CallError, TimeoutError):
    """A call ran for longer than its `timeout_s`."""


class RemoteTraceback(Exception):
    """The traceback of the worker, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class CallFuture(Future[T]):
    """A future whose call can be cancelled while it runs: its process is killed, and the worker goes on with others."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self.runs = False
        self._wake = wake

    def running(self) -> bool:
        """Whether a worker runs the call now."""
        return self.runs and not self.done()

    def cancel(self) -> bool:
        """Cancel the call, also one that runs; False if it is over."""
        if not super().cancel():
            return False
        self._wake()
        return True


class Spool:
    """A pickle as it is written: in memory, from 4 MiB on in a file of the executor's directory."""

    __slots__ = ("_directory", "_file", "_pieces", "main_count", "size")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self.size = 0
        self.main_count = 0  #: how often it may refer to `__main__`, which is another one in a worker

    def write(self, data: Any) -> int:
        """Append bytes."""
        data = contiguous(data)
        size = len(data)
        self.size += size
        if size <= channel.PART_BYTES:
            data = bytes(data)
            self.main_count += data.count(b"__main__")
        if self.size <= MEMORY_BYTES:
            self._pieces.append(bytes(data))
            return size
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 -- until `close`
            self._file.writelines(self._pieces)
            self._pieces.clear()
        self._file.write(data)
        return size

    @property
    def is_small(self) -> bool:
        """Whether it travels in one frame."""
        return self.size <= channel.PART_BYTES

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """Kind and content of the frames that carry it."""
        source = self._source()
        left = self.size
        while left > channel.PART_BYTES:
            left -= channel.PART_BYTES
            yield channel.PART, source.read(channel.PART_BYTES)
        yield channel.LAST, source.read()

    def content(self) -> bytes:
        """The bytes of the whole pickle."""
        return self._source().read() if self._file is not None else b"".join(self._pieces)

    def load(self) -> Any:
        """The object that was pickled."""
        return pickle.load(self._source())

    def close(self) -> None:
        """Give memory and file back."""
        self._pieces.clear()
        if self._file is not None:
            self._file.close()

    def _source(self) -> IO[bytes]:
        if self._file is None:
            return io.BytesIO(b"".join(self._pieces))
        self._file.seek(0)
        return self._file


class RemoteCall:
    """One call until its future is resolved."""

    __slots__ = ("died", "future", "losses", "number", "result", "spool")

    def __init__(self, number: int, spool: Spool, future: CallFuture[Any]) -> None:
        self.number, self.spool, self.future = number, spool, future
        self.died = self.losses = 0  #: times that its process died, and that a worker was lost while it ran
        self.result: Spool | None = None  #: the parts of a large result so far

    def fail(self, error: BaseException) -> None:
        """Resolve the future with an exception, unless it was cancelled."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
        self.close()

    def resolve(self, load: Callable[[], Any]) -> None:
        """Resolve the future with a pickled result; a class that cannot be loaded here is the call's exception."""
        if self.future.set_running_or_notify_cancel():
            try:
                good, value, *where = load()
            except Exception as error:  # noqa: BLE001
                self.future.set_exception(error)
            else:
                if good:
                    self.future.set_result(value)
                else:
                    value.__cause__ = RemoteTraceback(where[0])
                    self.future.set_exception(value)
        self.close()

    def close(self) -> None:
        """Give back what it holds."""
        self.spool.close()
        if self.result is not None:
            self.result.close()


def pickled(call: tuple[Any, Any, Any], directory: Path, functions: FunctionPickles) -> Spool:
    """A call's pickle. Raises ConfigError for what cannot be pickled."""
    function, args, kwargs = call
    name = getattr(function, "__qualname__", repr(function))
    try:
        content = functions.pickle(function)
        if content is not None:
            spool = _dumped((content, args, kwargs), directory, pickle.Pickler)
            if spool is not None and spool.main_count == content.count(b"__main__"):
                return spool
        else:
            spool = _dumped(call, directory, pickle.Pickler)
            if spool is not None and not spool.main_count:
                return spool
        if spool is not None:
            spool.close()
        # cloudpickle takes what pickle does not, and is ten times slower
        return _dump(call, directory, pickler())
    except _REFUSALS as error:
        raise ConfigError(
            f"failed to pickle the call of `{name}`: {error}",
            hint="pass data that pickle takes, or open files and connections in the function itself",
        ) from error


_REFUSALS = (pickle.PicklingError, TypeError, AttributeError, ValueError)


def _dump(call: Any, directory: Path, used: Any) -> Spool:
    spool = Spool(directory)
    try:
        used(spool, protocol=5).dump(call)
    except BaseException:
        spool.close()
        raise
    return spool


def _dumped(call: Any, directory: Path, used: Any) -> Spool | None:
    """None if it cannot be pickled that way."""
    try:
        return _dump(call, directory, used)
    except _REFUSALS:
        return None


def loaded(content: bytes) -> Any:
    """The object that one frame carries."""
    return pickle.loads(content)
