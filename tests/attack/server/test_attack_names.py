"""A campaign's name is its owner's: nobody learns of, takes, blocks or changes another's campaign by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.contract.server_world import Site, done, leases
from tests.contract.server_world import World as StoreWorld
from tests.effort import lines_run
from tests.worlds.services.access_world import Certs, World, submission, sync
from tests.worlds.services.token_issuer import Issuer

from tidemill.model.identity import Act, Identity, Role, Via
from tidemill.model.job import JobSpec
from tidemill.server.api.followers import Interest
from tidemill.server.core import rights
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.errors import MissingError, RequestError
from tidemill.server.read import feed, web_pages
from tidemill.wire.api import ActionRequest, SubmitRequest


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(
        tmp_path_factory.mktemp("world"),
        Certs(tmp_path_factory.mktemp("certs")),
        Issuer(tmp_path_factory.mktemp("issuer")),
    )
    idle = msgspec.structs.replace(sync("x").capacity, want_core_s=0.0)
    assert made.call("lrz", "POST", "/v1/sync", sync("lrz", capacity=idle))[0] == 200
    assert made.call("ada", "POST", "/v1/jobs", submission("run18", "of-ada"))[0] == 200
    yield made
    made.stop()


def named(campaign: str) -> list[tuple[str, str, Any]]:
    """Every request that names a campaign."""
    owner, _, name = campaign.rpartition("/")
    at = f"/v1/campaigns/{name}"
    of = f"?owner={owner}" if owner else ""
    return [
        *(("GET", f"/v1/{table}?campaign={campaign}", None) for table in ("jobs", "failures", "outputs", "changes")),
        ("GET", f"/v1/jobs?campaign={campaign}&ended_after=0", None),
        ("GET", f"/v1/jobs?campaign={campaign}&archived=true", None),
        ("GET", f"/v1/outputs?campaign={campaign}&after=0", None),
        ("GET", at + of, None),
        ("GET", f"{at}/activity{of}", None),
        *(("POST", f"/v1/{act}", {"campaign": campaign}) for act in ("cancel", "retry", "accept", "discard")),
        ("POST", "/v1/jobs", submission("mine", "after", after=[campaign])),
    ]  # fmt: skip


@pytest.mark.parametrize(("there", "absent"), [("run18", "run19"), ("ada/run18", "ada/run19")])
def test_anothers_campaign_does_not_exist_whatever_is_asked(world: World, there: str, absent: str) -> None:
    before = world.content()
    for one, other in zip(named(there), named(absent), strict=True):
        found, expected = world.call("eve", *one), world.call("eve", *other)
        assert json.dumps(found).replace("run18", "run19") == json.dumps(expected), one
        assert found[0] in (400, 404), one
    assert world.content() == before


def test_the_pages_do_not_tell_either(world: World) -> None:
    context = world.context(world.certs.pair("eve"))
    for path in (
        "/campaigns/{}", "/campaigns/{}?owner=ada", "/jobs?campaign=ada/{}", "/failures?campaign=ada/{}",
        "/transfers?campaign=ada/{}", "/stress/{}?owner=ada",
    ):  # fmt: skip
        answers = [_page(world, context, path.format(name)) for name in ("run18", "run19")]
        assert answers[0][0] == answers[1][0] == 404, path
        assert answers[0][1].replace("run18", "run19") == answers[1][1], path


def _page(world: World, context: Any, path: str) -> tuple[int, str]:
    import http.client

    connection = http.client.HTTPSConnection("127.0.0.1", world.port, timeout=60, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_name_that_another_uses_is_free_and_each_sees_her_own(world: World) -> None:
    status, answer = world.call("bob", "POST", "/v1/jobs", submission("run18", "of-bob"))
    assert (status, answer["owner"], answer["repeated"]) == (200, "bob", False)
    again = {**submission("run18", "of-bob-2"), "new": True}
    assert world.call("bob", "POST", "/v1/jobs", again)[0] == 409, "her own is not new"
    for name in ("ada", "bob"):
        jobs = world.call(name, "GET", "/v1/jobs?campaign=run18")[1]["jobs"]
        assert [each["owner"] for each in jobs] == [name]
        assert world.call(name, "GET", "/v1/campaigns/run18")[1]["owner"] == name
        assert world.call(name, "GET", f"/v1/campaigns/run18?owner={name}")[1]["owner"] == name
    assert world.call("bob", "POST", "/v1/cancel", {"campaign": "run18"})[1]["changed"] == 1
    assert world.call("ada", "GET", "/v1/campaigns/run18")[1]["states"] == {"WAITING": 1}

    status, answer = world.call("olga", "GET", "/v1/campaigns/run18")
    assert status == 400
    assert "several owners have a campaign `run18`: `ada/run18`, `bob/run18`" in answer["error"]
    assert "OWNER/NAME" in answer["hint"]
    assert world.call("olga", "POST", "/v1/cancel", {"campaign": "run18"})[0] == 400
    for name, states in (("ada", {"WAITING": 1}), ("bob", {"CANCELED": 1})):
        assert world.call("olga", "GET", f"/v1/campaigns/run18?owner={name}")[1]["states"] == states
        jobs = world.call("olga", "GET", f"/v1/jobs?campaign={name}/run18")[1]["jobs"]
        assert [each["owner"] for each in jobs] == [name]
    context = world.context(world.certs.pair("olga"))
    for name in ("ada", "bob"):
        status, text = _page(world, context, f"/campaigns/run18?owner={name}")
        assert (status, f"<dt>Owner</dt><dd>{name}</dd>" in text) == (200, True)


# ---- below the routes -----------------------------------------------------------------------------------------------


def submitter(name: str) -> Identity:
    return Identity(role=Role.SUBMITTER, name=name, via=Via.CERTIFICATE)


def submitted(world: StoreWorld, owner: str, campaign: str, **spec: Any) -> int:
    request = SubmitRequest(
        key=f"{campaign}{len(spec)}", campaign=campaign, jobs=[JobSpec(app="sim", **spec)]
    )
    return world.dispatcher.handle_submit(request, submitter(owner)).first_job


@pytest.mark.parametrize("prefix", ["", "ada/"])
def test_asking_is_as_much_work_either_way(store_world: StoreWorld, prefix: str) -> None:
    submitted(store_world, "ada", "run18")

    def refused(campaign: str) -> int:
        def call() -> None:
            with pytest.raises(MissingError):
                rights.check_campaign(store_world.reader, submitter("eve"), Act.READ, campaign)

        return lines_run(call)

    refused(f"{prefix}run19")  # the first answer to a statement, with rows or without, finds out its columns
    assert refused(f"{prefix}run18") == refused(f"{prefix}run19")


def test_anothers_campaign_of_that_name_changes_nothing_for_jobs_that_come_after_ones_own(
    store_world: StoreWorld,
) -> None:
    """Eve's `first` is neither waited for, nor does it block a retry, whose dependencies are read again."""
    submitted(store_world, "ada", "first")
    later = submitted(store_world, "ada", "second", after=["first"])
    store_world.dispatcher.handle_cancel(ActionRequest(jobs=[later]), submitter("ada"))
    submitted(store_world, "eve", "first")
    assert store_world.dispatcher.handle_retry(ActionRequest(jobs=[later]), submitter("ada")).changed == 1
    site = Site(store_world)
    orders = [each for each in leases(site.sync()) if each.owner == "ada"]
    site.sync(*map(done, orders), want=0)
    (order,) = [each for each in leases(site.sync()) if each.job == later]
    assert (order.owner, order.campaign) == ("ada", "second")


def test_what_happens_in_a_campaign_of_that_name_is_seen_by_its_owner_alone(store_world: StoreWorld) -> None:
    jobs = {name: submitted(store_world, name, "run18") for name in ("ada", "eve")}
    leases(Site(store_world).sync())
    session = store_world.reader
    rows = feed.rows_after(session, 0)
    for name, job in jobs.items():
        key = rights.check_campaign(session, submitter(name), Act.READ, "run18")
        changes, _ = feed.changes(session, 0, Interest(key.number, name).campaign)
        assert {(each.owner, each.job) for each in changes} == {(name, job)}
        numbers = frozenset(row.campaign for row in rows)
        assert web_pages.references(session, name, numbers) == {key.number: f"{name}/run18"}
        assert feed.owned(session, numbers, name) == {key.number}


def test_a_bare_name_is_refused_to_one_who_sees_several(store_world: StoreWorld) -> None:
    operator = Identity(role=Role.OPERATOR, name="olga", via=Via.CERTIFICATE)

    def find(name: str) -> CampaignKey:
        return rights.check_campaign(store_world.reader, operator, Act.READ, name)

    submitted(store_world, "ada", "run18")
    assert find("run18").owner == find("ada/run18").owner == "ada"
    for number in range(12):
        submitted(store_world, f"o{number:02}", "run18")
    with pytest.raises(RequestError, match=r"`ada/run18`, .*`o08/run18`, and more"):
        find("run18")
    assert find("o11/run18").owner == "o11"


def test_hints_name_the_owner_where_it_matters_and_never_anothers_campaign(store_world: StoreWorld) -> None:
    operator = Identity(role=Role.OPERATOR, name="olga", via=Via.CERTIFICATE)

    def hint(identity: Identity, name: str) -> str:
        with pytest.raises(MissingError) as caught:
            rights.check_campaign(store_world.reader, identity, Act.READ, name)
        return caught.value.hint or ""

    for owner in ("ada", "bob"):
        submitted(store_world, owner, "same")
    submitted(store_world, "eve", "quux")
    assert hint(operator, "eve/same") == hint(operator, "sane") == "did you mean `ada/same` or `bob/same`?"
    eve = submitter("eve")
    assert hint(eve, "same") == "known: `quux`"
    for name in ("ada/same", "ada/other", "nowhere/same"):
        assert hint(eve, name) == "known: `eve/quux`"
    assert hint(eve, "ada/quu") == "did you mean `eve/quux`?"
    for name in ("ada/", "nowhere/"):
        assert hint(eve, name) == hint(operator, name) == "write NAME or OWNER/NAME"
