"""The services around a server and a site, each a real one: killed, and started again as they were."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contract.server_world import SCRIPT as POSTGRESQL
from tests.contract.transfer_world import Server
from tests.worlds.services.broker_service import Broker
from tests.worlds.services.mail_world import MailServer, make_certificate

from tidemill.client.authority import Authority, Wanted

START_S = 60.0


class PostgreSQL:
    """A database that is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""

    def start(self) -> None:
        """Start it; while processes of the one before still end, try again."""
        deadline = time.monotonic() + START_S
        while True:
            done = self._call("start")
            if done.returncode == 0:
                self.url = done.stdout.strip()
                return
            if not self.url:
                pytest.skip(f"PostgreSQL does not start: {done.stderr}")
            assert time.monotonic() < deadline, f"PostgreSQL does not start again: {done.stderr}"
            time.sleep(0.2)

    def crash(self) -> None:
        """kill -9 of its first process; the others end when they see that."""
        assert self._call("crash").returncode == 0

    def stop(self) -> None:
        self._call("stop")

    def _call(self, verb: str) -> subprocess.CompletedProcess[str]:
        words = [str(POSTGRESQL), verb, str(self.folder)]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=START_S)


class Services:
    """All that stands around a server and a site."""

    def __init__(self, folder: Path, *, with_broker: bool) -> None:
        self.folder = folder
        cert, key = make_certificate(folder)
        self.mail = MailServer(folder / "mails", "--cert", cert, "--key", key)
        self.mail.start()
        self.database = PostgreSQL(folder / "pg")
        self.database.start()
        (folder / "gridftp").mkdir(mode=0o711)
        self.gridftp = Server("gsiftp", folder / "gridftp")
        self.authority = folder / "ca"
        self.broker: Broker | None = None
        made = Authority.create(self.authority, name="tests", days=30)
        names = ("server/127.0.0.1", "server/localhost", "site/here", "submitter/cms", "operator/olga")
        for role, name in (each.split("/") for each in names):
            made.issue(Wanted(role=role, name=name, days=30), self.authority)
        if with_broker:
            self.broker = Broker(folder / "rabbitmq", self.authority, "localhost")

    @property
    def parts(self) -> dict[str, PostgreSQL | Server | MailServer | Broker]:
        """What can be killed, by name."""
        found: dict[str, PostgreSQL | Server | MailServer | Broker] = {
            "database": self.database, "gridftp": self.gridftp, "mail": self.mail
        }  # fmt: skip
        return found if self.broker is None else {**found, "broker": self.broker}

    def crash(self, name: str) -> None:
        """kill -9."""
        part = self.parts[name]
        if isinstance(part, MailServer):
            part.kill()
        else:
            part.crash()

    def start(self, name: str) -> None:
        """Start it again, on the port and with the files that it had."""
        self.parts[name].start()

    def stop(self) -> None:
        """End all."""
        self.mail.kill()
        self.gridftp.stop()
        self.database.stop()
        if self.broker is not None:
            self.broker.stop()


@contextmanager
def services(*, with_broker: bool) -> Iterator[Services]:
    """Running services, ended and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    folder.chmod(0o711)
    it = None
    try:
        it = Services(folder, with_broker=with_broker)
        yield it
    finally:
        if it is not None:
            it.stop()
        shutil.rmtree(folder, ignore_errors=True)
