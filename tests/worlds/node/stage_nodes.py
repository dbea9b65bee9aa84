"""Stages of several nodes as their pilots see them: a socket with frames of JSON."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

BLOCK_BYTES = 4 << 20
SECRET = "5ec2e7" * 11
TIMEOUT_S = 60.0
LENGTH = struct.Struct("<I")  #: of a frame, before its content


class Stage:
    """One `tidemill-node stage`, with its store in `directory`."""

    def __init__(self, node: Path, directory: Path, **start: Any) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self.directory = directory
        ours, theirs = socket.socketpair()
        ours.settimeout(TIMEOUT_S)
        self._socket = ours
        self._reports = ours.makefile("rb")
        self._log = (directory.parent / f"{directory.name}.log").open("w+b")
        with theirs:
            self.process = subprocess.Popen([str(node), "stage"], stdin=theirs.fileno(), stderr=self._log)
        self.order(
            m="start",
            **{
                "secret": SECRET,
                "name": f"{directory.name}.r0.i1",
                "directory": str(directory),
                "bytes_max": 1 << 40,
                "fast": None,
                "host": "127.0.0.1",
            }
            | start,
        )
        try:
            self.address: str = self.report()["address"]
        except BaseException:
            self.close()
            raise

    def order(self, **order: Any) -> None:
        content = json.dumps(order).encode() + b"\n"  # after the newline: a body, which no order has
        self._socket.sendall(LENGTH.pack(len(content)) + content)

    def fetch(self, file: dict[str, Any], *peers: str, fast: bool = False) -> None:
        self.order(m="fetch", file=file, peers=peers, fast=fast)

    def report(self) -> dict[str, Any]:
        """The next report; an error with the stage's log where none comes."""
        try:
            head = self._reports.read(LENGTH.size)
            content = self._reports.read(*LENGTH.unpack(head)) if head else b""
        except (TimeoutError, ConnectionResetError):
            content = b""
        assert content, f"no report\n{self.log()}"
        report: dict[str, Any] = json.loads(content)
        return report

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """As a pilot's end does."""
        self._reports.close()
        self._socket.close()
        self.process.wait(TIMEOUT_S)
        self._log.close()


def staged(path: Path, content: bytes) -> dict[str, Any]:
    """A file on the shared file system, as nodes are told of it."""
    path.write_bytes(content)
    piece = {"path": str(path), "offset": 0, "length": len(content)}
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "pieces": [piece]}


def content(blocks: int, rest: int = 0) -> bytes:
    """So many blocks and bytes of noise."""
    return os.urandom(blocks * BLOCK_BYTES + rest)
