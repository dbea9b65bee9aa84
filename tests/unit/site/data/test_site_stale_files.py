"""Files that arrived of results that do not count are removed, and what the job knows of its directory stays true."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from tests.unit.site.data.test_site_arrivals import (
    GOES_ON,
    Working,
    _forge,
    delivery,
    early,
    folder,
    manifest,
)
from tests.unit.site.data.test_site_outputs import Place, lines
from tests.unit.site.data.test_site_pools import _Site

from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Output
from tidemill.site.applications.catalogue import Applications
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.data.placed.manifests import ARRIVED
from tidemill.site.data.placed.stale import StaleRemovals
from tidemill.site.state.served_site import ServedSite
from tidemill.site.state.site_state import KeptPart, StaleFiles


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def take_back(place: Place, parts: list[KeptPart]) -> int:
    return place.deliverer.take_back(delivery(place, parts, number=ARRIVED), GOES_ON)


def listed(place: Place) -> list[str]:
    return [each.file for each in manifest(place).files]


def texts(place: Place) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder(place).glob("*.txt")}


def change(path: Path) -> None:
    path.write_text("mine")


def put_a_link(path: Path) -> None:
    target = path.with_name("mine")
    target.write_text("mine")
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("alter", [change, put_a_link])
def test_the_next_file_of_an_event_comes_beside_one_that_was_changed_before_it_was_to_be_removed(
    place: Place, alter: Callable[[Path], None]
) -> None:
    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    alter(folder(place) / "hits-1.txt")
    assert take_back(place, parts[1:]) == 0
    assert listed(place) == ["hits-0.txt", "hits-1.txt"]
    place.word = b"again"
    place.deliverer.deliver(delivery(place, place.parts((0, 1), (1, 1))))
    expected = {"hits-0.txt": "again 0\n", "hits-1.txt": "mine", "hits-hits-1.txt": "again 1\n"}
    assert texts(place) == expected
    assert listed(place) == ["hits-0.txt", "hits-hits-1.txt"]


def test_a_file_that_its_owner_moved_away_is_listed_no_more(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    (folder(place) / "hits-1.txt").unlink()
    assert take_back(place, parts[1:]) == 0
    assert listed(place) == ["hits-0.txt"]


def test_a_file_that_cannot_be_read_stays_listed_and_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", broken)
        with pytest.raises(SiteError, match=os.strerror(errno.EIO)) as raised:
            take_back(place, parts)
    assert raised.value.transient
    assert listed(place) == ["hits-0.txt", "hits-1.txt"]
    assert texts(place) == {"hits-0.txt": lines(0), "hits-1.txt": lines(1)}
    assert take_back(place, parts) == 2


def test_a_name_that_no_file_can_have_stops_no_delivery(place: Place) -> None:
    """Others may be able to change the manifest."""
    parts = place.parts((0, 1), (1, 1))
    early(place, parts)
    _forge(place, file="x" * 300)
    place.deliverer.deliver(delivery(place, parts[:1]))
    assert listed(place) == ["hits-0.txt"]


class Meanwhile(threading.Event):
    """An event that is never set: the nth time that somebody asks, `act` is called first."""

    def __init__(self, act: Callable[[], object], asked: int) -> None:
        super().__init__()
        self._act, self._left = act, asked

    def is_set(self) -> bool:
        self._left -= 1
        if not self._left:
            self._act()
        return False


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_what_another_site_delivers_while_files_are_removed_stays_and_is_listed(
    place: Place, removed: int
) -> None:
    """It keeps files of the same content that came from here."""
    parts = place.parts((0, 1), (1, 1), (2, 1))
    early(place, parts)
    there = place.with_mask(None, site="there")
    canceled = Meanwhile(lambda: there.deliver(delivery(place, parts)), removed + 1)
    assert place.deliverer.take_back(delivery(place, parts, number=ARRIVED), canceled) == removed
    assert texts(place) == {f"hits-{event}.txt": lines(event) for event in range(3)}
    assert [(each.file, each.delivery) for each in manifest(place).files] == [
        ("hits-0.txt", 1), ("hits-1.txt", 1), ("hits-2.txt", 1),
    ]  # fmt: skip


def test_what_another_site_lists_while_files_are_removed_stays_listed(place: Place) -> None:
    parts = place.parts((0, 1), (1, 1), (2, 1))
    early(place, parts[:2])
    there = place.with_mask(None, site="there")
    canceled = Meanwhile(lambda: there.arrive(delivery(place, parts[1:], number=ARRIVED), GOES_ON), 2)
    assert place.deliverer.take_back(delivery(place, parts, number=ARRIVED), canceled) == 1
    assert [(each.file, each.site) for each in manifest(place).files] == [
        ("hits-1.txt", ""), ("hits-2.txt", "there"),
    ]  # fmt: skip


class AwayPreparer(Preparer):
    """The files of its applications cannot be read now."""

    def outputs(self, spec: JobSpec) -> list[Output]:
        raise SiteError(f"failed to read application `{spec.app}`: {os.strerror(errno.ESTALE)}")


def test_a_removal_that_cannot_begin_for_now_is_tried_again(place: Place) -> None:
    it = Working(place)
    try:
        state, config = it.log.pool.state, SiteConfig(name="s", server="unix:/x")
        site = cast("ServedSite", _Site(state, it.log, place.tmp_path / "fleets", it.pools, config))
        prepared = AwayPreparer(config, Applications(place.tmp_path / "apps"), NodeShape(4, 8000, {}))
        removals = StaleRemovals(site, prepared, place.deliverer)
        spec = JobSpec(app="sim", events=10)
        events = IntervalSet([(0, 1)])
        state.stale[7] = [StaleFiles(job=7, campaign="c", owner="", spec=spec, events=events)]
        assert removals.step([])
        assert removals.is_to_try_again
        assert removals.holds(7)
        assert not removals.step([]), "not at once"
    finally:
        it.close()
