"""The way of each input: near origins directly, never much slower than directly, nothing that cannot work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.far import scheme_of
from tidemill.routing.routes import (
    SLOWER_MAX,
    FarCopy,
    FarFile,
    FarReader,
    NearCache,
    RouteLink,
    RouteRules,
    RouteWay,
    routes,
)

RULES = RouteRules()
SCHEMES = ("root", "https")
links = st.builds(
    RouteLink,
    rtt_s=st.none() | st.floats(0, 1),
    bytes_per_s=st.none() | st.floats(1e4, 1e10),
    is_down=st.booleans(),
)
copies = st.builds(
    lambda scheme, host, link, must, rank: FarCopy(
        url=f"{scheme}://{host}//a/b", place=f"{scheme}://{host}", link=link, must_log_in=must, rank=rank
    ),
    st.sampled_from([*SCHEMES, "file"]),
    st.sampled_from(["one", "two", "three"]),
    links,
    st.booleans(),
    st.integers(0, 3),
)
caches = st.builds(
    lambda name, scheme, link, held, node: NearCache(
        name=name, url=f"{scheme}://{name}", origins=["root"], link=link, held=held, is_node=node
    ),
    st.sampled_from(["c1", "c2"]),
    st.sampled_from(SCHEMES),
    links,
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
files = st.builds(
    FarFile,
    copies=st.lists(copies, min_size=1, max_size=4, unique_by=lambda each: each.url),
    size_bytes=st.none() | st.integers(0, 10**12),
    fraction=st.none() | st.floats(0.001, 1),
    reads=st.integers(1, 1000),
)
readers = st.builds(
    FarReader,
    opens=st.lists(st.sampled_from(SCHEMES), unique=True),
    why_closed=st.sampled_from(["", "it has no network"]),
    may_stage=st.booleans(),
)
many_caches = st.lists(caches, max_size=2, unique_by=lambda each: each.name)


@given(files, readers, many_caches)
def test_a_near_origin_that_answers_is_read_directly(
    file: FarFile, reader: FarReader, near: list[NearCache]
) -> None:
    found = routes(file, reader, caches=near, rules=RULES)
    is_near = any(
        each.link.rtt_s is not None
        and each.link.rtt_s <= RULES.near_s
        and not each.link.is_down
        and not each.must_log_in
        and scheme_of(each.url) in reader.opens
        for each in file.copies
    )

    if is_near and not reader.why_closed:
        assert found[0].way is RouteWay.DIRECT


@given(files, readers, many_caches)
def test_the_first_way_is_never_expected_to_be_much_slower_than_reading_directly(
    file: FarFile, reader: FarReader, near: list[NearCache]
) -> None:
    found = routes(file, reader, caches=near, rules=RULES)
    directs = [each.seconds for each in found if each.way is RouteWay.DIRECT and not each.is_down]

    if directs and found[0].way is not RouteWay.DIRECT:
        assert found[0].seconds <= SLOWER_MAX * min(directs) * (1 + 1e-9)


@given(files, readers, many_caches)
def test_no_way_is_given_that_the_program_cannot_take(
    file: FarFile, reader: FarReader, near: list[NearCache]
) -> None:
    for route in routes(file, reader, caches=near, rules=RULES):
        assert route.why
        if route.way is RouteWay.STAGE:
            assert reader.may_stage
            continue
        assert scheme_of(route.url) in reader.opens
        assert not reader.why_closed
        copy = next(each for each in file.copies if route.url.endswith(each.url))
        assert route.way is not RouteWay.DIRECT or not copy.must_log_in


@given(files, readers, many_caches)
def test_what_did_not_answer_comes_after_all_that_did(
    file: FarFile, reader: FarReader, near: list[NearCache]
) -> None:
    down = [each.is_down for each in routes(file, reader, caches=near, rules=RULES)]

    assert down == sorted(down)


@given(files, readers, many_caches)
def test_a_copy_is_always_among_the_ways_where_one_may_be_made(
    file: FarFile, reader: FarReader, near: list[NearCache]
) -> None:
    found = routes(file, reader, caches=near, rules=RULES)

    assert any(each.way is RouteWay.STAGE for each in found) == reader.may_stage


@given(files, many_caches)
def test_a_program_that_opens_no_url_gets_a_copy(file: FarFile, near: list[NearCache]) -> None:
    found = routes(file, FarReader(opens=[]), caches=near, rules=RULES)

    assert {each.way for each in found} == {RouteWay.STAGE}
    assert "opens" in found[0].why
