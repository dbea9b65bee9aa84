"""Moves notes from the database into the audit log, and removes lines that are older than they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill import clock, log
from tidemill.errors import SiteError
from tidemill.server.audit import payload_times, traces
from tidemill.server.audit.audit_log import NOTES_MAX, AuditLog
from tidemill.server.database.readers import Readers
from tidemill.server.database.store import Session
from tidemill.server.database.unit_of_work import UnitOfWork

MOVE_S = 1.0
HOUR_S = 3600.0
_LOG = log.Log("audit")
Write = Callable[
    [Callable[[UnitOfWork], None]], None
]  #: runs something in a transaction and waits for its commit


class Keeper:
    """Keeps a server's audit log: its lines are written soon and durably, and removed after `kept_s`."""

    def __init__(
        self,
        readers: Readers,
        write: Write,
        audit: AuditLog,
        *,
        kept_s: float,
        is_active: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_active`: whether this server may write; False on the standby of a pair."""
        self._readers, self._write, self._audit, self._kept_s = readers, write, audit, kept_s
        self._is_active = is_active
        self._pruned_s = float("-inf")

    async def run(self) -> None:
        """Move and remove until canceled."""
        while True:
            await asyncio.sleep(MOVE_S)
            try:
                await self._readers.read(self.move)
                if self._is_active() and clock.monotonic_s() - self._pruned_s >= HOUR_S:
                    self._pruned_s = clock.monotonic_s()
                    await asyncio.to_thread(self._prune)
            except SiteError as error:
                _LOG.warning(
                    "audit.unwritten", error=error.message, hint="the database keeps the notes meanwhile"
                )
            except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                _LOG.error("audit.unwritten", error=repr(error))

    def move(self, session: Session) -> None:
        """Append to the log what the database has; durable there before it is deleted here. On a standby the log gets
        this server's own refusals only: the other one writes the notes."""
        if not self._is_active():
            self._audit.append([])
            return
        while True:
            rows = session.rows("audit_pending", limit=NOTES_MAX)
            lines = self._audit.append([(number, at_us, bytes(body)) for number, at_us, body in rows])
            if not rows:
                return
            last = rows[-1].id

            def told(work: UnitOfWork, last: int = last, lines: int = lines) -> None:
                work.session.run("delete_audit", id=last)
                work.session.run("set_audit_lines", lines=lines)

            self._write(told)

    def _prune(self) -> None:
        self._audit.prune(self._kept_s)
        before_us = min(clock.now_us() - int(self._kept_s * 1e6), self._audit.begins_us())
        self._write(lambda work: traces.prune(work, before_us))
        self._write(lambda work: payload_times.prune(work, before_us))
        lines, head = self._audit.head
        _LOG.info("audit.head", lines=lines, head=head)
