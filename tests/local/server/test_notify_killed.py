"""Mail server, web hooks' receiver and server are killed -9 in the middle of a campaign: all is told, little twice."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.worlds.home.watched_world import DIGEST_S, Watched, watched

from tidemill.client.client import Wishes
from tidemill.config.addressee import Occasion
from tidemill.model.job import JobSpec
from tidemill.model.notification import Subscription
from tidemill.wire.notification import Digest, JobsNews

JOBS = 60
JOB = JobSpec(command=["/bin/sh", "-c", "sleep 0.1"], events=2)
ENDED = re.compile(r"^([\d,]+) jobs? of campaign `[^`]*/long` ended", re.MULTILINE)
DONE = "/long` is done."


@pytest.fixture(scope="module")
def world() -> Iterator[Watched]:
    with watched() as it:
        it.mail.start()
        it.hook.start()
        it.start_server()
        it.start_agent()
        yield it


def done(world: Watched) -> int:
    return world.client.campaign("long").states.get("COMPLETED", 0)


def mails(world: Watched) -> list[tuple[str, str]]:
    """Message-ID and text of each, copies included."""
    return [(str(mail["Message-ID"]), mail.get_content()) for mail in world.mail.mails()]


def digests(world: Watched) -> list[Digest]:
    """Each post, copies included."""
    return [msgspec.json.decode(post["body"], type=Digest) for post in world.hook.posts()]


def ended_by_mail(world: Watched) -> int:
    texts = dict(mails(world)).values()
    return sum(int(found[1].replace(",", "")) for text in texts if (found := ENDED.search(text)))


def ended_by_hook(world: Watched) -> int:
    items = [item for each in {each.id: each for each in digests(world)}.values() for item in each.items]
    return sum(sum(item.ended.values()) for item in items if isinstance(item, JobsNews))


@pytest.mark.timeout(120)
def test_all_ends_are_told_once_in_digests_though_everybody_is_killed(world: Watched) -> None:
    began_s = time.monotonic()
    wants = [
        Subscription(to=to, when=[Occasion.JOB, Occasion.CAMPAIGN])
        for to in ("mail:me@example.org", "hook:chat")
    ]
    world.client.submit([JOB] * JOBS, campaign="long", wishes=Wishes(notify=wants))

    world.until(lambda: bool(mails(world)) and bool(digests(world)), "the first digests")
    world.mail.kill()
    world.hook.kill()
    before = done(world)
    world.until(lambda: done(world) >= before + 5, "the campaign goes on while nobody can be told")
    world.mail.start("--die-before-answer", str(len(mails(world)) + 1))  # takes one, and says nothing of it
    world.hook.start("--die-before-answer", str(len(digests(world)) + 1))
    world.until(lambda: world.mail.died and world.hook.died, "both die over a message")
    world.kill("server")
    world.mail.kill()
    world.hook.kill()
    world.mail.start()
    world.hook.start()
    world.start_server()
    world.until(lambda: done(world) == JOBS, "the campaign ends")

    world.until(lambda: ended_by_mail(world) == ended_by_hook(world) == JOBS, "every end is told")
    world.until(lambda: any(DONE in text for _, text in mails(world)), "the end of the campaign is mailed")
    assert sum(DONE in text for text in dict(mails(world)).values()) == 1
    told_s = time.monotonic() - began_s
    for ids in ([each for each, _ in mails(world)], [each.id for each in digests(world)]):
        assert len(set(ids)) <= 2 + told_s / DIGEST_S  # digests: never more often than that
        assert len(ids) - len(set(ids)) <= 2  # one each of the receiver's death and the server's
