"""What killed agents left half-written is removed; what is whole, young or somebody else's stays."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest
from tests.unit.site.data.test_site_outputs import Place

from tidemill import clock
from tidemill.errors import JobError
from tidemill.model.job import Output, OutputKind, Pack
from tidemill.site.data.leftovers import OUTPUT_AGE_S, sweep_leftovers


def make(path: Path, *, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    at_s = clock.now_us() / 1e6 - age_s
    os.utime(path, (at_s, at_s))
    return path


def test_leftovers_of_the_stage_go_at_the_start_and_those_among_outputs_when_they_are_old(
    tmp_path: Path,
) -> None:
    stage, outputs = tmp_path / "stage", tmp_path / "out"
    gone = [
        make(stage / "7" / ".part-000001.tmp"),
        make(stage / "7" / ".geo.sha256.4711.0badcafe.tmp"),
        make(stage / "7" / ".geo.link"),
        make(stage / "out" / "9" / ".hist.tmp"),
        make(stage / "out" / "9" / ".hist.json.4711.0badcafe.tmp"),
    ]
    kept = [
        make(stage / "7" / "geo"),
        make(stage / "7" / ".geo.sha256"),
        make(stage / "out" / "9" / "hist"),
        make(stage / "files" / ".in-0123.0123456789ab.part"),
        make(outputs / ".9-hist.root.9.part"),
        make(outputs / ".manifest-9.json.4711.0badcafe.tmp"),
        make(outputs / ".mine.tmp"),
        make(outputs / "run.9.part"),
    ]
    assert sweep_leftovers(stage, outputs, started_us=clock.now_us() + 1) == len(gone)
    assert not [path for path in gone if path.exists()]
    assert all(path.exists() for path in kept)
    assert sweep_leftovers(tmp_path / "none", tmp_path / "nowhere", started_us=0) == 0


def test_old_parts_of_deliveries_go_with_their_temporary_manifests(tmp_path: Path) -> None:
    outputs = tmp_path / "out"
    gone = (
        "c/.9-hist.root.9.part",
        "c/.manifest-9.json.4711.0badcafe.tmp",
        "c/9-hits/.hits-0.txt.9.part",
        "@ada/c/.8-x.8.part",
        "@ada/c/8-x/.manifest-8.json.4711.0badcafe.tmp",
        "@ada/.8-x.8.part",
        ".9-named.root.9.part",
    )
    stay = ("@ada/c/8-x/run.9.part", "@ada/8-x", "run.9.part")
    for name in (*gone, *stay):
        make(outputs / name, age_s=OUTPUT_AGE_S + 60)
    elsewhere = make(tmp_path / "elsewhere" / ".9-hist.root.9.part", age_s=OUTPUT_AGE_S + 60)
    (outputs / "c" / "link").symlink_to(elsewhere.parent)
    assert sweep_leftovers(tmp_path / "stage", outputs, started_us=clock.now_us()) == len(gone)
    assert not [name for name in gone if (outputs / name).exists()]
    assert all((outputs / name).exists() for name in stay)
    assert elsewhere.exists()


@pytest.mark.parametrize("kind", [OutputKind.CONCAT, OutputKind.EACH])
def test_what_an_agent_leaves_that_is_killed_in_a_delivery_is_found(tmp_path: Path, kind: OutputKind) -> None:
    """An archive had a second temporary name that the sweep did not know, with the agent's number in it."""
    place = Place(tmp_path)
    seen: list[str] = []

    class Watched(threading.Event):
        """Asked with each piece: then half of the output is written."""

        def is_set(self) -> bool:
            seen.extend(str(path.relative_to(place.base)) for path in place.base.rglob(".*"))
            return False

    place.deliverer.deliver(place.delivery(place.parts((0, 4)), done="0-3", kind=kind), Watched())
    (name,) = set(seen)
    make(place.base / name, age_s=OUTPUT_AGE_S + 60)
    assert sweep_leftovers(tmp_path / "stage", place.base, started_us=clock.now_us()) == 1


def test_no_output_has_a_name_that_is_taken_for_what_a_delivery_left(tmp_path: Path) -> None:
    place = Place(tmp_path)
    parts = place.parts((0, 1), (1, 1))
    spread = Output(name="hits", path=".hits-{event}.9.part", pack=Pack.FILES)
    delivery = place.delivery(parts, done="0-1", kind=OutputKind.EACH)
    place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=[spread]))
    files = [path for path in place.base.rglob("*") if path.is_file()]
    assert len(files) == 3
    for path in files:
        os.utime(path, (0, 0))
    assert sweep_leftovers(tmp_path / "stage", place.base, started_us=clock.now_us()) == 0
    named = Output(
        name="hits", path="hits", kind=OutputKind.CONCAT, url=f"{place.base.as_uri()}/.hits.9.part"
    )
    with pytest.raises(JobError, match="is named like Tidemill's own half-written files"):
        place.deliverer.deliver(msgspec.structs.replace(delivery, outputs=[named]))


def test_a_sweep_ends_with_its_agent(tmp_path: Path) -> None:
    make(tmp_path / "out" / "c" / ".9-hist.root.9.part", age_s=OUTPUT_AGE_S + 60)
    canceled = threading.Event()
    canceled.set()
    assert (
        sweep_leftovers(tmp_path / "stage", tmp_path / "out", started_us=clock.now_us(), canceled=canceled)
        == 0
    )
    assert sweep_leftovers(tmp_path / "stage", tmp_path / "out", started_us=clock.now_us()) == 1
