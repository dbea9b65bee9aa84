"""What routing makes of the caches that a site runs: of what they noted, and of what they hold."""

from __future__ import annotations

from pathlib import Path

import msgspec
from extensions.caches.tests.cached_files import running_cache
from tests.unit.site.data.test_site_routing import CACHES, RoutingStage, shared

from tidemill import clock
from tidemill.config.caching import SiteCache
from tidemill.routing.engine import PastTrouble
from tidemill.routing.links import RouteLinks
from tidemill.routing.routes import FarCopy
from tidemill.site.data.far_reads import FarReads
from tidemill.site.data.routing import GIVEN_S, HELD
from tidemill_caches.engine.state import CacheState, write_state

OTHERS = [SiteCache(name="other", url="root://other.example.org:1095")]


def test_what_a_cache_noted_is_shown_with_the_ways_that_led_through_it(tmp_path: Path) -> None:
    """From the choice of the way until the job was over."""
    directory = tmp_path / "c"
    (directory / "run").mkdir(parents=True)
    now = clock.now_us()
    past = [
        PastTrouble(check="process", found=f"xrootd ended {n}", first_us=at, last_us=at)
        for n, at in enumerate((now - 60_000_000, now, now + 3_600_000_000))
    ]
    state = CacheState(
        host="another host", port=1, phase="running", at_us=now, supervisor_pid=1, supervisor_started_us=1, past=past
    )  # fmt: skip
    write_state(directory, state, durable=False)
    reads = FarReads(
        [SiteCache(name="lrz", url="root://cache.example.org:1095", directory=directory), *OTHERS],
        RouteLinks(tmp_path / "links.json", 300),
    )

    shown = reads.noted("lrz", now - 1_000_000, now + 1_000_000)
    assert "xrootd ended 1, at " in shown
    assert "ended 0" not in shown
    assert "ended 2" not in shown
    assert reads.noted("other", 0, None) == ""
    assert reads.noted("unknown", 0, None) == ""


def test_what_the_cache_lists_of_a_dataset_replaces_the_guess(tmp_path: Path) -> None:
    """Of `a` it holds all, of `b` a quarter, of `c` nothing."""
    with running_cache(tmp_path / "c", "root://origin.example.org//store/") as cache:
        made = RoutingStage(tmp_path, caches=[msgspec.structs.replace(cache, url=CACHES[0].url)])
        for job, dataset in enumerate("abc"):
            made.lay_out(shared(f"root://origin.example.org//store/{dataset}/7"), job=job, events=20)
    whys = [made.stage.routes.rows(job)[0].why for job in range(3)]

    assert "the cache holds 99% of its dataset" in whys[0]
    assert "the cache holds 25% of its dataset" in whys[1]
    assert "holds" not in whys[2]


def test_a_list_made_before_a_file_came_leaves_the_guess(tmp_path: Path) -> None:
    url = "root://origin.example.org//store/c/7"
    with running_cache(tmp_path / "c", "root://origin.example.org//store/") as cache:
        made = RoutingStage(tmp_path, caches=[msgspec.structs.replace(cache, url=CACHES[0].url)])
        routes = made.stage.routes
        given_s = clock.monotonic_s() - GIVEN_S - 10
        routes._given["c", url] = given_s
        copies = [FarCopy(url=url, place="")]
        assert routes._held("c", copies) == (0.0, True), "the list is newer than what came"
        contents = routes._shares._contents["c"]
        assert contents is not None
        routes._shares._contents["c"] = contents._replace(at_us=contents.at_us - 20_000_000)
        assert routes._held("c", copies) == (HELD, False)
    assert made.stage.routes._held("other", copies) == (0.0, False)
