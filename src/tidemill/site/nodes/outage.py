"""SITE/away.json: since when and why the batch system is unreachable, starts nothing or is not believed.

The file is valid while its agent lives: one that a killed agent left is not read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError
from tidemill.files import read_bounded, write_whole
from tidemill.log import Log
from tidemill.site.state.epoch import serving

BYTES_MAX = 1 << 16
NAME = "away.json"
DEAD_S = 60.0  #: as `dead_agent_s` unless configured
_log = Log("away")


class BatchOutage(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the batch system is asked in vain, and the last refusal: empty while the first answer is awaited.
    `answers`: it does answer, and `reason` says why it starts nothing or, where it is `doubted`, why its replies are
    not believed."""

    since_us: int
    reason: str = ""
    hint: str = ""
    answers: bool = False
    doubted: bool = False


def show_outage(
    site_dir: Path, reason: str, hint: str | None = None, *, answers: bool = False, doubted: bool = False
) -> None:
    """Note that it does not answer, starts nothing, or is not believed. Nothing depends on the file: a failure is
    logged."""
    known = _read(site_dir)
    is_same = known is not None and (known.answers, known.doubted) == (answers, doubted)
    since_us = known.since_us if known and is_same else clock.now_us()
    waiting = BatchOutage(since_us=since_us, reason=reason, hint=hint or "", answers=answers, doubted=doubted)
    try:
        write_whole(site_dir / NAME, msgspec.json.encode(waiting), mode=0o644)
    except SiteError as error:
        _log.warning("away.unwritten", reason=error.message)


def clear_outage(site_dir: Path) -> None:
    """Note that it answers and starts jobs, or is not asked any more."""
    try:
        (site_dir / NAME).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("away.stays", reason=str(error))


def read_outage(site_dir: Path, *, dead_s: float = DEAD_S) -> BatchOutage | None:
    """What the file says; None where none can be read, or its agent is dead; one on another host is after `dead_s`
    without a sign of life."""
    try:
        return _read(site_dir) if serving(site_dir, dead_s=dead_s) is not None else None
    except (ProtocolError, SiteError):
        return None


def _read(site_dir: Path) -> BatchOutage | None:
    try:
        content = read_bounded(site_dir / NAME, BYTES_MAX)
        return None if content is None else msgspec.json.decode(content, type=BatchOutage)
    except (SiteError, *UNDECODABLE):
        return None
