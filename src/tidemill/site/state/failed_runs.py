"""SITE/failed.json: how often the agent has ended with an error since it last ran well, and the last error: for people.

Whatever starts the agent again and again (`tidemill up`, systemd, cron) shows nothing of it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, SiteError, TidemillError
from tidemill.files import read_bounded, write_whole
from tidemill.log import Log

BYTES_MAX = 1 << 16
NAME = "failed.json"
_log = Log("agent")


class FailedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of the agent in a row that ended with an error. Times are microseconds since 1970."""

    times: int
    since_us: int
    at_us: int
    reason: str
    hint: str = ""


def note_failed_run(site_dir: Path, error: TidemillError) -> None:
    """The agent ends with this error. Nothing depends on the file: a failure is logged."""
    now_us = clock.now_us()
    known = read_failed_runs(site_dir)
    failed = FailedRuns(
        times=1 if known is None else known.times + 1,
        since_us=now_us if known is None else known.since_us,
        at_us=now_us,
        reason=error.message,
        hint=error.hint or "",
    )
    try:
        write_whole(site_dir / NAME, msgspec.json.encode(failed), mode=0o644)
    except SiteError as unwritten:
        _log.warning("failed_run.unwritten", reason=unwritten.message)


def clear_failed_runs(site_dir: Path) -> None:
    """The agent runs well, or has ended without an error."""
    try:
        (site_dir / NAME).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("failed_run.stays", reason=str(error))


def read_failed_runs(site_dir: Path) -> FailedRuns | None:
    """What the file says; None where there is none that can be read."""
    try:
        content = read_bounded(site_dir / NAME, BYTES_MAX)
        return None if content is None else msgspec.json.decode(content, type=FailedRuns)
    except (SiteError, *UNDECODABLE):
        return None
