"""`tidemill report` from files: pages, CSV, Parquet, JSON and tables, and what it refuses."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from bench import year

from tidemill.cli.main import main

JOBS = 1_500


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Path(tmp_path_factory.mktemp("year"))
    year.make(directory, seed=7, size=year.Size(jobs=JOBS, week_jobs=50))
    return directory


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)


def test_all_forms_say_the_same(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", "--archive", str(archive)]
    forms = [
        "--html",
        str(tmp_path / "r.html"),
        "--csv",
        str(tmp_path / "csv"),
        "--parquet",
        str(tmp_path / "parquet"),
    ]
    assert main([*words, *forms, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sites"][-1]["jobs"] == JOBS
    assert {path.stem for path in (tmp_path / "csv").glob("*.csv")} == set(told)
    assert {path.stem for path in (tmp_path / "parquet").glob("*.parquet")} == set(told)
    with (tmp_path / "csv" / "sites.csv").open(newline="") as file:
        assert [int(row["jobs"]) for row in csv.DictReader(file)] == [row["jobs"] for row in told["sites"]]
    assert "Set-up and event times" in (tmp_path / "r.html").read_text()


def test_without_a_form_tables_are_printed(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--archive", str(archive), "--campaign", year.WEEK_CAMPAIGN]) == 0
    out = capsys.readouterr().out
    assert "Sites" in out
    assert f"{year.YEAR}-10" in out


def test_the_waits_of_others_come_from_what_the_broker_wrote(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harvest = tmp_path / "titan" / "harvest"
    harvest.mkdir(parents=True)
    record = {"kind": "regular", "at_s": 10.0, "id": "7", "user": "u", "width": 2, "submitted_s": 1.0,
    "could_start_s": 4.0,
              "started_s": 10.0, "share_s": 6.0, "uncertainty_s": 1.0}  # fmt: skip
    lines = [json.dumps(record), json.dumps({**record, "id": "8", "share_s": 0.0})]
    (harvest / "1970-01-01.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["report", "--archive", str(archive), "--harvest", str(harvest), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["waits"]
    assert (row["site"], row["jobs"], row["delayed"], row["worst_job"], row["worst_delay"]) == (
        "titan",
        2,
        1,
        "7",
        6.0,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--archive", "/nowhere/at/all"], "`/nowhere/at/all` does not exist"),
        (["--local"], "there is no database"),
    ],
)
def test_what_cannot_be_read_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *words]) in (2, 3)
    told = capsys.readouterr()
    assert said in told.err
    assert "hint:" in told.err or "directory" in said


def test_parquet_without_pyarrow_tells_the_command(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "pyarrow"] or [
        "pyarrow",
        "pyarrow.parquet",
    ]:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["report", "--archive", str(archive), "--parquet", "out"]) == 2
    assert "pip install --find-links dist 'tidemill[archive]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["--html", "r.html", "--local"], ["--html", "r.html", "--archive", "x"]]
)
def test_a_part_needs_the_page_of_a_report_from_the_server(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--part", "p.html", *words]) == 2
    assert "--part needs the page of a report from the server" in capsys.readouterr().err


def test_a_time_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--since", "yore"]) == 2
    assert "neither a time" in capsys.readouterr().err
