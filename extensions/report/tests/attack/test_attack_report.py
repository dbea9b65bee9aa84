"""`tidemill report` at a hostile server, and under a umask of 000 and of 002."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.strangers import UMASKS, opened, under
from tests.terminals import check_harmless, screen_of
from tests.worlds.home.homes import Home
from tests.worlds.services.hostile_answers import hostile_answers


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with hostile_answers() as found:
        yield found


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_report_passes_on_nothing_that_a_hostile_server_writes(
    address: str, tmp_path: Path, form: list[str]
) -> None:
    screen = screen_of([["report", *form]], address, tmp_path)
    check_harmless(screen)
    assert "]0;owned" in screen  # as text
    assert "this is a bug" not in screen
    assert ('"campaigns"' if form else "CAMPAIGN") in screen, "it reported"


@pytest.mark.parametrize("umask", UMASKS, ids=lambda umask: f"{umask:03o}")
def test_nothing_that_a_report_writes_is_writable_for_others(umask: int) -> None:
    with under(umask):
        home = Home(Path(tempfile.mkdtemp(prefix="tm-")))
        try:
            home.start()
            for words in (["run", "--", "true"], ["report", "--html", "report.html", "--csv", "deep/tables"]):
                done = home.run(*words)
                assert done.returncode == 0, done.stderr + home.logs()
            assert (home.work / "report.html").exists()
            assert opened(home.work, without=(home.work / "tidemill-out",)) == []
        finally:
            home.end()
