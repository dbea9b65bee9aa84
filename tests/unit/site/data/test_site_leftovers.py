"""What killed agents left half-written is removed; what is whole, young or somebody else's stays."""

from __future__ import annotations

import os
from pathlib import Path

from tidemill import clock
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
    names = (
        ".9-hist.root.9.part",
        ".manifest-9.json.4711.0badcafe.tmp",
        "@ada/.8-x.8.part",
        "@ada/8-x",
        "run.9.part",
    )
    paths = [make(outputs / name, age_s=OUTPUT_AGE_S + 60) for name in names]
    left = sweep_leftovers(tmp_path / "stage", outputs, started_us=clock.now_us())
    assert left == 3
    assert [path.name for path in paths if path.exists()] == ["8-x", "run.9.part"]
