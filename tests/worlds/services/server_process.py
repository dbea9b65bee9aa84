"""A server process on a Unix socket or on a port, and calls to it by the standard library's HTTP."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

START = "import sys; from tidemill.server.run import entry; sys.exit(entry(__import__('json').loads(sys.argv[1])))"
DEADLINE_S = 60.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=DEADLINE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(os.fspath(self._path))


class Server:
    """A server process."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder, self.config = folder, config
        self.log = folder.parent / f"{folder.name}.log"
        text = json.dumps({"dir": os.fspath(folder), **config})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", START, text], stderr=log, stdout=log)

    def connect(self) -> http.client.HTTPConnection:
        return UnixConnection(self.folder / "api.sock")

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        connection = self.connect()
        try:
            content = raw if raw is not None else None if body is None else msgspec.json.encode(body)
            connection.request(method, path, content, headers or {})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text)
        finally:
            connection.close()

    def events(self) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]  # the last line may just be written
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def ready(self) -> Server:
        def works() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return self.call("GET", "/v1/health")[0] == 200
            except OSError:
                return False

        until(works)
        return self

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(DEADLINE_S)


class TcpServer(Server):
    """A server process that listens on a port."""

    port = 0

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


def jobs(*specs: dict[str, Any], key: str = "k", **more: Any) -> dict[str, Any]:
    return {"key": key, "campaign": "c", "jobs": list(specs), **more}
