"""Moves notes from the database into the audit log, and forgets what has had its time."""

from __future__ import annotations

import asyncio

from tidemill import clock, log
from tidemill.config.server import ServerConfig
from tidemill.errors import SiteError
from tidemill.server.api.app import Api
from tidemill.server.audit import traces
from tidemill.server.audit.audit_log import NOTES_MAX, AuditLog
from tidemill.server.database.store import Session
from tidemill.server.database.work import Work

MOVE_S = 1.0
HOUR_S = 3600.0
_LOG = log.Log("audit")


class Keeper:
    """Of one server."""

    def __init__(self, api: Api, audit: AuditLog, config: ServerConfig) -> None:
        self._api, self._audit = api, audit
        self._kept_s = config.roles.audit_kept_s
        self._pruned_s = float("-inf")

    async def run(self) -> None:
        """Until it is canceled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(MOVE_S)
            try:
                await self._api.read(self.move)
                if clock.monotonic_s() - self._pruned_s >= HOUR_S:
                    self._pruned_s = clock.monotonic_s()
                    await loop.run_in_executor(self._api.waiters, self._hourly)
            except SiteError as error:
                _LOG.warning(
                    "audit.unwritten", error=error.message, hint="the database keeps the notes meanwhile"
                )
            except Exception as error:  # noqa: BLE001 - top of a loop: tell it and go on
                _LOG.error("audit.unwritten", error=repr(error))

    def move(self, session: Session) -> None:
        """What the database has, to the log: durable there before the database forgets it."""
        while True:
            rows = session.rows("audit_pending", limit=NOTES_MAX)
            lines = self._audit.append([(number, at_us, bytes(body)) for number, at_us, body in rows])
            if not rows:
                return
            last = rows[-1][0]

            def told(work: Work, last: int = last, lines: int = lines) -> None:
                work.session.run("delete_audit", id=last)
                work.session.run("set_audit_lines", lines=lines)

            self._api.dispatcher.write(told)

    def _hourly(self) -> None:
        self._audit.prune(self._kept_s)
        before_us = min(clock.now_us() - int(self._kept_s * 1e6), self._audit.begins_us())
        self._api.dispatcher.write(lambda work: traces.prune(work, before_us))
        lines, head = self._audit.head
        _LOG.info("audit.head", lines=lines, head=head)
