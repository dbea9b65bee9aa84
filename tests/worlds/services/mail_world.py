"""A real SMTP server and a real receiver of web hooks, each a process of its own with TLS, that tests kill and start
again; and a certificate for them."""

from __future__ import annotations

import email
import email.policy
import json
import subprocess
import sys
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.ports import free_port

SCRIPTS = Path(__file__).parents[3] / "scripts"


def make_certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    done = subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1", "-out", cert, "-keyout", key,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return cert, key


class Sink:
    """The process of one of `scripts/*_sink.py`; the port stays the same however often it is started."""

    def __init__(self, script: str, folder: Path, *options: str | Path) -> None:
        self._script = SCRIPTS / script
        self.folder, self.port, self._options = folder, free_port(), [str(each) for each in options]
        self._process: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> None:
        """Start, and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, str(self._script), str(self.folder), str(self.port), *self._options, *more],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready"), f"{self._script} does not start"

    def kill(self) -> None:
        """SIGKILL; harmless if it is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def died(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None


class HookServer(Sink):
    """A receiver of web hooks."""

    def __init__(self, folder: Path, *options: str | Path) -> None:
        super().__init__("hook_sink.py", folder, *options)

    def posts(self) -> list[dict[str, Any]]:
        """What has arrived, in order: path, headers, body."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]


class MailServer(Sink):
    """An SMTP server."""

    def __init__(self, folder: Path, *options: str | Path) -> None:
        pytest.importorskip("aiosmtpd")
        super().__init__("mail_sink.py", folder, *options)

    def mails(self) -> list[EmailMessage]:
        """What has arrived, in order."""
        found = []
        for path in sorted(self.folder.glob("*.eml")):
            mail = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
            assert isinstance(mail, EmailMessage)
            found.append(mail)
        return found
