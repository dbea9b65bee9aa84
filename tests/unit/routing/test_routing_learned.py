"""What payloads showed replaces what the model expects, and the sentence says so."""

from __future__ import annotations

import msgspec
from tests.unit.routing.test_routing_routes import CACHE, OPENS, far, ways

from tidemill.routing.learned import (
    APPS_MAX,
    KEEP_US,
    SAMPLES_MAX,
    SAMPLES_MIN,
    WAYS_MAX,
    AppReads,
    LearnedReads,
    ReadSample,
    learned,
    note_part,
    note_wait,
    way_key,
)
from tidemill.routing.routes import FarFile, FarReader, FarRoute, RouteRules, routes

NOW = 10 * KEEP_US
PLACE = "root://origin:1094"
CACHED, DIRECT = way_key("lrz", PLACE), way_key("", PLACE)
GB = 1_000_000_000


def seen(*, waits: dict[str, list[float]] | None = None, parts: list[float] | None = None) -> AppReads:
    apps: dict[str, AppReads] = {}
    for key, seconds in (waits or {}).items():
        for each in seconds:
            note_wait(apps, "a", key, ReadSample(NOW, each, GB))
    for each in parts or []:
        note_part(apps, "a", ReadSample(NOW, each, GB))
    return apps["a"]


def known(app: AppReads, *, reads: int = 5, size: int | None = GB) -> FarFile:
    return FarFile(copies=[far(0.25)], size_bytes=size, reads=reads, learned=learned(app, size, NOW))


def first(file: FarFile) -> FarRoute:
    return routes(file, OPENS, caches=[CACHE], rules=RouteRules())[0]


def test_a_cache_that_proved_slower_than_a_direct_read_loses_and_the_sentence_says_why() -> None:
    assert ways(FarFile(copies=[far(0.25)], size_bytes=GB, reads=5))[0] == "cache"

    slow = known(seen(waits={CACHED: [900.0] * 9}))
    assert ways(slow) == ["direct", "cache", "stage"]
    both = first(known(seen(waits={CACHED: [2.0] * 7, DIRECT: [40.0] * 6})))
    assert both.way == "cache"
    assert both.why == (
        "the origin is 250 ms away, about 10 s for 5 reads (the median of 7 payloads, 2.0 s each), directly 3 m 20 s"
    )


def test_a_direct_read_that_proved_slow_loses_to_a_cache_for_a_single_read() -> None:
    once = FarFile(copies=[far(0.25)], size_bytes=GB, reads=1)
    assert ways(once)[0] == "direct"

    slow = known(seen(waits={DIRECT: [1000.0] * SAMPLES_MIN}), reads=1)
    assert ways(slow)[0] == "cache"


def test_few_old_or_odd_samples_decide_nothing() -> None:
    few = seen(waits={CACHED: [900.0] * (SAMPLES_MIN - 1)}, parts=[1.0] * (SAMPLES_MIN - 1))
    assert learned(few, GB, NOW) == LearnedReads()
    many = seen(waits={CACHED: [900.0] * 9}, parts=[1.0] * 9)
    assert learned(many, GB, NOW + KEEP_US + 1) == LearnedReads(), "a day later it is tried again"
    assert learned(many, GB, NOW - 1) == LearnedReads(), "of a clock that was wrong"
    assert learned(many, GB // 100, NOW).waits == {}, "of files of another size"

    outlier = seen(waits={CACHED: [2.0, 2.0, 2.0, 2.0, 1e9]})
    assert learned(outlier, GB, NOW).waits[CACHED].value == 2.0
    for bad in (float("nan"), float("inf"), -1.0):
        apps: dict[str, AppReads] = {}
        note_wait(apps, "a", CACHED, ReadSample(NOW, bad))
        note_part(apps, "a", ReadSample(NOW, bad))
        assert apps == {}


def test_the_part_that_payloads_read_shortens_the_estimate_and_is_named() -> None:
    sparse = first(known(seen(parts=[0.02 * GB] * 6)))
    whole = first(FarFile(copies=[far(0.25)], size_bytes=GB, reads=5))

    assert sparse.seconds < whole.seconds / 3
    assert "(6 payloads read 0.02 of a file)" in sparse.why
    unknown = first(known(seen(parts=[20_000_000.0] * 6), size=None))
    assert unknown.seconds == sparse.seconds, "bytes count where the size is not known"
    assert "(6 payloads read 20 MB of a file)" in unknown.why


def test_a_small_file_that_payloads_read_whole_is_copied() -> None:
    small = FarFile(copies=[far(0.25)], size_bytes=1_000_000, reads=20)
    apps: dict[str, AppReads] = {}
    for _ in range(SAMPLES_MIN):
        note_part(apps, "a", ReadSample(NOW, 1_020_000, 1_000_000))  # with what protocols add

    found = routes(
        msgspec.structs.replace(small, learned=learned(apps["a"], 1_000_000, NOW)),
        OPENS,
        caches=[],
        rules=RouteRules(),
    )
    assert [each.way for each in found] == ["stage", "direct"]
    assert "read whole" in found[0].why


def test_who_asks_for_a_cache_gets_it_before_a_near_origin_while_it_answers() -> None:
    asking = FarReader(opens=["root"], why_cached="a ward of the hospital asks for a cache")
    near = FarFile(copies=[far(0.001)], reads=1)

    found = routes(near, asking, caches=[CACHE], rules=RouteRules())
    assert found[0].way == "cache"
    assert found[0].why.startswith("a ward of the hospital asks for a cache; ")
    dead = msgspec.structs.replace(CACHE, link=msgspec.structs.replace(CACHE.link, is_down=True))
    assert ways(near, asking, dead)[0] == "direct"
    assert [each.way for each in routes(near, asking, caches=[], rules=RouteRules())] == ["direct", "stage"]


def test_what_is_learned_is_bounded() -> None:
    apps: dict[str, AppReads] = {}
    for app in range(APPS_MAX + 5):
        note_part(apps, f"a{app}", ReadSample(NOW, 1.0))
    for way in range(WAYS_MAX + 5):
        for _ in range(SAMPLES_MAX + 5):
            note_wait(apps, "b", f"c{way} {PLACE}", ReadSample(NOW, 1.0))
            note_part(apps, "b", ReadSample(NOW, 1.0))
    note_wait(apps, "b", "x" * 1000, ReadSample(NOW, 1.0))

    assert len(apps) == APPS_MAX
    assert list(apps["b"].waits) == [f"c{way} {PLACE}" for way in range(5, WAYS_MAX + 5)]
    assert {len(each) for each in apps["b"].waits.values()} == {len(apps["b"].parts)} == {SAMPLES_MAX}


def test_one_owners_slow_payloads_teach_others_nothing_and_two_owners_do() -> None:
    apps: dict[str, AppReads] = {}
    for _ in range(SAMPLES_MAX):
        note_wait(apps, "a", CACHED, ReadSample(NOW, 1000.0, GB, "eve"))
    assert learned(apps["a"], GB, NOW, "eve").waits[CACHED].value == 1000.0
    assert learned(apps["a"], GB, NOW, "ada").waits == {}
    for _ in range(SAMPLES_MIN):
        note_wait(apps, "a", CACHED, ReadSample(NOW, 1.0, GB, "ada"))
        note_wait(apps, "a", CACHED, ReadSample(NOW, 2.0, GB, "bob"))
    assert learned(apps["a"], GB, NOW, "ada").waits[CACHED].value == 1.0
    assert learned(apps["a"], GB, NOW, "carol").waits[CACHED].value == 2.0, "each owner counts once"


def test_an_owner_who_makes_up_many_commands_pushes_out_no_others() -> None:
    apps: dict[str, AppReads] = {}
    note_part(apps, "adas", ReadSample(NOW, 1.0, GB, "ada"))
    for number in range(5 * APPS_MAX):
        note_part(apps, f"command {number}", ReadSample(NOW, 1.0, GB, "eve"))
    assert "adas" in apps
    assert len(apps) == APPS_MAX
