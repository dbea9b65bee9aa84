"""Digests of large files: nobody waits for them, and what needs them is neither refused nor granted until then."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import JobError, SiteError
from tidemill.model.job import JobSpec
from tidemill.site.applications.catalogue import Applications
from tidemill.site.applications.checksums import INLINE_BYTES_MAX, RECORD, Digests, PendingError
from tidemill.site.applications.programs import NodeShape, Preparer

LARGE = INLINE_BYTES_MAX + 1


def zeros(path: Path, size: int) -> Path:
    """A file that takes no room and is long to read."""
    path.touch(mode=0o755)
    os.truncate(path, size)
    return path


def sha256_of_zeros(size: int) -> str:
    return "sha256:" + hashlib.sha256(bytes(size)).hexdigest()


def waited_for(digests: Digests, path: Path) -> str:
    deadline_s = clock.monotonic_s() + 20
    while clock.monotonic_s() < deadline_s:
        try:
            return digests.digest(str(path))
        except PendingError:
            clock.sleep_s(0.005)
    raise AssertionError(f"{path} was not read")


def test_a_large_file_is_read_beside_and_remembered_until_it_changes(tmp_path: Path) -> None:
    large, digests = zeros(tmp_path / "pack", LARGE), Digests(beside=True)
    with pytest.raises(PendingError):
        digests.digest(str(large))
    assert waited_for(digests, large) == sha256_of_zeros(LARGE)
    assert not digests.is_busy
    assert digests.digest(str(large)) == sha256_of_zeros(LARGE)
    zeros(large, LARGE + 1)
    with pytest.raises(PendingError):
        digests.digest(str(large))
    assert waited_for(digests, large) == sha256_of_zeros(LARGE + 1)
    digests.close()


def test_a_small_file_is_read_at_once_and_so_is_every_file_where_one_may_wait(tmp_path: Path) -> None:
    small, large = zeros(tmp_path / "small", 1000), zeros(tmp_path / "large", LARGE)
    beside = Digests(beside=True)
    assert beside.digest(str(small)) == sha256_of_zeros(1000)
    assert not beside.is_busy
    assert Digests().digest(str(large)) == sha256_of_zeros(LARGE)


def test_a_file_that_goes_while_it_is_read_is_an_error_and_no_wait_for_ever(tmp_path: Path) -> None:
    large, digests = zeros(tmp_path / "pack", LARGE), Digests(beside=True)
    with pytest.raises(PendingError):
        digests.digest(str(large))
    large.unlink()
    with pytest.raises(SiteError, match="failed to read"):
        digests.digest(str(large))
    assert not digests.is_busy
    digests.close()


def test_what_a_file_tells_is_asked_again_when_the_file_looks_different(tmp_path: Path) -> None:
    file, asked, digests = tmp_path / "recipe", [], Digests()

    def read() -> str:
        asked.append(file.read_text())
        return asked[-1]

    file.write_text("one")
    assert (digests.cached(str(file), read), digests.cached(str(file), read)) == ("one", "one")
    file.write_text("other")
    assert digests.cached(str(file), read) == "other"
    assert asked == ["one", "other"]


def test_what_the_agent_found_is_not_read_again_by_those_who_ask_what_it_sees(tmp_path: Path) -> None:
    large, agent, record = zeros(tmp_path / "image", LARGE), Digests(), tmp_path / RECORD
    agent.write_known(record)
    assert not record.exists()
    agent.digest(str(large))
    agent.write_known(record)
    written = record.stat().st_ino
    agent.write_known(record)
    assert record.stat().st_ino == written

    asker = Digests(beside=True)
    asker.read_known(tmp_path / "none")
    asker.read_known(record)
    assert asker.digest(str(large)) == sha256_of_zeros(LARGE)
    zeros(large, LARGE + 1)
    with pytest.raises(PendingError):
        asker.digest(str(large))
    asker.close()


def test_a_read_under_way_ends_with_its_owner(tmp_path: Path) -> None:
    endless, digests = zeros(tmp_path / "pack", 1 << 42), Digests(beside=True)
    with pytest.raises(PendingError):
        digests.digest(str(endless))
    digests.close()
    deadline_s = clock.monotonic_s() + 20
    while any(thread.name.startswith("digests") for thread in threading.enumerate()):
        assert clock.monotonic_s() < deadline_s
        clock.sleep_s(0.005)


def test_an_application_whose_files_are_being_read_is_neither_offered_nor_are_its_jobs_refused(
    tmp_path: Path,
) -> None:
    program = zeros(tmp_path / "prog", LARGE)
    directory = tmp_path / "apps"
    directory.mkdir()
    (directory / "sim.toml").write_text(f'name = "sim"\nexecutable = "{program}"\n')
    applications = Applications(directory, beside=True)
    preparer = Preparer(SiteConfig(name="x", server="unix:/x"), applications, NodeShape(4, 8000, {}))

    assert not applications.refresh()
    assert applications.offers({}) == []
    with pytest.raises(PendingError):
        preparer.program(JobSpec(app="sim"), None)
    waited_for(applications.digests, program)
    preparer.begin()
    assert applications.refresh()
    assert not applications.refresh()
    assert [offer.name for offer in applications.offers({})] == ["sim"]
    assert preparer.program(JobSpec(app="sim"), None).app == "sim"

    zeros(program, LARGE + 1)  # it is another one now, or not: nobody knows yet
    preparer.begin()
    with pytest.raises(PendingError):
        preparer.program(JobSpec(app="sim"), None)
    waited_for(applications.digests, program)
    preparer.begin()
    with pytest.raises(JobError, match="has digest"):
        preparer.program(JobSpec(app="sim"), None)
    applications.digests.close()
