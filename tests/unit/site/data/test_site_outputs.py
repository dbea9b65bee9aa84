"""Deliveries: joined in event order, verified, never over a foreign file, the same when repeated."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
import threading
from pathlib import Path

import msgspec
import pytest
from tests.unit.site.data.test_site_stage_room import FarFiles

from tidemill.client.outputs import members
from tidemill.errors import JobError
from tidemill.model.job import Input, InputKind, JobSpec, Output, OutputKind, Pack, Shell
from tidemill.node.bundle import SparseFile, TarWriter
from tidemill.site.data.moves import MoveOrder, MovesPendingError
from tidemill.site.data.outputs import (
    BrokenMerge,
    CanceledError,
    DamagedError,
    Deliverer,
    FileMask,
    OutputDelivery,
)
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.placed.later_names import later_places, numbered
from tidemill.site.data.placed.manifests import ClaimedFile, JobManifest
from tidemill.site.data.remote_outputs import Departures
from tidemill.site.state.site_state import KeptPart
from tidemill.transfer.file import Roots
from tidemill.wire.node import OutputRef


class Place:
    """A fleet's bundle with one part per range, and a deliverer."""

    def __init__(self, tmp_path: Path) -> None:
        self.word = b"event"
        self.base = tmp_path / "out"
        self.bundle = tmp_path / "fleets" / "e1-1" / "bundle"
        self.bundle.mkdir(parents=True)
        self.tmp_path = tmp_path
        self.deliverer = self.with_mask(None)
        (tmp_path / "data").mkdir()

    def with_mask(self, umask: FileMask | None, *, site: str = "here") -> Deliverer:
        """A deliverer of a site with these permissions; None = those of this process."""
        return Deliverer(
            self.tmp_path / "fleets",
            OwnedPlaces(
                Roots([self.tmp_path / "data"], closed=self.base),
                self.base,
                site=site,
                person=frozenset(("", "myself")),
            ),
            bytes_max=1 << 30,
            umask=umask,
        )

    def parts(self, *ranges: tuple[int, int]) -> list[KeptPart]:
        parts = []
        content = b""
        for first, count in ranges:
            data = b"".join(b"%s %d\n" % (self.word, event) for event in range(first, first + count))
            ref = OutputRef(
                name="hits",
                bundle="p.tar",
                offset=len(content),
                length=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
            parts.append(KeptPart(first, count, "e1-1", [ref]))
            content += data
        (self.bundle / "p.tar").write_bytes(content)
        return sorted(parts, key=lambda part: part.first)

    def delivery(
        self,
        parts: list[KeptPart],
        *,
        done: str,
        kind: OutputKind = OutputKind.CONCAT,
        events: int = 10,
        owner: str = "",
        **spec: str,
    ) -> OutputDelivery:
        return OutputDelivery(
            job=7,
            campaign="c",
            seed_base=100,
            spec=msgspec.structs.replace(JobSpec(app="a", events=events), **spec),
            app_digest="sha256:x",
            outputs=[Output(name="hits", path="hits.txt", kind=kind)],
            parts=parts,
            merged={},
            done=done,
            owner=owner,
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def lines(*events: int) -> str:
    return "".join(f"event {event}\n" for event in events)


def test_concat_joins_parts_in_event_order_with_a_manifest(place: Place) -> None:
    rows = place.deliverer.deliver(place.delivery(place.parts((4, 4), (0, 4)), done="0-7"))
    path = place.base / "c" / "7-hits.txt"
    assert path.read_text() == lines(*range(8))
    assert rows[0].url == path.as_uri()
    assert rows[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = msgspec.json.decode((path.parent / "manifest-7.json").read_bytes(), type=JobManifest)
    assert manifest.failed == "8-9"
    assert [(m.first, m.count, m.seed) for m in manifest.files[0].members] == [(0, 4, 101), (4, 4, 105)]
    assert sorted(each.name for each in path.parent.iterdir()) == ["7-hits.txt", "manifest-7.json"]


def test_events_that_ran_again_give_the_file_that_they_left_last(place: Place) -> None:
    """After `job discard` and `job retry` the first result was sent, which had not reached its server before."""
    far = FarFiles(1)
    deliverer = far_deliverer(place, far)
    assert Path(ordered(place, deliverer, far).path).read_text() == lines(0, 1, 2, 3)
    place.word = b"again"
    order = ordered(place, deliverer, far)
    assert Path(order.path).read_text() == lines(0, 1, 2, 3).replace("event", "again")


def test_an_output_replaces_any_earlier_one_that_may_have_come_to_its_remote_place(place: Place) -> None:
    """The move of one had ended, and nobody took its outcome: the next one met a file that was not this job's."""
    far = FarFiles(1)
    deliverer = far_deliverer(place, far)
    first = ordered(place, deliverer, far)
    assert first.before == []
    place.word = b"again"
    second = ordered(place, deliverer, far)
    assert second.before == [first.known["sha256"]]
    place.word = b"once more"
    third = ordered(place, far_deliverer(place, far), far)
    assert third.before == [second.known["sha256"], first.known["sha256"]], "an agent that follows knows both"


def far_deliverer(place: Place, far: FarFiles) -> Deliverer:
    return Deliverer(
        place.tmp_path / "fleets",
        OwnedPlaces(Roots([place.tmp_path / "data"]), place.base),
        bytes_max=1 << 30,
        departures=Departures(place.tmp_path / "stage" / "out", far),
    )


def ordered(place: Place, deliverer: Deliverer, far: FarFiles) -> MoveOrder:
    """The move that a delivery to a remote place orders; nothing comes of it."""
    delivery = place.delivery(place.parts((0, 4)), done="0-3", output_dir="https://far.example/out")
    with pytest.raises(MovesPendingError):
        deliverer.deliver(delivery)
    (order,) = far.gets.values()
    far.cancel(order.id)
    return order


def test_each_becomes_a_tar_of_members_named_by_events(place: Place) -> None:
    delivery = place.delivery(place.parts((4, 4), (0, 1)), done="0,4-7", kind=OutputKind.EACH)
    place.deliverer.deliver(delivery)
    with tarfile.open(place.base / "c" / "7-hits.tar") as archive:
        assert archive.getnames() == ["hits-000000000.txt", "hits-000000004-000000007.txt"]


def test_each_of_a_job_of_one_event_is_the_file_itself(place: Place) -> None:
    delivery = place.delivery(place.parts((0, 1)), done="0", kind=OutputKind.EACH, events=1)
    place.deliverer.deliver(delivery)
    assert (place.base / "c" / "7-hits.txt").read_text() == lines(0)


def test_repeated_delivery_gives_the_same(place: Place) -> None:
    delivery = place.delivery(place.parts((0, 4)), done="0-3")
    assert place.deliverer.deliver(delivery) == place.deliverer.deliver(delivery)
    other = place.delivery(
        place.parts((0, 2), (4, 2)), done="0-1,4-5"
    )  # the job was retried with another result
    place.deliverer.deliver(other)
    assert (place.base / "c" / "7-hits.txt").read_text() == lines(0, 1, 4, 5)


@pytest.mark.parametrize("kind", [OutputKind.CONCAT, OutputKind.EACH])
def test_a_crash_before_a_file_has_its_name_leaves_one_that_the_job_knows(
    place: Place, kind: OutputKind
) -> None:
    """The next delivery ended for good: `exists already and is not this job's`."""
    (row,) = place.deliverer.deliver(place.delivery(place.parts((0, 4)), done="0-3", kind=kind))
    path = Path(row.url.removeprefix("file://"))
    former = path.read_bytes()
    for events in (6, 8, 10):
        parts = place.parts((0, events))
        (row,) = place.deliverer.deliver(place.delivery(parts, done=f"0-{events - 1}", kind=kind))
        assert hashlib.sha256(path.read_bytes()).hexdigest() == row.sha256
        path.write_bytes(former)  # as it was: the manifest is written before
    path.write_text("mine")
    with pytest.raises(JobError, match="exists already and is not this job's"):
        place.deliverer.deliver(place.delivery(place.parts((0, 4)), done="0-3", kind=kind))


def test_an_output_that_a_repeated_delivery_does_not_make_is_still_known_to_its_job(place: Place) -> None:
    names = ["hits", "more"]
    outputs = [Output(name=name, path="hits.txt", kind=OutputKind.CONCAT) for name in names]
    for word, made in ((b"event", names), (b"event", ["hits"]), (b"again", names)):
        place.word = word
        (part,) = place.parts((0, 4))
        refs = [msgspec.structs.replace(part.outputs[0], name=name) for name in made]
        delivery = place.delivery([msgspec.structs.replace(part, outputs=refs)], done="0-3")
        rows = place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=outputs))
        assert [row.name for row in rows] == made
    assert (place.base / "c" / "7-more.txt").read_text().startswith("again 0")


def test_foreign_file_is_never_overwritten(place: Place) -> None:
    path = place.base / "c" / "7-hits.txt"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(JobError, match=r"7-hits\.txt"):
        place.deliverer.deliver(place.delivery(place.parts((0, 4)), done="0-3"))
    assert path.read_text() == "mine"
    assert [each.name for each in path.parent.iterdir()] == ["7-hits.txt"]


def test_no_link_is_followed_wherever_one_was_left(place: Place, tmp_path: Path) -> None:
    victim, outside = tmp_path / "victim", tmp_path / "outside"
    victim.write_text("mine")
    outside.mkdir()
    folder = place.base / "c"
    folder.mkdir(parents=True)
    for name in (".7-hits.txt.7.part", ".7-hits.tar.7.part", "7-hits.tar"):
        (folder / name).symlink_to(victim)
    parts = place.parts((0, 4))
    place.deliverer.deliver(place.delivery(parts, done="0-3"))
    assert (folder / "7-hits.txt").read_text() == lines(*range(4))
    with pytest.raises(JobError, match="exists already"):
        place.deliverer.deliver(place.delivery(parts, done="0-3", kind=OutputKind.EACH))
    (tmp_path / "data" / "way_out").symlink_to(outside)
    for there in (outside, tmp_path / "data" / "way_out", tmp_path / "data" / "new" / ".." / "way_out"):
        with pytest.raises(JobError, match="outside this site's data roots"):
            place.deliverer.deliver(place.delivery(parts, done="0-3", output_dir=str(there)))
    assert victim.read_text() == "mine"
    assert not list(outside.iterdir())


def test_damaged_part_names_its_events_and_leaves_nothing(place: Place) -> None:
    parts = place.parts((0, 4), (4, 4))
    content = bytearray((place.bundle / "p.tar").read_bytes())
    content[-3] ^= 1
    (place.bundle / "p.tar").write_bytes(content)
    for kind in (OutputKind.CONCAT, OutputKind.EACH):
        with pytest.raises(DamagedError) as caught:
            place.deliverer.deliver(place.delivery(parts, done="0-7", kind=kind))
        assert (caught.value.first, caught.value.count) == (4, 4)
    assert not list(place.base.rglob("*.t*"))


def test_events_without_a_kept_part_are_named(place: Place) -> None:
    with pytest.raises(DamagedError) as caught:
        place.deliverer.deliver(place.delivery(place.parts((0, 4)), done="0-7"))
    assert (caught.value.first, caught.value.count) == (4, 4)


def test_outputs_stay_below_the_data_roots(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data" / "link").symlink_to("/tmp")
    for where in ("/tmp/elsewhere", f"file://{tmp_path}/data/../x", str(tmp_path / "data" / "link")):
        delivery = place.delivery(place.parts((0, 4)), done="0-3", output_dir=where)
        with pytest.raises(JobError, match="outside this site's data roots"):
            place.deliverer.deliver(delivery)
    inside = place.delivery(place.parts((0, 4)), done="0-3", output_dir=str(tmp_path / "data" / "x"))
    assert place.deliverer.deliver(inside)[0].url.startswith(f"file://{tmp_path}/data/x/c/")


def test_each_owner_has_a_directory_that_no_other_reaches(place: Place) -> None:
    parts = place.parts((0, 4))
    rows = place.deliverer.deliver(place.delivery(parts, done="0-3", owner="ada"))
    theirs = place.base / "@ada" / "c"
    assert rows[0].url == (theirs / "7-hits.txt").as_uri()
    manifest = msgspec.json.decode((theirs / "manifest-7.json").read_bytes(), type=JobManifest)
    assert manifest.owner == "ada"
    inside = (str(place.base), str(theirs), str(place.base / "@eve" / ".." / "@ada"))
    for owner in ("eve", "", "myself"):
        for where in inside if owner == "eve" else inside[1:]:
            delivery = place.delivery(parts, done="0-3", owner=owner, output_dir=where)
            with pytest.raises(JobError, match="not among those of this job's owner"):
                place.deliverer.deliver(delivery)
    again = place.delivery(parts, done="0-3", owner="ada", output_dir=str(theirs / "more"))
    assert place.deliverer.deliver(again)[0].url == (theirs / "more" / "c" / "7-hits.txt").as_uri()


def test_nothing_is_delivered_as_a_manifest(place: Place, tmp_path: Path) -> None:
    """It would say that another file is this job's, to be replaced."""
    for url in (tmp_path / "data" / "manifest-9.json", place.base / "@eve" / "x" / "manifest-7.json"):
        delivery = place.delivery(place.parts((0, 4)), done="0-3", owner="eve")
        named = Output(name="hits", path="hits.txt", kind=OutputKind.CONCAT, url=str(url))
        with pytest.raises(JobError, match="has the name of a manifest"):
            place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=[named]))
        assert not url.exists()
    parts = place.delivery(place.parts((7, 1)), done="7")
    (row,) = place.deliverer.deliver(spread(place, parts, "manifest-{event}.json"))
    folder = place.base / "c" / "7-hits"
    assert {each.name for each in folder.iterdir()} == {"hits-manifest-7.json", "manifest-7.json"}
    assert [each.data.decode() for each in members(7, row)] == [lines(7)]


def sparse_parts(place: Place, *sizes: int) -> list[KeptPart]:
    """Parts that are zeros but for their first byte, in a bundle of holes."""
    parts, at = [], 0
    with (place.bundle / "p.tar").open("wb") as file:
        for event, size in enumerate(sizes):
            file.seek(at)
            file.write(b"x")
            digest = hashlib.sha256(b"x" + bytes(size - 1)).hexdigest()
            ref = OutputRef(name="hits", bundle="p.tar", offset=at, length=size, sha256=digest)
            parts.append(KeptPart(event, 1, "e1-1", [ref]))
            at += size
        file.truncate(at)
    return parts


@pytest.mark.parametrize("kind", [OutputKind.CONCAT, OutputKind.EACH])
def test_holes_of_parts_are_holes_of_what_is_delivered(place: Place, kind: OutputKind) -> None:
    parts = sparse_parts(place, 5_000_000, 3_000_000)
    (row,) = place.deliverer.deliver(place.delivery(parts, done="0-1", kind=kind, events=2))
    path = Path(row.url.removeprefix("file://"))
    status = path.stat()
    assert status.st_size == row.size_bytes >= 8_000_000
    assert status.st_blocks * 512 < 500_000
    assert hashlib.sha256(path.read_bytes()).hexdigest() == row.sha256
    if kind is OutputKind.CONCAT:
        assert path.read_bytes() == b"x" + bytes(4_999_999) + b"x" + bytes(2_999_999)
    else:
        with tarfile.open(path) as archive:
            assert [each.size for each in archive] == [5_000_000, 3_000_000]


def test_more_than_a_job_may_leave_is_refused_before_a_byte_is_written(place: Place) -> None:
    parts = sparse_parts(place, 1 << 29, (1 << 29) + 1)
    with pytest.raises(JobError, match="delivers at most 1073741824 of one job") as caught:
        place.deliverer.deliver(place.delivery(parts, done="0-1", events=2))
    assert caught.value.hint == "split the job"
    assert not place.base.exists()


@pytest.mark.parametrize("kind", [OutputKind.CONCAT, OutputKind.EACH])
def test_a_delivery_that_is_canceled_leaves_nothing(place: Place, kind: OutputKind) -> None:
    canceled = threading.Event()
    canceled.set()
    with pytest.raises(CanceledError):
        place.deliverer.deliver(place.delivery(place.parts((0, 4)), done="0-3", kind=kind), canceled)
    assert [path for path in place.base.rglob("*") if path.is_file()] == []


# ---- a job that is delivered in several parts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "second"),
    [(OutputKind.CONCAT, "7-hits.txt", "7-hits-2.txt"), (OutputKind.EACH, "7-hits.tar", "7-hits-2.tar")],
)
def test_a_later_delivery_joins_the_first_under_one_manifest_and_leaves_its_file_alone(
    place: Place, kind: OutputKind, name: str, second: str
) -> None:
    parts = place.parts((0, 4), (4, 4))
    folder = place.base / "c"
    place.deliverer.deliver(place.delivery(parts[:1], done="0-3", kind=kind))
    before = (folder / name).stat()
    later = msgspec.structs.replace(place.delivery(parts[1:], done="4-7", kind=kind), number=2)
    (row,) = place.deliverer.deliver(later)
    assert place.deliverer.deliver(later) == [row], "repeated, it changes nothing"
    assert (row.url, row.events) == ((folder / second).as_uri(), "4-7")
    after = (folder / name).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    manifest = msgspec.json.decode((folder / "manifest-7.json").read_bytes(), type=JobManifest)
    assert [(file.file, file.delivery) for file in manifest.files] == [(name, 1), (second, 2)]
    assert [(m.first, m.count) for file in manifest.files for m in file.members] == [(0, 4), (4, 4)]
    assert (manifest.done, manifest.failed) == ("0-7", "8-9")


def test_the_manifest_of_another_campaign_is_not_joined(place: Place) -> None:
    parts = place.parts((0, 4), (4, 4))
    place.deliverer.deliver(place.delivery(parts[:1], done="0-3"))
    path = place.base / "c" / "manifest-7.json"
    other = msgspec.structs.replace(
        msgspec.json.decode(path.read_bytes(), type=JobManifest), campaign="another"
    )
    path.write_bytes(msgspec.json.encode(other))
    place.deliverer.deliver(msgspec.structs.replace(place.delivery(parts[1:], done="4-7"), number=2))
    manifest = msgspec.json.decode(path.read_bytes(), type=JobManifest)
    assert (manifest.done, len(manifest.files)) == ("4-7", 1)


def test_a_merge_takes_what_was_sent_before_and_other_outputs_do_not(place: Place) -> None:
    parts = place.parts((0, 4), (4, 4))
    outputs = [
        Output(name="hits", path="hits.txt", kind=OutputKind.CONCAT),
        Output(name="sum", path="sum.txt", kind=OutputKind.MERGE, merge="join"),
    ]
    merged = {"sum": ("e1-1", parts[0].outputs[0])}
    delivery = msgspec.structs.replace(
        place.delivery(parts, done="0-7"), outputs=outputs, merged=merged, fresh="4-7", number=2
    )
    rows = {row.name: row for row in place.deliverer.deliver(delivery)}
    assert (place.base / "c" / "7-hits-2.txt").read_text() == lines(4, 5, 6, 7)
    assert rows["hits"].events == "4-7"
    assert "sum" in rows


def test_outputs_of_merge_steps_are_held_back_while_the_job_is_not_complete(place: Place) -> None:
    outputs = [Output(name="hits", path="hits.txt", kind=OutputKind.MERGE, merge="join")]
    delivery = place.delivery(place.parts((0, 4)), done="0-3")
    assert place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=outputs, held=True)) == []


def test_a_merge_step_that_failed_is_blamed_on_damaged_parts_where_there_are_any(place: Place) -> None:
    delivery, broken = (
        place.delivery(place.parts((0, 4), (4, 4)), done="0-7"),
        BrokenMerge("hits", "it failed"),
    )
    with pytest.raises(JobError, match="it failed"):
        place.deliverer.look_over(delivery, broken, threading.Event())
    content = bytearray((place.bundle / "p.tar").read_bytes())
    content[-2] ^= 1
    (place.bundle / "p.tar").write_bytes(content)
    with pytest.raises(DamagedError) as caught:
        place.deliverer.look_over(delivery, broken, threading.Event())
    assert (caught.value.first, caught.value.count) == (4, 4)


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("hits.root", "hits-2.root"),
        ("a.b/v1.2-hits.txt.gz", "a.b/v1.2-hits-2.txt.gz"),
        ("hits", "hits-2"),
        ("hits.root?svcClass=x.y", "hits-2.root?svcClass=x.y"),
    ],
)
def test_names_of_later_deliveries(name: str, second: str) -> None:
    assert (numbered(name, 1), numbered(name, 2)) == (name, second)


@pytest.mark.parametrize(
    ("name", "is_encoded", "second"),
    [
        ("h" * 250 + ".root", False, "h" * 248 + "-2.root"),
        ("a/" + "h" * 248 + ".txt.gz", False, "a/" + "h" * 246 + "-2.txt.gz"),
        ("\u00e4" * 125 + ".root", False, "\u00e4" * 124 + "-2.root"),
        ("%C3%A4" * 125 + ".root?x=y", True, "%C3%A4" * 124 + "-2.root?x=y"),
        ("%20" * 100 + ".root", True, "%20" * 100 + "-2.root"),
        ("hits." + "r" * 40, False, "hits-2." + "r" * 40),
        ("h." + "r" * 253, False, ("h." + "r" * 253)[:253] + "-2"),
    ],
)
def test_the_name_of_a_later_delivery_is_no_longer_than_file_systems_take(
    name: str, is_encoded: bool, second: str
) -> None:
    """A file with a name of 255 bytes was delivered once, and its job could not end after a retry."""
    assert numbered(name, 2, is_encoded=is_encoded) == second


def test_outputs_whose_names_are_cut_alike_are_different_files() -> None:
    names = {"a": "h" * 249 + "a.root", "b": "h" * 249 + "b.root"}
    for folder in ("/data", "https://s.example.org/data/"):
        found = later_places({output: (folder, name) for output, name in names.items()}, 2)
        assert len(set(found.values())) == 2
        assert all(len(name) <= 255 for _, name in found.values())


def test_a_file_that_an_output_names_is_not_written_over_by_a_later_delivery(
    place: Place, tmp_path: Path
) -> None:
    parts = place.parts((0, 4), (4, 4))
    output = Output(
        name="hits", path="hits.txt", kind=OutputKind.CONCAT, url=(tmp_path / "data" / "mine.txt").as_uri()
    )
    for number, part, done in ((1, parts[:1], "0-3"), (2, parts[1:], "4-7")):
        delivery = place.delivery(part, done=done)
        place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=[output], number=number))
    assert (tmp_path / "data" / "mine.txt").read_text() == lines(0, 1, 2, 3)
    assert (tmp_path / "data" / "mine-2.txt").read_text() == lines(4, 5, 6, 7)


def test_a_later_delivery_keeps_away_from_outputs_that_are_called_like_it(place: Place) -> None:
    """`hits` of the second delivery was written over `hits-2` of the first."""
    parts = place.parts((0, 4), (4, 4))
    outputs = [Output(name=name, path="hits.txt", kind=OutputKind.CONCAT) for name in ("hits", "hits-2")]
    for part in parts:
        (ref,) = part.outputs
        part.outputs.append(msgspec.structs.replace(ref, name="hits-2"))
    for number, new, done in ((1, parts[:1], "0-3"), (2, parts[1:], "4-7")):
        delivery = place.delivery(new, done=done)
        place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=outputs, number=number))
    folder = place.base / "c"
    assert {path.name: path.read_text() for path in folder.glob("*.txt")} == {
        "7-hits.txt": lines(0, 1, 2, 3),
        "7-hits-2.txt": lines(0, 1, 2, 3),
        "7-hits--2.txt": lines(4, 5, 6, 7),
        "7-hits-2-2.txt": lines(4, 5, 6, 7),
    }


def test_no_output_replaces_what_another_one_of_its_job_has_left(place: Place) -> None:
    path = place.base / "c" / "manifest-7.json"
    place.deliverer.deliver(place.delivery(place.parts((0, 4)), done="0-3"))
    manifest = msgspec.json.decode(path.read_bytes(), type=JobManifest)
    files = [msgspec.structs.replace(each, output="other") for each in manifest.files]
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(JobError, match="exists already and is not this job's"):
        place.deliverer.deliver(place.delivery(place.parts((0, 5)), done="0-4"))
    assert (place.base / "c" / "7-hits.txt").read_text() == lines(0, 1, 2, 3)


@pytest.mark.parametrize("delivery", [2, 3, 12, 22])
def test_places_of_later_deliveries_differ_from_all_others(delivery: int) -> None:
    names = ["hits", "hits-", "hits--", "hits-2", "hits--2", "hits-2-2", "hits-12", "hits-1", "hits-22"]
    plain = {name: ("/data", f"{name}.tar") for name in names}
    earlier = set(plain.values())
    for number in range(2, delivery + 1):
        found = set(later_places(plain, number).values())
        assert len(found) == len(names)
        assert not found & earlier
        earlier |= found


# ---- each part a file of its own -----------------------------------------------------------------------------------


def spread(place: Place, delivery: OutputDelivery, path: str, *, url: str | None = None) -> OutputDelivery:
    """The delivery with its output as files of a directory."""
    outputs = [Output(name="hits", path=path, pack=Pack.FILES, url=url)]
    return msgspec.structs.replace(delivery, outputs=outputs)


def test_parts_become_files_of_their_own_in_a_directory_with_one_row_and_a_manifest(place: Place) -> None:
    plain = place.delivery(place.parts((4, 1), (0, 1)), done="0,4")
    (row,) = place.deliverer.deliver(spread(place, plain, "hits-{event}.txt"))
    folder = place.base / "c" / "7-hits"
    assert (row.url, row.events, row.size_bytes) == (folder.as_uri() + "/", "0,4", 16)
    assert {each.name for each in folder.iterdir()} == {"hits-0.txt", "hits-4.txt", "manifest-7.json"}
    assert (folder / "hits-4.txt").read_text() == lines(4)
    sums = [hashlib.sha256(lines(event).encode()).hexdigest() for event in (0, 4)]
    listed = f"{sums[0]}  hits-0.txt\n{sums[1]}  hits-4.txt\n"
    assert row.sha256 == hashlib.sha256(listed.encode()).hexdigest()
    assert [each.data.decode() for each in members(7, row)] == [lines(0), lines(4)]
    assert place.deliverer.deliver(spread(place, plain, "hits-{event}.txt")) == [row], (
        "repeated, it is the same"
    )


def test_a_later_delivery_adds_its_files_and_reads_as_its_own_events(place: Place) -> None:
    first = spread(place, place.delivery(place.parts((0, 1)), done="0"), "out.txt")
    (before,) = place.deliverer.deliver(first)
    second = spread(place, place.delivery(place.parts((0, 1), (2, 1)), done="0,2"), "out.txt")
    (after,) = place.deliverer.deliver(msgspec.structs.replace(second, fresh="2", number=2))
    assert (before.url, before.events, after.events) == (after.url, "0", "2")
    folder = place.base / "c" / "7-hits"
    assert {each.name for each in folder.glob("*.txt")} == {"out-0.txt", "out-2.txt"}
    assert [each.name for each in members(7, before)] == ["out-0.txt"]
    assert [each.name for each in members(7, after)] == ["out-2.txt"]


def test_a_file_of_somebody_else_is_not_replaced_by_a_part(place: Place, tmp_path: Path) -> None:
    place.base.mkdir(exist_ok=True)
    theirs = place.base / "hits-0.txt"
    theirs.write_text("precious")
    plain = place.delivery(place.parts((0, 1), (1, 1)), done="0-1")
    with pytest.raises(JobError, match="exists already and is not this job's"):
        place.deliverer.deliver(spread(place, plain, "hits-{event}.txt", url=f"{place.base}/"))
    assert theirs.read_text() == "precious"
    assert [each.name for each in place.base.glob("*.txt")] == ["hits-0.txt"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_are_named_by_the_lines_of_their_events(place: Place, tmp_path: Path, scheme: str) -> None:
    table = tmp_path / "data" / "lines"
    table.write_text("\t125\tup\n\t91\tdown\n")
    plain = place.delivery(place.parts((0, 1), (1, 1)), done="0-1", events=2)
    spec = msgspec.structs.replace(
        plain.spec, inputs=[Input(name="lines", url=f"{scheme}{table}", kind=InputKind.EACH)]
    )
    delivery = spread(place, msgspec.structs.replace(plain, spec=spec), "m{column.1}-{column.2}.txt")
    place.deliverer.deliver(delivery)
    assert {each.name for each in (place.base / "c" / "7-hits").glob("*.txt")} == {
        "m125-up.txt",
        "m91-down.txt",
    }


@pytest.mark.parametrize("path", ["{line}-{event}.root", "{column.0}{column.0}-{event}.root", "{line}.root"])
def test_long_lines_leave_each_event_its_own_file(place: Place, tmp_path: Path, path: str) -> None:
    table = tmp_path / "data" / "lines"
    table.write_text(f"{'x' * 300_000}a\n{'x' * 300_000}b\n")
    plain = place.delivery(place.parts((0, 1), (1, 1)), done="0-1", events=2)
    spec = msgspec.structs.replace(
        plain.spec, inputs=[Input(name="lines", url=str(table), kind=InputKind.EACH)]
    )
    (row,) = place.deliverer.deliver(spread(place, msgspec.structs.replace(plain, spec=spec), path))
    assert [each.data.decode() for each in members(7, row)] == [lines(0), lines(1)]


@pytest.mark.parametrize(
    ("paths", "starts"),
    [
        (("a/out.txt", "b/out.txt"), ("a-out", "b-out")),
        (("out.txt", "./b/{event}/out.txt"), ("out", "b-{event}-out")),
        (("out.txt", "out.txt"), ("out", "more-out")),
        (("out-{event}.txt", "out.txt"), ("out", "more-out")),
    ],
)
def test_outputs_of_one_directory_whose_files_are_called_alike_keep_all_of_them(
    place: Place, paths: tuple[str, str], starts: tuple[str, str]
) -> None:
    parts = place.parts((0, 1), (1, 1))
    parts = [
        msgspec.structs.replace(
            each, outputs=[*each.outputs, msgspec.structs.replace(each.outputs[0], name="more")]
        )
        for each in parts
    ]
    outputs = [
        Output(name=name, path=path, pack=Pack.FILES, url=f"{place.base}/")
        for name, path in zip(("hits", "more"), paths, strict=True)
    ]
    place.base.mkdir()
    delivery = msgspec.structs.replace(place.delivery(parts, done="0-1"), outputs=outputs)
    rows = place.deliverer.deliver(delivery)
    assert {each.name for each in place.base.glob("*.txt")} == {
        start.format(event=event) + (".txt" if "{event}" in start else f"-{event}.txt")
        for start in starts
        for event in (0, 1)
    }
    assert [len(list(members(7, row))) for row in rows] == [2, 2]
    assert place.deliverer.deliver(delivery) == rows


def with_modes(parts: list[KeptPart], *modes: int | None) -> list[KeptPart]:
    """The parts with these permissions of their files."""
    return [
        msgspec.structs.replace(part, outputs=[msgspec.structs.replace(part.outputs[0], mode=mode)])
        for part, mode in zip(parts, modes, strict=True)
    ]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("umask", "of_file", "file", "folder"),
    [
        (0o077, None, 0o600, 0o700),
        (0o002, None, 0o664, 0o775),
        (0o022, 0o755, 0o755, 0o755),
        (0o027, 0o777, 0o750, 0o750),
        (0o022, 0o600, 0o600, 0o755),
        (0o000, 0o444, 0o444, 0o777),
        (0o777, 0o644, 0o400, 0o700),
    ],
)
def test_outputs_get_the_mode_of_the_payloads_file_and_the_umask_of_the_jobs_shell(
    tmp_path: Path, umask: int, of_file: int | None, file: int, folder: int
) -> None:
    """The umask with which the agent was started has no effect."""
    place = Place(tmp_path)
    delivery = msgspec.structs.replace(
        place.delivery(with_modes(place.parts((0, 10)), of_file), done="0-9"),
        spec=JobSpec(command=["/bin/x"], events=10, shell=Shell(umask=umask)),
    )
    for agents in (0o022, 0o077, 0o000):
        before = os.umask(agents)
        try:
            rows = place.deliverer.deliver(delivery)
        finally:
            os.umask(before)
        target = place.base / "c" / "7-hits.txt"
        assert rows[0].url == target.as_uri()
        assert (mode_of(target), mode_of(target.parent)) == (file, folder)
        assert mode_of(target.parent / "manifest-7.json") == 0o666 & ~umask | 0o400
        shutil.rmtree(place.base)


def test_outputs_of_jobs_without_a_shell_follow_the_sites_umask_and_keep_execute_bits(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.deliverer = place.with_mask(FileMask(site=0o027, bounds=True))
    parts = with_modes(place.parts((0, 10)), 0o777)
    place.deliverer.deliver(place.delivery(parts, done="0-9"))
    assert mode_of(place.base / "c" / "7-hits.txt") == 0o750


def test_a_site_that_serves_several_submitters_never_gives_more_than_its_own_umask(tmp_path: Path) -> None:
    asked = JobSpec(command=["/bin/x"], shell=Shell(umask=0o002))
    assert FileMask(site=0o027, bounds=True).umask(asked) == 0o027
    assert FileMask(site=0o027, bounds=False).umask(asked) == 0o002
    assert (
        FileMask(site=0o022, bounds=True).umask(JobSpec(command=["/bin/x"], shell=Shell(umask=0o077)))
        == 0o077
    )


def test_directories_of_outputs_keep_a_set_group_id_bit_that_they_inherit(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.base.mkdir()
    place.base.chmod(0o2775)
    delivery = msgspec.structs.replace(
        place.delivery(place.parts((0, 10)), done="0-9"),
        spec=JobSpec(command=["/bin/x"], events=10, shell=Shell(umask=0o007)),
    )
    place.deliverer.deliver(delivery)
    assert mode_of(place.base / "c") == 0o2770


def test_an_archive_of_outputs_holds_the_modes_of_the_payloads_files(tmp_path: Path) -> None:
    place = Place(tmp_path)
    parts = with_modes(place.parts((0, 5), (5, 5)), 0o755, None)
    rows = place.deliverer.deliver(place.delivery(parts, done="0-9", kind=OutputKind.EACH))
    with tarfile.open(place.base / "c" / Path(rows[0].url).name) as tar:
        assert [each.mode for each in tar.getmembers()] == [0o755, 0o644]


@pytest.mark.parametrize("kind", [OutputKind.CONCAT, OutputKind.EACH])
def test_an_output_may_have_the_longest_name_that_a_file_system_takes(place: Place, kind: OutputKind) -> None:
    name = "n" * 251 + ".tar"
    delivery = place.delivery(place.parts((0, 4)), done="0-3", kind=kind)
    outputs = [msgspec.structs.replace(delivery.outputs[0], url=(place.base / name).as_uri())]

    (row,) = place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=outputs))

    assert row.url == (place.base / name).as_uri()
    assert sorted(each.name for each in place.base.iterdir()) == ["manifest-7.json", name]


def test_what_is_written_is_known_without_reading_it_and_a_file_that_changes_is_read_again(
    tmp_path: Path,
) -> None:
    content = b"a" * 70_000 + bytes(200_000) + b"b"  # with a hole
    with (tmp_path / "one").open("xb") as file:
        sparse = SparseFile(file)
        for at in range(0, len(content), 1 << 16):
            sparse.write(content[at : at + (1 << 16)])
        sparse.end()
    assert (tmp_path / "one").read_bytes() == content
    assert sparse.digest.hexdigest() == hashlib.sha256(content).hexdigest()
    archive = TarWriter(tmp_path / "bundle.tar")
    archive.add_bytes("hits-000000000", content)
    archive.close()
    whole = (tmp_path / "bundle.tar").read_bytes()
    assert archive.written == (len(whole), hashlib.sha256(whole).hexdigest())
    claim = ClaimedFile({archive.written})
    claim.check(tmp_path / "not there")
    claim.check(tmp_path / "bundle.tar")
    claim.check(tmp_path / "bundle.tar")
    (tmp_path / "bundle.tar").write_bytes(whole[:-1] + b"x")
    for foreign in (tmp_path / "bundle.tar", tmp_path / "one"):
        with pytest.raises(JobError, match="is not this job's"):
            claim.check(foreign)
