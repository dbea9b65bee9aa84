"""Notifications on both databases: gathered from the feed, made into messages, sent; crashes at every step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.contract.server_world import SIM, Site, World, done, failed, leases
from tests.timing import timing

from tidemill.config.addressee import Channel, Occasion
from tidemill.config.notify import Hook, Mail, Notify, Rule
from tidemill.errors import SiteError
from tidemill.model.job import JobSpec
from tidemill.model.notification import Subscription
from tidemill.server.core.dispatcher import DispatchRules
from tidemill.server.database.unit_of_work import FeedRetention
from tidemill.server.errors import AwayError, LaterError, RefusedError, RequestError
from tidemill.server.hospital import rounds
from tidemill.server.notices import tables
from tidemill.server.notices.addressees import Addressees
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify.notifier import Gatherer, Post
from tidemill.server.read import feed
from tidemill.wire.api import DrainRequest
from tidemill.wire.notification import CampaignNews, Digest, FailuresNews, JobsNews, News, SiteNews

QUICK = {
    "GATHER_S": 0, "DIGEST_S": 0, "NOTICES_PER_HOUR_MAX": 3600, "NOTICES_RETRY_S": 0.1, "NOTICES_RETRY_MAX_S": 1,
}  # fmt: skip
pytestmark = pytest.mark.timing(server=QUICK)

AT_ONCE = Notify(allowed=["mail:*@example.org"])
MAIL = Mail(server="mail.example.org:587", sender="tidemill@example.org")
ME = "mail:me@example.org"


class Box:
    """A way to tell that keeps what it was given, and fails when it is told to."""

    def __init__(self) -> None:
        self.got: list[Digest] = []
        self.names: list[str] = []
        self.error: SiteError | None = None
        self.dies_after = False

    def send(self, parcel: Parcel) -> None:
        if self.error is not None:
            raise self.error
        self.got.append(parcel.digest)
        self.names.append(parcel.where)
        if self.dies_after:
            raise KeyboardInterrupt

    def release(self) -> None:
        pass


class Picky(Box):
    """Reaches one addressee only."""

    def send(self, parcel: Parcel) -> None:
        if parcel.where != ME.partition(":")[2]:
            raise LaterError("come back later")
        super().send(parcel)


@pytest.fixture
def gatherer(world: World) -> Iterator[Gatherer]:
    world.dispatcher.rules = DispatchRules(addressees=Addressees(MAIL, AT_ONCE))
    made = gatherer_of(world)
    yield made
    made.close()


def gatherer_of(world: World, **changes: Any) -> Gatherer:
    fields = {name: getattr(AT_ONCE, name) for name in Notify.__struct_fields__}
    return Gatherer(world.store, world.dispatcher, Notify(**{**fields, **changes}))


def told(world: World) -> list[News]:
    return [item for message in tables.waiting(world.reader, "mail") for item in message.items]


def wants(*when: Occasion, share: float = 0.1) -> list[Subscription]:
    return [Subscription(to=ME, when=list(when) or None, failures_share=share)]


def run_all(world: World, site: Site, *, fail: frozenset[int] = frozenset()) -> None:
    for lease in leases(site.sync()):
        if lease.job in fail:
            site.sync(failed(lease, 0))
        else:
            site.sync(done(lease))


def test_a_campaign_is_told_once_when_nothing_of_it_is_left(world: World, gatherer: Gatherer) -> None:
    site = Site(world)
    jobs = world.submit(SIM, SIM, notify=wants(Occasion.CAMPAIGN))
    first, second = leases(site.sync())
    site.sync(done(first))
    gatherer.step()
    before = told(world)

    site.sync(done(second))
    made = [gatherer.step() for _ in range(3)]

    assert before == []
    assert made == [1, 0, 0]
    (news,) = told(world)
    assert isinstance(news, CampaignNews)
    assert news.figures is not None
    assert (news.campaign, news.figures.states) == ("c", {"COMPLETED": len(jobs)})


def test_ends_of_jobs_are_one_item_with_exact_sums_however_many(world: World, gatherer: Gatherer) -> None:
    site = Site(world)
    jobs = world.submit(*[SIM] * 60, notify=wants(Occasion.JOB))

    run_all(world, site, fail=frozenset(jobs[-3:]))
    gatherer.step()

    (news,) = told(world)
    assert isinstance(news, JobsNews)
    assert news.ended == {"COMPLETED": 57, "FAILED": 3}
    assert {job.job for job in news.jobs if job.state == "FAILED"} == set(jobs[-3:])
    assert len(news.jobs) == 20
    assert news.figures is not None
    (group,) = news.figures.failures
    assert (group.failure, group.count, group.example) == ("payload", 3, "exit 1")
    assert "tidemill job logs" in group.next_step


def test_the_next_step_after_a_failure_without_stderr_is_not_to_read_it(
    world: World, gatherer: Gatherer
) -> None:
    site = Site(world)
    world.submit(SIM, notify=wants(Occasion.CAMPAIGN))
    (lease,) = leases(site.sync())
    site.sync(failed(lease, 0, message="the payload left no `hits.root`", stderr=""))
    gatherer.step()
    (news,) = told(world)
    assert isinstance(news, CampaignNews)
    assert news.figures is not None
    (group,) = news.figures.failures
    assert group.next_step.startswith("its stderr is empty, read its stdout, if any: `tidemill job logs ")


def test_a_share_of_failures_is_told_once_and_again_only_after_it_was_well_below(
    world: World, gatherer: Gatherer
) -> None:
    site = Site(world)
    spec = JobSpec(app="sim", events=40, failed_max=40)
    world.submit(spec, notify=wants(Occasion.FAILURES, share=0.5))
    (lease,) = leases(site.sync())

    made = []
    for event in range(20):
        site.sync(failed(lease, event))
        made.append(gatherer.step())

    assert made == [0] * 9 + [1] + [0] * 10
    (news,) = told(world)
    assert isinstance(news, FailuresNews)
    assert (news.share, news.limit) == (1.0, 0.5)


def test_a_site_that_is_drained_and_resumed_is_told_with_its_reason(world: World, gatherer: Gatherer) -> None:
    gatherer.close()
    rule = Rule(to=ME, when=[Occasion.SITE])
    watching = gatherer_of(world, rules=[rule])
    Site(world).sync()
    quiet = look(watching)

    world.dispatcher.handle_drain("s", DrainRequest(drain=True, reason="cooling water"))
    look(watching)
    world.dispatcher.handle_drain("s", DrainRequest(drain=False))
    look(watching)
    watching.close()

    assert quiet == 0
    assert [(item.state, item.reason) for item in told(world) if isinstance(item, SiteNews)] == [
        ("DRAINED", "cooling water"), ("UP", ""),
    ]  # fmt: skip


def test_a_downtime_is_told_when_it_begins_and_when_it_is_over(world: World, gatherer: Gatherer) -> None:
    gatherer.close()
    watching = gatherer_of(world, rules=[Rule(to=ME, when=[Occasion.SITE])])
    Site(world).sync()
    look(watching)

    downs: list[dict[str, tuple[int, str]]] = [{"s": (1_795_000_000_000_000, "new racks")}, {}]
    for down in downs:
        world.dispatcher.writer.write(partial(rounds.call_times, down=down))
        look(watching)
    watching.close()

    assert [(item.state, item.reason) for item in told(world) if isinstance(item, SiteNews)] == [
        ("DOWN", "new racks, until 2026-11-18T11:06:40Z"), ("UP", ""),
    ]  # fmt: skip


def look(gatherer: Gatherer) -> int:
    """Look at the sites now, whatever the pause."""
    gatherer.forget_pauses()
    return gatherer.step()


def test_a_submitter_hears_of_sites_that_run_jobs_of_the_campaign_only(
    world: World, gatherer: Gatherer
) -> None:
    near, far = Site(world, "near"), Site(world, "far")
    near.sync()
    far.sync()
    world.submit(SIM, notify=wants(Occasion.SITE))
    near.sync()

    for name in ("near", "far"):
        world.dispatcher.handle_drain(name, DrainRequest(drain=True, reason="maintenance"))
    look(gatherer)

    assert [item.site for item in told(world) if isinstance(item, SiteNews)] == ["near"]


def test_a_gatherer_that_dies_anywhere_loses_nothing_and_tells_nothing_twice(
    world: World, gatherer: Gatherer
) -> None:
    site = Site(world)
    world.submit(*[SIM] * 5, notify=wants(Occasion.JOB))
    gatherer.close()
    for lease in leases(site.sync()):
        site.sync(done(lease))
    with timing(server={"GATHER_S": 3600}):
        fresh = gatherer_of(world)  # gathers, and is gone before a message is made
        fresh.step()
        fresh.close()

    last = gatherer_of(world)
    made = [last.step(), last.step()]
    last.close()

    assert made == [1, 0]
    (news,) = told(world)
    assert isinstance(news, JobsNews)
    assert news.ended == {"COMPLETED": 5}


def test_rules_of_the_configuration_need_nobody_to_ask(world: World, gatherer: Gatherer) -> None:
    gatherer.close()
    rules = [Rule(to=ME, when=[Occasion.CAMPAIGN], campaign="mc-*")]
    watching = gatherer_of(world, rules=rules)
    site = Site(world)
    world.submit(SIM, campaign="mc-1")
    world.submit(SIM, campaign="other")

    run_all(world, site)
    watching.step()
    watching.close()

    assert [item.campaign for item in told(world) if isinstance(item, CampaignNews)] == ["mc-1"]


def test_the_feed_keeps_what_nobody_was_told_of_yet(world: World, gatherer: Gatherer) -> None:
    world.dispatcher.writer.kept = FeedRetention(
        always=0
    )  # as when much has happened: nothing stays but what somebody follows
    site = Site(world)
    world.submit(SIM, SIM, notify=wants(Occasion.JOB))
    run_all(world, site)

    gatherer.step()
    notified = int(world.reader.rows("notified")[0][0])
    world.submit(SIM, campaign="later")
    run_all(world, site)

    (news,) = told(world)
    assert isinstance(news, JobsNews)
    assert news.ended == {"COMPLETED": 2}
    left, _ = feed.changes(world.reader, 0, None)
    assert left
    assert left[0].number > notified


# ---- sending ---------------------------------------------------------------------------------------------------


def message(world: World, gatherer: Gatherer) -> None:
    world.submit(SIM, campaign=f"c{next(world.keys)}", notify=wants(Occasion.CAMPAIGN))
    run_all(world, Site(world, f"s{next(world.keys)}"))
    assert gatherer.step() == 1


def post_of(world: World, box: Box) -> Post:
    return Post(world.store, world.dispatcher, AT_ONCE, sender=box, server="here")


def test_a_message_is_sent_once_and_keeps_its_identity_over_a_crash(world: World, gatherer: Gatherer) -> None:
    message(world, gatherer)
    message(world, gatherer)
    box = Box()
    box.dies_after = True
    dying = post_of(world, box)
    with pytest.raises(KeyboardInterrupt):
        dying.step(Channel.MAIL)
    dying.close()
    box.dies_after = False

    living = post_of(world, box)
    sent = [living.step(Channel.MAIL) for _ in range(3)]
    living.close()

    assert sent == [2, 0, 0]
    assert [digest.id for digest in box.got][:2] == [box.got[0].id] * 2  # the one that was on its way, again
    assert len({digest.id for digest in box.got}) == 2


def test_a_way_that_is_away_loses_nothing_and_goes_on_where_it_was(world: World, gatherer: Gatherer) -> None:
    for _ in range(3):
        message(world, gatherer)
    box = Box()
    box.error = AwayError("nobody answers")
    post = post_of(world, box)

    away = [post.step(Channel.MAIL), post.step(Channel.MAIL)]
    box.error = None
    post.forget_pauses()
    back = post.step(Channel.MAIL)
    post.close()

    assert (away, back, post.failed) == ([0, 0], 3, 1)
    assert tables.standing(world.reader)["mail"].waiting == 0


def test_an_addressee_who_refuses_does_not_hold_up_the_others(world: World, gatherer: Gatherer) -> None:
    message(world, gatherer)
    box = Box()
    box.error = RefusedError("no such mailbox", transient=False)
    post = post_of(world, box)
    post.step(Channel.MAIL)
    refused = tables.standing(world.reader)["mail"]
    box.error = LaterError("come back later")
    message(world, gatherer)
    post.step(Channel.MAIL)
    post.close()

    later = tables.standing(world.reader)["mail"]
    assert (refused.given_up, refused.waiting) == (1, 0)
    assert (later.given_up, later.waiting) == (1, 1)


def test_many_messages_to_one_who_is_away_hold_up_nobody_else(world: World, gatherer: Gatherer) -> None:
    def fill(work: Any) -> None:
        for number in range(tables.WAITING_MAX + 5):
            to = "mail:gone@example.org" if number < tables.WAITING_MAX + 4 else ME
            work.session.rows("insert_outbox", channel="mail", target=to, made_us=number, body=b"[]")

    world.dispatcher.writer.write(fill)
    box = Picky()
    post = post_of(world, box)

    sent = [post.step(Channel.MAIL) for _ in range(2)]
    post.close()

    assert sent == [0, 1]


# ---- who may be told -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "hint"),
    [
        ("mail:me@elsewhere.org", "`notify.allowed` has of `mail`: `mail:*@example.org`"),
        ("hook:ops", "`notify.allowed` has of `hook`: none"),
        ("https://hooks.example.org/x", "`notify.allowed` has of `https`: none"),
        ("message", "has no `[amqp]`"),
    ],
)
def test_whom_the_server_may_not_tell_is_refused_at_submit(
    world: World, gatherer: Gatherer, to: str, hint: str
) -> None:
    with pytest.raises(RequestError) as caught:
        world.submit(SIM, notify=[Subscription(to=to)])

    assert hint in (caught.value.hint or "")
    assert world.reader.rows("jobs_newest", before=10**9, limit=10) == []


def test_one_campaign_tells_a_bounded_number_of_people(world: World, gatherer: Gatherer) -> None:
    many = [Subscription(to=f"mail:p{n}@example.org") for n in range(20)]
    world.submit(SIM, notify=many)
    world.submit(SIM, notify=many)  # the same again is no more

    with pytest.raises(RequestError, match="more than 20"):
        world.submit(SIM, notify=[Subscription(to="mail:one-more@example.org")])


def test_messages_go_to_the_campaigns_owner_and_wait_while_the_queue_is_away(
    world: World, gatherer: Gatherer
) -> None:
    world.dispatcher.rules = DispatchRules(addressees=Addressees(messages=True))
    box = Box()
    box.error = AwayError("the broker does not confirm")
    world.submit(SIM, owner="jane", notify=[Subscription(to="message", when=[Occasion.CAMPAIGN])])
    run_all(world, Site(world))
    gatherer.step()
    post = Post(world.store, world.dispatcher, AT_ONCE, sender=box, server="here")
    held = post.step(Channel.MESSAGE)
    box.error = None
    post.forget_pauses()
    sent = post.step(Channel.MESSAGE)
    post.close()

    assert (held, sent) == (0, 1)
    assert box.names == ["jane"]


def test_messages_need_an_owner_and_are_nobody_elses(world: World, gatherer: Gatherer) -> None:
    world.dispatcher.rules = DispatchRules(addressees=Addressees(messages=True))
    with pytest.raises(RequestError, match="no owner"):
        world.submit(SIM, notify=[Subscription(to="message")])
    with pytest.raises(RequestError) as caught:
        world.submit(SIM, owner="jane", notify=[Subscription(to="message:john")])

    assert "write `message`" in (caught.value.hint or "")


def test_hooks_of_the_configuration_are_for_submitters_only_if_it_says_so(tmp_path: Any) -> None:
    hooks = [
        Hook(name="open", url="https://a.example.org/", secret_file=tmp_path),
        Hook(name="ours", url="https://b.example.org/", secret_file=tmp_path),
    ]
    rules = Addressees(Mail(), Notify(hooks=hooks, allowed=["hook:open"]))

    assert rules.refuse([Subscription(to="hook:open")]) is None
    assert rules.refuse([Subscription(to="hook:ours")]) is not None
    assert rules.refuse([Subscription(to="hook:Open")]) is not None, "another hook, if there is one"
    assert Addressees(Mail(), Notify(hooks=hooks)).refuse([Subscription(to="hook:open")]) is not None
