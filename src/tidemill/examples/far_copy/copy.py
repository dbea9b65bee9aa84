"""Fetch a whole file with xrdcp, wherever it is; write its size, checksum and number of events as a line of JSON.

The argument is what `{input.events}` became: a URL of the origin, a URL through a cache, or the path of a copy, which
is read as it is. Standard library and `xrdcp` only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zlib
from pathlib import Path

FETCHED = Path("fetched")
PIECE_BYTES = 1 << 20


def fetch(where: str) -> Path:
    """The path of the file; ends the process with what xrdcp said if it cannot be fetched."""
    if "://" not in where:
        return Path(where)
    try:
        done = subprocess.run(
            ["xrdcp", "--silent", "--nopbar", "--force", where, str(FETCHED)],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        sys.exit(f"failed to start `xrdcp`: {error.strerror}; hint: install XRootD's client (xrootd-client)")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        sys.exit(f"failed to fetch `{where}`: xrdcp ended with {done.returncode}: {said}")
    return FETCHED


def summary(path: Path, *, piece_bytes: int = PIECE_BYTES) -> dict[str, object]:
    """Size, Adler-32, and the events of a HepMC3 text file (0 of other files)."""
    size, adler, events, before = 0, 1, 0, b"\n"
    with path.open("rb") as file:
        while piece := file.read(piece_bytes):
            size += len(piece)
            adler = zlib.adler32(piece, adler)
            events += (before + piece).count(
                b"\nE "
            )  # `before`: an event's line may begin at the end of a piece
            before = (before + piece)[-2:]
    return {"bytes": size, "adler32": f"{adler:08x}", "events": events}


def main() -> int:
    """Write `far-copy.json` in the work directory."""
    if len(sys.argv) != 2:
        sys.exit("usage: copy.py URL|PATH")
    where = sys.argv[1]
    start_s = time.perf_counter()
    path = fetch(where)
    seconds = round(time.perf_counter() - start_s, 3)
    try:
        line = json.dumps({"input": where, **summary(path), "seconds": seconds})
    except OSError as error:
        sys.exit(f"failed to read `{path}`: {error.strerror}")
    FETCHED.unlink(missing_ok=True)  # the summary is all that goes home
    Path("far-copy.json").write_text(line + "\n", encoding="utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
