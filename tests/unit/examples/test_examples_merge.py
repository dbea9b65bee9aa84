"""Joining HepMC3 files: order, completeness, cross-section; and the digests of events."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.examples import APPLICATIONS, HERE
from tidemill.examples.digest import digests
from tidemill.examples.hepmc_merge import merge as tool
from tidemill.examples.hepmc_merge.merge import BadFile, CrossSection, find_parts, merge, read_events

HEADER = "HepMC::Version 3.02.05\nHepMC::Asciiv3-START_EVENT_LISTING\nW Weight\nT Pythia8\\|8.3\\|x\n"
END = "HepMC::Asciiv3-END_EVENT_LISTING\n\n"


def event_text(number: int, cross_section: str | None = None, energy: str = "1.0") -> str:
    lines = [f"E {number} 1 2", "U GEV MM", "W 1.0"]
    if cross_section:
        lines.append(f"A 0 GenCrossSection {cross_section}")
    lines += [
        f"A 0 seed {number + 1}",
        f"P 1 0 2212 0 0 {energy} {energy} 0 4",
        f"P 2 1 2212 0 0 {energy} {energy} 0 1",
    ]
    return "\n".join(lines) + "\n"


def write_part(
    directory: Path, number: int, first: int, count: int, cross_section: str | None = None
) -> Path:
    path = directory / f"part-{number:06d}"
    path.write_text(HEADER + "".join(event_text(first + k, cross_section) for k in range(count)) + END)
    return path


def test_parts_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write_part(tmp_path, 1, 5, 3)
    write_part(tmp_path, 0, 0, 5)
    write_part(tmp_path, 1_000_000, 8, 2)
    (tmp_path / "other").write_text("not a part")
    summary = merge(find_parts(tmp_path), tmp_path / "merged")
    assert [event.number for event in read_events(tmp_path / "merged")] == list(range(10))
    assert (summary["parts"], summary["events"], summary["first"], summary["last"]) == (3, 10, 0, 9)
    assert [path.name for path in find_parts(tmp_path)][-1] == "part-1000000"
    assert (tmp_path / "merged").read_text().startswith(HEADER + "E 0 ")
    assert not (tmp_path / "merged.unfinished").exists()


def test_failed_events_leave_gaps_and_empty_parts_are_no_error(tmp_path: Path) -> None:
    write_part(tmp_path, 0, 0, 0)
    write_part(tmp_path, 1, 3, 2)
    write_part(tmp_path, 2, 9, 1)
    assert merge(find_parts(tmp_path), tmp_path / "merged")["events"] == 3
    assert [event.number for event in read_events(tmp_path / "merged")] == [3, 4, 9]


def test_cross_section_is_that_of_all_events_weighted(tmp_path: Path) -> None:
    write_part(tmp_path, 0, 0, 3, "100.0 4.0 3 30")
    write_part(tmp_path, 1, 3, 1, "200.0 12.0 1 10")
    summary = merge(find_parts(tmp_path), tmp_path / "merged")
    assert summary["cross_section_pb"] == pytest.approx(125.0)
    assert summary["cross_section_error_pb"] == pytest.approx((12.0**2 + 12.0**2) ** 0.5 / 4)
    told = {event.cross_section() for event in read_events(tmp_path / "merged")}
    assert told == {CrossSection(125.0, 4.24264069, 4, 40)}


def test_without_a_cross_section_in_every_part_none_is_made_up(tmp_path: Path) -> None:
    write_part(tmp_path, 0, 0, 1, "100.0 4.0 3 30")
    write_part(tmp_path, 1, 1, 1)
    assert merge(find_parts(tmp_path), tmp_path / "merged")["cross_section_pb"] is None
    assert [event.cross_section() is None for event in read_events(tmp_path / "merged")] == [False, True]


def test_compressed_parts_make_a_compressed_result_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    for number in (0, 1):
        path = write_part(tmp_path, number, number, 1)
        path.write_bytes(gzip.compress(path.read_bytes()))
    merge(find_parts(tmp_path), tmp_path / "one")
    merge(find_parts(tmp_path), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert [event.number for event in read_events(tmp_path / "one")] == [0, 1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-60], "the last line `HepMC::Asciiv3-END_EVENT_LISTING` is missing"),
        (lambda text: "", "is not HepMC3 ASCII"),
        (lambda text: text.replace("Asciiv3-START", "IO_GenEvent-START"), "is not HepMC3 ASCII"),
        (lambda text: text.replace("E 6 ", "E 5 "), "event 5 follows event 5"),
        (lambda text: text.replace("E 5 ", "E 4 "), "starts with event 4, but"),
        (lambda text: text.replace("E 6 1 2", "E x"), "expected `E NUMBER VERTICES PARTICLES`"),
    ],
)
def test_a_bad_part_is_named_and_nothing_is_written(tmp_path: Path, damage: object, message: str) -> None:
    assert callable(damage)
    write_part(tmp_path, 0, 0, 5)
    path = write_part(tmp_path, 1, 5, 3)
    path.write_text(damage(path.read_text()))
    with pytest.raises(BadFile, match=r"part-000001") as caught:
        merge(find_parts(tmp_path), tmp_path / "merged")
    assert message in str(caught.value)
    assert not (tmp_path / "merged").exists()


def test_a_compressed_part_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = write_part(tmp_path, 0, 0, 5)
    path.write_bytes(gzip.compress(path.read_bytes())[:-20])
    with pytest.raises(BadFile, match=r"part-000000`: its compressed data are corrupt or end early"):
        merge(find_parts(tmp_path), tmp_path / "merged")


def test_digest_ignores_cross_section_and_header_and_nothing_else(tmp_path: Path) -> None:
    texts = {
        "a": HEADER + event_text(3, "1.0 0.1 1 1") + END,
        "b": HEADER.replace("x", "y") + event_text(3, "2.0 0.2 2 2") + END,
        "c": HEADER + event_text(3, "1.0 0.1 1 1", energy="1.0000000000000002") + END,
        "d": HEADER + event_text(4, "1.0 0.1 1 1") + END,
    }
    found = {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        found[name] = list(digests(tmp_path / name))
    assert found["a"] == found["b"]
    assert found["a"] != found["c"]
    assert found["a"] != found["d"]
    assert found["a"][0][0] == 3


def test_the_command_runs_in_its_work_directory_with_nothing_installed(tmp_path: Path) -> None:
    write_part(tmp_path, 0, 0, 5)
    command = [sys.executable, "-I", str(HERE / APPLICATIONS["hepmc-merge"])]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"events": 5' in done.stdout
    (tmp_path / "part-000000").unlink()
    failed = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: no file named `part-000000`")


def test_the_merge_tool_needs_the_standard_library_only() -> None:
    names = {name.partition(".")[0] for name in vars(tool) if name in sys.modules}
    assert names <= set(sys.stdlib_module_names)
