"""Pages of what sites show, whatever numbers they send: nobody's page ends with an error."""

from __future__ import annotations

import msgspec
from tests.contract.server_world import SIM, Site, World

from tidemill.model.identity import LOCAL
from tidemill.server.web import caches, hospital, jobs, sites
from tidemill.server.web.query import AddressQuery
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.api import SiteView
from tidemill.wire.far import CacheFigures, CacheView, ReadView, RouteView

HUGE = 10**400
NEGATIVE = -(10**400)


def hostile(job: int, number: int) -> SiteView:
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
    view = SiteView(caches=[cache] * 3, reads=[read] * 3, routes=[route] * 3, bad_nodes_total=number)
    # as it comes over the wire
    decoded: SiteView = msgspec.json.decode(msgspec.json.encode(view), type=SiteView)
    return decoded


def test_pages_are_shown_whatever_numbers_a_site_sends(world: World) -> None:
    (job,) = world.submit(SIM)
    other = Site(world, "honest")
    other.sync(view=SiteView(caches=[CacheView(name="mine", state="running")]))
    for number in (HUGE, NEGATIVE, 2**63, -(2**63), 0):
        Site(world, f"hostile{abs(number) % 97}{number < 0}").sync(view=hostile(job, number), want=0)
    made = Pages()

    def shown(path: str, **at: object) -> PageRequest:
        return PageRequest(
            world.reader, world.dispatcher, LOCAL, AddressQuery(path, {}), at, 1_700_000_000_000_000, {}, ""
        )

    text = caches.listing(shown("/caches"), made)
    assert "mine" in text
    assert "<script>" not in text.split("<h1>")[1]
    assert hospital.overview(shown("/hospital"), made)
    assert jobs.job(shown(f"/jobs/{job}", job=job), made)
    assert sites.listing(shown("/sites"), made)
    assert sites.nodes(shown("/nodes"), made)
