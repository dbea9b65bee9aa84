"""The site's log: torn tails, late bytes of predecessors, snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import ProtocolError
from tidemill.model.job import JobSpec
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog, restore
from tidemill.wire.api import LeaseOrder
from tidemill.wire.node import Grant


def lease(n: int) -> site_state.Replied:
    order = LeaseOrder(
        n=n, lease=n, job=n, first=0, count=10, campaign="c", seed_base=0, spec=JobSpec(app="a", events=10)
    )
    return site_state.Replied(acked=0, orders=[order], at_us=0)


def open_log(directory: Path, epoch: int, *, lines_max: int = 1000) -> SiteLog:
    directory.mkdir(exist_ok=True)
    restored = restore(directory, "here")
    log = SiteLog(directory, epoch, restored.pool, lines_max=lines_max)
    log.apply(site_state.Opened(epoch=epoch, host="h", pid=1, at_us=0, read=restored.read))
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


def damaged(path: Path, line: int) -> tuple[int, int]:
    """Flip a bit of a line; where it starts and ends."""
    content = bytearray(path.read_bytes())
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    start = ends[line - 1] if line else 0
    content[start + 12] ^= 1
    path.write_bytes(content)
    return start, ends[line]


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    found = [str(each.__dict__) for each in caplog.records if each.msg == event]
    caplog.clear()
    return found


def test_damage_in_the_middle_is_reported_and_what_follows_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path / "log", 1)
    for n in range(1, 6):
        log.apply(lease(n))
        log.commit()
    log.close()
    path = tmp_path / "log" / "000001-000001.log"
    start, end = damaged(path, 2)  # the first line opens the epoch
    path.write_bytes(path.read_bytes() + b"torn")
    restored = restore(tmp_path / "log", "here")
    assert list(restored.pool.state.jobs) == [1, 3, 4, 5]
    assert restored.read[path.name] == path.stat().st_size - len(b"torn")
    (report,) = said(caplog, "log.damaged")
    assert f"'start': {start}" in report
    assert f"'end': {end}" in report
    assert "reset-epoch" in report
    damaged(path, 4)
    assert jobs(tmp_path / "log") == [1, 3, 5]
    assert len(said(caplog, "log.damaged")) == 2


def test_torn_tail_is_no_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path / "log", 1)
    log.apply(lease(1))
    log.commit()
    log.close()
    path = tmp_path / "log" / "000001-000001.log"
    path.write_bytes(path.read_bytes()[:-3])
    assert jobs(tmp_path / "log") == []
    assert not caplog.records


def grant(number: int, job: int, fleet: str = "f1") -> site_state.Granted:
    return site_state.Granted(
        fleet=fleet,
        grants=[Grant(grant=number, job=job, first=0, count=10, chunk_max=10)],
        cancels=[],
        ended=[],
        close=False,
    )


@pytest.mark.parametrize("granted", [3, 40])
def test_entry_that_cannot_follow_damage_is_dropped_whole_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, granted: int
) -> None:
    log = open_log(tmp_path / "log", 1)
    log.apply(site_state.FleetOpened(fleet="f1", at_us=0))
    for n in range(1, granted + 1):
        log.apply(lease(n))
    for n in range(1, granted + 1):
        log.apply(grant(n, n))
    log.apply(lease(granted + 1))
    log.commit()
    log.close()
    path = tmp_path / "log" / "000001-000001.log"
    damaged(path, 3)  # the lease of job 2 is lost, its grant cannot follow
    (tmp_path / "log").rename(tmp_path / "one")
    state = restore(tmp_path / "one", "here").pool.state
    assert list(state.jobs) == [1, *range(3, granted + 2)]
    assert state.fleets["f1"].open == granted - 1
    (report,) = said(caplog, "log.entry_dropped")
    assert "'Granted'" in report
    for line in range(4, granted + 2):
        damaged(tmp_path / "one" / path.name, line)
    state = restore(tmp_path / "one", "here").pool.state
    assert set(state.jobs) == {1, *([granted + 1] if granted < 20 else [])}
    assert len(said(caplog, "log.entry_dropped")) == min(granted - 1, 20)


def test_snapshot_that_cannot_be_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path / "log", 1)
    log.apply(lease(1))
    log.commit()
    log.close()
    open_log(tmp_path / "log", 2).close()
    damaged(tmp_path / "log" / "000002-000001.snap", 0)
    assert jobs(tmp_path / "log") == [1]
    (report,) = said(caplog, "log.damaged")
    assert "000002-000001.snap" in report
