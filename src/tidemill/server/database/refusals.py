"""Which sites returned a job, and when each may have it again: the text of `jobs.refused`. Pure.

`3` = site 3 returned it for a cause in the job; `5:1700000000:2` = site 5 did for a cause of its own, for the second
time, and is offered it again at that time (seconds since 1970). Only the former count against the job.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.failure import BackOff

SITES_MAX = 16  #: remembered of a job, the latest
PAUSES = BackOff(first_s=10.0, longest_s=3600.0)


class GivenBack(NamedTuple):
    """`until_s` 0 = for what is wrong with the job."""

    until_s: int = 0
    times: int = 0

    @property
    def since_s(self) -> float:
        """When the site returned it, where that was for a cause of the site's own: up to a second later."""
        return self.until_s + 1 - PAUSES.pause_s(self.times + 1)


def parse(text: str) -> dict[int, GivenBack]:
    """By site, the latest last. What cannot be read is left out."""
    found: dict[int, GivenBack] = {}
    for word in text.split():
        site, *numbers = word.split(":")
        if site.isdecimal() and len(numbers) in (0, 2) and all(each.isdecimal() for each in numbers):
            found[int(site)] = GivenBack(*map(int, numbers))
    return found


def noted(text: str, site: int, *, own: bool, now_us: int) -> str:
    """The text after this site gave the job back. `own`: for what is wrong with the job."""
    found = parse(text)
    before = found.pop(site, GivenBack())
    if own:
        found[site] = GivenBack()
    else:
        times = before.times + 1
        found[site] = GivenBack(int(now_us / 1e6 + PAUSES.pause_s(times + 1)), times)
    latest = list(found.items())[-SITES_MAX:]
    return " ".join(
        str(number) if not each.until_s else f"{number}:{each.until_s}:{each.times}"
        for number, each in latest
    )
