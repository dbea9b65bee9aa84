"""Pages of what sites show: each view on its page, and no page ends with an error whatever numbers a site sends."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, failed, leases

from tidemill.model.identity import LOCAL
from tidemill.model.trouble import RefusedApplication
from tidemill.server.read import api_pages
from tidemill.server.web import caches, campaigns, home, hospital, jobs, sites
from tidemill.server.web.query import AddressQuery
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.far import CacheFigures, CacheView, ReadView, RouteView
from tidemill.wire.monitoring import AreaSums, BadNode, GrantView, MoveSums, SiteSums
from tidemill.wire.views import RawViews, packed

HUGE = 10**400
NEGATIVE = -(10**400)


def sums(number: int) -> SiteSums:
    return SiteSums(
        since_us=number, at_us=number, moves=[MoveSums(way="w" * 9999, done=number, failed=number, bytes=number)] * 99,
        areas=[AreaSums(area="a" * 9999, ops=1e300, bytes=0.0, over=number)] * 99, harm_s=1e300,
    )  # fmt: skip


def hostile(job: int, number: int) -> RawViews:
    figures = CacheFigures(
        name="\x1b[2J<script>", opens=number, served=number, hit=number, known=number, fetched=number, bypass=number,
        again=number,
    )  # fmt: skip
    cache = CacheView(
        name="c" * 9999, url="javascript:alert(1)", state="running", at_us=number, restarts=number, since_us=number,
        findings=["`\x1b`" * 999] * 99, total=figures, datasets=[figures] * 99, wire_origin=number, lost=number,
        unread=number, unsure=number, believe="<script>",
    )  # fmt: skip
    read = ReadView(
        job=job, way="<script>", place="p" * 9999, payloads=number, reads=number, bytes=number, waits=number,
        wait_us=number, wait_log2_us=[number] * 99,
    )  # fmt: skip
    route = RouteView(job=job, name="f", event=number, why="x" * 9999)
    return packed(
        caches=[cache] * 3, reads=[read] * 3, routes=[route] * 3, bad_nodes_total=number, sums=sums(number)
    )


def asked(world: World, path: str, **at: object) -> PageRequest:
    query = AddressQuery(path, {})
    return PageRequest(world.reader, world.dispatcher, LOCAL, query, at, 1_700_000_000_000_000, {}, "")


def test_the_page_of_a_site_shows_the_views_that_its_last_sync_brought(world: World) -> None:
    site, made = Site(world, "lrz"), Pages()
    grant = GrantView(account="phy123", granted=60.0, used=41.0, open=7.0, left=12.0)
    node = BadNode(node="nid00417", since_us=1, until_us=2, why="starts failed fast", evidence=[])
    refused = RefusedApplication(name="old", file="old.toml", why="its digest has changed")
    site.sync(views=packed(grants=[grant], bad_nodes=[node], bad_nodes_total=1, refused=[refused]))
    texts = ["phy123", "nid00417</b> starts failed fast", "<b>old</b> is refused: its digest has changed"]
    page = sites.site(asked(world, "/sites/lrz", name="lrz"), made)
    assert [text for text in texts if text not in page] == []
    site.sync(views=packed(mode="observe"))
    page = sites.site(asked(world, "/sites/lrz", name="lrz"), made)
    assert "It only observes" in page
    assert [text for text in texts if text in page] == []


def test_pages_are_shown_whatever_numbers_a_site_sends(world: World) -> None:
    (job,) = world.submit(SIM)
    other = Site(world, "honest")
    other.sync(views=packed(caches=[CacheView(name="mine", state="running")]))
    for number in (HUGE, NEGATIVE, 2**63, -(2**63), 0):
        Site(world, f"hostile{abs(number) % 97}{number < 0}").sync(views=hostile(job, number), want=0)
    made, shown = Pages(), partial(asked, world)

    text = caches.listing(shown("/caches"), made)
    assert "mine" in text
    assert "<script>" not in text.split("<h1>")[1]
    assert hospital.overview(shown("/hospital"), made)
    assert jobs.job(shown(f"/jobs/{job}", job=job), made)
    assert sites.listing(shown("/sites"), made)
    assert sites.nodes(shown("/nodes"), made)
    for row in api_pages.site_rows(world.reader, set()):
        if row.name == "honest":
            assert row.sums is None
            continue
        found = row.sums
        assert found is not None
        assert abs(found.at_us) < 2**63
        assert len(found.areas) <= 99
        assert max(len(each.area) for each in found.areas) <= 500


def test_sums_of_a_site_come_back_as_it_reported_them_last(world: World) -> None:
    site = Site(world, "honest")
    area = AreaSums(area="sw", ops=12.5, bytes=7.0, over=2, ops_per_s=2000.0)
    for moved in (10, 20):
        move = MoveSums(way="in", done=1, failed=0, bytes=moved)
        site.sync(
            views=packed(sums=SiteSums(since_us=1, at_us=moved, moves=[move], areas=[area], harm_s=3.5))
        )
    (row,) = api_pages.site_rows(world.reader, set())
    assert row.sums == SiteSums(since_us=1, at_us=20, moves=[move], areas=[area], harm_s=3.5)


@pytest.mark.parametrize(
    ("stderr", "step"),
    [("", "its stderr is empty, read its stdout, if any"), ("Fatal\n", "read its stderr")],
)
def test_pages_send_nobody_to_read_a_stderr_that_is_empty(world: World, stderr: str, step: str) -> None:
    site = Site(world)
    (job,) = world.submit(msgspec.structs.replace(SIM, retries=0))
    (lease,) = leases(site.sync())
    site.sync(failed(lease, 0, message="the payload left no `hits.root`", stderr=stderr))
    made, shown = Pages(), partial(asked, world)

    pages = [
        jobs.job(shown(f"/jobs/{job}", job=job), made),
        campaigns.campaign(shown("/campaigns/c", name="c"), made),
        home.failures(shown("/failures"), made),
    ]
    for page in pages:
        assert f"{step}: <code>tidemill job logs {job} --event 0</code>" in page
