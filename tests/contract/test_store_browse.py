"""What pages for people read, on both databases: sorted and searched listings, what sites show, whose is whose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, done, failed, key_of, leases, number_of

from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import JobSpec
from tidemill.model.trouble import RefusedApplication
from tidemill.server.api.routes import ROUTES, Call, OfCampaignQuery
from tidemill.server.core import site_views
from tidemill.server.errors import RequestError
from tidemill.server.read import api_pages, job_search, web_pages
from tidemill.server.read.job_search import Filter, Sort
from tidemill.wire.api import (
    ActionRequest,
    AllocationReport,
    FailurePage,
    JobRow,
)
from tidemill.wire.monitoring import BadNode, TidePoint, TransferView
from tidemill.wire.views import (
    BAD_NODES,
    MODE,
    ROWS_MAX,
    TIDE_POINTS_MAX,
    WAITS_FOR,
    SiteViews,
    ViewType,
    packed,
    types,
)


@pytest.fixture
def many(world: World) -> World:
    """Jobs of three campaigns and two owners at two sites, in all states, some with names."""
    for k in range(60):
        spec = JobSpec(app="sim" if k % 3 else "reco", name=f"run{k // 10}-{k:02}" if k % 2 else None)
        world.submit(spec, campaign=f"c{k % 3}", owner="ada" if k % 3 else "bob")
    one, other = Site(world, "one"), Site(world, "other")
    for number, lease in enumerate(leases(one.sync(ranges=15)) + leases(other.sync(ranges=15))):
        site = one if number < 15 else other
        if number % 3 == 0:
            site.sync(done(lease), want=0)
        elif number % 3 == 1:
            site.sync(failed(lease, 0), want=0)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[57, 58]))
    return world


def everything(world: World) -> list[JobRow]:
    return api_pages.jobs(world.reader, Filter(), before=None, limit=1000).jobs


def paged(world: World, filters: Filter, sort: Sort) -> list[JobRow]:
    rows: list[JobRow] = []
    after = None
    while True:
        page = web_pages.jobs(world.reader, filters, sort, after=after, size=7)
        rows += page.rows
        after = page.found.after
        if after is None:
            return rows


KEYS = {
    Sort.NEWEST: lambda row: (-row.id,),
    Sort.OLDEST: lambda row: (row.id,),
    Sort.ENDED: lambda row: (-(row.ended_us or 0), -row.id),
    Sort.NAME: lambda row: (row.name, row.id),
}


@pytest.mark.parametrize("sort", list(Sort))
def test_every_filter_in_every_order_shows_each_job_once(many: World, sort: Sort) -> None:
    rows = everything(many)
    owner = {"c0": "bob", "c1": "ada", "c2": "ada"}
    values = itertools.product(
        (None, "WAITING", "COMPLETED", "FAILED", "CANCELED"), (None, "sim"), (None, "one"), (None, "c1"),
        (None, "run3", "run"), (None, "ada"),
    )  # fmt: skip
    for state, app, site, campaign, begins, who in values:
        filters = Filter(
            state=state,
            app=app,
            site=site,
            campaign=number_of(many.reader, campaign),
            begins=begins,
            owner=who,
        )
        wanted = [
            row
            for row in rows
            if state in (None, row.state) and app in (None, row.app) and site in (None, row.site)
            and campaign in (None, row.campaign) and row.name.startswith(begins or "")
            and who in (None, owner[row.campaign])
            and (sort is not Sort.ENDED or row.ended_us) and (sort is not Sort.NAME or row.name)
            and (begins is None or row.name)
        ]  # fmt: skip
        found = paged(many, filters, sort)
        assert [each.id for each in found] == [each.id for each in sorted(wanted, key=KEYS[sort])], filters


def test_a_filter_says_how_many_jobs_it_has(many: World) -> None:
    rows = everything(many)
    page = web_pages.jobs(
        many.reader,
        Filter(state="WAITING", campaign=key_of(many.reader, "c1").number),
        Sort.NEWEST,
        after=None,
        size=5,
    )
    assert page.found.total == sum(row.state == "WAITING" and row.campaign == "c1" for row in rows)
    assert len(page.rows) == 5


def test_places_and_states_that_are_none_are_refused(many: World) -> None:
    for after in ("x", "1.2.3", "-1", "9" * 30, ""):
        with pytest.raises(RequestError, match="not a place"):
            web_pages.jobs(many.reader, Filter(), Sort.ENDED, after=after, size=5)
    with pytest.raises(RequestError, match="not a state"):
        job_search.find(many.reader, Filter(state="DONE"), Sort.NEWEST, after=None, size=5)


def test_campaigns_are_searched_and_sorted(many: World) -> None:
    many.submit(*[SIM] * 9, campaign="Big_one", owner="ada")

    def names(**query: object) -> list[str]:
        found, _ = web_pages.campaigns(many.reader, web_pages.CampaignQuery(**query))  # type: ignore[arg-type]
        return [row.name for row in found]

    assert names(sort="name") == ["Big_one", "c0", "c1", "c2"]
    assert names() == ["Big_one", "c2", "c1", "c0"]
    assert names(text="BIG_") == ["Big_one"]
    assert names(text="%") == names(text="g!") == []
    assert names(owner="bob") == ["c0"]
    assert names(sort="jobs", size=2) == ["c2", "c1"]
    assert names(sort="jobs", size=2, offset=2) == ["c0", "Big_one"]
    row = web_pages.campaigns(many.reader, web_pages.CampaignQuery(text="c1"))[0][0]
    assert row == api_pages.campaign(many.reader, key_of(many.reader, "c1"))
    assert sum(row.states.values()) == 20


def test_an_owners_sums_and_failures_are_his_own(many: World) -> None:
    ada, bob, all_ = (web_pages.counts(many.reader, who) for who in ("ada", "bob", None))
    assert (ada.jobs, bob.jobs, all_.jobs) == (40, 20, 60)
    assert ada.events_failed + bob.events_failed == all_.events_failed > 0
    assert {state: ada.states[state] + bob.states[state] for state in all_.states} == all_.states
    of_ada = web_pages.failures(many.reader, campaign=None, owner="ada", before=None).failures
    every = web_pages.failures(many.reader, campaign=None, owner=None, before=None).failures
    assert [each for each in every if each in of_ada] == of_ada
    assert {web_pages.owners(many.reader, [each.job])[each.job] for each in of_ada} == {"ada"}


def test_an_owner_gets_as_many_failures_as_were_asked_for(many: World) -> None:
    ada = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE)
    (ask,) = (each.run for each in ROUTES if each.path == "/v1/failures" and each.run is not None)

    def page(limit: int, before: int | None = None) -> FailurePage:
        query = OfCampaignQuery(limit=limit, before=before)
        found = ask(Call(many.reader, many.dispatcher, query, None, {}, {}, ada))
        assert isinstance(found, FailurePage)
        return found

    first = page(1)
    assert len(first.failures) == 1
    assert first.failures + page(100, first.next).failures == page(100).failures
    with pytest.raises(RequestError, match="limit"):
        page(0)


def test_what_a_site_shows_is_kept_and_replaced(world: World) -> None:
    site = Site(world)
    now = world.dispatcher.server_clock.now_us() // 60_000_000
    point = TidePoint(minute=now - 1, regular=5.0, ours=2.0, idle=1.0, away=0.0)
    node = BadNode(
        node="n17", since_us=1, until_us=2, why="starts failed fast", evidence=["after 0.2 s: exit 1"]
    )
    refused = RefusedApplication(name="old", file="old.toml", why="changed")
    site.sync(views=packed(tide=[point], bad_nodes=[node], bad_nodes_total=1, mode="run", refused=[refused]))
    (row,) = api_pages.site_rows(world.reader, set())
    assert row.refused == [refused]
    site.sync()  # says nothing new
    found = web_pages.running(world.reader)["s"]
    assert (BAD_NODES.decode(found.view.raw), MODE.decode(found.view.raw)) == ([node], "run")
    later = TidePoint(minute=now, regular=4.0, ours=4.0, idle=0.0, away=0.0)
    fixed = TidePoint(minute=now - 1, regular=6.0, ours=2.0, idle=0.0, away=0.0)
    site.sync(views=packed(tide=[fixed, later]))
    assert web_pages.running(world.reader)["s"].view.raw == {}
    (tide,) = site_views.tides(world.reader, [1], now_us=(now + 1) * 60_000_000, minutes=60).values()
    assert (tide.start + len(tide.points) * tide.step, tide.step) == (now + 2, 1)
    assert tide.points[-3:-1] == [(6.0, 2.0, 0.0, 0.0), (4.0, 4.0, 0.0, 0.0)]
    assert tide.points[-4] is None


def test_a_job_whose_inputs_wait_for_room_says_so_as_its_own_site_tells_it(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim"))
    site, other = Site(world), Site(world, "other")
    assert leases(site.sync())
    waits = TransferView(
        job=job, way="in", names=["geo"], places=[], tries=0, under_way=False, waits_for="room for 6 GB"
    )
    other.sync(views=packed(transfers=[waits]), want=0)
    site.sync(want=0)
    assert world.job(job).waits_for == "running"
    site.sync(views=packed(transfers=[waits]), want=0)
    found = world.job(job)
    assert found.waits_for == "stage_full"
    assert "stage_bytes_max" in str(found.waits_hint)
    assert str(found.waits_hint).endswith("; site s: room for 6 GB")
    site.sync(views=packed(mode="run"), want=0)
    assert world.job(job).waits_for == "running"


def test_a_site_that_shows_too_much_is_cut_short(world: World) -> None:
    site = Site(world)
    now = world.dispatcher.server_clock.now_us() // 60_000_000
    minutes = [*range(now - 3 * TIDE_POINTS_MAX, now), now + 10_000, -5, 2**61]
    tide = [TidePoint(minute=each, regular=1.0, ours=0.0, idle=0.0, away=0.0) for each in minutes]
    tide[-10] = TidePoint(minute=now - 8, regular=2e9, ours=-1.0, idle=0.0, away=0.0)
    nodes = [BadNode(node="n\0" * 300, since_us=0, until_us=0, why="w" * 999, evidence=["e" * 600] * 9)] * 150
    site.sync(views=packed(tide=tide, bad_nodes=nodes, bad_nodes_total=999, waits_for="x" * 9999))
    raw = web_pages.running(world.reader)["s"].view.raw
    bad = BAD_NODES.decode(raw)
    assert len(bad) == ROWS_MAX
    assert len(bad[0].evidence) == site_views.TEXTS_MAX
    assert max(len(WAITS_FOR.decode(raw)), len(bad[0].why), len(bad[0].node)) == site_views.TEXT_MAX
    (found,) = site_views.tides(
        world.reader, [1], now_us=now * 60_000_000, minutes=site_views.MINUTES_KEPT
    ).values()
    assert sum(point is not None for point in found.points) <= TIDE_POINTS_MAX / found.step + 2


class Ship(msgspec.Struct):
    """A row of a view that an extension adds."""

    name: str
    crew: list[int]
    speed: float = 1.0


SHIPS = ViewType[list[Ship]](
    "ships", list[Ship], [], rows_max=3, inner_max=2, bytes_max=1_000, legal=lambda each: each.name != "x"
)


@pytest.fixture
def ships() -> Iterator[None]:
    """The view, in the table as long as a test runs."""
    types()[SHIPS.name] = SHIPS
    yield
    del types()[SHIPS.name]


@pytest.mark.usefixtures("ships")
def test_a_view_of_another_part_is_kept_within_its_bounds_and_handed_to_its_page(world: World) -> None:
    site = Site(world)

    def shown() -> SiteViews:
        return web_pages.running(world.reader)["s"].view

    fleet = [
        Ship(name="x", crew=[1]),
        Ship(name="a\0", crew=[2**62 + 1, 2, 3]),
        *[Ship(name="b", crew=[])] * 9,
    ]
    site.sync(views=packed(ships=fleet, mode="run", unheard_of=[1]))
    assert sorted(shown().raw) == ["mode", "ships"], "a name that the server does not know is left out"
    cut = Ship(name="a\N{REPLACEMENT CHARACTER}", crew=[2**62, 2])
    assert shown()["ships"] == [cut, Ship(name="b", crew=[])]
    for malformed in ("text", [{"name": 1}], [Ship(name="n" * 2_000, crew=[])]):
        site.sync(views=packed(ships=malformed, mode="run"))
        assert (shown()["ships"], shown()["mode"]) == ([], "run"), "it costs the others nothing"


def test_old_tide_is_forgotten(world: World) -> None:
    site = Site(world)
    now = world.dispatcher.server_clock.now_us() // 60_000_000
    world.dispatcher.writer.write(
        lambda work: work.session.many(
            "upsert_tide", [(1, now - 2 * site_views.MINUTES_KEPT, 1.0, 1.0, 1.0, 1.0)]
        )
    )
    site.sync(views=packed(mode="run"))
    rows = world.reader.rows("tides", sites=[1], start=0, step=1, until=2**40)
    assert rows == []


def test_allocations_of_all_sites_are_paged_newest_first(world: World) -> None:
    sites = [Site(world, name) for name in ("one", "other")]
    for k in range(30):
        report = AllocationReport(
            n=0, name=f"a{k:02}", batch_id=str(k), state="ACTIVE" if k % 4 else "FAILED", nodes=1, cores=8,
            at_us=1_000_000 + k // 2, reason="", busy_us=1, slot_us=2,
        )  # fmt: skip
        sites[k % 2].sync(report, want=0)
    for state, site, wanted in (("", None, 30), ("FAILED", None, 8), ("ACTIVE", "other", 15)):
        names: list[tuple[int, str]] = []
        after = None
        while True:
            page = web_pages.allocations(world.reader, site=site, state=state, after=after, size=4)
            names += [(-row.at_us, row.name) for row in page.rows]
            after = page.after
            if after is None:
                break
        assert len(names) == wanted
        assert names == sorted(set(names))
    assert web_pages.allocation_states(world.reader)["one"] == {"ACTIVE": (7, 7), "FAILED": (8, 8)}


def test_a_log_is_shown_with_its_own_job_only(world: World) -> None:
    first, second = world.submit(SIM, SIM)
    Site(world).sync()
    number = world.dispatcher.ask_log(first, None)
    assert number is not None
    assert web_pages.log(world.reader, second, number) is None
    assert web_pages.log(world.reader, first, number) == (None, False, False, "", "")
    assert web_pages.logs(world.reader, first) == [(number, None, False, False)]
