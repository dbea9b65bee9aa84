"""Leaves the output `o` as something else than a file of its own: `odd_outputs.py HOW SECRET`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

SWAPPER = """
import os, sys, time
end = time.monotonic() + 5
while time.monotonic() < end:
    for target in ("o.file", sys.argv[1]):
        os.path.lexists("next") and os.remove("next")
        os.symlink(target, "next") if target != "o.file" else os.link("o.file", "next")
        os.rename("next", "o")
"""


def leave(how: str, secret: str) -> None:
    match how:
        case "symlink":
            Path("o").symlink_to(secret)
        case "link to a directory":
            Path("d").symlink_to(Path(secret).parent)
        case "fifo":
            os.mkfifo("o")
        case "socket":
            with socket.socket(socket.AF_UNIX) as each:
                each.bind("o")
        case "directory":
            Path("o").mkdir()
        case "hard link":
            os.link(secret, "o")
        case "device":
            os.mknod("o", 0o600 | 0o020000, os.makedev(1, 3))
        case "swapped":
            Path("o.file").write_text("mine\n")
            os.link("o.file", "o")
            subprocess.Popen([sys.executable, "-c", SWAPPER, secret], start_new_session=True)
        case _:
            raise SystemExit(f"unknown: {how}")


if __name__ == "__main__":
    leave(*sys.argv[1:])
