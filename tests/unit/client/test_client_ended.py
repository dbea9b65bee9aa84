"""Which of many jobs have ended: requests grow with the ended jobs only, and no job is missed."""

from __future__ import annotations

import pytest

from tidemill.client.ended import TEXT_MAX, EndedJobs, number_texts
from tidemill.model.intervals import IntervalSet
from tidemill.wire.api import JobPage, JobRow


class Jobs:
    """The jobs of a server by number, with the feed of their ends, as `GET /v1/jobs` shows them."""

    def __init__(self, number: int, campaigns: int = 1, owner: str = "ada") -> None:
        self.states = dict.fromkeys(range(1, number + 1), "RUNNING")
        self.campaigns, self.owner = campaigns, owner
        self.feed: list[int] = []
        self.kept_from = 0
        self.asked = 0

    def campaign(self, job: int) -> str:
        return f"c{job % self.campaigns}"

    def reference(self, job: int) -> str:
        return f"{self.owner}/{self.campaign(job)}" if self.owner else self.campaign(job)

    def end(self, *jobs: int, state: str = "COMPLETED") -> None:
        for each in jobs:
            self.states[each] = state
            self.feed.append(each)

    def ask(self, *, jobs: str = "", campaign: str = "", ended_after: int = 0, limit: int = 1000) -> JobPage:
        self.asked += 1
        if jobs:
            named = [each for first, end in IntervalSet.parse(jobs) for each in range(first, end)]
            return JobPage(
                jobs=[self.row(each) for each in reversed(named)], next=None, reached=len(self.feed)
            )
        if ended_after < self.kept_from:
            return JobPage(jobs=[], next=None, reached=None)
        found = [
            (place, each)
            for place, each in enumerate(self.feed, 1)
            if place > ended_after and campaign == self.reference(each)
        ]
        rows = [self.row(each) for _, each in found[:limit]]
        reached = found[limit - 1][0] if len(found) > limit else len(self.feed)
        return JobPage(jobs=rows, next=reached if len(found) > limit else None, reached=reached)

    def row(self, job: int) -> JobRow:
        return JobRow(
            id=job, campaign=self.campaign(job), owner=self.owner, name="", app="a", state=self.states[job], site=None,
            events=1, events_done=0, events_failed=0, events_leased=0, priority=0, created_us=0, started_us=None,
            ended_us=None, reason="",
        )  # fmt: skip


def ids(ended: EndedJobs) -> list[int]:
    return [row.id for row in ended.poll()]


def test_a_poll_of_many_jobs_costs_a_request_for_a_thousand_that_ended() -> None:
    server = Jobs(50_000)
    server.end(5, 49_999)
    ended = EndedJobs(server.ask, range(1, 50_001))
    assert ids(ended) == [5, 49_999]
    assert server.asked == 50
    assert ids(ended) == []
    assert server.asked == 51
    server.end(*range(100, 1_700))
    assert ids(ended) == list(range(100, 1_700))
    assert (server.asked, ended.left) == (53, 50_000 - 1_602)


def test_what_the_feed_shows_no_more_is_found_by_listing() -> None:
    server = Jobs(3_000)
    ended = EndedJobs(server.ask, range(1, 3_001))
    assert ids(ended) == []
    server.end(7, 2_500)
    server.kept_from = 1
    assert ids(ended) == [7, 2_500]
    server.end(8)
    assert ids(ended) == [8]


def test_a_job_that_was_retried_meanwhile_ends_when_it_ends_again() -> None:
    server = Jobs(2_001)
    ended = EndedJobs(server.ask, range(1, 2_002))
    assert ids(ended) == []
    server.end(9, state="FAILED")
    server.states[9] = "RUNNING"
    assert ids(ended) == []
    server.end(9)
    assert ids(ended) == [9]
    assert ended.left == 2_000


def test_few_jobs_of_many_campaigns_are_one_request() -> None:
    server = Jobs(500, campaigns=100)
    ended = EndedJobs(server.ask, range(1, 501))
    assert ids(ended) == []
    server.end(3, 400)
    assert ids(ended) == [3, 400]
    assert server.asked == 2


def test_jobs_of_a_server_that_names_no_owners_are_waited_for_by_the_name_of_their_campaign() -> None:
    """An older server knows no campaign `/NAME`."""
    server = Jobs(2_500, owner="")
    server.end(7)
    ended = EndedJobs(server.ask, range(1, 2_501))
    assert ids(ended) == [7]
    server.end(8, 2_400)
    assert ids(ended) == [8, 2_400]


@pytest.mark.parametrize("step", [1, 2, 7_919])
def test_numbers_are_cut_into_texts_that_a_server_and_its_proxies_take(step: int) -> None:
    numbers = list(range(10**7, 10**7 + 5_000 * step, step))
    texts = list(number_texts([*reversed(numbers), numbers[0]]))
    assert max(map(len, texts)) < TEXT_MAX + 50
    found = [IntervalSet.parse(text) for text in texts]
    assert max(map(len, found)) <= 1_000
    assert [each for part in found for first, end in part for each in range(first, end)] == numbers
