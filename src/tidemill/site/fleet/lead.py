"""The lead of a fleet beside the agent: started, found again after the agent was, started again when it dies.

It lives in a session of its own and goes on when the agent ends.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tidemill import clock
from tidemill.batch import processes
from tidemill.batch.run import start
from tidemill.errors import TidemillError
from tidemill.log import Log
from tidemill.node.fleet import Fleet
from tidemill.site.state.epoch import Epoch

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0
"""After a lead that has lived this long the next one starts without delay."""

CLOSING_S = 5.0
"""A lead whose fleet is over ends by itself; after this time it gets TERM."""

_log = Log("lead")


class Serving(Protocol):
    """What serves a fleet's pilots."""

    def keep_alive(self, epoch: Epoch) -> None:
        """See to it that pilots are served. Raises SiteError."""

    def end(self) -> bool:
        """Make it end, since its fleet is over; whether it has."""

    def stop(self) -> None:
        """End at once."""


class NoLead:
    """Pilots read files: the agent keeps up its sign of life, and no process."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def keep_alive(self, epoch: Epoch) -> None:
        """Renew the sign of life that pilots read. Raises SiteError."""
        self._fleet.beat(epoch.number)

    def end(self) -> bool:
        """There is nothing to end."""
        return True

    def stop(self) -> None:
        """There is nothing to stop: pilots leave when their fleet is closed, or we fall silent."""


class Lead:
    """The lead of one fleet."""

    def __init__(self, fleet: Fleet, binary: Path) -> None:
        self._fleet = fleet
        self._binary = binary
        self._child: processes.ChildProcess | None = None
        self._tries = 0
        self._started_s = 0.0
        self._next_s = 0.0
        self._closing_s: float | None = None

    def keep_alive(self, epoch: Epoch) -> None:
        """See to it that it lives, and that it knows that we do; start it again, slower each time, if it does not.

        Raises SiteError.
        """
        self._fleet.beat(epoch.number)
        if self.lives():
            return
        now = clock.monotonic_s()
        if now < self._next_s:
            return
        if self._child is not None:
            _log.warning("lead.ended", fleet=self._fleet.directory.name, status=self._child.poll())
            if now - self._started_s > STEADY_S:
                self._tries = 0
        self._next_s = now + min(BACKOFF_FIRST_S * 2**self._tries, BACKOFF_MAX_S)
        self._tries = min(self._tries + 1, 20)
        self._started_s = now
        epoch.check()
        directory = self._fleet.directory
        command = [str(self._binary), "lead", "--fleet", str(directory)]
        self._child = start(command, output=directory / "lead.log")
        _log.info("lead.started", fleet=directory.name, pid=self._child.pid)

    def lives(self) -> bool:
        """Whether a lead serves the fleet: one that we started, or one of an earlier agent on this host."""
        if self._child is not None and self._child.poll() is None:
            return True
        return self._foreign() is not None

    def end(self) -> bool:
        """Make it end, since its fleet is over; whether it has."""
        if not self.lives():
            return True
        now = clock.monotonic_s()
        if self._closing_s is None:
            self._closing_s = now + CLOSING_S
        elif now > self._closing_s:
            self.stop()
        return False

    def stop(self) -> None:
        """Send TERM."""
        if self._child is not None and self._child.poll() is None:
            # a child of this process: the number stays in use until wait(2)
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGTERM)
            return
        pid = self._foreign()
        if pid is None:
            return
        sent = processes.terminate(pid, lambda: self._foreign() == pid)
        if sent.process is not None:
            os.close(sent.process)

    def _foreign(self) -> int | None:
        try:
            address = self._fleet.lead_address()
        except TidemillError:
            return None
        if address is None or not _same_host(address.host):
            return None
        words = processes.words_of(address.pid)
        is_ours = b"lead" in words and os.fsencode(self._fleet.directory) in words
        return address.pid if is_ours and processes.start_of(address.pid) is not None else None


def _same_host(host: str) -> bool:
    """Whether the lead's address is on this host; numbers of processes elsewhere mean nothing here."""
    return host in (socket.gethostname(), "localhost", "") or host.startswith("127.") or host == "::1"
