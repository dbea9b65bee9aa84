"""The site's log: torn tails, late bytes of predecessors, snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import ProtocolError
from tidemill.model.job import JobSpec
from tidemill.site.state import site_state as s
from tidemill.site.state.log import SiteLog, restore
from tidemill.wire.api import LeaseOrder


def lease(n: int) -> s.Replied:
    order = LeaseOrder(
        n=n, lease=n, job=n, first=0, count=10, campaign="c", seed_base=0, spec=JobSpec(app="a", events=10)
    )
    return s.Replied(acked=0, orders=[order], at_us=0)


def open_log(directory: Path, epoch: int, *, lines_max: int = 1000) -> SiteLog:
    directory.mkdir(exist_ok=True)
    restored = restore(directory, "here")
    log = SiteLog(directory, epoch, restored.pool, lines_max=lines_max)
    log.apply(s.Opened(epoch=epoch, host="h", pid=1, at_us=0, read=restored.read))
    log.commit()
    return log


def jobs(directory: Path) -> list[int]:
    return list(restore(directory, "here").pool.state.jobs)


def test_committed_entries_are_there_again_and_others_are_not(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", 1)
    log.apply(lease(1))
    log.commit()
    log.apply(lease(2))
    assert jobs(tmp_path / "log") == [1]
    log.close()


def test_log_torn_at_any_byte_gives_a_prefix(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", 1)
    for n in (1, 2):
        log.apply(lease(n))
        log.commit()
    log.close()
    path = tmp_path / "log" / "000001-000001.log"
    whole = path.read_bytes()
    seen = set()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = jobs(tmp_path / "log")
        assert found == [1, 2][: len(found)]
        seen.add(len(found))
    assert seen == {0, 1, 2}


def test_torn_snapshot_is_passed_over(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", 1)
    log.apply(lease(1))
    log.commit()
    log.close()
    open_log(tmp_path / "log", 2).close()
    path = tmp_path / "log" / "000002-000001.snap"
    path.write_bytes(path.read_bytes()[:-10])
    assert jobs(tmp_path / "log") == [1]


def test_what_a_predecessor_appends_after_it_was_read_is_ignored(tmp_path: Path) -> None:
    old = open_log(tmp_path / "log", 1)
    old.apply(lease(1))
    old.commit()
    new = open_log(tmp_path / "log", 2)
    old.apply(lease(2))
    old.commit()
    new.apply(lease(3))
    new.commit()
    assert jobs(tmp_path / "log") == [1, 3]
    old.close()
    new.close()


def test_long_log_is_condensed_and_old_files_go(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", 1, lines_max=5)
    for n in range(1, 41):
        log.apply(lease(n))
        log.commit()
    log.close()
    assert len(list((tmp_path / "log").glob("*.snap"))) == 3
    assert jobs(tmp_path / "log") == list(range(1, 41))


def test_log_of_another_site_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path / "log", 1).close()
    with pytest.raises(ProtocolError, match="not of `there`"):
        restore(tmp_path / "log", "there")
