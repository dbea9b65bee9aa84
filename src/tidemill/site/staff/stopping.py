"""When a guest has to go, and in which order: STOP files, cancellations that Tidemill did not order, held accounts.

Staff need no knowledge of Tidemill to stop it: a file at an agreed path, or ending a few of its allocations, is enough.
`sign_of_stop` and `retreat` are pure. A stop is durable in the log before anything follows from it; SITE/drained.json
and the mail to people follow from it. A few file names are checked once a second.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import pairwise

import msgspec

from tidemill import clock
from tidemill.errors import SiteError, TidemillError
from tidemill.log import Log
from tidemill.model.quantities import counted_text
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site import constants
from tidemill.site.staff import drain, mail
from tidemill.site.state import site_state
from tidemill.site.state.served_site import ServedSite

CHECK_S = 1.0
FOREIGN_CANCELS, FOREIGN_CANCELS_S = 3, 600.0
"""Cancellations that Tidemill did not order, and the time within which they drain the site: one or two may come from a
script of the centre that clears a node."""

PAUSE_S, PAUSE_MAX_S = 300.0, 3600.0
"""Time in which nothing is asked for after others have canceled what waited: doubled by each occasion, and bounded."""

OCCASION_S, OCCASIONS_S = 60.0, 86_400.0
"""Cancels closer together than the first are one occasion; those of the last day count."""

SECOND_US = 1_000_000
_log = Log("guest")


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """What may stop the site. `stop_files`: (path, text) of those that exist. `foreign_us`: when allocations were
    canceled by others (preemption, walltime and deadlines do not count); `foreign_by`: the users who did, of the last
    of them, empty = not known; `user`: the site's own. `held`: (allocation, the batch
    system's word) of those that staff or an account keep from starting. `doubt`: why the batch system's replies are not
    believed, and have not been for too long."""

    stop_files: list[tuple[str, str]] = []
    foreign_us: list[int] = []
    foreign_by: list[str] = []
    user: str = ""
    held: list[tuple[str, str]] = []
    doubt: str = ""


class Retreat(msgspec.Struct, frozen=True, kw_only=True):
    """What a stopped site has to end now, by name; `why` is for the log."""

    cancel: list[str]
    why: str


def sign_of_stop(signs: Signs, *, now_us: int) -> site_state.Stop | None:
    """Why the site has to be drained now, None = it need not be."""
    if signs.stop_files:
        path, text = signs.stop_files[0]
        reason = f"`{path}` exists" + (f": {text}" if text else "")
        return site_state.Stop(cause="stop_file", reason=reason, at_us=now_us)
    recent = _recent(signs, now_us)
    if len(recent) >= FOREIGN_CANCELS:
        within = f"within {FOREIGN_CANCELS_S:.0f} s"
        return site_state.Stop(
            cause="cancels", reason=_canceled_text(recent, signs.user, within), at_us=now_us
        )
    if signs.held:
        name, word = signs.held[0]
        reason = f"{len(signs.held)} allocations are held, `{name}` as `{word}`"
        return site_state.Stop(cause="held", reason=reason, at_us=now_us)
    if signs.doubt:
        return site_state.Stop(cause="doubt", reason=signs.doubt, at_us=now_us)
    return None


def warning_of(signs: Signs, *, now_us: int) -> str:
    """What is said of cancels of others that are too few to stop the site; empty = there are none."""
    recent = _recent(signs, now_us)
    if not 0 < len(recent) < FOREIGN_CANCELS:
        return ""
    text = _canceled_text(recent, signs.user, "")
    return f"{text}; {FOREIGN_CANCELS} such cancels within {FOREIGN_CANCELS_S:.0f} s stop the site"


def _recent(signs: Signs, now_us: int) -> list[str]:
    """Who canceled allocations within the time that counts, one entry for each; empty = not known."""
    since_us = now_us - int(FOREIGN_CANCELS_S * 1e6)
    number = sum(at_us >= since_us for at_us in signs.foreign_us)
    known = signs.foreign_by[-number:] if number else []
    return [""] * (number - len(known)) + known


def _canceled_text(by: Sequence[str], user: str, within: str) -> str:
    """That allocations were canceled, and by whom as far as that is known. `user`: the site's own."""
    was = "was" if len(by) == 1 else "were"
    text = f"{counted_text(len(by), 'allocation')} {was} canceled{within and f' {within}'}"
    if "" in by or not user:
        return f"{text}, and not by Tidemill: by staff of the centre, or by you (user `{user}`)"
    if set(by) == {user}:
        return f"{text} by you (user `{user}`), outside Tidemill"
    whom = f"{text} by {', '.join(f'`{each}`' for each in sorted(set(by)))}"
    return f"{whom}, outside Tidemill" if user in by else f"{whom}: staff of the centre"


def signs_of_cancels(state: site_state.SiteState) -> Signs:
    """The cancels that Tidemill did not order, and who gave the orders."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return Signs(foreign_us=state.foreign_us, foreign_by=state.foreign_by, user=user)


def pause_after(withdrawn_us: Sequence[int], now_us: int) -> float:
    """Seconds until allocations are asked for again after others have canceled some that waited (`withdrawn_us`, in
    order): what staff do not want in the queue is not put there again at once."""
    recent = [at_us for at_us in withdrawn_us if now_us - at_us < OCCASIONS_S * 1e6]
    if not recent:
        return 0.0
    occasions = 1 + sum(later - earlier > OCCASION_S * 1e6 for earlier, later in pairwise(recent))
    pause_s = min(PAUSE_S * 2.0 ** min(occasions - 1, 30), PAUSE_MAX_S)
    return max(0.0, pause_s - (now_us - recent[-1]) / 1e6)


def retreat(
    stop: site_state.Stop, allocations: Iterable[site_state.Allocation], *, now_us: int, again_s: float
) -> Retreat:
    """The allocations to end now: those that wait at once, those that run when their pilots had STOP_S to drain.
    What was canceled and is still there is canceled again every `again_s`."""
    is_over = now_us >= stop.at_us + int(constants.STOP_S * 1e6)
    names = [
        a.name
        for a in allocations
        if a.state not in ALLOCATION_FINAL
        and (a.state is not AllocationState.ACTIVE or is_over)
        and (not a.canceled_us or now_us - a.canceled_us > again_s * 1e6)
    ]
    return Retreat(cancel=names, why=f"the site is stopped: {stop.reason}")


class StopControl:
    """Whether the site may work, as staff and operators decide."""

    def __init__(self, site: ServedSite) -> None:
        self._site = site
        self._log = site.log
        self._config = site.config
        self._next_s = 0.0
        self._mail: Future[None] | None = None
        self._paused_until_us = 0
        self._canceled = 0  #: cancels of others, as of the last step
        drain.show_stop(site.directory, site.state.stop)
        drain.show_pause(site.directory, 0)

    def step(self, held: list[tuple[str, str]], *, doubt: str = "") -> bool:
        """Check whether the site has to stop, or may work again; note it in the log. Whether that changed.

        `held`: our allocations that the batch system keeps from starting, with its reason; `doubt`: why its replies
        have not been believed for too long.
        """
        now_s = clock.monotonic_s()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + CHECK_S
        self._take_mail()
        files = drain.stop_files(self._site.directory, self._config.stop_file)
        state = self._site.state
        if state.stop is not None:
            return self._resume(state.stop, files)
        cancels = signs_of_cancels(state)
        signs = msgspec.structs.replace(cancels, stop_files=files, held=held, doubt=doubt)
        stop = sign_of_stop(signs, now_us=clock.now_us())
        if stop is None:
            self._warn(signs)
            return self._pause(state.withdrawn_us)
        self._log.apply(site_state.Stopped(cause=stop.cause, reason=stop.reason, at_us=stop.at_us))
        self._log.commit()
        _log.error("site.stopped", cause=stop.cause, reason=stop.reason)
        self._announce(stop)
        return True

    def _warn(self, signs: Signs) -> None:
        """Say in the agent's log what further cancels would do, once for each."""
        number, self._canceled = self._canceled, len(signs.foreign_us)
        text = warning_of(signs, now_us=clock.now_us())
        if text and self._canceled > number:
            _log.warning("site.cancels", reason=text)

    def _resume(self, stop: site_state.Stop, files: list[tuple[str, str]]) -> bool:
        requests = drain.take_requests(self._site.directory)
        if not requests:
            return False
        request = requests[-1]
        if files or request.at_us <= stop.at_us:
            why = f"`{files[0][0]}` exists" if files else "it was asked for before the stop"
            _log.warning("site.not_resumed", reason=why)
            drain.forget_requests(self._site.directory)
            return False
        self._work_again(request, was=stop.reason)
        self._show(None)
        return True

    def _pause(self, withdrawn_us: list[int]) -> bool:
        """Show a pause after cancels of others, and end it if an operator asks for that. Whether it ended so."""
        now_us = clock.now_us()
        pause_s = pause_after(withdrawn_us, now_us)
        until_us = now_us + int(pause_s * 1e6) if pause_s > 0 else 0
        requests = drain.take_requests(self._site.directory) if until_us else []
        if requests and requests[-1].at_us > withdrawn_us[-1]:
            self._work_again(requests[-1], was="a pause after waiting allocations were canceled")
            until_us = 0
        if abs(until_us - self._paused_until_us) > SECOND_US:
            self._paused_until_us = until_us
            try:
                drain.show_pause(self._site.directory, until_us)
            except SiteError as error:
                _log.error("paused.unwritten", reason=error.message)
            if until_us:
                _log.warning(
                    "site.paused", until=clock.utc_text(until_us), reason="others canceled what waited"
                )
        return bool(requests) and not until_us

    def _work_again(self, request: drain.ResumeRequest, *, was: str) -> None:
        self._log.apply(site_state.Resumed(reason=request.reason, at_us=clock.now_us()))
        self._log.commit()
        drain.forget_requests(self._site.directory)
        _log.info("site.resumed", reason=request.reason, was=was)

    def _announce(self, stop: site_state.Stop) -> None:
        self._show(stop)
        if mail.can_mail(self._config):
            text = mail.stop_text(self._config, stop.reason, clock.utc_text(stop.at_us))
            self._mail = self._site.pools.mail.submit(mail.send, self._config, "the site was stopped", text)

    def _show(self, stop: site_state.Stop | None) -> None:
        try:
            drain.show_stop(self._site.directory, stop)
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
