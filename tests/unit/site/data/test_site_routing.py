"""What payloads are given to open: the way that the site's numbers say, within what its endpoints permit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tidemill.config.caching import SiteCache
from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import SiteError
from tidemill.model.failure import FailureClass
from tidemill.model.far import CatalogueName
from tidemill.model.job import Input, InputKind, JobSpec, ReadAs
from tidemill.routing.copies import CatalogueEntry, CatalogueError, KnownCopies
from tidemill.routing.links import DOWN_S, PLACES_MAX, PROBES_MAX, RouteLinks
from tidemill.site.data.owners import OwnedPlaces, Reader
from tidemill.site.data.routing import DISTRUST_S, Opening, SoughtFile
from tidemill.site.data.staging import Stage
from tidemill.transfer.contract import TransferError
from tidemill.transfer.file import Roots
from tidemill.wire.node import InputDef

ORIGIN = "root://origin.example.org//store/x.root"
FAR_S, NEAR_S = 0.25, 0.001
CACHES = [SiteCache(name="lrz", url="root://cache.example.org:1095")]
PROGRAM = Opening(opens=["root"])


class RoutingStage:
    """A stage whose places answer as `rtts` says; those that it does not name refuse connections."""

    def __init__(self, folder: Path, **more: object) -> None:
        self.folder = folder
        self.rtts: dict[str, float] = {
            "root://origin.example.org:1094": FAR_S,
            "root://cache.example.org:1095": NEAR_S,
        }
        self.probes: list[str] = []
        (folder / "stage").mkdir(exist_ok=True)
        values: dict[str, object] = {"endpoints": [Endpoint(url="root://*.example.org//store")], **more}
        config = SiteConfig(name="s", server="unix:/x", **values)  # type: ignore[arg-type]
        self.stage = Stage(folder / "stage", config, OwnedPlaces(Roots([folder / "data"])))
        self.stage.routes.links._probe = self._probe

    def know(self, *urls: str) -> None:
        """The site knows copies of ORIGIN there, the best first, and of no other file."""
        self.stage.routes._known = KnownCopies(lambda url: list(urls) if url == ORIGIN else [])

    def _probe(self, place: str) -> float:
        self.probes.append(place)
        if place not in self.rtts:
            raise ConnectionRefusedError("connection refused")
        return self.rtts[place]

    def lay_out(self, one: Input, opening: Opening = PROGRAM, *, job: int = 1, events: int = 1) -> InputDef:
        spec = JobSpec(app="a", events=events, inputs=[one])
        (found,) = self.stage.stage(job, spec, [(0, events)], Reader(opening=opening))
        return found

    def opened(self, found: InputDef, event: int | None = None) -> str:
        assert found.path is not None
        path = Path(found.path) if event is None else Path(found.path) / str(event)
        return path.with_name(f".{path.name}.url").read_text().split("\n")[0]


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., RoutingStage]:
    return lambda **more: RoutingStage(tmp_path, **more)


def shared(url: str = ORIGIN, **more: object) -> Input:
    return Input(name="f", url=url, read=ReadAs.URL, **more)  # type: ignore[arg-type]


def test_a_far_file_of_which_more_reads_are_expected_is_opened_through_the_cache(
    site: Callable[..., RoutingStage],
) -> None:
    made = site(caches=CACHES)
    found = made.lay_out(shared(), PROGRAM._replace(ready=[(0, 20)]), events=20)

    assert found.kind == "url"
    assert made.opened(found) == f"root://cache.example.org:1095//{ORIGIN}"
    (row,) = made.stage.routes.rows(1)
    assert row.way == "cache"
    assert "250 ms away" in row.why


def test_a_near_file_is_opened_directly_and_places_are_measured_once(
    site: Callable[..., RoutingStage],
) -> None:
    made = site(caches=CACHES)
    made.rtts["root://origin.example.org:1094"] = NEAR_S
    for job in range(1, 50):
        assert made.opened(made.lay_out(shared(), job=job)) == ORIGIN

    assert sorted(made.probes) == ["root://cache.example.org:1095", "root://origin.example.org:1094"]


def test_each_line_has_a_url_and_only_the_event_that_failed_changes_its_way(
    site: Callable[..., RoutingStage], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    lines = tmp_path / "data" / "lines"
    lines.write_text("".join(f"root://origin.example.org//store/{n}\n" for n in range(3)))
    made = site(caches=CACHES)
    one = Input(name="f", url=str(lines), kind=InputKind.EACH, read=ReadAs.URL)
    before = made.lay_out(one, PROGRAM, events=3)
    firsts = [made.opened(before, event) for event in range(3)]
    made.lay_out(one, PROGRAM._replace(failures={1: 1}), events=3)
    seconds = [made.opened(before, event) for event in range(3)]

    assert before.kind == "urls"
    assert [a == b for a, b in zip(firsts, seconds, strict=True)] == [True, False, True]
    assert {firsts[1].startswith("root://cache"), seconds[1].startswith("root://cache")} == {True, False}


def test_a_cache_that_went_is_passed_by_and_one_that_all_ways_need_makes_the_job_wait(
    site: Callable[..., RoutingStage],
) -> None:
    made = site(caches=CACHES)
    del made.rtts["root://cache.example.org:1095"]
    assert made.opened(made.lay_out(shared(), PROGRAM._replace(ready=[(0, 20)]), events=20)) == ORIGIN

    made.rtts.clear()
    made.stage.routes.links._tried_s.clear()
    with pytest.raises(TransferError, match="answers") as error:
        made.lay_out(shared(), job=2)
    assert error.value.transient


@pytest.mark.parametrize("url", ["root://evil.example.net//store/x", "root://origin.example.org//private/x"])
def test_no_url_widens_what_endpoints_permit(site: Callable[..., RoutingStage], url: str) -> None:
    made = site(caches=CACHES)
    with pytest.raises(TransferError, match="does not read from there") as error:
        made.lay_out(shared(url))

    assert not error.value.transient
    assert made.probes == [], "nobody connects to what is not permitted"


def test_whoever_knows_copies_permits_nothing(site: Callable[..., RoutingStage]) -> None:
    made = site()
    made.know("root://near.example.org//store/copy/x.root", "root://evil.example.net//x.root")
    made.rtts["root://near.example.org:1094"] = NEAR_S
    made.rtts["root://evil.example.net:1094"] = 0.0

    assert made.opened(made.lay_out(shared())) == "root://near.example.org//store/copy/x.root"


def test_a_copy_on_the_sites_own_file_systems_is_read_as_a_file(
    site: Callable[..., RoutingStage], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.root").write_bytes(b"here")
    made = site()
    made.know(f"{tmp_path}/data/x.root")
    found = made.lay_out(shared())

    assert found.kind == "shared"
    assert found.path is not None
    assert Path(found.path).read_bytes() == b"here"


def test_no_copy_is_a_file_that_the_site_does_not_permit(site: Callable[..., RoutingStage]) -> None:
    made = site()
    made.know("/etc/passwd")

    with pytest.raises(Exception, match="data roots"):
        made.lay_out(shared())


@pytest.mark.parametrize(
    ("one", "opening", "why"),
    [
        (shared(), Opening(), "opens"),
        (shared(), PROGRAM._replace(why_closed="the application says `network = false`"), "network"),
        (shared(sha256="0" * 64), PROGRAM, "sha256"),
    ],
)
def test_what_no_program_can_open_is_staged_with_the_reason(
    site: Callable[..., RoutingStage], one: Input, opening: Opening, why: str
) -> None:
    made = site(caches=CACHES)
    with pytest.raises(SiteError, match="moves no remote files"):
        made.lay_out(one, opening)

    (row,) = made.stage.routes.rows(1)
    assert row.way == "stage"
    assert why in row.why


def test_lines_that_could_be_read_in_two_ways_fail_the_job_and_show_no_secret(
    site: Callable[..., RoutingStage], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    lines = tmp_path / "data" / "lines"
    made = site(caches=CACHES)
    for number, (line, why) in enumerate(
        [
            ("root://me:secret@origin.example.org//store/x", "user name"),
            ("root://origin.example.org//store/../private/x", "`..`"),
            ("root://origin.example.org//store/x?authz=secret", "opaque"),
            ("root://origin.example.org//store//root://evil.example.net//x", "another URL"),
        ]
    ):
        lines.write_text(line + "\n")
        one = Input(name="f", url=str(lines), kind=InputKind.EACH, read=ReadAs.URL)
        with pytest.raises(TransferError, match="line 1 of input `f`") as error:
            made.lay_out(one, job=number + 1)
        assert why in error.value.message
        assert "secret" not in error.value.message
        assert not error.value.transient


def test_a_catalogue_that_nobody_asks_is_named(site: Callable[..., RoutingStage]) -> None:
    with pytest.raises(TransferError, match="asks no catalogue"):
        site().lay_out(shared("rucio:lab/file"))


def test_what_the_catalogue_says_is_an_answer_a_wait_or_a_refusal(site: Callable[..., RoutingStage]) -> None:
    made = site()
    names = {name: CatalogueName("lab", name) for name in ("good", "down")}
    refused: list[CatalogueError] = []

    def look_up(asked: Sequence[CatalogueName]) -> dict[CatalogueName, CatalogueEntry]:
        if refused:
            raise refused[0]
        known = {
            names["good"]: CatalogueEntry(urls=[ORIGIN]),
            names["down"]: CatalogueEntry(why="no store has it available now"),
        }
        return {name: known[name] for name in asked if name in known}

    made.stage.routes._known = KnownCopies(lambda url: [], look_up)
    assert made.opened(made.lay_out(shared("rucio:lab/good"))) == ORIGIN
    for name, why, is_transient in (("down", "no store has it", True), ("gone", "knows no file", False)):
        with pytest.raises(TransferError, match=why) as error:
            made.lay_out(shared(f"rucio:lab/{name}"), job=2)
        assert error.value.transient is is_transient
    for is_credential, failure in ((True, FailureClass.CREDENTIAL), (False, FailureClass.STAGE_IN)):
        refused[:] = [CatalogueError("it answered 401", is_credential=is_credential)]
        with pytest.raises(TransferError, match="answered 401") as error:
            made.lay_out(shared("rucio:lab/good"), job=3)
        assert error.value.failure is failure


def test_measurements_are_kept_over_restarts_and_bounded(tmp_path: Path) -> None:
    links = RouteLinks(tmp_path / "links.json", 300, probe=lambda place: 0.2)
    for number in range(PLACES_MAX + 10):
        links._latest_s.clear()  # as if a minute had gone by
        links.link(f"root://h{number}:1094")
    links.note_moved(f"root://h{PLACES_MAX + 9}/x", 100_000_000, 10.0)
    links.write()

    again = RouteLinks(tmp_path / "links.json", 300, probe=lambda place: 0.1)
    assert len(again._places) == PLACES_MAX
    assert again.link(f"root://h{PLACES_MAX + 9}:1094").bytes_per_s == 10_000_000
    (tmp_path / "links.json").write_bytes(b"{broken")
    assert RouteLinks(tmp_path / "links.json", 300, probe=lambda place: 0.1)._places == {}


def test_a_server_that_is_busy_for_a_moment_is_not_far_away(tmp_path: Path) -> None:
    """The first reply comes late, as from a server, or on a login node, that others keep busy."""
    late_s = 0.5

    def serve(listener: socket.socket) -> None:
        for pause_s in (late_s, 0.0, 0.0):
            connection, _ = listener.accept()
            with connection:
                connection.recv(20)
                time.sleep(pause_s)
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        links = RouteLinks(tmp_path / "links.json", 300)
        found = links.link(f"root://127.0.0.1:{listener.getsockname()[1]}")
        server.join(10)
    assert found.rtt_s is not None
    assert found.rtt_s < late_s / 2


def test_a_job_that_names_hundreds_of_dead_hosts_has_a_few_of_them_measured(tmp_path: Path) -> None:
    tried: list[str] = []

    def dead(place: str) -> float:
        tried.append(place)
        raise TimeoutError("timed out")

    links = RouteLinks(tmp_path / "links.json", 300, probe=dead)
    found = [links.link(f"root://h{number}:1094") for number in range(500)]

    assert len(tried) == PROBES_MAX
    assert [each.is_down for each in found[: PROBES_MAX + 1]] == [True] * PROBES_MAX + [False]


def test_a_job_whose_ward_asks_for_the_cache_reads_a_near_origin_through_it(tmp_path: Path) -> None:
    site = RoutingStage(tmp_path, caches=CACHES)
    site.rtts["root://origin.example.org:1094"] = NEAR_S
    one = Input(name="in", url=ORIGIN, read=ReadAs.URL)

    plain = site.opened(site.lay_out(one))
    asked = site.opened(site.lay_out(one, PROGRAM._replace(why_cached="its ward says so"), job=2))

    assert (plain, asked) == (ORIGIN, f"root://cache.example.org:1095//{ORIGIN}")


def test_a_place_that_went_is_measured_again_soon_and_one_that_answers_is_not(tmp_path: Path) -> None:
    tried: list[str] = []

    def half(place: str) -> float:
        tried.append(place)
        if place == "root://gone:1094":
            raise ConnectionRefusedError("refused")
        return 0.1

    links = RouteLinks(tmp_path / "links.json", 300, probe=half)
    for place in ("root://gone:1094", "root://here:1094"):
        links.link(place)
    assert (links.is_down("root://gone:1094"), links.is_down("root://here:1094")) == (True, False)
    for place in list(links._tried_s):
        links._tried_s[place] -= DOWN_S + 1  # as if that time had gone by
        links.link(place)

    assert tried == ["root://gone:1094", "root://here:1094", "root://gone:1094"]
    assert not links.is_down("root://never.asked:1094")


def test_a_copy_that_is_not_what_the_catalogue_means_is_not_read_for_an_hour(
    site: Callable[..., RoutingStage],
) -> None:
    other = "root://second.example.org//store/x.root"
    made = site()
    made.know(other)
    made.rtts["root://second.example.org:1094"] = FAR_S
    routes, sought = made.stage.routes, SoughtFile(ORIGIN, "input `f`")
    routes.distrust(ORIGIN, "it has 3 bytes, and the catalogue says 4")

    assert routes.choose(sought, PROGRAM).route.url == other
    routes.distrust(other, "it is gone")
    with pytest.raises(TransferError, match="is not read: it has 3 bytes, and the catalogue says 4") as error:
        routes.choose(sought, PROGRAM)
    assert not error.value.transient
    for url, (until_s, why) in list(routes._distrusted.items()):
        routes._distrusted[url] = until_s - DISTRUST_S, why  # as if that time had gone by
    assert routes.choose(sought, PROGRAM).route.url == ORIGIN
