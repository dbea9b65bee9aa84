"""A payload that tries what it must not be able to do. Prints `ATTEMPT: refused WHY` or `ATTEMPT: SUCCEEDED HOW`.

Argument: a JSON file with `read`, `write` (paths), `sockets` (paths), `lead` (host, port), `site` (a masked directory).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
CLONE_NEWNS, CLONE_NEWUSER, MNT_DETACH = 0x20000, 0x10000000, 2
libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """What stood in the way."""


def tell(text: str) -> None:
    sys.stdout.write(text[:300] + "\n")
    sys.stdout.flush()


def attempt(name: str, act: Callable[[], object]) -> None:
    try:
        tell(f"{name}: SUCCEEDED {act()!r}")
    except (OSError, Refused) as error:
        tell(f"{name}: refused {error}")


def check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def names(path: str) -> list[str]:
    return sorted(each.name for each in Path(path).iterdir())


def read(path: str) -> object:
    if Path(path).is_dir():
        return names(path) or nothing(path)
    with Path(path).open("rb") as file:
        return file.read(100) or nothing(path)


def nothing(path: str) -> NoReturn:
    raise Refused(f"`{path}` is empty")


def write(path: str) -> object:
    with Path(path).open("r+b") as file:
        return file.write(b"x")


def connect(path: str) -> object:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(path)
        connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return connection.recv(100) or nothing(path)


def join_lead(host: str, port: int) -> object:
    pilot = "tm-here-e1-1.r0.i1"
    with socket.create_connection((host, port), 10) as connection, connection.makefile("rwb") as lines:
        challenge = json.loads(lines.readline())
        text = f"pilot:{challenge['nonce']}:{'1' * 32}:{pilot}".encode()
        proof = hmac.new(b"0" * 64, text, hashlib.sha256).hexdigest()
        hello = {"m": "hello", "pilot": pilot, "allocation": "tm-here-e1-1", "rank": 0, "node": "n",
                 "version": "0.1.0", "nonce": "1" * 32, "proof": proof, "held": []}  # fmt: skip
        lines.write(json.dumps(hello).encode() + b"\n")
        lines.flush()
        answer = lines.readline()
        if not answer:
            raise Refused("the lead hung up")
        return answer


def attach() -> object:
    """Every process that has a number here, but ourselves."""
    for pid in {1, os.getppid(), *range(1, 500)} - {os.getpid()}:
        if libc.ptrace(PTRACE_ATTACH, pid, None, None) == 0:
            libc.ptrace(PTRACE_DETACH, pid, None, None)
            return pid
    raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")


def others() -> object:
    """Processes that are neither we nor the slot's init, by /proc."""
    pids = {int(name) for name in names("/proc") if name.isdecimal()} - {1, os.getpid()}
    return sorted(pids) or nothing("/proc")


def uncover(site: str) -> object:
    """Take the mask away, with the capabilities of a user namespace of our own."""
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    check(libc.umount2(site.encode(), MNT_DETACH), "umount")
    return read(site)


def enter(which: str) -> object:
    descriptor = os.open(f"/proc/1/ns/{which}", os.O_RDONLY)
    return check(libc.setns(descriptor, 0), "setns")


def descriptors() -> object:
    """Files that somebody forgot to close."""
    kept = {}
    for number in range(3, 1024):
        with contextlib.suppress(OSError):
            kept[number] = str(Path(f"/proc/self/fd/{number}").readlink())
    return kept or nothing("/proc/self/fd")


def capabilities() -> object:
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    held = {words[0]: words[1] for words in lines if words[0] in ("CapEff:", "CapPrm:", "CapInh:", "CapAmb:")}
    return {name: value for name, value in held.items() if int(value, 16)} or nothing(str(held))


def kill_all() -> None:
    """The orphans of our user: only our own child can die of it, and the call returns."""
    child = subprocess.Popen(["sleep", "1000"])
    os.kill(-1, signal.SIGKILL)
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGSTOP)
    tell(f"kill -9 -1: done, our own child ended with {child.wait(10)}")


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    tell(f"uid {os.getuid()}")
    for path in plan["read"]:
        attempt(f"read {path}", lambda path=path: read(path))  # type: ignore[misc]
    for path in plan["write"]:
        attempt(f"write {path}", lambda path=path: write(path))  # type: ignore[misc]
    for path in plan["sockets"]:
        attempt(f"connect {path}", lambda path=path: connect(path))  # type: ignore[misc]
    attempt("join the lead", lambda: join_lead(*plan["lead"]))
    attempt("ptrace", attach)
    for name in ("environ", "mem", "root/etc/hostname", "cwd", "fd", "maps"):
        attempt(f"read /proc/1/{name}", lambda name=name: read(f"/proc/1/{name}"))  # type: ignore[misc]
    attempt("see processes", others)
    for which in ("mnt", "pid", "user"):
        attempt(f"enter namespace {which}", lambda which=which: enter(which))  # type: ignore[misc]
    attempt("inherited files", descriptors)
    attempt("capabilities", capabilities)
    if os.fork() == 0:
        attempt("uncover the site", lambda: uncover(plan["site"]))
        os._exit(0)
    os.wait()
    kill_all()


if __name__ == "__main__":
    main()
