"""What an attack from a slot looks for: stand-ins of agents, tickets and keys, and a payload that tries them all."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.worlds.home.world import World

PYTHON = "/usr/bin/python3"
SECRET = "a secret\n"
PROBE = """import os, socket, sys
def connect(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return one.recv(100).decode().strip()
def write(path):
    open(path, "a").close()
    return "open"
def replace(path):
    os.rename(path, path + ".away")
    os.rename(path + ".away", path)
    return "moved"
def make(path):
    made = os.path.join(path, f"tidemill-attack-{os.getpid()}")
    open(made, "x").close()
    os.unlink(made)
    return "made"
do = {
    "read": lambda path: open(path).readline().strip(),
    "write": write,
    "make": make,
    "list": lambda path: " ".join(sorted(os.listdir(path))) or "empty",
    "connect": connect,
    "replace": replace,
}
words = sys.argv[1:]
for verb, path in zip(words[::2], words[1::2]):
    try:
        print(verb, path, do[verb](path))
    except OSError:
        print(verb, path, "refused")
"""


@dataclass
class Prey:
    """Paths of the stand-ins; `met`: connections that got through to the agent."""

    agent: Path
    session: Path
    tickets: list[Path]
    own: Path
    home: Path
    met: list[str] = field(default_factory=list)


@contextlib.contextmanager
def prey(home: Path, user: int | None = None) -> Iterator[Prey]:
    """An agent's and a session's socket, tickets and a directory of the user in /tmp, keys in their home."""
    folders = [Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp")) for prefix in ("ssh-", "tm-own-")]
    tickets = [
        Path(tempfile.mkstemp(prefix=prefix, dir="/tmp")[1]) for prefix in ("krb5cc_", "x509up_u", "bt_u")
    ]
    agent, session = folders[0] / "agent.7", folders[1] / "below" / "default"
    (folders[1] / "below").mkdir()
    (folders[1] / "data").write_text("data\n")
    for path in [*tickets, home / ".pgpass", home / ".git-credentials", home / ".bashrc"]:
        path.write_text(SECRET)
    for name in (".ssh/id_rsa", ".aws/credentials", ".config/rclone/rclone.conf"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(SECRET)
    it = Prey(agent, session, tickets, folders[1], home)
    listeners = [_listener(path) for path in (agent, session)]
    if user is not None:
        for path in [*folders, *folders[1].rglob("*"), agent, *tickets, *home.rglob("*")]:
            os.chown(path, user, user, follow_symlinks=False)
    for each in listeners:
        threading.Thread(target=_answer, args=(each, it), daemon=True).start()
    try:
        yield it
    finally:
        for each in listeners:
            each.close()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        for path in tickets:
            path.unlink(missing_ok=True)


def _listener(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def _answer(listener: socket.socket, it: Prey) -> None:
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as one:
                it.met.append(str(listener.getsockname()))
                one.sendall(b"a key\n")


def attack(it: World, words: Sequence[tuple[str, Path | str]], *options: str) -> dict[tuple[str, str], str]:
    """What a command of a submitter finds: (verb, path) -> answer, `refused` where there is none."""
    flat = [str(word) for pair in words for word in pair]
    done = it.run("run", *options, "--env", f"HELD={':'.join(flat[1::2])}", "--", PYTHON, "-c", PROBE, *flat)
    assert done.returncode == 0, f"{done.stderr}\n{it.tails()}"
    return answers(done.stdout)


def answers(text: str) -> dict[tuple[str, str], str]:
    """The probe's lines."""
    rows = [line.split(" ", 2) for line in text.splitlines()]
    return {(verb, path): answer for verb, path, answer in rows}


def opened(found: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """What was not refused; a masked file is empty."""
    return {what: answer for what, answer in found.items() if answer not in ("refused", "empty", "")}
