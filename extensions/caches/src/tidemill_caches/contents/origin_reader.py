"""Reads files at an origin as the cache itself would: with its credential and its limits, pieces of any length."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tidemill import clock
from tidemill.errors import UNDECODABLE, ConfigError, SiteError
from tidemill_caches import constants
from tidemill_caches.contents import fetching
from tidemill_caches.engine.origins import OriginPath
from tidemill_caches.engine.windows import server_environment
from tidemill_caches.settings import CacheConfig

LIBRARY = "libXrdPosixPreload.so"
PASSED = ("PATH", "HOME", "LD_LIBRARY_PATH", "USER", "LOGNAME", "TMPDIR", "TZ")
START_S = 30.0
HEAD_BYTES_MAX = 10_000
CHECKSUM_S = 120.0
"""An origin that has to read a large file for its checksum may take longer: then blocks are compared."""
_ADLER = re.compile(r"^adler32 ([0-9a-fA-F]{1,8})\s*$", re.MULTILINE)


class FileMissingError(SiteError):
    """The origin answers, and has no such file or may not give it."""


class FileAtOrigin(NamedTuple):
    """What an origin says of an open file."""

    size_bytes: int
    changed_s: int  #: time of its last change, seconds since 1970


class OriginReader:
    """A program that reads at origins, one file at a time. Started when it is needed, and again if it fails."""

    def __init__(self, config: CacheConfig) -> None:
        self._environ = {
            **{name: os.environ[name] for name in PASSED if name in os.environ},
            **server_environment(config),
        }
        self._answer_s = 30.0 + 3 * (constants.ORIGIN_WAIT_S + constants.ORIGIN_STALL_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the program."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def open(self, file: OriginPath) -> FileAtOrigin:
        """Open a file. Raises FileMissingError, SiteError where the origin does not answer, ConfigError."""
        found = self._ask(file.url, 0, 0)[0]
        return FileAtOrigin(int(found["size"]), int(found["changed_s"]))

    def read(self, offset: int, length: int) -> bytes:
        """A piece of the open file, shorter where it ends. Raises SiteError."""
        return self._ask("", offset, length)[1]

    def adler32(self, file: OriginPath) -> int | None:
        """The checksum that the origin gives for a file, None where it gives none."""
        server = f"{file.scheme}://{file.host}:{file.port}"
        try:
            done = subprocess.run(
                ["xrdfs", server, "query", "checksum", file.path],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=CHECKSUM_S,
                env=self._environ,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _ADLER.search(done.stdout[:1000].decode(errors="replace"))
        return int(match[1], 16) if match is not None and done.returncode == 0 else None

    def _ask(self, url: str, offset: int, length: int) -> tuple[Mapping[str, Any], bytes]:
        try:
            head, content = self._exchange(url, offset, length)
        except (OSError, *UNDECODABLE) as error:
            self.close()
            raise SiteError(f"the program that reads at the origin failed: {error}") from error
        if "error" in head:
            if head["number"] in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR):
                raise FileMissingError(f"the origin says: {head['error']}", transient=False)
            raise SiteError(f"the origin cannot be read: {head['error']}")
        return head, content

    def _exchange(self, url: str, offset: int, length: int) -> tuple[Mapping[str, Any], bytes]:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps([url, offset, length]).encode() + b"\n")
        process.stdin.flush()
        until_s = clock.monotonic_s() + self._answer_s
        head = self._line(until_s)
        return head, self._bytes(min(int(head.get("length", 0)), length), until_s)

    def _start(self) -> subprocess.Popen[bytes]:
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(fetching.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**self._environ, "LD_PRELOAD": LIBRARY},
        )
        if not self._line(clock.monotonic_s() + START_S).get("ready"):
            self.close()
            raise ConfigError(
                f"`{LIBRARY}` cannot be loaded: it is needed to read single blocks at an origin",
                hint="install XRootD's client libraries (Debian: `libxrdposix3`)",
            )
        return self._process

    def _line(self, until_s: float) -> Mapping[str, Any]:
        while b"\n" not in self._buffer:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise ValueError("its answer is too long")
            self._buffer += self._piece(until_s)
        line, _, self._buffer = self._buffer.partition(b"\n")
        result = json.loads(line)
        if not isinstance(result, dict):
            raise ValueError("its answer is not a table")  # noqa: TRY004 -- all that is wrong with an answer is one
        return result

    def _bytes(self, count: int, until_s: float) -> bytes:
        pieces = [self._buffer[:count]]
        self._buffer = self._buffer[count:]
        left = count - len(pieces[0])
        while left > 0:
            piece = self._piece(until_s)
            pieces.append(piece[:left])
            self._buffer = piece[left:]
            left -= len(pieces[-1])
        return b"".join(pieces)

    def _piece(self, until_s: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        if not select.select([output], [], [], max(0.0, until_s - clock.monotonic_s()))[0]:
            raise TimeoutError(errno.ETIMEDOUT, "no answer in time")
        piece = os.read(output, 1 << 20)
        if not piece:
            raise BrokenPipeError(errno.EPIPE, "it ended")
        return piece


def adler32_of(path: str, size_bytes: int) -> int | None:
    """The checksum of the first `size_bytes` of a local file, None where it is shorter. Raises OSError."""
    value, left = 1, size_bytes
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        while left > 0:
            piece = file.read(min(left, 1 << 20))
            if not piece:
                return None
            value = zlib.adler32(piece, value)
            left -= len(piece)
    return value
