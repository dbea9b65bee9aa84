"""Times as accounting logs write them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from tidemill.model.number import whole

NO_TIME = frozenset({"", "Unknown", "None", "N/A", "NONE", "(null)", "INVALID"})
"""Slurm's words for no time; all but the last four are in sacct(1)."""
TIMES_MAX = 1 << 40
_DAYS_MAX = 100_000
_UNEVEN = 1 << 50
_SECONDS = {
    f"{hour:02d}:{minute:02d}:{second:02d}": hour * 3600 + minute * 60 + second
    for hour in range(24)
    for minute in range(60)
    for second in range(60)
}
"""Looked up three times as fast as computed; four times a line are much of the time that a dump takes."""


class LogClock:
    """Reads times such as `2026-10-25T02:30:00`, or seconds since 1970.

    Without a `zone` a time that names none is taken as UTC: the hours of the day are then those that the log shows, and
    a change to daylight saving time moves the ends of the jobs that ran through it. With a `zone` such a time is that
    zone's, the earlier one in the hour that comes twice.
    """

    def __init__(self, zone: tzinfo | None = None, *, origin_s: int = 0) -> None:
        self.zone = zone
        self.origin_s = origin_s  #: seconds since 1970 at which a log's own count begins
        self._days: dict[str, int] = {}

    def seconds(self, text: str) -> int | None:
        """Seconds since 1970; None for a word that says there is none. Raises ValueError for anything else."""
        if len(text) == 19:
            second = _SECONDS.get(text[11:])
            if second is not None:
                midnight = self._days.get(text[:10])
                if midnight is None:
                    midnight = self._day(text[:10])
                if midnight != _UNEVEN:
                    return midnight + second
        if text in NO_TIME:
            return None
        if (at := whole(text)) is not None:
            if at > TIMES_MAX:
                raise ValueError(text)
            return at or None
        return int(self._placed(datetime.fromisoformat(text)).timestamp())

    def _placed(self, at: datetime) -> datetime:
        return at if at.tzinfo is not None else at.replace(tzinfo=self.zone or UTC)

    def _day(self, text: str) -> int:
        """Midnight of a date, or _UNEVEN if clocks are changed that day."""
        date = datetime.fromisoformat(text)
        midnight = self._placed(date)
        is_even = midnight.utcoffset() == self._placed(date + timedelta(days=1)).utcoffset()
        if len(self._days) > _DAYS_MAX:
            self._days.clear()
        result = self._days[text] = int(midnight.timestamp()) if is_even else _UNEVEN
        return result

    def hour_of_week(self, at_s: int) -> int:
        """Hours since Monday 00:00, 0 to 167."""
        at_s += self.origin_s
        if self.zone is None:
            return (at_s // 3600 + 72) % 168  # 1970 began on a Thursday
        at = datetime.fromtimestamp(at_s, self.zone)
        return at.weekday() * 24 + at.hour
