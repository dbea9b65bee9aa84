"""Another user of the machine, and what of a person's files, ports and sockets such a user may try."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.worlds.home.processes import snapshot
from tests.worlds.home.world import World

STRANGER = 65534  # nobody
UMASKS = (0o000, 0o002)


def as_stranger(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program as another user."""
    drop = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--"]
    return subprocess.run(
        [*drop, sys.executable, "-I", "-S", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


PROBE = """
import json, os, socket, sys
ports, sockets, paths, hello = json.loads(sys.argv[1])
for port in ports:
    for words in (b"GET /v1/health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n", bytes.fromhex(hello)):
        said = b""
        try:
            with socket.create_connection(("127.0.0.1", port), 20) as connection:
                connection.settimeout(20)
                connection.sendall(words)
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(4096):
                    said += piece
        except OSError:
            pass
        print(json.dumps(["port", port, said.decode("latin-1")]))
for path in sockets:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path.replace("@", chr(0)) if path[0] == "@" else path)
            print(json.dumps(["socket", path, "connected"]))
        except OSError:
            pass
for path in paths:
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
        print(json.dumps(["path", path, "opened"]))
    except OSError:
        pass
"""


def open_of(numbers: set[int]) -> tuple[list[int], list[str], list[str]]:
    """TCP ports and Unix sockets on which processes listen, and files that they hold open."""
    inodes, paths = set(), set()
    for number in numbers:
        try:
            links = [*Path(f"/proc/{number}/fd").iterdir()]
        except FileNotFoundError:
            continue  # the process has ended
        for link in links:
            try:
                target = str(link.readlink())
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
            elif target.startswith("/") and not target.startswith(("/dev/", "/proc/")):
                paths.add(target.removesuffix(" (deleted)"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    sockets = {row[7] for row in unix if len(row) > 7 and row[3] == "00010000" and row[6] in inodes}
    return sorted(ports), sorted(sockets), sorted(paths)


def own_processes(it: World, *others: int) -> set[int]:
    """The processes of a world, these others, and all that they have started."""
    everything = snapshot()
    own = {*others, *(each.pid for each in it._firsts())}
    while more := {pid for pid, each in everything.items() if each.parent in own} - own:
        own |= more
    return own


def probed(
    ports: list[int], sockets: list[str], paths: list[str], hello: bytes = b"x" * 100
) -> tuple[list[tuple[int, str]], set[str]]:
    """What a stranger got who tried them: what each port said to a request and to `hello`, and what it could open."""
    answer = as_stranger(PROBE, json.dumps([ports, sockets, paths, hello.hex()]))
    assert answer.returncode == 0, answer.stderr
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    said = [(port, words) for kind, port, words in found if kind == "port"]
    return said, {path for kind, path, _ in found if kind != "port"}


def opened(top: Path, *, without: tuple[Path, ...] = ()) -> list[str]:
    """What others may change below it, with modes. A socket's mode counts, too; a link's means nothing."""
    return [
        f"{stat.S_IMODE(path.lstat().st_mode):04o} {path.relative_to(top)}"
        for path in sorted(top.rglob("*"))
        if not path.is_symlink()
        and path.lstat().st_mode & 0o022
        and not any(path == each or path.is_relative_to(each) for each in without)
    ]


@contextmanager
def under(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)
