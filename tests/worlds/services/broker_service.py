"""A real RabbitMQ with the certificates of an authority that tests have, killed and started again by the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.worlds.services.amqp_world import SCRIPT

START_S = 110.0


class Broker:
    """In `folder`, with `ca.pem`, NAME.pem and NAME.key of `keys`; nobody may do anything until `control` says so."""

    def __init__(self, folder: Path, keys: Path, name: str) -> None:
        self.folder = folder
        certs = folder / "certs"
        certs.mkdir(parents=True)
        shutil.copy(keys / "ca.pem", certs / "ca.pem")
        for suffix in ("pem", "key"):
            shutil.copy(keys / f"{name}.{suffix}", certs / f"broker.{suffix}")
        done = self._call("start")
        if done.returncode:
            pytest.skip(f"RabbitMQ does not start: {done.stderr.strip()[-500:]}")
        self.port = int(done.stdout.strip().rpartition(":")[2])

    def start(self) -> None:
        """Start it again."""
        done = self._call("start")
        assert done.returncode == 0, f"RabbitMQ does not start again: {done.stderr}"

    def crash(self) -> None:
        """kill -9."""
        self._call("crash")

    def stop(self) -> None:
        self._call("stop")

    def load(self, definitions: str) -> None:
        """`rabbitmqctl import_definitions`, on the broker's machine."""
        path = self.folder / "definitions.json"
        path.write_text(definitions)
        done = self._call("ctl", "import_definitions", path.name)
        assert done.returncode == 0, done.stderr

    def _call(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, verb, str(self.folder), *words],
            capture_output=True, text=True, check=False, timeout=START_S,
        )  # fmt: skip
