"""Tell whether files are static ELF programs: no interpreter and no needed library. Exit 1 if one is not.

Standard library only: `make setup` asks before anything is installed.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

PT_DYNAMIC, PT_INTERP = 2, 3
DT_NULL, DT_NEEDED = 0, 1


def dynamic_parts(program: bytes) -> list[str]:
    """What a 64-bit little-endian ELF file wants: `interpreter`, `library`. Raises ValueError for any other file."""
    if program[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", program, 32)
    size, number = struct.unpack_from("<HH", program, 54)
    wanted = []
    for index in range(number):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", program, table + index * size)
        if kind == PT_INTERP:
            wanted.append("interpreter")
        elif kind == PT_DYNAMIC:
            for entry in range(offset, offset + length, 16):
                tag = struct.unpack_from("<Q", program, entry)[0]
                if tag == DT_NULL:
                    break
                if tag == DT_NEEDED:
                    wanted.append("library")
    return wanted


def main(paths: list[str]) -> int:
    """Print one line for each file that is not static."""
    status = 0
    for path in paths:
        try:
            wanted = dynamic_parts(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            wanted = [str(error)]
        if wanted:
            print(f"{path}: {', '.join(wanted)}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
