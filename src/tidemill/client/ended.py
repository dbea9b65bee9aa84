"""Which of many jobs have ended since the last poll, in a few requests per poll.

The first poll lists the jobs by number, 1,000 in a request. Later polls ask which jobs of their campaigns have ended
since (`ended_after`), or list the jobs that are left if that takes fewer requests. Decides nothing else, never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from tidemill.model.intervals import IntervalSet
from tidemill.model.state import JOB_FINAL
from tidemill.wire.api import PAGE_MAX, JobPage, JobRow

FINAL = frozenset(str(state) for state in JOB_FINAL)
TEXT_MAX = 3_500  #: characters of numbers in a URL: proxies accept URLs of 4 to 8 KB
Ask = Callable[..., JobPage]
"""A page of jobs, by the query of `GET /v1/jobs`."""


def number_texts(numbers: Iterable[int]) -> Iterator[str]:
    """Numbers of jobs, each once and ascending, as texts for `jobs=` of up to PAGE_MAX numbers and TEXT_MAX characters
    each."""
    piece: list[str] = []
    size = room = 0
    for first, end in _runs(sorted(set(numbers))):
        at = first
        while at < end:
            if room == 0 or size > TEXT_MAX:
                if piece:
                    yield ",".join(piece)
                piece, size, room = [], 0, PAGE_MAX
            last = min(end, at + room)
            piece.append(str(IntervalSet([(at, last)])))
            size += len(piece[-1]) + 1
            room -= last - at
            at = last
    if piece:
        yield ",".join(piece)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of numbers without a gap, as half-open intervals."""
    at = 0
    for k in range(1, len(numbers) + 1):
        if k == len(numbers) or numbers[k] != numbers[k - 1] + 1:
            yield numbers[at], numbers[k - 1] + 1
            at = k


class _Waiting(msgspec.Struct):
    """The jobs of a campaign that have not ended, as of a number of its feed."""

    jobs: set[int]
    reached: int


class EndedJobs:
    """Each `poll` returns the rows of jobs that have ended since the last one, each once."""

    def __init__(self, ask: Ask, jobs: Collection[int]) -> None:
        self._ask = ask
        self._unseen: set[int] = set(jobs)  #: not listed yet
        self._campaigns: dict[str, _Waiting] = {}

    @property
    def left(self) -> int:
        """The number of jobs that have not ended."""
        return len(self._unseen) + sum(len(each.jobs) for each in self._campaigns.values())

    def poll(self) -> Iterator[JobRow]:
        """Jobs that have ended; exhaust the iterator. Raises NotFoundError for a job that does not exist."""
        if self._unseen:
            jobs, self._unseen = self._unseen, set()
            yield from self._listed(jobs)
        elif self.left <= PAGE_MAX * len(self._campaigns):
            yield from self._listed({job for each in self._campaigns.values() for job in each.jobs})
        else:
            for campaign in list(self._campaigns):
                yield from self._changed(campaign)

    def _listed(self, jobs: set[int]) -> Iterator[JobRow]:
        started: int | None = None  #: the next poll asks for what ended after the first page was read
        for text in number_texts(jobs):
            page = self._ask(jobs=text)
            started = page.reached if started is None else started
            for row in reversed(page.jobs):
                if row.state in FINAL:
                    self._drop(row)
                    yield row
                else:
                    self._campaigns.setdefault(
                        row.campaign_reference, _Waiting(set(), started or 0)
                    ).jobs.add(row.id)

    def _changed(self, campaign: str) -> Iterator[JobRow]:
        while campaign in self._campaigns:
            waiting = self._campaigns[campaign]
            page = self._ask(campaign=campaign, ended_after=waiting.reached, limit=PAGE_MAX)
            if page.reached is None:  # the feed does not go so far back
                del self._campaigns[campaign]
                yield from self._listed(waiting.jobs)
                return
            for row in page.jobs:
                if row.state in FINAL and row.id in waiting.jobs:
                    self._drop(row)
                    yield row
            waiting.reached = page.reached
            if page.next is None:
                return

    def _drop(self, row: JobRow) -> None:
        campaign = row.campaign_reference
        waiting = self._campaigns.get(campaign)
        if waiting is not None:
            waiting.jobs.discard(row.id)
            if not waiting.jobs:
                del self._campaigns[campaign]
