"""`tidemill report` begins with core-hours, on a machine that has no pyarrow: from the server, and from its files."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest
from tests.worlds.home.homes import WAIT_S, Home, started_home

from tidemill.client import Client
from tidemill.model.job import JobSpec

SLEPT_S = 2.0
EVENTS = 4


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home in which two campaigns ran, and whose commands cannot import pyarrow."""
    without = tmp_path_factory.mktemp("without")
    (without / "pyarrow.py").write_text("raise ImportError(\"No module named 'pyarrow'\")\n")
    with started_home() as it:
        client = Client(home=it.path)
        for name in ("one", "two"):
            client.submit(JobSpec(command=["sleep", str(SLEPT_S)], events=EVENTS), campaign=name)
        for name in ("one", "two"):
            assert client.wait_end(name, timeout_s=WAIT_S).events_done == EVENTS
        it.env["PYTHONPATH"] = str(without)
        yield it


def test_the_server_tells_core_hours_first_and_they_add_up(home: Home) -> None:
    done = home.run("report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("core-hours  ")
    assert "CPUTimeRAW" in done.stderr

    found = home.data("report")["core_hours"]
    assert {each["name"].rpartition("/")[2] for each in found["campaigns"]} >= {"one", "two"}
    for name in ("campaigns", "apps"):
        assert sum(each["held_h"] for each in found[name]) == pytest.approx(found["total"]["held_h"])
        assert sum(each["used_h"] for each in found[name]) == pytest.approx(found["total"]["used_h"])
    used_s = 3600 * found["total"]["used_h"]
    assert used_s == pytest.approx(2 * EVENTS * SLEPT_S, rel=0.5), "slots of one core"
    assert used_s >= 2 * EVENTS * SLEPT_S
    assert found["total"]["used_h"] <= found["total"]["held_h"]
    for row in found["allocations"]:
        assert row["batch_id"]
        assert row["held_core_us"] == row["cores"] * row["elapsed_us"]


def test_a_page_is_written_with_a_part_of_the_users_own(home: Home) -> None:
    (home.work / "part.html").write_text("<section><h2>Ours</h2></section>")
    done = home.run("report", "--campaign", "one", "--html", "report.html", "--part", "part.html")
    assert done.returncode == 0, done.stderr
    page = (home.work / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<section><h2>Ours</h2></section>" in page
    assert home.run("report", "--html", "report.html", "--part", "none.html").returncode == 2
    assert (home.work / "report.html").read_text() == page


def test_a_campaign_that_is_not_there_is_named(home: Home) -> None:
    done = home.run("report", "--campaign", "eve/same")
    assert done.returncode == 2
    assert "eve/same" in done.stderr


def test_what_happened_when_has_each_event_once(home: Home) -> None:
    told = home.data("report", "--campaign", "one")["timeline"]
    assert (told["known"], told["events"]) == (EVENTS, EVENTS)
    assert sum(told["course"]["done"]) == EVENTS


def test_one_campaign_has_its_part(home: Home) -> None:
    whole = {each["name"]: each for each in home.data("report")["core_hours"]["campaigns"]}
    one = home.data("report", "--campaign", "one")["core_hours"]["total"]
    (name,) = [each for each in whole if each.rpartition("/")[2] == "one"]
    assert one["used_h"] == pytest.approx(whole[name]["used_h"])


def test_tables_of_core_hours_are_written_as_csv(home: Home) -> None:
    done = home.run("report", "--csv", "tables")
    assert done.returncode == 0, done.stderr
    names = sorted(each.name for each in (home.work / "tables").iterdir())
    assert names == ["core_hours_allocations.csv", "core_hours_apps.csv", "core_hours_campaigns.csv"]
    text = (home.work / "tables" / "core_hours_allocations.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert rows
    assert set(rows[0]) >= {"batch_id", "cores", "elapsed", "held", "used"}


def test_the_files_of_a_running_server_tell_the_same_without_pyarrow(home: Home) -> None:
    """Before: `the archive cannot be read: No module named 'pyarrow'`, for a database that was an hour old."""
    done = home.run("report", "--local")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("core-hours  ")
    assert "need pyarrow" in done.stderr
    found = home.data("report", "--local")
    files, server = found["core_hours"], home.data("report")["core_hours"]
    assert len(found["core_hours_allocations"]) == len(files["allocations"]), (
        "with pyarrow these are there, too"
    )
    assert files["total"]["used_h"] == server["total"]["used_h"]
    assert [each["name"] for each in files["campaigns"]] == [each["name"] for each in server["campaigns"]]

    page = home.run("report", "--local", "--html", "r.html")
    assert page.returncode != 0
    assert "pyarrow" in page.stderr
