"""Programs on terminals of their own, and what they wrote there."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemill.printable import printable_lines

WAIT_S = 60.0
ALL = (
    "import json, sys; from tidemill.cli.main import main; [main(words) for words in json.loads(sys.argv[1])]"
)


class Terminal:
    """A program on a terminal of its own, and what it wrote there."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: dict[str, str]) -> None:
        self.screen = b""
        self._fd, inner = pty.openpty()
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        os.close(inner)

    def read(self) -> bool:
        """Take what there is; False at the end."""
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal open any more
            piece = os.read(self._fd, 65536)
            self.screen += piece
            return bool(piece)
        return False

    def until_end(self) -> str:
        while self.read():
            pass
        self.process.wait(WAIT_S)
        os.close(self._fd)
        return self.screen.decode().replace("\r\n", "\n")


def environment(address: str, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TIDEMILL_HOME": str(folder),
        "TIDEMILL_SERVER": address,
        "TERM": "xterm",
        "COLUMNS": "200",
    }


def check_harmless(screen: str) -> None:
    assert screen == printable_lines(screen), ascii(screen)
    assert not re.search(r"^error: forged", screen, re.MULTILINE)


def screen_of(words: list[list[str]], address: str, folder: Path) -> str:
    """What these verbs, asked of a server, write on one terminal."""
    command = [sys.executable, "-c", ALL, json.dumps(words)]
    return Terminal(command, cwd=folder, env=environment(address, folder)).until_end()
