"""What a stress test writes is what a report on an operation reads: both extensions share this file alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from extensions.stress.tests.unit.test_stress_commands import run

from tidemill_report.operation import stress
from tidemill_stress import store


def test_each_level_of_each_run_is_a_row_with_the_studys_figures(tmp_path: Path) -> None:
    for name, cpu in (("a-1", 0.8), ("a-2", 0.4)):
        store.save(tmp_path / name, run(name, cpu))
        store.finish(tmp_path / name, run(name, cpu))
    (tmp_path / "going-on").mkdir()
    found = stress.runs([tmp_path])
    sheet = stress.sheet(found)
    assert sheet.column("run") == ["a-1", "a-2"]
    assert sheet.column("cpu_wall") == [pytest.approx(0.8), pytest.approx(0.4)]
    assert sheet.column("level") == [4, 4]
    assert all(low <= rate <= high for low, rate, high in zip(
        sheet.column("events_s_low"), sheet.column("events_s"), sheet.column("events_s_high"), strict=True
    ))  # fmt: skip
    assert stress.runs([tmp_path / "a-1"]) == found[:1]
    assert stress.curves(found) == [], "one level does not make a curve"


def test_a_run_of_several_levels_has_a_curve_and_one_that_stopped_its_status(tmp_path: Path) -> None:
    one = run("b", 0.8)
    step = one.steps[0]
    more = msgspec.structs.replace(step, step=step.step._replace(number=2, level=8))
    stopped = msgspec.structs.replace(
        step, step=step.step._replace(number=3, level=16), status="not reached", payloads=[]
    )
    one.steps += [more, stopped]
    store.save(tmp_path / "b", one)
    store.finish(tmp_path / "b", one)
    found = stress.runs([tmp_path])
    ((words, drawn),) = stress.curves(found)
    assert words.startswith("b: events/s of all payloads against the level")
    assert drawn.startswith("<svg")
    assert stress.sheet(found).rows[2][:6] == ("b", "", 16, None, "not reached", None)
