"""Stress tests in a report: from the files that `tidemill stress run` leaves, of which it reads what it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill_report.operation import stress

RATE = {"value": 2.0, "low": 1.5, "high": 2.5}
FIGURES = {
    "cpu_wall_mean": 0.8, "cpu_wall_sd": 0.1, "events_wall_mean": 0.5, "events_wall_sd": 0.2, "events_s": RATE,
    "running": 3.9, "failed": {"payload": 1}, "of_a_later_version": 7,
}  # fmt: skip


def level(number: int, level: int, **fields: object) -> dict[str, object]:
    return {"step": [number, "here", level, 0, "more"], "status": "steady", **fields}


def run(folder: Path, name: str, *levels: dict[str, object]) -> None:
    (folder / name).mkdir()
    result = {"id": name, "steps": levels, "knees": {"here": {"recommended": 8}}, "slots": {}}
    (folder / name / stress.RESULT).write_text(json.dumps(result))


def test_each_level_is_a_row_and_a_level_without_figures_has_its_status(tmp_path: Path) -> None:
    measured = level(1, 4, figures=FIGURES, filter={"counted": 20}, worst_level_error=0.05)
    run(tmp_path, "a-1", measured, level(2, 8, status="not reached"))
    (tmp_path / "going-on").mkdir()
    found = stress.runs([tmp_path])
    first, second = stress.sheet(found).rows
    assert first == (
        "a-1",
        "here",
        4,
        None,
        "steady",
        3.9,
        20,
        1,
        0.8,
        0.1,
        0.5,
        0.2,
        2.0,
        1.5,
        2.5,
        0.05,
        "8 at a time",
    )
    assert second[:6] == ("a-1", "here", 8, None, "not reached", None)
    assert stress.curves(found) == [], "one level does not make a curve"


def test_a_run_of_several_levels_has_a_curve(tmp_path: Path) -> None:
    run(tmp_path, "b", *(level(k, 4 * k, figures=FIGURES) for k in (1, 2)))
    ((words, drawn),) = stress.curves(stress.runs([tmp_path / "b"]))
    assert words.startswith("b at here: events/s of all payloads against the level")
    assert drawn.startswith("<svg")


def test_a_directory_without_results_and_a_result_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no result of a stress test"):
        stress.runs([tmp_path])
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "result.json").write_text('{"id": 3')
    with pytest.raises(ConfigError, match=r"failed to read .*result\.json"):
        stress.runs([tmp_path])
