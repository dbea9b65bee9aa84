"""Choices that the site's numbers decide, with their sentences."""

from __future__ import annotations

import msgspec

from tidemill.routing.routes import (
    FarCopy,
    FarFile,
    FarReader,
    NearCache,
    RouteLink,
    RouteRules,
    RouteWay,
    routes,
)

ORIGIN = "root://origin:1094//store/x.root"
OPENS = FarReader(opens=["root"])
CACHE = NearCache(name="lrz", url="root://cache:1095", origins=["root"], link=RouteLink(rtt_s=0.0005))


def far(rtt_s: float, *, down: bool = False, must_log_in: bool = False) -> FarCopy:
    link = RouteLink(rtt_s=rtt_s, is_down=down)
    return FarCopy(url=ORIGIN, place="root://origin:1094", link=link, must_log_in=must_log_in)


def ways(file: FarFile, reader: FarReader = OPENS, cache: NearCache = CACHE) -> list[str]:
    return [each.way.value for each in routes(file, reader, caches=[cache], rules=RouteRules())]


def test_a_far_file_that_is_read_again_goes_through_the_cache() -> None:
    found = routes(FarFile(copies=[far(0.25)], reads=2), OPENS, caches=[CACHE], rules=RouteRules())

    assert found[0].way is RouteWay.CACHE
    assert found[0].url == f"root://cache:1095//{ORIGIN}"
    assert "250 ms away" in found[0].why
    assert "directly" in found[0].why


def test_a_file_at_ten_milliseconds_is_read_directly_however_often() -> None:
    found = routes(FarFile(copies=[far(0.01)], reads=1000), OPENS, caches=[CACHE], rules=RouteRules())

    assert found[0].way is RouteWay.DIRECT
    assert found[0].why == "it is near: 10 ms away"


def test_a_file_that_is_read_once_is_not_pulled_through_a_cold_cache_but_through_one_that_holds_it() -> None:
    once = FarFile(copies=[far(0.25)], reads=1)

    assert ways(once)[0] == "direct"
    warm = NearCache(
        name="lrz", url="root://cache:1095", origins=["root"], held=1.0, link=RouteLink(rtt_s=0.001)
    )
    assert ways(once, cache=warm)[0] == "cache"


def test_retry_falls_back_from_the_cache_to_the_origin_to_a_copy() -> None:
    assert ways(FarFile(copies=[far(0.25)], reads=5)) == ["cache", "direct", "stage"]


def test_a_cache_that_is_down_is_passed_by() -> None:
    down = NearCache(name="lrz", url="root://cache:1095", origins=["root"], link=RouteLink(is_down=True))

    assert ways(FarFile(copies=[far(0.25)], reads=5), cache=down) == ["direct", "stage", "cache"]


def test_a_whole_file_in_the_cache_is_served_while_its_origin_is_down() -> None:
    warm = NearCache(name="lrz", url="root://cache:1095", origins=["root"], held=1.0)

    assert ways(FarFile(copies=[far(0.25, down=True)]), cache=warm)[0] == "cache"


def test_a_small_file_that_is_read_whole_from_afar_is_copied_once() -> None:
    small = FarFile(copies=[far(0.25)], size_bytes=5_000_000, fraction=1.0, reads=50)
    found = routes(small, OPENS, caches=[], rules=RouteRules())

    assert found[0].way is RouteWay.STAGE
    assert "5 MB" in found[0].why


def test_an_origin_that_wants_the_sites_credential_is_read_through_the_cache_or_copied() -> None:
    secret = FarFile(copies=[far(0.001, must_log_in=True)])

    assert ways(secret) == ["cache", "stage"]
    found = routes(secret, OPENS, caches=[], rules=RouteRules())
    assert [each.way.value for each in found] == ["stage"]
    assert "credential" in found[0].why


def test_an_https_program_reads_a_root_origin_through_a_cache_that_speaks_https() -> None:
    cache = NearCache(name="w", url="https://cache:8443", origins=["root"])
    reader = FarReader(opens=["https"])
    found = routes(FarFile(copies=[far(0.001)]), reader, caches=[cache], rules=RouteRules())

    assert found[0].url == f"https://cache:8443//{ORIGIN}"


def test_without_a_network_the_file_is_copied_and_the_reason_says_so() -> None:
    reader = FarReader(opens=["root"], why_closed="its payloads have no network")
    found = routes(FarFile(copies=[far(0.25)]), reader, caches=[CACHE], rules=RouteRules())

    assert [(each.way.value, each.why) for each in found] == [("stage", "its payloads have no network")]


def test_the_nearest_of_several_copies_is_taken_and_the_catalogues_order_decides_between_equals() -> None:
    def copy(host: str, rtt_s: float | None, rank: int) -> FarCopy:
        return FarCopy(
            url=f"root://{host}//x", place=f"root://{host}", link=RouteLink(rtt_s=rtt_s), rank=rank
        )

    file = FarFile(copies=[copy("a", 0.2, 0), copy("b", 0.1, 1)])
    assert routes(file, OPENS, caches=[], rules=RouteRules())[0].place == "root://b"
    equal = FarFile(copies=[copy("a", None, 1), copy("b", None, 0)])
    assert routes(equal, OPENS, caches=[], rules=RouteRules())[0].place == "root://b"


def test_where_a_ward_asks_for_the_cache_it_comes_before_a_near_origin_unless_it_is_down() -> None:
    asked = FarReader(opens=["root"], why_cached="its ward reads through the cache")
    down = NearCache(name="lrz", url="root://cache:1095", origins=["root"], link=RouteLink(is_down=True))
    here = FarCopy(url="/data/x.root", place="this site's file systems", is_local=True)

    for rtt_s in (0.001, 0.25):
        (first, *_) = routes(FarFile(copies=[far(rtt_s)]), asked, caches=[CACHE], rules=RouteRules())
        assert first.way is RouteWay.CACHE
        assert first.why.startswith("its ward reads through the cache; ")
    assert ways(FarFile(copies=[far(0.001)]), asked, down)[0] == "direct"
    assert ways(FarFile(copies=[far(0.25), here]), asked)[0] == "stage", "a copy is here already"


def test_a_far_origin_that_no_cache_can_fetch_from_is_read_without_one_and_the_reason_says_so() -> None:
    copy = FarCopy(url="https://origin/store/x", place="https://origin:443", link=RouteLink(rtt_s=0.25))
    opens = FarReader(opens=["root", "https"])
    best = routes(FarFile(copies=[copy], reads=50), opens, caches=[CACHE], rules=RouteRules())[0]
    closed = msgspec.structs.replace(copy, must_log_in=True)
    staged = routes(FarFile(copies=[closed], reads=50), opens, caches=[CACHE], rules=RouteRules())[0]

    assert best.way is RouteWay.DIRECT
    assert best.why.endswith("for 50 reads, no cache of this site fetches `https:`")
    assert staged.way is RouteWay.STAGE
    assert staged.why.endswith("which payloads do not have, and no cache of this site fetches `https:`")
    without = routes(FarFile(copies=[copy], reads=50), opens, caches=[], rules=RouteRules())[0]
    assert "no cache" not in without.why
