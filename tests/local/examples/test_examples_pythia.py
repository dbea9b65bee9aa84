"""Real Pythia events through the range protocol, the merge step and the analysis."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.examples import APPLICATIONS, HERE, try_ranges
from tidemill.examples.digest import digests
from tidemill.examples.hepmc_merge.merge import find_parts, merge, read_events
from tidemill.examples.try_ranges import Trial, TrialOutcome

pytest.importorskip("pythia8mc", reason="needs `tidemill[examples]`")
pytest.importorskip("pyhepmc", reason="needs `tidemill[examples]`")

COMMAND = [sys.executable, str(HERE / APPLICATIONS["pythia8"])]
SEED = 899_999_990  # the seeds of 20 events pass Pythia's largest one


def generate(directory: Path, trial: Trial) -> dict[int, str]:
    """Generate and leave `part-*` in `directory`; the digest of each event."""
    (directory / "work").mkdir(parents=True)
    outcome = try_ranges.run(COMMAND, directory / "work", trial)
    assert (outcome.error, outcome.exit_status, outcome.failed) == (None, 0, {})
    return save_parts(directory, outcome)


def save_parts(directory: Path, outcome: TrialOutcome) -> dict[int, str]:
    found: dict[int, str] = {}
    for number, piece in enumerate(sorted(outcome.pieces, key=lambda piece: piece.first)):
        path = directory / f"part-{number:06d}"
        path.write_bytes(piece.outputs["events"])
        of_part = dict(digests(path))
        assert list(of_part) == list(range(piece.first, piece.first + piece.count))
        found.update(of_part)
    return found


@pytest.mark.parametrize(
    "params",
    [
        {"process": "zmumu"},
        {"process": "zmumu", "record": "full"},
        {"process": "minbias", "gzip": True},
        {"process": "hardqcd", "pt_min": 5.0},
    ],
    ids=lambda params: "-".join(map(str, params.values())),
)
def test_an_event_depends_on_its_seed_alone(tmp_path: Path, params: dict[str, object]) -> None:
    whole = generate(tmp_path / "whole", Trial(events=20, size=20, seed=SEED, params=params))
    singly = generate(tmp_path / "singly", Trial(events=20, size=1, seed=SEED, params=params))
    assert list(whole) == list(range(20))
    assert len(set(whole.values())) == 20
    assert singly == whole
    # a process that starts in the middle, with other events before
    late = generate(tmp_path / "late", Trial(events=5, size=2, first=12, seed=SEED + 12, params=params))
    assert late == {number: whole[number] for number in range(12, 17)}


def test_parts_become_one_file_with_all_events_and_one_cross_section(tmp_path: Path) -> None:
    whole = generate(tmp_path, Trial(events=30, size=7, params={"process": "zmumu"}))
    summary = merge(find_parts(tmp_path), tmp_path / "merged")
    assert summary["events"] == 30
    assert dict(digests(tmp_path / "merged")) == whole
    cross_sections = {event.cross_section() for event in read_events(tmp_path / "merged")}
    assert len(cross_sections) == 1
    value_pb = summary["cross_section_pb"]
    assert isinstance(value_pb, float)
    assert (
        1000 < value_pb < 3000
    )  # Z and photon to any fermions above 60 GeV is restricted to muons: about 1.5 nb


@pytest.mark.parametrize("process", ["zmumu", "minbias", "hardqcd"])
@pytest.mark.parametrize("record", ["final", "full"])
def test_readers_understand_the_events_and_nothing_is_lost(tmp_path: Path, process: str, record: str) -> None:
    import pyhepmc

    generate(tmp_path, Trial(events=5, size=5, first=40, params={"process": process, "record": record}))
    with pyhepmc.open(tmp_path / "part-000000") as file:
        events = list(file)
    assert [event.event_number for event in events] == [40, 41, 42, 43, 44]
    for event in events:
        final = event.numpy.particles.status == 1
        assert event.numpy.particles.e[final].sum() == pytest.approx(13000.0, rel=1e-6)
        assert event.numpy.particles.pz[final].sum() == pytest.approx(0.0, abs=1e-2)
        assert [beam.pid for beam in event.beams] == [2212, 2212]
        assert all(vertex.particles_in and vertex.particles_out for vertex in event.vertices)


def test_analysis_finds_the_z_in_the_merged_file(tmp_path: Path) -> None:
    uproot = pytest.importorskip("uproot", reason="needs `tidemill[examples]`")
    pytest.importorskip("hist", reason="needs `tidemill[examples]`")
    generate(tmp_path, Trial(events=40, size=20, params={"process": "zmumu"}))
    merge(find_parts(tmp_path), tmp_path / "merged")
    command = [sys.executable, str(HERE / APPLICATIONS["zpeak"]), str(tmp_path / "merged"), "--bins", "50"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads((tmp_path / "zpeak.json").read_text())
    assert summary["events"] == 40
    assert summary["pairs"] == 40
    assert 88 < summary["peak_gev"] < 93
    with uproot.open(tmp_path / "zpeak.root") as file:
        values = file["mass"].values()
        assert len(values) == 50
        assert file["multiplicity"].values(flow=True).sum() == 40


def test_analysis_of_a_file_without_events_says_so(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("nothing\n")
    command = [sys.executable, str(HERE / APPLICATIONS["zpeak"]), "events"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "events" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_that_pythia_refuses_is_quoted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "work").mkdir()
    outcome = try_ranges.run(COMMAND, tmp_path / "work", Trial(params={"tune": "none"}))
    assert outcome.exit_status == 1
    assert not outcome.ready
    assert "Pythia refused the setting `Tune:pp = none`" in capfd.readouterr().err
