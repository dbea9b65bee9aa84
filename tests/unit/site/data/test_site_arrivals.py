"""Files of finished events come while their job goes on; its delivery keeps them and ends as if none had come."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.timing import timing
from tests.unit.site.applications.test_site_applications import preparer
from tests.unit.site.data.test_site_outputs import Place, lines
from tests.unit.site.data.test_site_pools import _Site
from tests.unit.site.state.test_site_activity import done
from tests.unit.site.state.test_site_log import open_log

from tidemill.config.site import SiteConfig
from tidemill.errors import JobError, SiteError
from tidemill.model.arrival import FILES_PER_PAUSE, arrives, comes_when, pause_s
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Deliver, JobSpec, Output, OutputKind, Pack
from tidemill.site.data.deliveries import Deliveries
from tidemill.site.data.outputs import CanceledError, Deliverer, OutputDelivery
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.placed.arrivals import BATCH_FILES, Arrivals, batch, unacknowledged
from tidemill.site.data.placed.manifests import ARRIVED, JobManifest
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog, restore
from tidemill.site.state.served_site import DELIVERY_THREADS, ServedSite, open_pools
from tidemill.transfer.file import Roots
from tidemill.wire.api import (
    ArrivedReport,
    CancelOrder,
    DiscardOrder,
    DoneReport,
    Order,
    OutputRow,
    PayloadUsage,
)
from tidemill.wire.node import Done, OutputRef

GOES_ON = threading.Event()  #: nothing is canceled
SPREAD = Output(name="hits", path="hits-{event}.txt", pack=Pack.FILES)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def delivery(
    place: Place, parts: list[site_state.KeptPart], *outputs: Output, number: int = 1, events: int = 10
) -> OutputDelivery:
    events_done = str(IntervalSet((part.first, part.first + part.count) for part in parts))
    made = place.delivery(parts, done=events_done, kind=OutputKind.EACH, events=events)
    return msgspec.structs.replace(made, outputs=list(outputs or (SPREAD,)), number=number)


def early(place: Place, parts: list[site_state.KeptPart], *outputs: Output) -> list[OutputRow]:
    return place.deliverer.arrive(delivery(place, parts, *outputs, number=ARRIVED), GOES_ON)


def folder(place: Place) -> Path:
    return place.base / "c" / "7-hits"


def manifest(place: Place) -> JobManifest:
    return msgspec.json.decode((folder(place) / "manifest-7.json").read_bytes(), type=JobManifest)


def tree(place: Place) -> dict[str, bytes]:
    return {str(path.relative_to(place.base)): path.read_bytes() for path in place.base.rglob("*.*")}


@pytest.fixture
def whole(tmp_path: Path) -> Place:
    """Another place, where the same job is delivered at its end alone."""
    (tmp_path / "whole").mkdir()
    return Place(tmp_path / "whole")


# ---- what arrives, and what the delivery makes of it ---------------------------------------------------------------


def test_a_job_whose_files_arrived_ends_with_the_same_manifest_and_files(place: Place, whole: Place) -> None:
    ranges = ((3, 1), (0, 1), (1, 2), (8, 1))
    parts = place.parts(*ranges)
    (first,) = early(place, parts[:2])
    assert (first.url, first.events, first.sha256) == (f"{folder(place).as_uri()}/", "0-2", "")
    before = {path.name: path.stat().st_ino for path in folder(place).glob("*.txt")}
    assert sorted(before) == ["hits-0.txt", "hits-1.txt"], "a range of two is named by its first"
    (second,) = early(place, parts[2:3])
    assert (second.events, second.size_bytes) == ("0-3", sum(p.outputs[0].length for p in parts[:3]))
    assert (manifest(place).done, manifest(place).failed) == ("", ""), "nothing has failed yet"
    row = place.deliverer.deliver(delivery(place, parts))
    expected = whole.deliverer.deliver(delivery(whole, whole.parts(*ranges)))
    assert tree(place) == tree(whole)
    assert [each.sha256 for each in row] == [each.sha256 for each in expected]
    assert {name: (folder(place) / name).stat().st_ino for name in before} == before, "none is written again"


@pytest.mark.parametrize("crash", ["before the files have their names", "before it is recorded"])
def test_a_crash_while_files_arrive_loses_and_doubles_nothing(place: Place, whole: Place, crash: str) -> None:
    ranges = ((0, 1), (1, 1), (2, 1))
    parts = place.parts(*ranges)
    rows = early(place, parts[:2])
    left = folder(place) / "hits-1.txt"
    if crash.endswith("names"):
        left.unlink()
        (folder(place) / ".hits-1.txt.7.part").write_text("half")
    before = (folder(place) / "hits-0.txt").stat().st_ino
    assert early(place, parts[:2]) == rows
    assert left.read_text() == lines(1)
    assert (folder(place) / "hits-0.txt").stat().st_ino == before
    place.deliverer.deliver(delivery(place, parts))
    whole.deliverer.deliver(delivery(whole, whole.parts(*ranges)))
    assert tree(place) == tree(whole)


def test_the_delivery_completes_what_was_moved_away_or_never_recorded(place: Place, whole: Place) -> None:
    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    (folder(place) / "hits-0.txt").unlink()
    place.deliverer.deliver(delivery(place, parts))
    whole.deliverer.deliver(delivery(whole, whole.parts((0, 1), (1, 1))))
    assert tree(place) == tree(whole)


def test_what_has_arrived_needs_its_bundle_no_more(place: Place) -> None:
    parts = place.parts((0, 1))
    early(place, parts)
    (place.bundle / "p.tar").unlink()
    (row,) = place.deliverer.deliver(delivery(place, parts))
    assert row.events == "0"


def test_the_file_of_a_result_that_does_not_count_is_withdrawn_unless_it_was_changed(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1), (2, 1))
    early(place, parts)
    (folder(place) / "hits-2.txt").write_text("mine")
    place.deliverer.deliver(delivery(place, parts[:1]))
    assert sorted(path.name for path in folder(place).glob("*.txt")) == ["hits-0.txt", "hits-2.txt"]
    assert [each.file for each in manifest(place).files] == ["hits-0.txt"]


def test_a_file_that_its_owner_changed_after_it_arrived_stays_beside_the_one_of_the_job(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    (folder(place) / "hits-1.txt").write_text("changed")
    whole = delivery(place, parts)
    (row,) = place.deliverer.deliver(whole)
    expected = {"hits-0.txt": lines(0), "hits-1.txt": "changed", "hits-hits-1.txt": lines(1)}
    assert {path.name: path.read_text() for path in folder(place).glob("*.txt")} == expected
    assert [each.file for each in manifest(place).files] == ["hits-0.txt", "hits-hits-1.txt"]
    assert place.deliverer.deliver(whole) == [row], "repeated, it changes nothing"
    assert {path.name: path.read_text() for path in folder(place).glob("*.txt")} == expected


def test_a_manifest_that_was_tampered_with_removes_nothing_elsewhere(place: Place, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(lines(1))
    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    found = manifest(place)
    files = [msgspec.structs.replace(each, file=f"../../../{victim.name}") for each in found.files]
    path = folder(place) / "manifest-7.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, files=files)))
    place.deliverer.deliver(delivery(place, parts[:1]))
    assert victim.read_text() == lines(1)


def _forge(place: Place, **fields: object) -> None:
    """What others who may write into the directory can make of the manifest: these fields, or those of its files."""
    path = folder(place) / "manifest-7.json"
    found = json.loads(path.read_bytes())
    for each in (found, *found["files"], *(one for file in found["files"] for one in file["members"])):
        each.update((key, value) for key, value in fields.items() if key in each)
    path.write_text(json.dumps(found))


def test_a_manifest_with_nonsense_in_it_is_foreign_and_stops_no_later_delivery(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1))
    place.deliverer.deliver(delivery(place, parts[:1]))
    _forge(place, done="all of them")
    (row,) = place.deliverer.deliver(delivery(place, parts[1:], number=2))
    assert row.events == "1"
    assert manifest(place).done == "1"


@pytest.mark.parametrize("nonsense", [{"count": 1 << 80}, {"first": -5}, {"size_bytes": -1}])
def test_what_a_manifest_says_of_parts_that_cannot_be_is_not_reported(
    place: Place, nonsense: dict[str, object]
) -> None:
    parts = place.parts((0, 1), (1, 1))
    early(place, parts[:1])
    _forge(place, **nonsense)
    (row,) = early(place, parts[1:])
    assert (row.events, row.size_bytes) == ("1", parts[1].outputs[0].length)


def test_the_size_that_is_reported_is_one_that_a_site_delivers(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1))
    early(place, parts[:1])
    _forge(place, size_bytes=1 << 62)
    (row,) = early(place, parts[1:])
    assert row.size_bytes == 1 << 30


def test_a_pipe_in_the_place_of_a_file_is_foreign_and_holds_nothing_up(place: Place) -> None:
    folder(place).mkdir(parents=True)
    os.mkfifo(folder(place) / "hits-0.txt")
    with pytest.raises(JobError, match="exists already and is not this job's"):
        early(place, place.parts((0, 1)))


def test_a_result_that_was_made_again_replaces_the_one_that_arrived(place: Place) -> None:
    early(place, place.parts((0, 1)))
    data = b"another result\n"
    (place.bundle / "p.tar").write_bytes(data)
    ref = OutputRef(
        name="hits", bundle="p.tar", offset=0, length=len(data), sha256=hashlib.sha256(data).hexdigest()
    )
    place.deliverer.deliver(delivery(place, [site_state.KeptPart(0, 1, "e1-1", [ref])]))
    assert (folder(place) / "hits-0.txt").read_bytes() == data


def test_a_crash_before_a_new_result_has_its_name_leaves_no_stale_file(place: Place) -> None:
    early(place, place.parts((0, 1), (1, 1)))
    former = (folder(place) / "hits-0.txt").read_bytes()
    place.word = b"again"
    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    (folder(place) / "hits-0.txt").write_bytes(former)  # as it was: the manifest is written before
    place.deliverer.deliver(delivery(place, parts))
    expected = {"hits-0.txt": "again 0\n", "hits-1.txt": "again 1\n"}
    assert {path.name: path.read_text() for path in folder(place).glob("*.txt")} == expected
    assert [each.file for each in manifest(place).files] == list(expected)


def test_files_of_results_that_do_not_count_are_taken_back_and_what_was_changed_stays(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1), (2, 1))
    early(place, parts)
    (folder(place) / "hits-1.txt").write_text("mine")
    assert place.deliverer.take_back(delivery(place, parts[:2], number=ARRIVED), GOES_ON) == 1
    assert [each.file for each in manifest(place).files] == ["hits-1.txt", "hits-2.txt"]
    assert place.deliverer.take_back(delivery(place, parts, number=ARRIVED), GOES_ON) == 1
    assert {path.name: path.read_text() for path in folder(place).glob("*.txt")} == {"hits-1.txt": "mine"}
    (folder(place) / "hits-1.txt").unlink()
    early(place, parts)
    assert place.deliverer.take_back(delivery(place, parts, number=ARRIVED), GOES_ON) == 3
    assert not folder(place).exists()
    assert place.deliverer.take_back(delivery(place, parts, number=ARRIVED), GOES_ON) == 0


def test_a_stale_file_that_a_crash_left_is_taken_back(place: Place) -> None:
    early(place, place.parts((0, 1)))
    former = (folder(place) / "hits-0.txt").read_bytes()
    place.word = b"again"
    parts = place.parts((0, 1))
    early(place, parts)
    (folder(place) / "hits-0.txt").write_bytes(former)
    assert place.deliverer.take_back(delivery(place, parts, number=ARRIVED), GOES_ON) == 1
    assert not folder(place).exists()


def test_what_was_delivered_is_not_taken_back(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1))
    place.deliverer.deliver(delivery(place, parts[:1]))
    early(place, parts)
    assert place.deliverer.take_back(delivery(place, parts, number=ARRIVED), GOES_ON) == 1
    assert [each.file for each in manifest(place).files] == ["hits-0.txt"]
    assert names(place) == ["hits-0.txt"]


def test_what_came_from_another_site_is_not_taken_back_whoever_wrote_the_manifest_last(place: Place) -> None:
    """A site that returns from its silence knows files of its former job, which another one has made since."""
    parts = place.parts((0, 1), (1, 1), (2, 1), (3, 1))
    here, there = place.deliverer, place.with_mask(None, site="there")
    here.arrive(delivery(place, parts[2:3], number=ARRIVED), GOES_ON)
    there.arrive(delivery(place, parts[:3], number=ARRIVED), GOES_ON)
    here.arrive(delivery(place, parts[1:2], number=ARRIVED), GOES_ON)  # as it is there already
    here.arrive(delivery(place, parts[3:], number=ARRIVED), GOES_ON)
    assert [(each.file, each.site) for each in manifest(place).files] == [
        ("hits-0.txt", "there"), ("hits-2.txt", ""), ("hits-1.txt", ""), ("hits-3.txt", "here"),
    ]  # fmt: skip
    assert here.take_back(delivery(place, parts, number=ARRIVED), GOES_ON) == 1
    assert names(place) == ["hits-0.txt", "hits-1.txt", "hits-2.txt"]
    there.deliver(delivery(place, parts[:3]))
    assert {each.site for each in manifest(place).files} == {""}
    assert names(place) == ["hits-0.txt", "hits-1.txt", "hits-2.txt"]


def test_files_of_a_retried_job_arrive_beside_those_that_were_delivered(place: Place, whole: Place) -> None:
    for it, arrived in ((place, True), (whole, False)):
        parts = it.parts((0, 1), (1, 1), (2, 1))
        it.deliverer.deliver(delivery(it, parts[:1]))
        if arrived:
            (row,) = early(it, parts[:2])
            assert row.events == "1", "what was delivered does not arrive again"
            assert (manifest(it).done, manifest(it).failed) == ("0", "1-9"), "as the first delivery left it"
        it.deliverer.deliver(delivery(it, parts[1:], number=2))
    assert tree(place) == tree(whole)
    assert [each.delivery for each in manifest(place).files] == [1, 2, 2]


def test_a_foreign_file_is_not_overwritten_by_one_that_arrives(place: Place) -> None:
    folder(place).mkdir(parents=True)
    (folder(place) / "hits-1.txt").write_text("mine")
    with pytest.raises(JobError, match="exists already and is not this job's"):
        early(place, place.parts((0, 1), (1, 1)))
    assert {path.name: path.read_text() for path in folder(place).iterdir()} == {"hits-1.txt": "mine"}


def test_files_that_arrive_keep_their_names_where_outputs_have_names_in_common(place: Place) -> None:
    url = f"{(place.tmp_path / 'data' / 'x').as_uri()}/"
    outputs = [
        Output(name="hits", path="x-{event}.txt", pack=Pack.FILES, url=url),
        Output(name="more", path="x-1{event}.txt", pack=Pack.FILES, url=url),
    ]
    parts = place.parts((5, 1), (15, 1))
    parts = [
        site_state.KeptPart(
            p.first, p.count, p.fleet, [*p.outputs, msgspec.structs.replace(p.outputs[0], name="more")]
        )
        for p in parts
    ]
    place.deliverer.arrive(delivery(place, parts[:1], *outputs, number=ARRIVED, events=20), GOES_ON)
    names = {"x-5.txt": lines(5), "x-15.txt": lines(5)}
    there = place.tmp_path / "data" / "x"
    assert {path.name: path.read_text() for path in there.glob("*.txt")} == names
    place.deliverer.deliver(delivery(place, parts, *outputs, events=20))
    assert {path.name: path.read_text() for path in there.glob("*.txt")} == {
        **names, "hits-x-15.txt": lines(15), "x-115.txt": lines(15),
    }  # fmt: skip


def test_an_arrival_that_is_broken_off_leaves_no_half_file(place: Place) -> None:
    canceled = threading.Event()
    canceled.set()
    with pytest.raises(CanceledError):
        place.deliverer.arrive(delivery(place, place.parts((0, 1)), number=ARRIVED), canceled)
    assert not [path for path in place.base.rglob("*") if path.is_file()]


# ---- what comes early, and when ------------------------------------------------------------------------------------


def test_only_files_of_single_events_come_before_the_end() -> None:
    spec = JobSpec(command=["x"], events=5)
    assert arrives(spec, SPREAD)
    late = {
        "is packed into one archive when the job ends": Output(name="a", path="a"),
        "is joined when the job ends": Output(name="a", path="a", kind=OutputKind.CONCAT),
        "is merged by `add` when the job ends": Output(
            name="a", path="a", kind=OutputKind.MERGE, merge="add"
        ),
        "is sent to its place when the job ends": msgspec.structs.replace(SPREAD, url="s3://bucket/x/"),
    }
    for words, output in late.items():
        assert not arrives(spec, output)
        assert comes_when(spec, output) == words
    for other in (
        msgspec.structs.replace(spec, events=1),
        msgspec.structs.replace(spec, events=100_001),
        msgspec.structs.replace(spec, output_dir="https://far/x"),
        msgspec.structs.replace(spec, deliver=Deliver.COMPLETE),
    ):
        assert not arrives(other, SPREAD)


def test_the_pause_grows_with_the_list_of_files() -> None:
    assert pause_s(30, 0) == pause_s(30, FILES_PER_PAUSE - 1) == 30
    assert pause_s(30, 100_000) == 330


def _job(*firsts: int, length: int = 10, **more: object) -> site_state.SiteJob:
    ref = OutputRef(name="hits", bundle="b.tar", offset=0, length=length, sha256="")
    fields = {
        "spec": JobSpec(command=["x"], events=100_000, outputs=[SPREAD]), "open": IntervalSet(),
        "done": IntervalSet((first, first + 1) for first in firsts),
        "parts": [site_state.KeptPart(first, 1, "f1", [ref]) for first in firsts],
    }  # fmt: skip
    return site_state.SiteJob(id=7, campaign="c", seed_base=0, **(fields | more))  # type: ignore[arg-type]


def _firsts(
    job: site_state.SiteJob, but: IntervalSet | None = None, bytes_max: int = 1 << 40
) -> tuple[list[int], bool]:
    parts, more = batch(job, [SPREAD], but=but or IntervalSet(), bytes_max=bytes_max)
    return [part.first for part in parts], more


def test_a_batch_is_bounded_in_event_order_and_leaves_out_what_has_arrived_or_may_be_refused() -> None:
    assert _firsts(_job(5, 3, 4, arrived=IntervalSet([(4, 5)]))) == ([3, 5], False)
    reports = [
        DoneReport(n=1, lease=1, job=job, first=first, count=2, outputs=True, usage=PayloadUsage())
        for job, first in ((7, 3), (8, 5))
    ]
    assert _firsts(_job(5, 3, 4), unacknowledged(reports)[7]) == ([5], False)
    many = _job(*range(BATCH_FILES + 5))
    assert _firsts(many) == ([*range(BATCH_FILES)], True)
    assert _firsts(_job(0, 1, 2, length=600 << 20)) == ([0], True)
    assert _firsts(_job(0, length=11), bytes_max=10) == (
        [],
        False,
    )
    large = _job(*range(50_000), arrived=IntervalSet([(0, 40_000)]))
    assert _firsts(large)[0] == [*range(40_000, 44_000)], "of many files a larger batch"


# ---- the agent's part ----------------------------------------------------------------------------------------------


class Working:
    """An agent's log, threads and arrivals around a place with bundles."""

    def __init__(self, place: Place, *, every_s: float = 0.03) -> None:
        self.place, self.pools = place, open_pools()
        (place.tmp_path / "apps").mkdir(exist_ok=True)
        self.every_s = every_s
        self.epoch = 1
        self.log = open_log(place.tmp_path / "log", 1)
        self._begin()

    def restart(self) -> None:
        """An agent follows, which knows what the log says."""
        self.epoch += 1
        at = self.place.tmp_path / "log"
        self.log.commit()
        self.log.close()
        self.log = SiteLog(at, self.epoch, restore(at, "here").pool, lines_max=1000)
        self._begin()

    def _begin(self) -> None:
        config = SiteConfig(name="s", server="unix:/x")
        made = _Site(self.log.pool.state, self.log, self.place.tmp_path / "fleets", self.pools, config)
        site = cast("ServedSite", made)
        prepared = preparer(self.place.tmp_path / "apps")
        with timing(site={"OUTPUTS_EVERY_S": self.every_s}):
            self.arrivals = Arrivals(site, prepared, self.place.deliverer)
        self.deliveries = Deliveries(site, prepared, self.place.deliverer, self.arrivals)

    def add(self, *parts: site_state.KeptPart, events: int = 10) -> site_state.SiteJob:
        job = _job(spec=JobSpec(command=["x"], events=events, outputs=[SPREAD]))
        self.log.pool.state.jobs[7] = job
        self.finish(job, *parts)
        return job

    def finish(self, job: site_state.SiteJob, *parts: site_state.KeptPart) -> None:
        job.parts.extend(parts)
        for part in parts:
            job.done.add(part.first, part.first + part.count)
        self.arrivals.on_records([_done(part) for part in parts])

    def order(self, order: Order) -> None:
        """What the server orders."""
        order.n = self.log.pool.state.have + 1
        self.log.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < deadline
            self.arrivals.step(self.deliveries.written)
            self.deliveries.step()
            time.sleep(0.002)

    def close(self) -> None:
        self.pools.close()
        self.log.close()

    @property
    def reports(self) -> list[ArrivedReport]:
        return [each for each in self.log.pool.state.reports if isinstance(each, ArrivedReport)]


def _done(part: site_state.KeptPart) -> Done:
    return msgspec.structs.replace(done(1, part.first), count=part.count, outputs=part.outputs)


def test_files_arrive_batch_after_batch_and_the_server_hears_of_all_of_them(place: Place) -> None:
    it = Working(place)
    try:
        parts = place.parts((0, 1), (1, 1), (2, 1))
        job = it.add(*parts[:2])
        it.until(lambda: it.reports)
        assert [row.events for row in it.reports[-1].outputs] == ["0-1"]
        it.finish(job, parts[2])
        it.until(lambda: len(it.reports) == 2)
        assert [row.events for row in it.reports[-1].outputs] == ["0-2"]
        assert str(job.arrived) == "0-2"
        it.until(lambda: not it.arrivals._waiting)
        assert not it.arrivals.step(), "what has nothing more to come is not looked at again"
    finally:
        it.close()


def test_an_agent_that_follows_goes_on_with_what_had_not_arrived(place: Place) -> None:
    it = Working(place)
    try:
        parts = place.parts((0, 1), (1, 1))
        job = it.add(*parts[:1])
        it.until(lambda: it.reports)
        job.parts.append(parts[1])  # and the agent dies before it has looked
        job.done.add(1, 2)
        it.log.commit()
        it.log.condense()
        before = (folder(place) / "hits-0.txt").stat().st_ino
        it.restart()
        it.until(lambda: len(it.reports) == 2)
        assert (folder(place) / "hits-0.txt").stat().st_ino == before
        assert [row.events for row in it.reports[-1].outputs] == ["0-1"]
    finally:
        it.close()


def test_a_delivery_breaks_off_the_batch_of_its_job_and_waits_for_it(place: Place) -> None:
    it, goes_on = Working(place), threading.Event()
    try:
        for _ in range(DELIVERY_THREADS):
            it.pools.deliveries.submit(goes_on.wait)
        it.add(*place.parts((0, 1)))
        it.until(lambda: it.arrivals.under_way)
        it.log.pool.state.deliveries[7] = "0"
        assert not it.deliveries.step()
        assert not it.deliveries.under_way, "both would write the same files"
        goes_on.set()
        it.until(lambda: not it.log.pool.state.deliveries)
        assert manifest(place).files[0].delivery == 1
        assert it.reports == []
        it.until(lambda: not it.arrivals._waiting)
    finally:
        goes_on.set()
        it.close()


def test_a_place_that_takes_no_file_is_said_and_tried_again(place: Place) -> None:
    it = Working(place)
    try:
        folder(place).mkdir(parents=True)
        (folder(place) / "hits-0.txt").write_text("mine")
        it.add(*place.parts((0, 1)))
        it.until(lambda: it.deliveries.troubles())
        (trouble,) = it.deliveries.troubles()
        assert trouble.examples == [7]
        assert "exists already" in trouble.message
        job = it.log.pool.state.jobs.pop(7)
        assert it.deliveries.troubles() == [], "of a job that is over"
        it.log.pool.state.jobs[7] = job
        (folder(place) / "hits-0.txt").unlink()
        it.until(lambda: it.reports)
        assert it.deliveries.troubles() == []
    finally:
        it.close()


def test_a_job_that_leaves_and_comes_back_while_its_files_arrive_has_files_that_arrive(place: Place) -> None:
    it = Working(place)
    try:
        parts = place.parts((0, 1))
        it.add(*parts)
        it.until(lambda: it.arrivals.under_way)
        wait(it.arrivals.under_way)
        del it.log.pool.state.jobs[7]
        it.until(lambda: not it.arrivals.under_way)
        it.add(*parts)
        it.until(lambda: it.reports)
    finally:
        it.close()


def test_no_file_arrives_while_a_delivery_that_was_called_off_still_writes(place: Place) -> None:
    it, goes_on = Working(place), threading.Event()
    try:
        for _ in range(DELIVERY_THREADS):
            it.pools.deliveries.submit(goes_on.wait)
        job = it.add()
        it.finish(job, *place.parts((0, 1)))
        it.log.pool.state.deliveries[7] = "0"
        it.deliveries.step()
        assert it.deliveries.written == {7}
        del it.log.pool.state.deliveries[7]
        it.deliveries.step()
        assert it.deliveries.written == {7}, "its thread does not know yet"
        time.sleep(0.1)
        it.arrivals.step(it.deliveries.written)
        assert not it.arrivals.under_way
        goes_on.set()
        it.until(lambda: it.reports)
        assert not it.deliveries.written
    finally:
        goes_on.set()
        it.close()


def test_damaged_bytes_hold_back_no_other_event(place: Place) -> None:
    it = Working(place)
    try:
        parts = place.parts((0, 1), (1, 1))
        bad = msgspec.structs.replace(parts[0].outputs[0], sha256="0" * 64)
        job = it.add(site_state.KeptPart(0, 1, "e1-1", [bad]), parts[1])
        it.until(lambda: it.reports)
        assert str(job.arrived) == "1"
    finally:
        it.close()


def test_nothing_comes_early_where_no_output_is_a_file_of_an_event(place: Place) -> None:
    output = Output(name="hits", path="hits.txt")
    it = Working(place)
    try:
        job = it.add()
        job.spec = msgspec.structs.replace(job.spec, outputs=[output])
        it.finish(job, *place.parts((0, 1)))
        assert not it.arrivals._waiting
    finally:
        it.close()


def test_what_is_lost_or_replaced_arrives_again(place: Place) -> None:
    it = Working(place)
    try:
        job = it.add(*place.parts((0, 1), (1, 1)))
        it.until(lambda: it.reports)
        it.log.apply(site_state.Damaged(job=7, first=0, count=1, reason="gone"))
        assert str(job.arrived) == "1"
    finally:
        it.close()


# ---- results that lose -----------------------------------------------------------------------------------------------


def names(place: Place) -> list[str]:
    return sorted(path.name for path in folder(place).glob("*.txt"))


def test_a_result_that_loses_leaves_no_file_and_the_next_one_of_its_event_arrives(place: Place) -> None:
    it = Working(place)
    try:
        parts = place.parts((0, 1), (1, 1))
        job = it.add(*parts)
        it.until(lambda: it.reports)
        it.order(DiscardOrder(n=0, job=7, first=0, count=1))
        it.until(lambda: not it.log.pool.state.stale)
        assert (names(place), str(job.arrived)) == (["hits-1.txt"], "1")
        it.finish(job, parts[0])
        it.until(lambda: str(job.arrived) == "0-1")
        assert names(place) == ["hits-0.txt", "hits-1.txt"]
    finally:
        it.close()


def test_a_result_that_loses_while_its_file_arrives_leaves_none(place: Place) -> None:
    it, goes_on = Working(place), threading.Event()
    try:
        for _ in range(DELIVERY_THREADS):
            it.pools.deliveries.submit(goes_on.wait)
        it.add(*place.parts((0, 1)))
        it.until(lambda: it.arrivals.under_way)
        it.order(DiscardOrder(n=0, job=7, first=0, count=1))
        assert not it.arrivals.step(), "it waits for the batch: both would write the same files"
        goes_on.set()
        it.until(lambda: not it.log.pool.state.stale)
        assert not folder(place).exists()
    finally:
        goes_on.set()
        it.close()


@pytest.mark.parametrize("dies", [False, True])
def test_a_job_of_which_nothing_is_kept_leaves_no_file_also_where_the_agent_dies(
    place: Place, dies: bool
) -> None:
    it = Working(place)
    try:
        it.add(*place.parts((0, 1), (1, 1)))
        it.until(lambda: it.reports)
        it.order(CancelOrder(n=0, job=7, reason="its owner discards what is kept"))
        if dies:
            it.log.commit()
            it.log.condense()
            it.restart()
        it.until(lambda: not it.log.pool.state.stale)
        assert not folder(place).exists()
        assert not it.log.pool.state.jobs
    finally:
        it.close()


def test_a_job_that_is_stopped_keeps_what_has_arrived(place: Place) -> None:
    it = Working(place)
    try:
        it.add(*place.parts((0, 1)))
        it.until(lambda: it.reports)
        it.order(CancelOrder(n=0, job=7, reason="", keep=True))
        assert not it.log.pool.state.stale
        assert names(place) == ["hits-0.txt"]
    finally:
        it.close()


def test_a_delivery_waits_until_stale_files_are_removed(place: Place) -> None:
    it, goes_on = Working(place), threading.Event()
    try:
        it.add(*place.parts((0, 1), (1, 1)))
        it.until(lambda: it.reports)
        for _ in range(DELIVERY_THREADS):
            it.pools.deliveries.submit(goes_on.wait)
        it.order(DiscardOrder(n=0, job=7, first=0, count=1))
        it.arrivals.step()
        it.log.pool.state.deliveries[7] = "1"
        it.deliveries.step()
        assert not it.deliveries.under_way
        goes_on.set()
        it.until(lambda: not it.log.pool.state.deliveries)
        assert names(place) == ["hits-1.txt"]
        assert [each.file for each in manifest(place).files] == ["hits-1.txt"]
    finally:
        goes_on.set()
        it.close()


def test_stale_files_that_cannot_be_removed_hold_up_nothing(place: Place, tmp_path: Path) -> None:
    it = Working(place)
    try:
        job = it.add(*place.parts((0, 1), (1, 1)))
        it.until(lambda: it.reports)
        outside = tmp_path / "outside"
        folder(place).rename(outside)
        folder(place).symlink_to(outside)  # not among the directories where the job may write
        it.order(DiscardOrder(n=0, job=7, first=0, count=1))
        it.until(lambda: not it.log.pool.state.stale)
        assert (outside / "hits-0.txt").exists()
        assert str(job.arrived) == "1"
    finally:
        it.close()


class FullDeliverer(Deliverer):
    """Removes nothing: its file system lets nobody write."""

    def take_back(self, delivery: OutputDelivery, canceled: threading.Event) -> int:
        raise SiteError(f"failed to remove files of job {delivery.job}: {os.strerror(errno.EROFS)}")


def test_an_agent_that_runs_for_seconds_does_not_end_while_a_removal_is_to_be_tried_again(
    place: Place,
) -> None:
    """The next one would begin with its first try, and so on: the job would never be delivered."""
    places = OwnedPlaces(Roots([], closed=place.base), place.base, site="here")
    place.deliverer = FullDeliverer(place.tmp_path / "fleets", places, bytes_max=1 << 30)
    it = Working(place)
    try:
        it.add(*place.parts((0, 1)))
        it.until(lambda: it.reports)
        assert not it.arrivals.is_to_try_again
        it.order(DiscardOrder(n=0, job=7, first=0, count=1))
        it.until(lambda: it.arrivals.is_to_try_again)
        assert it.arrivals.holds(7)
    finally:
        it.close()
