"""Print `NUMBER DIGEST` for each event of HepMC3 files, so that two productions can be compared event by event.

Left out are the file's header and the cross-section, which depend on how events were grouped; the event's number,
weights, attributes and every digit of every particle and vertex are in.

    python -m tidemill.examples.digest FILE...
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemill.examples.hepmc_merge.merge import CROSS_SECTION, BadFile, read_events


def digests(path: Path) -> Iterator[tuple[int, str]]:
    """Number and digest (32 hex digits of SHA-256) of each event. Raises BadFile."""
    for event in read_events(path):
        kept = b"".join(line for line in event.lines if line.strip() and not line.startswith(CROSS_SECTION))
        yield event.number, hashlib.sha256(kept).hexdigest()[:32]


def main() -> int:
    """Exit status 1 if a file is not whole."""
    try:
        for name in sys.argv[1:]:
            for number, digest in digests(Path(name)):
                print(number, digest)
    except (BadFile, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
