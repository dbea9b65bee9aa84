"""Acts on what `manners` decides: a stop is durable before anything follows from it, and people are told.

The log has the truth; SITE/drained.json and the mail follow from it. Looks at a few file names once a second.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError, TidemillError
from tidemill.log import Log
from tidemill.site.staff import drain, mail
from tidemill.site.staff.manners import Signs, sign_of_stop
from tidemill.site.state import site_state as s
from tidemill.site.state.log import SiteLog

LOOK_S = 1.0
_log = Log("guest")


class Guest:
    """Whether the site may work, by the word of staff and operators."""

    def __init__(self, log: SiteLog, config: SiteConfig, *, site_dir: Path, executor: Executor) -> None:
        self._log = log
        self._config = config
        self._site_dir = site_dir
        self._executor = executor
        self._next_s = 0.0
        self._mail: Future[None] | None = None
        drain.show_stop(site_dir, log.pool.state.stop)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may be taken, started or kept."""
        return self._log.pool.state.stop is not None

    def look(self, held: list[tuple[str, str]]) -> bool:
        """See whether the site has to stop, or may work again; note it in the log. Whether that changed.

        `held`: our allocations that the batch system keeps from starting, with its word for it.
        """
        now_s = clock.monotonic_s()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + LOOK_S
        self._take_mail()
        files = drain.stop_files(self._site_dir, self._config.stop_file)
        state = self._log.pool.state
        if state.stop is not None:
            return self._resume(state.stop, files)
        signs = Signs(stop_files=files, foreign_us=state.foreign_us, held=held)
        stop = sign_of_stop(signs, self._config.yielding, now_us=clock.now_us())
        if stop is None:
            return False
        self._log.apply(s.Stopped(cause=stop.cause, reason=stop.reason, at_us=stop.at_us))
        self._log.commit()
        _log.error("site.stopped", cause=stop.cause, reason=stop.reason)
        self._tell(stop)
        return True

    def _resume(self, stop: s.Stop, files: list[tuple[str, str]]) -> bool:
        requests = drain.take_requests(self._site_dir)
        if not requests:
            return False
        request = requests[-1]
        if files or request.at_us <= stop.at_us:
            why = f"`{files[0][0]}` exists" if files else "it was asked for before the stop"
            _log.warning("site.not_resumed", reason=why)
            drain.forget_requests(self._site_dir)
            return False
        self._log.apply(s.Resumed(reason=request.reason, at_us=clock.now_us()))
        self._log.commit()
        drain.forget_requests(self._site_dir)
        _log.info("site.resumed", reason=request.reason, was=stop.reason)
        self._show(None)
        return True

    def _tell(self, stop: s.Stop) -> None:
        self._show(stop)
        if mail.can_mail(self._config):
            text = mail.stop_text(self._config, stop.reason, clock.utc_text(stop.at_us))
            self._mail = self._executor.submit(mail.send, self._config, "the site was stopped", text)

    def _show(self, stop: s.Stop | None) -> None:
        try:
            drain.show_stop(self._site_dir, stop)
        except SiteError as error:
            _log.error("drained.unwritten", reason=error.message)

    def _take_mail(self) -> None:
        if self._mail is None or not self._mail.done():
            return
        done, self._mail = self._mail, None
        try:
            done.result()
        except TidemillError as error:
            _log.error("mail.failed", reason=error.message, hint=error.hint)
        else:
            _log.info("mail.sent", to=self._config.contact)
