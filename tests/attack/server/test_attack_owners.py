"""What is another's does not exist: the same answer, whichever way it is asked; many campaigns give nobody more."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.server_world import Site, done, leases
from tests.contract.server_world import World as StoreWorld
from tests.effort import lines_run
from tests.worlds.services.access_world import Certs, World, submission, sync
from tests.worlds.services.token_issuer import Issuer

from tidemill.errors import TidemillError
from tidemill.model.identity import Act, Identity, Role, Via
from tidemill.model.job import JobSpec
from tidemill.server.api.routes import (
    ROUTES,
    Call,
    JobsQuery,
    NoQuery,
    OfCampaignQuery,
    OwnerQuery,
    PageQuery,
)
from tidemill.server.archive.archiver import Archiver
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit.audit_log import verify
from tidemill.server.core import rights
from tidemill.server.database.store import Store
from tidemill.server.errors import ForbiddenError, MissingError
from tidemill.wire.api import ActionRequest, SharesRequest, SubmitRequest

ABSENT = 999_999  #: no job


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(
        tmp_path_factory.mktemp("world"),
        Certs(tmp_path_factory.mktemp("certs")),
        Issuer(tmp_path_factory.mktemp("issuer")),
    )
    idle = msgspec.structs.replace(sync("x").capacity, want_core_s=0.0)
    assert made.call("lrz", "POST", "/v1/sync", sync("lrz", capacity=idle))[0] == 200
    for name in ("ada", "bob"):
        assert made.call(name, "POST", "/v1/jobs", submission(f"{name}-1", "run17"))[0] == 200
    yield made
    made.stop()


def job_of(world: World, who: str) -> int:
    return int(world.call(who, "GET", "/v1/jobs")[1]["jobs"][-1]["id"])


def asked(campaign: str, job: int) -> list[tuple[str, str, Any]]:
    """Every request of a submitter that names a campaign or a job."""
    return [
        ("GET", f"/v1/jobs?campaign={campaign}", None),
        ("GET", f"/v1/jobs/{job}", None),
        ("GET", f"/v1/jobs/{job}/log", None),
        ("GET", f"/v1/campaigns/{campaign}", None),
        ("GET", f"/v1/failures?campaign={campaign}", None),
        ("GET", f"/v1/failures?job={job}", None),
        ("GET", f"/v1/outputs?campaign={campaign}", None),
        ("GET", f"/v1/outputs?job={job}", None),
        ("GET", f"/v1/changes?campaign={campaign}", None),
        ("POST", "/v1/cancel", {"jobs": [job]}),
        ("POST", "/v1/cancel", {"campaign": campaign, "key": "k"}),
        ("POST", "/v1/retry", {"jobs": [job]}),
        ("POST", "/v1/retry", {"campaign": campaign}),
        ("POST", "/v1/jobs", submission("ada-2", "after", after=[job])),
        ("POST", "/v1/jobs", submission("ada-2", "after", after=[campaign])),
        ("POST", "/v1/jobs", submission("ada-2", "in", inputs=[{"name": "x", "url": f"job:{job}/out"}])),
    ]


def test_nothing_tells_what_belongs_to_another_from_what_does_not_exist(world: World) -> None:
    hers = job_of(world, "bob")
    before = world.content()
    for there, absent in zip(asked("bob-1", hers), asked("nil-1", ABSENT), strict=True):
        found, expected = world.call("ada", *there), world.call("ada", *absent)
        same = json.dumps(found).replace("bob-1", "nil-1").replace(f"job {hers}", f"job {ABSENT}")
        assert same == json.dumps(expected), there
        assert found[0] in (400, 404), there
    assert world.content() == before
    assert world.events("access.forbidden")[-1]["subject"], "the operator sees who tries"


def test_a_key_that_another_has_used_is_free(world: World) -> None:
    assert world.call("eve", "POST", "/v1/jobs", submission("eve-1", "run17"))[1]["repeated"] is False
    for name in ("ada", "bob", "eve"):
        status, answer = world.call(name, "POST", "/v1/jobs", submission(f"{name}-1", "run17"))
        assert (status, answer["repeated"]) == (200, True), name
    status, answer = world.call("ada", "POST", "/v1/jobs", submission("ada-1", "run17", priority=5))
    assert status == 409
    assert "used for other content" in answer["error"]


def test_hints_name_own_campaigns_only(world: World) -> None:
    status, answer = world.call("ada", "GET", "/v1/campaigns/bob-2")
    assert status == 404
    assert "bob-1" not in json.dumps(answer)


def test_pages_do_not_tell_either(world: World) -> None:
    """With the certificate of a submitter in the browser."""
    hers = job_of(world, "bob")
    context = world.context(world.certs.pair("ada"))
    for there, absent in (
        (f"/jobs/{hers}", f"/jobs/{ABSENT}"),
        ("/campaigns/bob-1", "/campaigns/nil-1"),
        ("/failures?campaign=bob-1", "/failures?campaign=nil-1"),
        ("/jobs?campaign=bob-1", "/jobs?campaign=nil-1"),
        ("/transfers?campaign=bob-1", "/transfers?campaign=nil-1"),
    ):
        found, expected = (page(world, context, path) for path in (there, absent))
        assert found[0] == expected[0], there
        said = (
            found[1].replace("bob-1", "nil-1").replace(there, absent).replace(f"job {hers}", f"job {ABSENT}")
        )
        assert steady(said) == steady(expected[1]), there
    assert f"/jobs/{hers}" not in page(world, context, f"/search?q={hers}")[1]


def page(world: World, context: Any, path: str) -> tuple[int, str]:
    import http.client

    connection = http.client.HTTPSConnection("127.0.0.1", world.port, timeout=60, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def steady(text: str) -> list[str]:
    """Lines of a page without what changes from one to the next."""
    return [line for line in text.splitlines() if "data-after" not in line and 'name="form"' not in line]


# ---- fair share ----------------------------------------------------------------------------------------------------


def submitter(name: str) -> Identity:
    return Identity(role=Role.SUBMITTER, name=name, via=Via.CERTIFICATE)


def submitted(world: StoreWorld, owner: str, campaign: str, *, jobs: int, **spec: Any) -> None:
    request = SubmitRequest(key=campaign, campaign=campaign, jobs=[JobSpec(app="sim", **spec)], repeat=[jobs])
    world.dispatcher.handle_submit(request, submitter(owner))


def given(world: StoreWorld, site: Site, *, syncs: int, want: float) -> Counter[str]:
    """Core-seconds leased by owner, while nothing is ever done."""
    found: Counter[str] = Counter()
    for _ in range(syncs):
        world.now_s += 1
        for order in leases(site.sync(want=want)):
            found[order.owner] += order.count
    return found


@pytest.mark.parametrize("want", [20.0, 400.0])
def test_fifty_campaigns_get_no_more_than_one(store_world: StoreWorld, want: float) -> None:
    for number in range(50):
        submitted(store_world, "eve", f"eve-{number}", jobs=300)
    submitted(store_world, "ada", "ada-1", jobs=10_000)
    found = given(store_world, Site(store_world), syncs=20, want=want)
    assert 0.45 < found["ada"] / found.total() < 0.55, found


def test_owners_who_come_one_after_the_other_wait_for_nobodys_past(store_world: StoreWorld) -> None:
    site = Site(store_world)
    submitted(store_world, "ada", "ada-1", jobs=10_000)
    given(store_world, site, syncs=10, want=500)
    submitted(store_world, "eve", "eve-1", jobs=10_000)  # starts where ada stands: she is not starved
    found = given(store_world, site, syncs=10, want=400)
    assert 0.4 < found["ada"] / found.total() < 0.6, found
    for number in range(20):  # new campaigns make no new owner
        submitted(store_world, "eve", f"eve-new-{number}", jobs=1_000)
        found += given(store_world, site, syncs=1, want=400)
    assert 0.4 < found["ada"] / found.total() < 0.6, found


def test_an_operator_weighs_owners_and_a_submitter_does_not(store_world: StoreWorld) -> None:
    for name in ("ada", "bob"):
        submitted(store_world, name, f"{name}-1", jobs=10_000)
    request = SharesRequest(owner="ada", shares=3.0, reason="pays for it")
    with pytest.raises(ForbiddenError):
        store_world.dispatcher.handle_shares(request, submitter("ada"))
    operator = Identity(role=Role.OPERATOR, name="olga", via=Via.CERTIFICATE)
    assert store_world.dispatcher.handle_shares(request, operator).changed == 1
    assert store_world.dispatcher.handle_shares(request, operator).unchanged == 1
    found = given(store_world, Site(store_world), syncs=20, want=400)
    assert 0.72 < found["ada"] / found.total() < 0.78, found
    notes = [row[2] for row in store_world.reader.rows("audit_pending", limit=99)]
    assert any(f'"act":"{Act.SHARES}"'.encode() in bytes(each) for each in notes)


def test_asking_is_as_much_work_either_way(store_world: StoreWorld) -> None:
    submitted(store_world, "bob", "bob-1", jobs=1)
    ada, session = submitter("ada"), store_world.reader

    def refused(ask: Callable[[], object]) -> int:
        def call() -> None:
            with pytest.raises(MissingError):
                ask()

        return lines_run(call)

    def asked(job: int, campaign: str) -> tuple[int, int]:
        return (
            refused(lambda: rights.check_jobs(session, ada, Act.READ, [job])),
            refused(lambda: rights.check_campaign(session, ada, Act.READ, campaign)),
        )

    asked(
        ABSENT, "nil-1"
    )  # the first answer to a statement, whoever asked and found or not, finds out its columns
    assert asked(1, "bob-1") == asked(ABSENT, "nil-1")


def test_the_archive_tells_nothing_of_anothers_jobs(store_world: StoreWorld, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    submitted(store_world, "bob", "bob-1", jobs=1)
    site = Site(store_world)
    site.sync(*map(done, leases(site.sync())), want=0)
    archive = Archive(tmp_path / "archive")
    dispatcher = store_world.dispatcher
    dispatcher.rules = dispatcher.rules._replace(archive=archive)
    archiver = Archiver(store_world.store, dispatcher.writer.write, archive, keep_s=0)
    archiver.rests = False
    while archiver.step(store_world.reader):
        pass
    runs = {route.path: route.run for route in ROUTES if route.method == "GET"}

    def said(who: str, path: str, query: Any, **at: Any) -> str:
        run = runs[path]
        assert run is not None
        call = Call(store_world.reader, dispatcher, query, None, at, {}, identity=submitter(who))
        try:
            answer = msgspec.json.encode(run(call)).decode()
        except TidemillError as error:
            answer = f"{type(error).__name__} {error.message} {error.hint}"
        return answer.replace("bob-1", "nil-1").replace("job 1", f"job {ABSENT}")

    def acted(act: Callable[..., Any], job: int, campaign: str) -> list[str]:
        found = []
        for request in (ActionRequest(jobs=[job]), ActionRequest(campaign=campaign)):
            with pytest.raises(MissingError) as raised:
                act(request, submitter("ada"))
            found.append(f"{raised.value.message} {raised.value.hint}")
        return [each.replace("bob-1", "nil-1").replace("job 1", f"job {ABSENT}") for each in found]

    assert '"id":1,' in said("bob", "/v1/jobs", JobsQuery(archived=True))
    assert '"id":1,' not in said("ada", "/v1/jobs", JobsQuery(archived=True))
    assert "bob" not in said("ada", "/v1/campaigns", PageQuery(archived=True))
    for path, there, absent in (
        ("/v1/jobs", JobsQuery(campaign="bob-1"), JobsQuery(campaign="nil-1")),
        ("/v1/jobs", JobsQuery(campaign="bob-1", archived=True), JobsQuery(campaign="nil-1", archived=True)),
        ("/v1/failures", OfCampaignQuery(campaign="bob-1"), OfCampaignQuery(campaign="nil-1")),
        ("/v1/failures", OfCampaignQuery(job=1), OfCampaignQuery(job=ABSENT)),
        ("/v1/outputs", OfCampaignQuery(campaign="bob-1"), OfCampaignQuery(campaign="nil-1")),
        ("/v1/outputs", OfCampaignQuery(job=1), OfCampaignQuery(job=ABSENT)),
    ):
        found = said("ada", path, there)
        assert found == said("ada", path, absent)
        assert found.startswith("MissingError")
    assert said("ada", "/v1/jobs/{job:int}", NoQuery(), job=1) == said(
        "ada", "/v1/jobs/{job:int}", NoQuery(), job=ABSENT
    )
    assert said("ada", "/v1/campaigns/{name:str}", OwnerQuery(), name="bob-1") == said(
        "ada", "/v1/campaigns/{name:str}", OwnerQuery(), name="nil-1"
    )
    for act in (
        dispatcher.handle_cancel, dispatcher.handle_retry, dispatcher.handle_accept, dispatcher.handle_discard,
    ):  # fmt: skip
        assert acted(act, 1, "bob-1") == acted(act, ABSENT, "nil-1")

    def asked(job: int) -> int:
        def call() -> None:
            with pytest.raises(MissingError):
                rights.check_jobs(store_world.reader, submitter("ada"), Act.READ, [job])

        return lines_run(call)

    assert asked(1) == asked(ABSENT)


def test_a_sync_does_hardly_more_when_a_submitter_has_hundreds_of_campaigns(tmp_path: Path) -> None:
    works = []
    for campaigns in (50, 500):
        store = Store(path=tmp_path / f"{campaigns}.db")
        store.init()
        made = StoreWorld(store)
        for number in range(campaigns):
            submitted(made, "eve", f"eve-{number}", jobs=5)
        site = Site(made)
        site.sync(want=0.0)
        works.append(lines_run(lambda site=site: site.sync(want=1e6, ranges=100)))  # type: ignore[misc]
        made.reader.close()
        made.dispatcher.close()
    assert works[1] < 3 * works[0], works


def test_the_log_of_changes_stays_whole(world: World) -> None:
    assert world.call("olga", "POST", "/v1/owners", {"owner": "ada", "shares": 2.0})[0] == 200
    assert [each["shares"] for each in world.call("ada", "GET", "/v1/owners")[1]] == [2.0]
    assert {each["owner"] for each in world.call("olga", "GET", "/v1/owners")[1]} >= {"ada", "bob"}
    assert world.call("olga", "POST", "/v1/owners", {"owner": "nobody", "shares": 2.0})[0] == 404
    assert world.call("olga", "POST", "/v1/owners", {"owner": "ada", "shares": 0.0})[0] == 400
    end_s = time.monotonic() + 20
    while not verify(world.folder / "server").last:  # the server moves its notes there every second
        assert time.monotonic() < end_s
        time.sleep(0.1)
