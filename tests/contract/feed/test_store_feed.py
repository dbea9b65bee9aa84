"""The feed of changes, its followers, and jobs by number: reads grow with the request, not with the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, done, key_of, leases

from tidemill.model.job import JobSpec, Output
from tidemill.server.api.followers import Followers, Interest
from tidemill.server.archive.parquet import Archive
from tidemill.server.database.unit_of_work import ROW_CHANGES_MAX, FeedRetention
from tidemill.server.errors import MissingError, RequestError
from tidemill.server.read import feed, numbered
from tidemill.wire.api import Change, DeliveredReport, DeliverOrder, OutputRow


def run_all(world: World, site: Site) -> None:
    site.sync(*[done(each) for each in leases(site.sync())], want=0)


def test_a_row_of_the_feed_is_of_one_campaign_and_of_bounded_size(world: World) -> None:
    for k in range(3):
        world.submit(SIM, SIM, campaign=f"c{k}")
    world.submit(*[SIM] * (ROW_CHANGES_MAX + 1), campaign="large")
    site = Site(world)
    leases(site.sync())
    rows = feed.rows_after(world.reader, 0)
    assert [each.number for row in rows for each in row.decoded()] == list(range(1, ROW_CHANGES_MAX + 8))
    assert all(len({each.campaign for each in row.decoded()}) == 1 for row in rows)
    assert max(row.last - row.first + 1 for row in rows) == ROW_CHANGES_MAX


def test_the_changes_of_a_campaign_are_read_without_those_of_others(world: World) -> None:
    site = Site(world)
    for k in range(4):
        world.submit(SIM, campaign=f"c{k}")
        run_all(world, site)
    number = key_of(world.reader, "c3").number
    rows = feed.rows_after(world.reader, 0, campaign=number)
    assert [each.state for row in rows for each in row.decoded()] == ["RUNNING", "COMPLETED"]
    assert {each.campaign for row in rows for each in row.decoded()} == {"c3"}
    assert feed.changes(world.reader, 0, key_of(world.reader, "c3").number)[1] == feed.reached(world.reader)


def test_jobs_that_ended_after_a_number_are_found_and_what_is_no_longer_known_is_said(world: World) -> None:
    site = Site(world)
    world.submit(SIM, SIM, campaign="c")
    world.submit(SIM, campaign="other")
    start = numbered.jobs(world.reader, [1, 2], Archive()).reached
    assert start is not None
    run_all(world, site)
    c = key_of(world.reader, "c").number
    page = numbered.ended(world.reader, c, start, limit=1, archive=Archive())
    assert ([each.id for each in page.jobs], page.next) == ([1], page.reached)
    last = numbered.ended(world.reader, c, page.reached or 0, limit=10, archive=Archive())
    assert ([each.id for each in last.jobs], last.next) == ([2], None)
    assert last.reached == feed.reached(world.reader)
    assert numbered.ended(world.reader, c, last.reached or 0, limit=10, archive=Archive()).jobs == []
    world.dispatcher.writer.kept = FeedRetention(always=1, most=1)
    world.submit(SIM, campaign="c")
    run_all(world, site)
    assert numbered.ended(world.reader, c, start, limit=10, archive=Archive()).reached is None


def test_jobs_and_outputs_by_number_come_in_one_answer_and_strangers_are_refused(world: World) -> None:
    site = Site(world)
    ids = world.submit(*[JobSpec(app="reco", outputs=[Output(name="hits", path="h")])] * 4, campaign="c")
    orders = leases(site.sync())
    delivers = [
        each
        for each in site.sync(*[done(each, outputs=True) for each in orders])
        if isinstance(each, DeliverOrder)
    ]
    rows = [OutputRow(name=f"hits{k}", url=f"file:///{k}", size_bytes=1, sha256="0") for k in range(2)]
    site.sync(*[DeliveredReport(n=0, job=each.job, outputs=rows, evidence=None) for each in delivers])
    assert [each.id for each in numbered.jobs(world.reader, [2, 4], Archive()).jobs] == [4, 2]
    page = numbered.outputs(world.reader, [1, 3, 4], Archive(), after=0, limit=3)
    assert ([each.job for each in page.outputs], page.next) == ([1, 1], 1)
    page = numbered.outputs(world.reader, [1, 3, 4], Archive(), after=1, limit=4)
    assert ([each.job for each in page.outputs], page.next) == ([3, 3, 4, 4], None)
    page = numbered.campaign_outputs(world.reader, key_of(world.reader, "c").number, after=2, limit=2)
    assert ([each.job for each in page.outputs], page.next) == ([3, 3], 3)
    with pytest.raises(MissingError, match="no job 99"):
        numbered.jobs(world.reader, [*ids, 99], Archive())


@pytest.mark.parametrize("text", ["", "1-1001", "x", "3-1", "9999999999999999999999"])
def test_numbers_of_jobs_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="jobs"):
        numbered.numbers_of(text)


class Reading:
    """What a server provides to followers: reads of the store, which this class counts, and news of commits."""

    def __init__(self, world: World) -> None:
        self.world, self.reads, self.closing = world, 0, False
        self.commit = asyncio.Event()

    async def read(self, act: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(0)
        self.reads += 1
        return act(self.world.reader)

    def next_change(self) -> asyncio.Event:
        return self.commit

    async def changed(self, event: asyncio.Event, timeout_s: float) -> bool:
        await event.wait()
        return True

    def committed(self) -> None:
        self.commit.set()
        self.commit = asyncio.Event()


async def _numbers(stream: AsyncIterator[bytes], wanted: int) -> list[int]:
    """The numbers of at least the next `wanted` changes of a feed."""
    found: list[int] = []
    while len(found) < wanted:
        text = await anext(stream)
        found += [
            msgspec.json.decode(line[6:], type=Change).number
            for line in text.split(b"\n")
            if line.startswith(b"data: ")
        ]
    return found


def told(world: World, interest: Interest, after: int) -> list[int]:
    async def run() -> list[int]:
        followers = Followers(Reading(world))
        found, _ = feed.changes(world.reader, after, interest.campaign)
        return await asyncio.wait_for(
            _numbers(followers.follow(interest, after, lambda: True), len(found)), 30
        )

    return asyncio.run(run())


def test_many_followers_share_one_reading_of_each_commit(world: World) -> None:
    site = Site(world)

    async def run() -> tuple[list[list[int]], int]:
        source = Reading(world)
        followers = Followers(source)
        streams = [followers.follow(Interest(), 0, lambda: True) for _ in range(20)]
        for each in streams:
            assert await anext(each) == b": changes\n\n"
        waiting = [asyncio.create_task(_numbers(each, 20)) for each in streams]
        while source.reads < 2:  # the feed has been read once, and has nothing
            await asyncio.sleep(0)
        for _ in range(10):
            world.submit(SIM)
            run_all(world, site)
            source.committed()
        found = await asyncio.wait_for(asyncio.gather(*waiting), 30)
        return found, source.reads

    found, reads = asyncio.run(run())
    assert found == [list(range(1, 21))] * 20
    assert reads < 30, "two for each of the ten commits at most, not one for each follower"


def test_a_slow_follower_loses_nothing_of_what_is_no_longer_in_memory(world: World) -> None:
    site = Site(world)

    async def run() -> tuple[list[int], list[int]]:
        source = Reading(world)
        followers = Followers(source, recent_bytes_max=1_000)
        slow = followers.follow(Interest(), 0, lambda: True)
        quick = followers.follow(Interest(campaign=4), 0, lambda: True)
        assert await anext(slow) == await anext(quick) == b": changes\n\n"
        reading = asyncio.create_task(_numbers(quick, 2))
        for k in range(30):
            world.submit(SIM, campaign=f"c{k}")
            run_all(world, site)
            source.committed()
            await asyncio.sleep(0)
        found = await asyncio.wait_for(_numbers(slow, 60), 30)
        return found, await asyncio.wait_for(reading, 30)

    found, of_one = asyncio.run(run())
    assert found == list(range(1, 61))
    assert of_one == [7, 8]


def test_a_follower_that_goes_on_in_the_midst_of_a_row_gets_the_rest_of_it(world: World) -> None:
    site = Site(world)
    world.submit(*[SIM] * 5, campaign="c")
    site.sync()
    assert told(world, Interest(key_of(world.reader, "c").number), 2) == [3, 4, 5]
