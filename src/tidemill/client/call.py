"""What the Executor's payloads run: `python -m tidemill.client.call CALLS RESULTS FIRST COUNT`. Standard library only.

CALLS is what `write_calls` wrote: a pickled header (the submitter's `sys.path`, offsets), then one pickled
`(function, args, kwargs)` per call. RESULTS gets one pickled `(True, value)` or `(False, exception, traceback text)`
per call, framed by its length, so that a reader needs none of the classes to count them.
"""

from __future__ import annotations

import importlib
import io
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")


def write_calls(file: BinaryIO, calls: Sequence[bytes], path: Sequence[str]) -> None:
    """Write pickled calls, so that any of them can be found without reading the others."""
    offsets = [0]
    for call in calls:
        offsets.append(offsets[-1] + len(call))
    header = pickle.dumps({"path": list(path), "offsets": offsets})
    file.write(_LENGTH.pack(len(header)) + header)
    file.writelines(calls)


def read_calls(file: BinaryIO, first: int, count: int) -> tuple[list[str], list[bytes]]:
    """The submitter's `sys.path`, and the pickled calls `first..first+count-1`."""
    size = _LENGTH.unpack(file.read(_LENGTH.size))[0]
    header = pickle.loads(file.read(size))
    offsets = header["offsets"]
    start = _LENGTH.size + size
    file.seek(start + offsets[first])
    calls = [file.read(offsets[k + 1] - offsets[k]) for k in range(first, first + count)]
    return header["path"], calls


def run_call(call: bytes) -> bytes:
    """The pickled result of one pickled call; whatever goes wrong, pickling included, is an exception in it."""
    try:
        function, args, kwargs = pickle.loads(call)
        return _dump((True, function(*args, **kwargs)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- it is a result here, and belongs to the caller
        return _dump_exception(error)


def read_results(content: bytes) -> Iterator[bytes]:
    """The pickled results of a RESULTS file, in the order of the calls; ends before one that is cut off."""
    file = io.BytesIO(content)
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        if len(content) - file.tell() < length:
            return
        yield file.read(length)


def main(arguments: Sequence[str]) -> int:
    """Run some calls of a file."""
    calls_path, results_path, first, count = arguments
    with open(calls_path, "rb") as file:  # noqa: PTH123 -- pathlib would cost its import
        path, calls = read_calls(file, int(first), int(count))
    sys.path[:] = path + [entry for entry in sys.path if entry not in path]
    with open(results_path, "wb") as file:  # noqa: PTH123
        for call in calls:
            result = run_call(call)
            file.write(_LENGTH.pack(len(result)) + result)
    return 0


def dumps() -> Callable[[Any], bytes]:
    """cloudpickle's `dumps` where it is installed (it takes lambdas and `__main__`), else pickle's."""
    try:
        chosen: Callable[[Any], bytes] = importlib.import_module("cloudpickle").dumps
    except ImportError:
        return pickle.dumps
    return chosen


def _dump(result: tuple[bool, Any]) -> bytes:
    return dumps()(result)


def _dump_exception(error: BaseException) -> bytes:
    where = "".join(traceback.format_exception(error))
    try:
        return pickle.dumps((False, error, where))
    except Exception:  # noqa: BLE001 -- an exception that cannot be pickled still has a text
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}"), where))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
