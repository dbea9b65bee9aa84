"""A program of its own that reads a file in one pattern and prints what it took: `read_part` starts it.

    python -m tidemill_caches.study.reader URL PATTERN BYTES_MAX

Needs the Python client of XRootD. The client reads XRD_* from its environment when it is loaded, and one that hangs can
only be killed: hence a process for each pass, with a connection of its own.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from tidemill import clock
from tidemill_caches.study.plan import ReadPattern, chunks


class ReadFailedError(Exception):
    """A read failed; carries what the client said."""


def read(url: str, pattern: ReadPattern, bytes_max: int) -> dict[str, float]:
    """Seconds to open and read, and bytes. Raises ReadFailedError."""
    client: Any = import_module("XRootD.client")  # without types
    flags: Any = import_module("XRootD.client.flags")
    file = client.File()
    start_s = clock.monotonic_s()
    _good(file.open(url, flags.OpenFlags.READ))
    size = _good(file.stat()).size
    count = 0
    for request in chunks(pattern, size, bytes_max=bytes_max):
        if len(request) > 1:
            count += sum(len(each.buffer) for each in _good(file.vector_read(request)).chunks)
        else:
            count += len(_good(file.read(*request[0])))
    seconds = clock.monotonic_s() - start_s
    file.close()
    return {"seconds": seconds, "bytes": count}


def _good(answer: tuple[Any, Any]) -> Any:
    status, result = answer
    if not status.ok:
        raise ReadFailedError(status.message.strip())
    return result


def main() -> int:
    """Read and print a line of JSON; 3 with the client's message where that fails, 2 without the client."""
    url, pattern, bytes_max = sys.argv[1:]
    try:
        found = read(url, ReadPattern(pattern), int(bytes_max))
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except ReadFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
