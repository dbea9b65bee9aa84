"""`tidemill report --archive`: years on the terminal, and a clear sentence for what cannot be reported on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from bench import year

YEARS = (2016, 2017, 2018)
SIZE = year.Size(jobs=600, week_jobs=0)


def report(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.cli.main", "report", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three years of one server."""
    directory = Path(tmp_path_factory.mktemp("years"))
    with pytest.MonkeyPatch.context() as patch:
        for each in YEARS:
            patch.setattr(year, "YEAR", each)
            year.make(directory, seed=each, size=SIZE)
    return directory


def test_the_terminal_has_each_year_and_the_latest_twelve_months(archive: Path) -> None:
    done = report("--archive", str(archive))

    assert done.returncode == 0, done.stderr
    years = done.stdout.partition("per year and site")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line.split()[0] for line in years if " all " in line] == [str(each) for each in YEARS]
    months = done.stdout.partition("per month and site")[2].partition("\n\n")[0].splitlines()
    assert {line.split()[0] for line in months if line.startswith("2")} == {
        *(f"2018-{month:02d}" for month in range(1, 13)),
        "24",
    }
    assert "24 earlier months: --html FILE, --csv DIR" in months


def test_all_months_are_in_the_files(archive: Path, tmp_path: Path) -> None:
    done = report(
        "--archive", str(archive), "--csv", str(tmp_path / "tables"), "--html", str(tmp_path / "r.html")
    )

    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "tables" / "months.csv").read_text().splitlines()[1:]
    assert len({line.split(",")[0] for line in lines}) == 36
    assert (tmp_path / "tables" / "years.csv").exists()
    assert "<h3>By year</h3>" in (tmp_path / "r.html").read_text()


def test_an_empty_archive_is_no_error(tmp_path: Path) -> None:
    done = report("--archive", str(tmp_path), "--html", str(tmp_path / "r.html"))

    assert done.returncode == 0
    assert f"no job has come into the archive `{tmp_path}` yet" in done.stderr
    assert "No job has come" in (tmp_path / "r.html").read_text()


def test_what_cannot_be_read_is_one_sentence_with_a_hint(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    broken = tmp_path / "broken"
    shutil.copytree(archive, broken)
    path = next(broken.glob("2017-*/*-jobs.parquet"))
    path.write_bytes(path.read_bytes()[:-100])
    for directory, words in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path, "is not an archive"),
        (archive / "2016-03", f"hint: it is one month of an archive: name `{archive}`"),
        (broken, f"file `{path}` of the archive cannot be read"),
    ):
        done = report("--archive", str(directory))
        assert (done.returncode, done.stdout) == (3, "")
        assert words in done.stderr
        assert "hint: " in done.stderr
        assert "Traceback" not in done.stderr


def test_a_campaign_that_is_not_there_is_named(archive: Path) -> None:
    assert "no job of campaign `nope` ran" in report("--archive", str(archive), "--campaign", "nope").stderr
