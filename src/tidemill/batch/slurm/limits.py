"""The longest time that own jobs may ask for, where QOS or association limit it: learned when a job meets the limit.

Slurm takes a job over such a limit and never starts it (`AssocMaxWallDurationPerJobLimit`), or refuses it where the QOS
has `DenyOnLimit`. Then `scontrol show assoc_mgr` is read once, and again now and then while there is such a limit.
"""

from __future__ import annotations

import re

import msgspec

from tidemill import clock
from tidemill.batch.polite import Budget
from tidemill.batch.slurm import text
from tidemill.batch.slurm.words import is_too_long
from tidemill.errors import SiteError
from tidemill.log import Log
from tidemill.model.number import whole

AGAIN_S = 600.0
"""Limits that were read are read again after this time: they may have been raised."""

GUESSED_S = 3600.0
"""A limit that could only be guessed is believed for this time. Then one job asks for more again."""

_QOS = re.compile(r"QOS=(\S+)\(\d+\)")
_USER = re.compile(r"(\S+)\(\d+\)")
_log = Log("slurm")


class Walltimes(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one job's walltime in seconds, of all QOS and of the user's associations."""

    qos: tuple[float, ...] = ()
    associations: tuple[float, ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        """All limits, of QOS and of associations."""
        return (*self.qos, *self.associations)


def read_walltimes(output: bytes, user: str) -> Walltimes:
    """The limits in `scontrol -o show assoc_mgr flags=assoc,qos` (22.05.8: `MaxWallPJ=` in minutes, empty = none)."""
    qos: set[float] = set()
    associations: set[float] = set()
    for line in output.decode(errors="replace").split("\n"):
        minutes = whole(text.value(line, "MaxWallPJ"))
        if minutes is None or minutes <= 0:
            continue
        named = _USER.fullmatch(text.value(line, "UserName"))
        if _QOS.match(line):
            qos.add(minutes * 60.0)
        elif named is not None and named[1] == user:
            associations.add(minutes * 60.0)
    return Walltimes(qos=tuple(sorted(qos)), associations=tuple(sorted(associations)))


def longest(asked_s: float, reason: str, walltimes: Walltimes | None) -> float:
    """What to ask for after a job of `asked_s` met a limit: the longest that is known to be shorter, of the kind that
    the reason names; half of it where none is known, in whole minutes as Slurm's limits are. Another such job shows
    that a still shorter one is meant."""
    values = (
        () if walltimes is None else walltimes.qos if reason.startswith("QOS") else walltimes.associations
    )
    half_s = max(60.0, asked_s // 120 * 60)
    return max((value for value in values if value < asked_s), default=half_s)


class OwnLimit:
    """The limit that own jobs have met; `walltime_s` None = they have met none."""

    def __init__(self, budget: Budget, user: str) -> None:
        self._budget = budget
        self._user = user
        self._asked_s = 0.0  #: by the shortest job that met it
        self._is_read = False
        self._at_s = 0.0
        self.walltime_s: float | None = None
        self.reason = ""

    def met(self, asked_s: float, reason: str) -> None:
        """Note that a job of `asked_s` cannot start because of `reason`, Slurm's word. Nothing is new where shorter
        ones are asked for already."""
        if not is_too_long(reason) or reason.startswith("Partition"):
            return  # the limits of partitions are read with each snapshot
        if self.walltime_s is not None and asked_s > self.walltime_s:
            return
        self._asked_s, self.reason = asked_s, reason
        walltimes = self._read()
        self.walltime_s = longest(asked_s, reason, walltimes)
        self._is_read = walltimes is not None and self.walltime_s in walltimes.values
        _log.warning("limit.met", reason=reason, asked_s=asked_s, walltime_s=self.walltime_s)

    def refresh(self) -> None:
        """Read the limits again where it is time. Without a limit this costs nothing. A limit that was removed
        has changed, and a guess is believed for a time: then one job asks for more again. Which limit is meant now its
        answer shows: shorter ones may be of other QOS."""
        if self.walltime_s is None:
            return
        age_s = clock.monotonic_s() - self._at_s
        if age_s < (AGAIN_S if self._is_read else GUESSED_S):
            return
        walltimes = self._read() if self._is_read else Walltimes()
        if walltimes is not None and self.walltime_s not in walltimes.values:
            self.walltime_s = None

    def _read(self) -> Walltimes | None:
        """The limits now; None = they cannot be read."""
        self._at_s = clock.monotonic_s()
        try:
            words = ["scontrol", "-o", "show", "assoc_mgr", f"users={self._user}", "flags=assoc,qos"]
            return read_walltimes(self._budget.check(self._budget.query(words)), self._user)
        except SiteError as error:  # not every centre shows them
            _log.info("limits.unread", reason=error.message)
            return None
