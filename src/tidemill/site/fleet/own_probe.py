"""The site's own question to a place of inputs: does it answer at all? By what the configuration says, not by jobs.

A job says which place to ask, never what: a data server is asked for the path of its `[[endpoints]]` entry with the
site's own credential, a file system for its first directory, the stage for a few bytes. Each place is asked now and
then only, in a thread of its own, and one that does not come back in time has not answered.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import SiteError
from tidemill.files import write_durable
from tidemill.log import Log
from tidemill.model.failure import FailureClass
from tidemill.model.trouble import Scope
from tidemill.site.fleet.breakers import Reason, TroubleCause
from tidemill.transfer.allowed import permit
from tidemill.transfer.contract import Direction, TransferError, Watch
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience

PROBE_S, PROBE_MAX_S = 60.0, 600.0
"""A place is asked so rarely while it answers as before; each pause is twice the one before."""

AGAIN_S = 5.0
"""After an answer that differs from the one before: one that is missed once does not count yet."""

TIMES = 2
"""So many questions in a row without an answer are a trouble of the place."""

ANSWER_S = 10.0
HANG_S = 30.0
"""A thread that is not back by then found no answer: file systems hang without an end."""

RUNNING_MAX = 8
PLACES_MAX = 256
BYTES = b"tidemill\n" * 400  #: more than a file system keeps in an inode

_log = Log("probe")


class ProbeTarget(NamedTuple):
    """A place that the site's own probe asks."""

    scope: str  #: a `trouble.Scope`
    name: str


class ProbeFinding(NamedTuple):
    """What a place answered. `error`: None = it is well."""

    target: ProbeTarget
    error: SiteError | None

    def reason(self, failure: FailureClass) -> Reason:
        """For all owners, as a failure of this class."""
        cause = TroubleCause(failure, self.target.scope, self.target.name)
        if self.error is None:
            return Reason(cause, "")
        return Reason(cause, f"the site asked by itself: {self.error.message}", self.error.hint or "")


class _Place(msgspec.Struct):
    """What is known of a place. `missed`: questions in a row without an answer."""

    next_s: float = 0.0
    pause_s: float = PROBE_S
    missed: int = 0
    began_s: float = 0.0
    thread: threading.Thread | None = None
    is_hanging: bool = False
    found: list[SiteError | None] = []


class OwnProbes:
    """The questions of one agent. `ask`: raises SiteError where a place gives no answer; from any thread."""

    def __init__(self, ask: Callable[[ProbeTarget], None]) -> None:
        self._ask = ask
        self._places: dict[ProbeTarget, _Place] = {}

    def step(self, targets: Iterable[ProbeTarget], now_s: float) -> list[ProbeFinding]:
        """Ask those that are due; what was found since. `targets`: all that are of interest now."""
        wanted = set(targets)
        for gone in [
            each for each, it in self._places.items() if each not in wanted and now_s >= it.next_s + PROBE_S
        ]:
            if self._places[gone].thread is None:
                del self._places[gone]
        for target in wanted - self._places.keys():
            if len(self._places) < PLACES_MAX:
                self._places[target] = _Place()
        findings = [each for target, it in self._places.items() for each in self._taken(target, it, now_s)]
        running = sum(each.thread is not None for each in self._places.values())
        for target, it in sorted(self._places.items(), key=lambda one: one[1].next_s):
            if running >= RUNNING_MAX:
                break
            if target in wanted and it.thread is None and now_s >= it.next_s:
                running += 1
                it.began_s = now_s
                it.thread = threading.Thread(target=self._run, args=(target, it), name="probe", daemon=True)
                it.thread.start()
        return findings

    def _run(self, target: ProbeTarget, it: _Place) -> None:
        try:
            self._ask(target)
        except SiteError as error:
            it.found = [error]
        except Exception as error:  # noqa: BLE001 - top of a thread; a bug says nothing of the place
            _log.error("probe.bug", place=target.name, error=repr(error))
            it.found = [None]
        else:
            it.found = [None]

    def _taken(self, target: ProbeTarget, it: _Place, now_s: float) -> Iterator[ProbeFinding]:
        if it.thread is None:
            return
        error: SiteError | None
        if it.found:
            (error,), it.found, it.thread, it.is_hanging = it.found, [], None, False
        elif now_s - it.began_s >= HANG_S and not it.is_hanging:
            it.is_hanging, it.missed = True, TIMES
            error = SiteError(f"`{target.name or 'the stage'}` has not answered within {HANG_S:g} s")
        else:
            return
        was_well = not it.missed
        counts = _counts(target, it, error)
        is_same = was_well is (error is None) and it.missed != 1
        it.pause_s = min(2 * it.pause_s, PROBE_MAX_S) if is_same else PROBE_S
        it.next_s = now_s + (AGAIN_S if 0 < it.missed < TIMES else it.pause_s)
        if counts:
            yield ProbeFinding(target, error)


class AppProbes:
    """Questions about this site's applications: read from files in moments, so in the caller's thread and more often,
    and counted as those of `OwnProbes`. `ask`: what is wrong with an application; None = nothing is."""

    def __init__(self, ask: Callable[[str], SiteError | None]) -> None:
        self._ask = ask
        self._places: dict[str, _Place] = {}

    def step(self, apps: Iterable[str], now_s: float) -> list[ProbeFinding]:
        """Ask of those that are due; what was found. `apps`: all that are of interest now."""
        wanted = sorted(set(apps))
        self._places = {app: self._places.get(app) or _Place() for app in wanted}
        findings = []
        for app, it in self._places.items():
            if now_s < it.next_s:
                continue
            it.next_s = now_s + AGAIN_S
            target, error = ProbeTarget(Scope.APP, app), self._ask(app)
            if _counts(target, it, error):
                findings.append(ProbeFinding(target, error))
        return findings


def _counts(target: ProbeTarget, it: _Place, error: SiteError | None) -> bool:
    """Note an answer (None) or that there was none; whether that is a finding: the first missed one does not count."""
    it.missed = 0 if error is None else it.missed + 1
    if error is not None:
        _log.info("probe.failed", place=target.name, reason=error.message, times=it.missed)
    return error is None or it.missed >= TIMES


def asker(config: SiteConfig, stage: Path) -> Callable[[ProbeTarget], None]:
    """What asks the places of a site's configuration."""
    mover = Mover(config.endpoints, MovePatience(tries_max=1), size_max=config.stage_file_bytes_max)

    def ask(target: ProbeTarget) -> None:
        if target.scope == Scope.INPUTS:
            write_a_little(stage)
        elif target.name.startswith("file:"):
            probe_directory(Path(urlsplit(target.name).path))
        else:
            for url in urls_of(target.name, config.endpoints):
                probe_url(mover, url)

    return ask


def urls_of(place: str, endpoints: Iterable[Endpoint]) -> list[str]:
    """What a place is asked for: the paths of the endpoints there that are read; the host of the place, for an endpoint
    may be of many."""
    found = []
    for each in endpoints:
        url = f"{place}/{each.url.partition('://')[2].partition('/')[2]}"
        with suppress(TransferError):
            if permit(url, [each], Direction.IN):
                found.append(url)
    return list(dict.fromkeys(found))


def probe_url(mover: Mover, url: str) -> None:
    """Ask a data server. What it says of a path, also that we may not see it, is an answer. Raises TransferError."""
    try:
        mover.stat(url, Watch(deadline_s=ANSWER_S, stall_s=ANSWER_S))
    except TransferError as error:
        if error.is_unasked or (error.transient and not error.missing):
            raise


def probe_directory(directory: Path) -> None:
    """Read one name of a directory. Raises SiteError; one that is not there, or closed to us, is an answer."""
    try:
        with os.scandir(directory) as entries:
            next(entries, None)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return
    except OSError as error:
        raise SiteError(f"failed to read `{directory}`: {error.strerror or error}") from error


def write_a_little(stage: Path) -> None:
    """Write a small file and remove it again. Raises SiteError."""
    path = stage / ".probe"
    write_durable(path, BYTES)
    path.unlink(missing_ok=True)
