"""The role of a server, and the parts that only a server runs that may write: transport, notifications, the archive.

A server without a partner is active from its start to its end. One of a pair waits as the standby, takes over when the
database lets it, and is the standby again as soon as it has lost the database's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from tidemill import clock, log
from tidemill.config.addressee import Channel
from tidemill.config.server import ServerConfig
from tidemill.errors import ConfigError, SiteError
from tidemill.server.archive.archiver import Archiver
from tidemill.server.audit.audit_log import AuditLog
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.core.specifications.shortening import Shortening
from tidemill.server.database.store import Store
from tidemill.server.identity.access import Authenticator
from tidemill.server.notify.start import check_rules, telling
from tidemill.server.transports import TransportHost
from tidemill.wire.transports import ServedTransport, wanted

if TYPE_CHECKING:  # it needs PostgreSQL's package, which a server on SQLite does not have
    from tidemill.server.database.paired import PairedSession

BEAT_S = 1.0
AGAIN_S = 5.0  #: after a take-over that failed: the other server may try
JOIN_S = 10.0
_LOG = log.Log("pair")


class ActiveParts:
    """Transport, notifications, the archive: `start` when the server may write, `stop` when it may not."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        config: ServerConfig,
        *,
        authenticator: Authenticator,
        audit: AuditLog,
    ) -> None:
        """Raises ConfigError for what could not be started: better now than at a take-over."""
        self._store, self._dispatcher, self._config = store, dispatcher, config
        self._audit = audit
        self._running: ExitStack | None = None
        self._kind = wanted(config)
        self._host = TransportHost(
            store, dispatcher, judge=authenticator.revoked.why, on_refused=audit.refused
        )
        self._transport: ServedTransport | None = None
        if self._kind is not None:
            self._kind.serve(config, self._host)  # made once to be checked: a standby finds out at its start
        check_rules(config, messages=self._kind is not None)

    def start(self) -> None:
        """Start all. Raises SiteError or ConfigError, with nothing started."""
        with ExitStack() as running:
            self._audit.join(self._dispatcher.writer.write)
            # ended last: its file system may hang, and what came by a transport must not stay with a standby
            running.enter_context(
                Archiver(
                    self._store, self._dispatcher.writer.write, self._dispatcher.rules.archive,
                    keep_s=self._config.archive.keep_days * 86_400,
                    shorten=Shortening(self._dispatcher.writer.write, lambda: self._dispatcher.storage).step,
                )
            )  # fmt: skip
            more: dict[Channel, Any] = {}
            if self._kind is not None:
                self._transport = self._kind.serve(self._config, self._host)
                self._transport.start()
                running.callback(self._transport.close)
                more[Channel.MESSAGE] = self._transport.courier
            running.enter_context(telling(self._store, self._dispatcher, self._config, more=more))
            self._running = running.pop_all()

    def stop(self) -> None:
        """End all; harmless when nothing runs."""
        running, self._running = self._running, None
        if running is not None:
            running.close()
        self._transport = None

    @property
    def is_running(self) -> bool:
        """Whether they run."""
        return self._running is not None

    @property
    def transport_up(self) -> Callable[[], bool] | None:
        """Whether the transport is connected; None = there is none. On a standby nothing is wrong with it."""
        return None if self._kind is None else self._is_up

    def _is_up(self) -> bool:
        transport = self._transport  # which another thread may end
        return transport is None or transport.is_up()


class PairedRole:
    """Keeps a server of a pair in its role, in threads of its own. `start` it, `close` it."""

    def __init__(self, dispatcher: Dispatcher, parts: ActiveParts, audit: AuditLog) -> None:
        assert dispatcher.writer.is_paired
        self._session = cast("PairedSession", dispatcher.writer.session)
        self._dispatcher, self._parts, self._audit = dispatcher, parts, audit
        self._ending = threading.Event()
        self._last_error = ""
        self._holder = ""  #: the session that was last named as the active server
        self._threads = [
            threading.Thread(target=self._run, name="pair", daemon=True),
            threading.Thread(target=self._watch, name="pair-watch", daemon=True),
        ]

    def start(self) -> None:
        """Be the standby, and take over as soon as there is no active server."""
        self._dispatcher.site_watch.rest()
        _LOG.info("server.standby")
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End. The other server takes over once the writer is closed."""
        self._ending.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._parts.stop()

    def _run(self) -> None:
        while not self._ending.is_set():
            pause_s = BEAT_S
            try:
                if not self._session.may_write:
                    self._wait_or_take()
                else:
                    self._session.beat()
                if not self._session.may_write:
                    self._stand_by()
            except (SiteError, ConfigError) as error:
                if error.message != self._last_error:
                    _LOG.warning("pair.waits", reason=error.message, hint=error.hint)
                self._last_error = error.message
                if self._session.may_write:  # what only the active server does could not be started here
                    pause_s = AGAIN_S
                self._fall_back()
            except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                _LOG.error("pair.failed", error=repr(error))
                self._fall_back()
                pause_s = AGAIN_S
            self._ending.wait(pause_s)

    def _wait_or_take(self) -> None:
        self._stand_by()
        began_s = clock.monotonic_s()
        if not self._session.become_active():
            for each in tuple(self._dispatcher.writer.listeners):
                each()  # feeds and live pages: the other server may have committed
            self._explain()
            return
        self._holder = ""
        self._dispatcher.site_watch.restart()
        self._parts.start()
        self._audit.take_over(self._session.term)
        self._last_error = ""
        _LOG.warning(
            "server.active", term=self._session.term, seconds=round(clock.monotonic_s() - began_s, 3)
        )

    def _explain(self) -> None:
        """Log which session is the active server, or that a session of another program keeps both servers waiting."""
        holder = self._session.holder
        if holder in ("", self._holder):
            return
        self._holder = holder
        if not self._session.is_locked_out:
            _LOG.info("pair.active", session=holder)
            return
        _LOG.warning(
            "pair.locked_out", session=holder, reason="a session of another program holds the active server's lock",
            hint="end it with `SELECT pg_terminate_backend(PID)`, and let no other role connect to the database",
        )  # fmt: skip

    def _stand_by(self) -> None:
        """What only the active server does ends, if it runs."""
        if self._parts.is_running:
            _LOG.warning("server.standby", why="the database has ended this server's connection or its lock")
        self._parts.stop()
        self._dispatcher.site_watch.rest()

    def _fall_back(self) -> None:
        try:
            self._parts.stop()
            self._dispatcher.site_watch.rest()
            self._session.resign()
        except SiteError as error:
            _LOG.warning("pair.unclean", reason=error.message)

    def _watch(self) -> None:
        while not self._ending.wait(BEAT_S):
            if self._session.cut_hung():
                _LOG.warning("database.hung", hint="PostgreSQL owes an answer: the connection was given up")
