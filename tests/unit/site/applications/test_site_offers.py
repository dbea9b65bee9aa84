"""The files of all applications are compared beside the agent's loop: a file system that hangs does not hold it up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.site.applications.offers import Offers
from tidemill.site.applications.programs import NodeShape
from tidemill.site.staff.denials import Denials
from tidemill.site.state.served_site import HelperPools, ServedSite, open_pools

WAIT_S = 20


class _Site(NamedTuple):
    """What offers ask of the site."""

    directory: Path
    pools: HelperPools
    config: SiteConfig = SiteConfig(name="s", server="unix:/x")

    @property
    def fleets_dir(self) -> Path:
        return self.directory / "fleets"


class Hanging:
    """A file system on which one file hangs while `hangs` is set, whoever asks for it."""

    def __init__(self, path: Path) -> None:
        self._path, self._stat = str(path), os.stat
        self.hangs, self.goes_on = threading.Event(), threading.Event()
        self.waited: list[str] = []  #: the threads that did

    def stat(self, path: Any, *args: Any, **named: Any) -> os.stat_result:
        if self.hangs.is_set() and path == self._path:
            self.waited.append(threading.current_thread().name)
            self.goes_on.wait(WAIT_S)
        return self._stat(path, *args, **named)


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def offers(tmp_path: Path) -> Iterator[Offers]:
    """Of a site with one application, `sim`; whatever is done now and then is due at every step."""
    (tmp_path / "site" / "apps").mkdir(parents=True, mode=0o700)
    (tmp_path / "site" / "apps" / "sim.toml").write_text(
        f'name = "sim"\nexecutable = "{program(tmp_path / "sim")}"\n'
    )
    pools = open_pools()
    site = cast("ServedSite", _Site(tmp_path / "site", pools))
    found = Offers(
        site,
        NodeShape(cores=1, memory_mb=1000, devices={}),
        Denials(tmp_path / "site", "s"),
        refresh_s=0,
        compare_s=0,
    )
    yield found
    found.close()
    pools.close()


def until(offers: Offers, is_so: Callable[[], bool]) -> None:
    deadline_s = clock.monotonic_s() + WAIT_S
    while not is_so() and clock.monotonic_s() < deadline_s:
        offers.step()
        clock.sleep_s(0.005)
    assert is_so()


def test_a_file_system_that_hangs_holds_up_no_step_of_the_loop(
    offers: Offers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Hanging(tmp_path / "sim")
    monkeypatch.setattr(os, "stat", disk.stat)
    (tmp_path / "sim").write_text("#!/bin/sh\n# changed\n")
    disk.hangs.set()
    until(offers, lambda: bool(disk.waited))
    (tmp_path / "site" / "apps" / "new.toml").write_text(
        f'name = "new"\nexecutable = "{program(tmp_path / "new")}"\n'
    )
    until(offers, lambda: "new" in offers.applications.by_name)
    for _ in range(10):
        offers.step()
    assert disk.waited == ["comparison"], "one comparison at a time, and never in the loop's thread"
    assert offers.applications.refused() == []
    assert [each.name for each in offers.next_offers(again=True) or []] == ["new", "sim"]
    disk.hangs.clear()
    disk.goes_on.set()
    until(offers, lambda: [each.name for each in offers.applications.refused()] == ["sim"])


def test_what_a_look_has_read_is_not_read_again(offers: Offers, tmp_path: Path) -> None:
    file, digests = tmp_path / "sim", offers.applications.digests
    file.write_text("#!/bin/sh\n# changed\n")
    until(offers, lambda: bool(offers.applications.refused()))
    status = file.stat()
    assert digests.mark(str(file)) == (
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino,
    )  # fmt: skip
