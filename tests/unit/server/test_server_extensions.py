"""Pages, routes and views of extensions: names that are taken, parts that are broken, and extensions that are away."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidemill
from tidemill import extensions
from tidemill.server.api import openapi
from tidemill.server.api.routes import ROUTES, served
from tidemill.server.core.site_views import NUMBER_MAX, TEXT_MAX, bounded
from tidemill.server.errors import MissingError
from tidemill.server.web import pages
from tidemill.server.web.render import NAVIGATION, Pages
from tidemill.site.state.status import SiteStatus
from tidemill.site.watch.views import Views
from tidemill.wire.api import CampaignRow, JobDetail
from tidemill.wire.views import ADDED_BYTES_MAX, ALL_ADDED_BYTES_MAX, types

Install = Callable[..., None]
CACHED = (extensions.installed, pages.groups, served, types)
MODULE = """
from tidemill.model.identity import Act
from tidemill.server.api.routes import NoQuery, Route
from tidemill.server.web.pages import NavigationEntry, Page, PageGroup
from tidemill.wire.views import ViewType

def group(path, package="tidemill_odd"):
    return PageGroup((Page(path, lambda ask, made: "x"),), package, (NavigationEntry(path, "Odd", Act.READ),))

ODD, JOBS, ELSEWHERE = group("/odd/{name:str}"), group("/jobs/odd"), group("/oddly")
BARE = group("/bare", "tidemill_bare")
NO_GROUP = 7
OPEN = PageGroup((), "tidemill_odd", (("/odd", "Odd"),))
SAYS = PageGroup((), "tidemill_odd", (), lambda about: 1 // 0, lambda about: "no link")

def routes(path, run=lambda call: 7, reply=int):
    return (Route("GET", path, "Odd", NoQuery, None, reply, run, Act.READ),)

FINE, TAKEN, ABOVE, EMPTY = routes("/v1/odd"), routes("/v1/jobs/odd"), routes("/v1/oddly"), routes("/v1/odd", None)
NO_TYPE = routes("/v1/odd", reply=type(routes))
SEEN = ViewType("seen", int, 0, made=lambda status: status.since_us)
LONG = ViewType("long", str, "", bytes_max=9, made=lambda status: "x" * 8)
FAILS = ViewType("fails", int, 0, made=lambda status: 1 // 0)
MUCH = ViewType("much", str, "", made=lambda status: "x" * 200_000)
ODDER = ViewType("odder", object, 0, made=lambda status: lambda: 0)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs an extension `odd` with these entry points, as long as a test runs."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tidemill_odd" / "templates").mkdir(parents=True)
    (tmp_path / "tidemill_odd" / "__init__.py").write_text(MODULE)
    (tmp_path / "tidemill_bare").mkdir()
    (tmp_path / "tidemill_bare" / "__init__.py").touch()

    def forget() -> None:
        extensions.forget_faults()
        for each in CACHED:
            each.cache_clear()

    def put(group: str, **named: str) -> None:
        about = tmp_path / f"tidemill_odd-{tidemill.__version__}.dist-info"
        about.mkdir(exist_ok=True)
        lines = [f"{name} = tidemill_odd:{attribute}" for name, attribute in named.items()]
        (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
        forget()

    yield put
    for name in ("tidemill_odd", "tidemill_bare"):
        sys.modules.pop(name, None)
    forget()


def test_pages_stand_below_the_name_of_their_entry_point(install: Install) -> None:
    install(extensions.PAGES, odd="ODD")
    assert "/odd/{name:str}" in [each.path for each in pages.added()]
    assert "odd" in pages.names()
    navigation: Any = Pages().templates.globals["navigation"]
    assert navigation[-1].name == "Odd"
    assert extensions.faults() == {}


@pytest.mark.parametrize(
    ("name", "attribute", "why"),
    [
        ("jobs", "JOBS", "its pages `/jobs` are left out: that name is taken"),
        ("v1", "JOBS", "its pages `/v1` are left out: that name is taken"),
        ("metrics", "JOBS", "its pages `/metrics` are left out: that name is taken"),
        ("jobs/odd", "JOBS", "its pages are left out: not all are below `/jobs/odd`"),
        ("odd", "OPEN", "its pages are left out: not all are below `/odd`"),
        ("odd", "ELSEWHERE", "its pages are left out: not all are below `/odd`"),
        ("odd", "NO_GROUP", "its pages are left out: not all are below `/odd`"),
    ],
)
def test_pages_of_others_addresses_are_left_out(
    install: Install, name: str, attribute: str, why: str
) -> None:
    install(extensions.PAGES, **{name: attribute})
    assert [each.path for each in pages.added() if each.path.startswith("/jobs")] == []
    assert name not in pages.groups()
    assert name in pages.CORE or name == "odd" or name not in pages.names()
    assert extensions.faults() == {"odd": why}


def test_a_sentence_that_fails_or_is_no_link_breaks_no_page(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(extensions.PAGES, odd="SAYS")
    kinds: list[Any] = [JobDetail, CampaignRow]
    empty = [kind(**dict.fromkeys(kind.__struct_fields__)) for kind in kinds]
    said = [link.address for about in empty for link in pages.links_of(about)]
    assert [each for each in said if "odd" in each] == []
    failed = [
        each for each in caplog.records if each.message == "page.link_failed" and "odd" in str(vars(each))
    ]
    assert len(failed) == 1


def test_templates_that_are_missing_or_broken_break_no_other_page(install: Install, tmp_path: Path) -> None:
    (tmp_path / "tidemill_odd" / "templates" / "a.html").write_text("{% if %}")
    install(extensions.PAGES, odd="ODD", bare="BARE")
    templates = Pages().templates
    assert templates.get_template("job.html") is not None
    assert sorted(extensions.faults()) == ["bare", "odd"]


def test_a_page_of_an_extension_that_is_away_says_which_command_installs_it() -> None:
    unused: Any = None
    for extension, name in (
        (each, page) for each in extensions.KNOWN for page in extensions.KNOWN[each].pages
    ):
        assert extensions.missing(extensions.PAGES, name) is not None
        if extension in extensions.installed():
            continue  # `make test-core` runs this where none is
        (page,) = [each for each in pages.added() if each.path == f"/{name}/{{rest:str}}"]
        with pytest.raises(MissingError, match=f"`/{name}` needs the extension `{extension}`") as caught:
            page.show(unused, unused)
        assert caught.value.hint == f"install it: pip install 'tidemill[{extension}]'"


def test_routes_stand_below_the_name_of_their_entry_point_and_in_the_document(install: Install) -> None:
    install(extensions.ROUTES, odd="FINE")
    assert [each.path for each in served()[len(ROUTES) :]][-1] == "/v1/odd"
    assert "/v1/odd" in openapi.document()["paths"]


@pytest.mark.parametrize(
    ("name", "attribute", "why"),
    [
        ("jobs", "TAKEN", "its routes `/v1/jobs` are left out: that name is taken"),
        ("odd", "ABOVE", "its routes are left out: not all are functions below `/v1/odd`"),
        ("odd", "NO_GROUP", "its routes are left out: not all are functions below `/v1/odd`"),
        ("odd", "NO_TYPE", "its routes are left out: not all are functions below `/v1/odd`"),
        ("odd", "EMPTY", "its routes are left out: not all are functions below `/v1/odd`"),
    ],
)
def test_routes_of_others_addresses_are_left_out(
    install: Install, name: str, attribute: str, why: str
) -> None:
    install(extensions.ROUTES, **{name: attribute})
    assert [each.path for each in served() if "odd" in each.path] == []
    assert extensions.faults() == {"odd": why}


def test_a_view_is_made_of_the_status_and_one_that_fails_is_left_out(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(
        extensions.VIEWS, seen="SEEN", long="LONG", fails="FAILS", odder="ODDER", mode="SEEN", other="SEEN"
    )
    views = Views.__new__(Views)
    views._failed = {}
    for _ in range(2):
        made = views._of_extensions(SiteStatus(since_us=7))
        assert {name: bytes(each) for name, each in made.items() if name in types()}["seen"] == b"7"
        assert {"long", "fails", "odder"}.isdisjoint(made)
    assert [each.message for each in caplog.records].count("view.failed") == 3, "each once"
    assert types()["mode"].made is None
    assert "other" not in types()
    assert "it is not a `ViewType` of that name" in extensions.faults()["odd"]


def test_views_of_extensions_are_short_one_by_one_and_together(install: Install) -> None:
    kinds = {name: types()["mode"]._replace(name=name, made=lambda _: "x" * 200_000) for name in "abcdefgh"}
    views = Views.__new__(Views)
    views._failed = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemill.site.watch.views.types", lambda: kinds)
        made = views._of_extensions(SiteStatus(since_us=7))
    assert [*made] == ["a", "b", "c", "d", "e"]
    assert sum(len(bytes(each)) for each in made.values()) <= ALL_ADDED_BYTES_MAX
    install(extensions.VIEWS, much="MUCH")
    assert types()["much"].bytes_max == ADDED_BYTES_MAX


class Pair(NamedTuple):
    text: str
    number: int


def test_what_a_view_holds_is_bounded_whatever_its_type() -> None:
    kind = types()["mode"]
    (pair,) = bounded(kind, [Pair("x" * 10_000, 2**70)])
    assert isinstance(pair, Pair)
    assert (len(pair.text) <= TEXT_MAX, pair.number) == (True, NUMBER_MAX)
    table = bounded(kind, {str(each): "x" * 10_000 for each in range(1_000)})
    assert (len(table), max(map(len, table.values()))) == (kind.inner_max, len(pair.text))
    assert bounded(kind, [b"bytes", {1}, None, True, {"a": b"bytes"}]) == [None, True]


def test_the_core_has_a_name_for_each_page_of_its_navigation() -> None:
    assert {each.path.strip("/") for each in NAVIGATION} <= pages.CORE
