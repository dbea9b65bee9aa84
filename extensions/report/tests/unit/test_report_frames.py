"""Data frames of reports, and the notebook that uses them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import draw_notebook
from bench import year

from tidemill.errors import ConfigError
from tidemill_report import frames
from tidemill_report.operation.gather import gather
from tidemill_report.operation.source import ReportFiles

SIZE = year.Size(jobs=1_200, week_jobs=100)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Path(tmp_path_factory.mktemp("year"))
    year.make(directory, seed=11, size=SIZE)
    return directory


def test_frames_are_the_tables_of_the_report(archive: Path) -> None:
    sheets = gather(ReportFiles([archive])).sheets
    found = frames.from_archive(archive)
    assert list(found) == list(sheets)
    assert found["months"].arrow.to_pylist()[0] == dict(
        zip([each.name for each in sheets["months"].columns], sheets["months"].rows[0], strict=True)
    )


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_pandas_and_polars_get_the_same_values(archive: Path, package: str) -> None:
    pytest.importorskip(package)
    frame = frames.from_archive(archive)["sites"]
    made: Any = getattr(frame, f"to_{package}")()
    assert type(made).__module__.startswith(package)
    assert list(made["jobs"]) == frame.arrow["jobs"].to_pylist()
    assert list(made.columns) == frame.arrow.column_names


def test_single_jobs_come_with_the_columns_that_were_asked_for(archive: Path) -> None:
    found = frames.from_archive(archive, campaign=year.WEEK_CAMPAIGN)
    jobs = found.jobs(["nodes", "read_bytes"])
    assert jobs.arrow.column_names == ["nodes", "read_bytes"]
    assert len(jobs) == SIZE.week_jobs
    every = frames.from_archive(archive)
    failed = sum(row["failures"] for row in every["failures"].arrow.to_pylist())
    assert len(every.failures()) == failed
    assert len(every.allocations()) == sum(
        row["allocations"] for row in every["allocations"].arrow.to_pylist()
    )


def test_a_package_that_is_not_there_is_named(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError) as raised:
        frames.from_archive(archive)["sites"].to_pandas()
    assert (raised.value.hint or "").startswith("`pip install --find-links dist 'tidemill[pandas]'`, ")


def test_the_notebook_is_what_its_source_says_without_outputs() -> None:
    text = draw_notebook.NOTEBOOK.read_text(encoding="utf-8")
    assert text == draw_notebook.notebook(draw_notebook.SOURCE.read_text(encoding="utf-8"))
    cells = json.loads(text)["cells"]
    assert [each for each in cells if each.get("outputs") or each.get("execution_count")] == []
    assert {each["cell_type"] for each in cells} == {"markdown", "code"}


def test_the_notebooks_cells_run_in_their_order(archive: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    shown = []
    for kind, body in draw_notebook.cells(draw_notebook.SOURCE.read_text(encoding="utf-8")):
        if kind == "code":
            *_, last = ast.parse(body).body
            shown.append(body if not isinstance(last, ast.Expr) else f"{body}\nprint({ast.unparse(last)})")
    program = tmp_path / "cells.py"
    program.write_text("\n".join(shown))
    environment = {"TIDEMILL_ARCHIVE": str(archive), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-W", "error", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "titan" in done.stdout
    assert "estimate" in done.stdout
