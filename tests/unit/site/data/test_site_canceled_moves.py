"""Moves end with the jobs that they are for, begun or not, and only then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.site.data.test_site_arrivals import Working
from tests.unit.site.data.test_site_outputs import Place
from tests.unit.site.data.test_site_stage_room import FarFiles
from tests.unit.site.fleet.test_site_troubles import Agent
from tests.unit.transfer.http_origin import Origin, answer, origin

from tidemill.config.transfer import Endpoint
from tidemill.model.job import Input, JobSpec, Output, OutputKind
from tidemill.site.data.moves import MoveOrder
from tidemill.site.data.outputs import Deliverer
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.remote_outputs import Departures
from tidemill.site.state import site_state
from tidemill.transfer.contract import Direction
from tidemill.transfer.file import Roots
from tidemill.wire.api import CancelOrder

pytestmark = pytest.mark.timing(transfer={"TRIES_MAX": 5, "TRANSFERS_MAX": 1, "PAUSE_S": 3600})

LONG_S = 3600.0
"""A pause between tries that no test waits for: what it ends before was broken off."""


class CancelingSite(Agent):
    """A site at an origin with one place for moves, where files below `/held` are answered when `opened` is set, those
    below `/slow` come then, and those below `/ill` never."""

    def __init__(self, home: Path, server: Origin) -> None:
        super().__init__(
            home,
            Endpoint(url=f"{server.base}/", transfers_max=1, access="both"),
        )
        self.server = server
        self.opened = threading.Event()
        server.decide = self._decide

    def _decide(self, method: str, target: str, headers: dict[str, str]) -> bytes | None:
        if target.startswith("/held") or (target.startswith("/slow") and method == "GET"):
            self.opened.wait(60)
        if target.startswith("/ill"):
            return answer("503 Service Unavailable", is_head=method == "HEAD")
        return None

    def ask(self, *targets: str) -> list[int]:
        """Jobs that read these files."""
        names = [Input(name="in", url=self.server.base + target) for target in targets]
        return self.lease(*(JobSpec(app="sim", events=1, inputs=[each]) for each in names))

    def cancel(self, *jobs: int, keep: bool = False) -> None:
        for job in jobs:
            self.orders += 1
            order = CancelOrder(n=self.orders, job=job, reason="over", keep=keep)
            self.log.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    def tick(self) -> None:
        """As an agent does it, which cleans what it has forgotten."""
        over = list(self.log.pool.state.forgotten)
        self.stage.release(*over)
        for job in over:
            self.stage.clean(job)
        if over:
            self.log.apply(site_state.Cleaned(jobs=over))
        self.granting.forget(*over)
        super().tick()

    @property
    def queries(self) -> set[str]:
        """Moves that wait or run."""
        return self.moves.known()

    def asked(self, prefix: str) -> list[str]:
        return [each for each in self.server.targets("HEAD") if each.startswith(prefix)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CancelingSite]:
    with origin() as server:
        made = CancelingSite(tmp_path, server)
        try:
            yield made
        finally:
            made.opened.set()
            made.close()


@pytest.mark.parametrize("keep", [False, True])
def test_moves_of_canceled_jobs_end_begun_or_not_and_others_come_to_their_turn(
    site: CancelingSite, keep: bool
) -> None:
    jobs = site.ask(*(f"/ill/z{number}" for number in range(10)))
    site.until(lambda: len(site.queries) == 10 and site.asked("/ill"))
    site.server.serve("/f3", b"events")
    (live,) = site.ask("/f3")
    site.until(lambda: len(site.queries) == 11)
    site.cancel(*jobs, keep=keep)
    site.until(lambda: live in site.granted())
    assert len(site.asked("/ill")) == 1, "no other was asked for, and that one was not asked for again"
    site.until(lambda: not site.queries)
    assert not site.stage.budget.reserved


@pytest.mark.parametrize("keep", [False, True])
def test_files_that_come_for_canceled_jobs_are_broken_off_and_others_come_to_their_turn(
    site: CancelingSite, keep: bool
) -> None:
    targets = [f"/slow/z{number}" for number in range(10)]
    for target in (*targets, "/f3"):
        site.server.serve(target, b"events")
    jobs = site.ask(*targets)
    site.until(lambda: len(site.stage.budget.reserved) == 10 and site.server.targets("GET"))
    (live,) = site.ask("/f3")
    site.until(lambda: len(site.queries) == 11)
    site.cancel(*jobs, keep=keep)
    site.until(lambda: live in site.granted())
    assert len([each for each in site.server.targets("GET") if each.startswith("/slow")]) == 1
    site.until(lambda: not site.queries)
    assert not site.stage.budget.reserved


def test_a_file_that_another_job_wants_comes_without_being_asked_for_again(site: CancelingSite) -> None:
    site.server.serve("/held/a", b"events")
    gone, stays = site.ask("/held/a", "/held/a")
    askers = site.stage._contents._askers
    site.until(lambda: site.asked("/held") and set(askers._asked) == {gone, stays})
    (before,) = site.moves._running.values()
    site.cancel(gone)
    site.until(lambda: gone not in askers._asked)
    assert not before.canceled.is_set()
    assert list(site.moves._running.values()) == [before]
    site.opened.set()
    site.until(lambda: stays in site.granted())


def test_a_job_that_comes_back_has_its_file_fetched_again(site: CancelingSite) -> None:
    site.server.serve("/held/a", b"events")
    (job,) = site.ask("/held/a")
    site.until(lambda: site.asked("/held"))
    spec = site.log.pool.state.jobs[job].spec
    site.cancel(job)
    site.until(lambda: not site.queries)
    site.orders = job - 1  # the same number
    site.log.pool.state.have = job - 1
    assert site.lease(spec) == [job]
    site.opened.set()
    site.until(lambda: job in site.granted())


def test_a_delivery_on_its_way_stays(site: CancelingSite, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"result")
    url = f"{site.server.base}/held/out"
    out = MoveOrder(id="out-1", direction=Direction.OUT, url=url, path=str(tmp_path / "out"))
    site.moves.submit(out)
    site.until(lambda: site.moves._running)
    jobs = site.ask("/ill/a", "/ill/b")
    site.until(lambda: len(site.queries) == 3)
    site.cancel(*jobs)
    site.until(lambda: site.queries == {"out-1"})
    assert not site.moves._running["out-1"].canceled.is_set()


def test_an_agent_is_busy_until_what_came_of_a_delivery_is_taken(tmp_path: Path) -> None:
    """`tidemill site run --once` could end between a move's end and the delivery's."""
    far, place = FarFiles(1), Place(tmp_path)
    place.deliverer = Deliverer(
        tmp_path / "fleets",
        OwnedPlaces(Roots([tmp_path / "data"]), place.base),
        bytes_max=1 << 30,
        departures=Departures(tmp_path / "stage" / "out", far),
    )
    it = Working(place)
    try:
        job = it.add()
        outputs = [Output(name="hits", path="hits.txt", kind=OutputKind.CONCAT)]
        there = "https://far.example/out"
        job.spec = JobSpec(command=["x"], events=10, outputs=outputs, output_dir=there)
        job.parts.extend(place.parts((0, 4)))
        job.done.add(0, 4)
        it.log.pool.state.deliveries[7] = "0-3"
        it.until(lambda: it.deliveries.waits_for_moves)
        far.come()
        assert it.deliveries.waits_for_moves, "nobody has taken it"
        it.until(lambda: not it.log.pool.state.deliveries)
        assert not it.deliveries.waits_for_moves
    finally:
        it.close()
