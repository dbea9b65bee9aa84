"""Delivered files on the pages of a job, of its campaign and of transfers: the links lead to what was delivered."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.worlds.home.homes import Home, started_home
from tests.worlds.home.socket_pages import get_page

COMMAND = "test {event} = 0 || test -e MARK || exit 3; echo of {event} > out-{event}.txt"


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def _get(home: Home, path: str) -> tuple[str, str]:
    return get_page(home.path, path)


def test_pages_link_to_the_files_of_all_deliveries_of_a_job(home: Home) -> None:
    command = COMMAND.replace("MARK", str(home.work / "mark"))
    words = ["run", "--name", "twice", "--events", "2", "--retries", "0", "--failed-max", "1"]
    words += ["--output", "out-{event}.txt", "--pack", "tar"]
    first = home.run(*words, "--", "sh", "-c", command)
    (job,) = home.jobs("twice")
    assert (job.state, job.events_done) == ("PARTIAL", 1), first.stderr
    (home.work / "mark").touch()
    assert home.run("job", "retry", str(job.id)).returncode == 0
    assert home.run("wait", "twice").returncode == 0
    for path in (f"/jobs/{job.id}", "/campaigns/twice", "/transfers"):
        links = re.findall(r'href="(/jobs/\d+/files/\d+)" download', _get(home, path)[1])
        assert len(links) >= 2, path
        answers = [_get(home, link) for link in links]
        assert all("200 OK" in head and "attachment" in head for head, _ in answers), path
        for line in ("of 0\n", "of 1\n"):
            assert any(line in body for _, body in answers), (path, line)


def test_a_directory_of_files_is_shown_with_the_command_that_copies_it(home: Home) -> None:
    words = ["run", "--name", "many", "--events", "3", "--output", "out-{event}.txt"]
    done = home.run(*words, "--", "sh", "-c", "echo {event} > out-{event}.txt")
    assert done.returncode == 0, done.stderr
    (job,) = home.jobs("many")
    for path, command in (
        (f"/jobs/{job.id}", f"tidemill outputs get {job.id}"),
        ("/campaigns/many", f"tidemill outputs get --campaign {job.campaign_reference}"),
    ):
        page = _get(home, path)[1]
        assert not re.search(r"download>(<b>)?out", page), path
        assert command in page, path
