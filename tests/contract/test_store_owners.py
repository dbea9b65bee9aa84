"""Owners on both databases: keys of submissions, accounts of the fair share, a site reset."""

from __future__ import annotations

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, done, leases

from tidemill.model.identity import Identity, Role, Via
from tidemill.server.core import campaign_names
from tidemill.server.core.dispatcher import HALF_LIFE_S, Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.errors import ConflictError, MissingError, RequestError
from tidemill.wire.api import EPOCH_JUMP_MAX, ActionRequest, ResetRequest, SharesRequest, SubmitRequest


def submitter(name: str) -> Identity:
    return Identity(role=Role.SUBMITTER, name=name, via=Via.CERTIFICATE)


def request(key: str, campaign: str, **more: object) -> SubmitRequest:
    return SubmitRequest(key=key, campaign=campaign, jobs=[SIM], **more)  # type: ignore[arg-type]


def test_a_submission_of_before_a_restart_is_known_when_it_is_repeated(store: Store) -> None:
    """As a client does that heard no answer."""
    store.init()
    first = Dispatcher(store)
    told = first.handle_submit(request("k", "c"), submitter("ada"))
    first.close()
    second = Dispatcher(store)
    again = second.handle_submit(request("k", "c"), submitter("ada"))
    second.close()
    assert (again.first_job, again.repeated) == (told.first_job, True)


def test_a_key_is_its_owners(world: World) -> None:
    handle = world.dispatcher.handle_submit
    first = handle(request("k", "a"), submitter("ada"))
    other = handle(request("k", "b"), submitter("bob"))
    assert other.first_job == first.first_job + 1
    assert handle(request("k", "a"), submitter("ada")).repeated
    with pytest.raises(ConflictError, match="used for other content, in campaign `a`"):
        handle(request("k", "a2"), submitter("ada"))
    with pytest.raises(ConflictError, match="used for other content, in campaign `b`"):
        handle(request("k", "a"), submitter("bob"))


def test_the_servers_own_user_may_submit_for_an_owner_with_that_owners_keys(world: World) -> None:
    handle = world.dispatcher.handle_submit
    first = handle(request("k", "a", owner="ada"))
    assert handle(request("k", "a", owner="ada")).first_job == first.first_job
    assert handle(request("k", "a", owner="ada"), submitter("ada")).repeated
    assert not handle(request("k", "b", owner="bob")).repeated
    with pytest.raises(ConflictError, match="other content"):
        handle(request("k", "a", owner="bob"))  # bob's key is used, for another campaign


def test_nothing_of_another_can_be_named(world: World) -> None:
    (number,) = world.submit(SIM, campaign="b", owner="bob")
    ada = submitter("ada")
    for wrong in (number, 77):
        with pytest.raises(MissingError, match=f"^there is no job {wrong}$"):
            world.dispatcher.handle_cancel(ActionRequest(jobs=[wrong]), ada)
        with pytest.raises(MissingError, match=f"^there is no job {wrong}$"):
            world.dispatcher.ask_log(wrong, None, ada)
    for after in ([number], ["b"]):
        job = msgspec.structs.replace(SIM, after=after)
        foreign = SubmitRequest(key="x", campaign="x", jobs=[job])
        with pytest.raises(
            RequestError, match=f"comes after (job {number}|campaign `b`), which does not exist"
        ):
            world.dispatcher.handle_submit(foreign, ada)
    assert world.dispatcher.handle_cancel(ActionRequest(jobs=[number]), submitter("bob")).changed == 1


def test_accounts_of_owners_are_the_sums_of_their_campaigns_and_decay(world: World) -> None:
    site = Site(world)
    for name in ("ada", "bob"):
        for number in (1, 2):
            world.submit(*[SIM] * 50, campaign=f"{name}-{number}", owner=name)
    site.sync(want=80.0)
    accounts = {name: used for name, _, used, _ in world.reader.rows("owner_shares", names=["ada", "bob"])}
    assert accounts == {"ada": pytest.approx(40.0), "bob": pytest.approx(40.0)}
    rows = world.reader.rows("campaign_shares", ids=[1, 2, 3, 4])
    assert [used for _, _, _, used, _, _ in sorted(rows)] == pytest.approx([20.0] * 4)
    world.now_s += HALF_LIFE_S
    site.sync(want=20.0)
    used = sum(each for _, _, each, _ in world.reader.rows("owner_shares", names=["ada", "bob"]))
    assert used < 80.0, "100 without decay"


def test_shares_of_owners_are_kept_over_a_restart(world: World) -> None:
    world.submit(SIM, owner="ada")
    assert world.dispatcher.handle_shares(SharesRequest(owner="ada", shares=2.5)).changed == 1
    world.submit(SIM, campaign="d", owner="ada")
    assert world.reader.rows("owner_shares", names=["ada"])[0][1] == 2.5
    with pytest.raises(MissingError, match="`eve` has no campaigns"):
        world.dispatcher.handle_shares(SharesRequest(owner="eve", shares=2.5))


def test_a_hint_for_an_unknown_campaign_names_ten_at_most(world: World) -> None:
    for number in range(12):
        world.submit(SIM, campaign=f"c{number:02}", owner="ada")
    hint = campaign_names.missing(world.reader, "nosuch", "ada").hint or ""
    assert (hint.count("`c"), hint.endswith(", 2 more")) == (10, True)


# ---- a site reset ------------------------------------------------------------------------------------------------


def test_a_jump_of_the_epoch_is_bounded_and_a_reset_brings_the_agent_back(world: World) -> None:
    world.submit(*[SIM] * 4)
    site = Site(world)
    had = leases(site.sync(want=2.0))
    site.sync(done(had[0]))
    with pytest.raises(ConflictError, match="more than 1000000 later"):
        site.sync(epoch=2**62)
    thief = Site(world)
    thief.epoch = 1 + EPOCH_JUMP_MAX
    thief.n, thief.have = 2**40, 0
    taken = leases(thief.sync(done(had[1]), host="elsewhere", want=2.0))
    with pytest.raises(ConflictError, match="belongs to epoch 1000001"):
        site.sync()
    assert world.dispatcher.handle_reset("s", ResetRequest(reason="stolen")).changed == 1
    assert {world.state(each.job) for each in taken} == {"WAITING"}
    again = leases(site.sync(want=1e6))
    assert {each.job for each in again} == {each.job for each in taken}
    site.sync(*[done(each) for each in again])
    assert {world.state(each.job) for each in again} == {"COMPLETED"}


def test_results_of_the_agent_that_come_after_a_reset_still_count(world: World) -> None:
    (number,) = world.submit(SIM)
    site = Site(world)
    (lease,) = leases(site.sync())
    world.dispatcher.handle_reset("s", ResetRequest())
    assert world.state(number) == "WAITING"
    site.sync(done(lease), want=0.0)
    assert world.state(number) == "COMPLETED"


def test_a_site_that_never_joined_cannot_be_reset(world: World) -> None:
    with pytest.raises(MissingError, match="there is no site `x`"):
        world.dispatcher.handle_reset("x", ResetRequest())
