"""Real pilots measure their node: samples go beside the records, and nothing waits for them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.worlds.home.processes import snapshot
from tests.worlds.node.pilot_fleet import Field, field, grants, job, program

from tidemill.node.fleet import WorkOrder
from tidemill.node.monitor import MonitorFiles
from tidemill.wire.node import FIGURES, Ended, Grant, Sampled, Share, Started

CORES = FIGURES.index("cores")


class Samples:
    """All samples of a fleet so far."""

    def __init__(self, it: Field) -> None:
        self.files = MonitorFiles(it.fleet.directory / "monitor")
        self.found: list[Sampled] = []

    def of(self, pilot: str = "") -> list[Sampled]:
        self.found += self.files.read()
        return [each for each in self.found if each.p.startswith(pilot)]


def journal_bytes(it: Field) -> int:
    return sum(path.stat().st_size for path in it.fleet.journal.iterdir())


def test_samples_of_each_pilot_are_beside_the_journal_under_its_name_and_go_on_with_another_lead(
    tmp_path: Path,
) -> None:
    with field(tmp_path, monitor_interval_s=0.2, idle_s=60.0, dead_after_s=120.0) as it:
        lead = it.lead()
        for k in range(2):
            it.pilot("--cores", "1", allocation=f"tm-{k}")
        samples = Samples(it)
        it.until(lambda: all(len(samples.of(f"tm-{k}.r0.i1")) >= 3 for k in range(2)), "both measure")
        found = samples.of("tm-0")
        assert found[-1].figures[CORES] == os.cpu_count()
        # of three together: the one after a late one covers less, since they keep to their times
        assert 150_000 < sum(each.over_us for each in found[-3:]) < 15_000_000
        it.until(lambda: len(it.of(Started)) == 2, "the journal has all that there is to record")
        before = journal_bytes(it)
        count = len(samples.of())
        it.until(lambda: len(samples.of()) >= count + 6, "more of them")
        assert journal_bytes(it) == before  # a sample is no record
        it.signal(lead, signal.SIGKILL)
        it.ended(lead)
        time.sleep(1.5)  # more samples than are kept for a lead that is away
        again = it.lead()
        count = len(samples.of("tm-0"))
        it.until(lambda: len(samples.of("tm-0")) >= count + 5, "the next lead has them")
        assert [path.name for path in (it.fleet.directory / "monitor").iterdir()] == ["lead-2.1.log"]
        gap_us = max(b.at_us - a.at_us for a, b in pairwise(samples.of("tm-0")))
        assert gap_us > 500_000  # what did not fit is lost
        assert again.poll() is None


def test_a_pilot_works_on_where_its_child_that_measures_is_stopped_or_killed(tmp_path: Path) -> None:
    with field(tmp_path, monitor_interval_s=0.1, idle_s=60.0) as it:
        it.lead()
        pilot = it.pilot("--cores", "1")
        samples = Samples(it)
        it.until(lambda: len(samples.of()) >= 2, "it measures")
        for number, sent in ((1, signal.SIGSTOP), (2, signal.SIGKILL)):
            for child in measuring(pilot.pid):
                os.kill(child, sent)
                it.until(lambda child=child: is_still(child), "it measures no more")  # type: ignore[misc]
            still_us = time.time_ns() // 1000
            work = job(number, "true", events=20)
            it.fleet.write_work(programs=[program()] if number == 1 else [], jobs=[work], grants=grants(work))
            it.until(lambda number=number: len(it.done(number)) == 20, "the work is done")  # type: ignore[misc]
            # by their times: those from before are still on their way, up to a second long
            assert all(each.at_us <= still_us for each in samples.of())
        it.fleet.stop("test")
        assert it.ended(pilot) == 0, it.tails()
        assert [each.reason for each in it.of(Ended)] == ["stop"]


def is_still(pid: int) -> bool:
    """Whether a process is stopped, dead or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def measuring(pilot: int) -> list[int]:
    """The child that measures, of the pilot below this process."""
    processes = snapshot()
    below = {pilot}
    for _ in processes:
        below |= {each.pid for each in processes.values() if each.parent in below}
    found = [pid for pid in below & processes.keys() if processes[pid].name == "tidemill-sample"]
    assert found
    return found


def test_without_a_lead_a_pilot_writes_a_file_of_its_own(tmp_path: Path) -> None:
    with field(
        tmp_path, lead="none", monitor_interval_s=0.2, idle_s=1.5, top_up_s=0.3, output_flush_s=0.3
    ) as it:
        work = job(1, "sleep 1", events=1)
        grant = Grant(grant=1, job=1, first=0, count=1, chunk_max=None)
        order = WorkOrder(shares=[Share(allocation="tm-1", grants=[0])], close=True)
        it.fleet.write_work(programs=[program()], jobs=[work], grants=[grant], order=order)
        pilot = it.pilot("--cores", "1", "--work-from", "1", allocation="tm-1")
        assert it.ended(pilot) == 0, it.tails()
        samples = Samples(it)
        assert len(samples.of("tm-1.r0.i1")) >= 3
        assert [path.name for path in (it.fleet.directory / "monitor").iterdir()] == ["tm-1.r0.i1.1.log"]


def test_a_fleet_that_does_not_want_it_measures_nothing(tmp_path: Path) -> None:
    with field(tmp_path, monitor_interval_s=0.0) as it:
        work = job(1, "sleep 0.5", events=1)
        it.fleet.write_work(programs=[program()], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "1")
        assert it.ended(pilot) == 0, it.tails()
        assert not (it.fleet.directory / "monitor").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_pilot_of_an_ordinary_user_keeps_the_counters_of_mounts_open() -> None:
    """The kernel shows them to root and to the owner of a dumpable process only, and a pilot is not dumpable."""
    nobody = 65_534
    with tempfile.TemporaryDirectory(prefix="tm-monitor-", dir="/tmp") as folder:
        base = Path(folder)
        base.chmod(0o755)
        with field(base, monitor_interval_s=0.2, idle_s=60.0) as it:
            it.node = Path(shutil.copy(it.node, base / "tidemill-node"))
            it.prefix = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", "--"]
            for path in (base, *base.rglob("*")):
                os.chown(path, nobody, nobody)
            it.lead()
            pilot = it.pilot("--cores", "1")
            samples = Samples(it)
            it.until(lambda: len(samples.of()) >= 2, "it measures")
            (child,) = measuring(pilot.pid)
            open_now = subprocess.run(
                ["cat", f"/proc/{child}/mountstats"],
                user=nobody,
                group=nobody,
                check=False,
                capture_output=True,
            )
            assert b"Permission denied" in open_now.stderr
            links = [str(each.readlink()) for each in Path(f"/proc/{child}/fd").iterdir()]
            assert [each for each in links if each.endswith("/mountstats")], links
