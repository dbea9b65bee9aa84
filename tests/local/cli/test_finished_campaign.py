"""What is finished is delivered and never run again: a campaign with events that fail, stopped and retried, as a person
does it. What ran is counted by a file that the payloads append to, outside Tidemill."""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import WAIT_S, Home, started_home, wait_for

from tidemill.client import Client
from tidemill.model.intervals import IntervalSet

EVENTS = 1000
BAD = frozenset(range(7, EVENTS, 50))
AT_WORK_MAX = 64  #: events that slots may have had in hand when a job was stopped
PROGRAM = """\
n=$1
echo "start $n" >> {log}
sleep 0.05
case " {bad} " in *" $n "*) echo "event $n is broken" >&2; exit 3;; esac
echo "result of $n" > out.txt
echo "end $n" >> {log}
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.fixture
def outside() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tm-") as directory:  # /tmp is the payload's own
        yield Path(directory)


class Campaign:
    """A campaign of one job whose payloads append to a log."""

    def __init__(self, home: Home, outside: Path, name: str) -> None:
        self.home, self.name, self.log = home, name, outside / "log"
        self.program = outside / "program.sh"
        self.program.write_text(PROGRAM.format(log=self.log, bad=" ".join(map(str, sorted(BAD)))))
        self.client = Client(home=home.path)

    @property
    def job(self) -> int:
        (row,) = self.home.jobs(self.name)
        return row.id

    def lines(self, word: str) -> Counter[int]:
        """How often events wrote this word."""
        text = self.log.read_text() if self.log.exists() else ""
        return Counter(int(n) for each, n in (line.split() for line in text.splitlines()) if each == word)

    def delivered(self) -> Counter[int]:
        """How often the delivered files hold the output of an event; each is what its event left."""
        found: Counter[int] = Counter()
        for member in self.client.results(self.name):
            if member.output == "out.txt":
                assert (member.first, member.count) != (None, None)
                assert member.data.decode() == f"result of {member.first}\n"
                found[member.first] += 1  # type: ignore[index]
        return found


def _stopped(it: Campaign, before: set[int], *, first: bool) -> set[int]:
    """The events that are delivered after a stop; what has ended is delivered, but for what slots had in hand."""
    row = it.client.job(it.job).row
    assert row.state == "CANCELED", (row, it.home.logs())
    delivered = it.delivered()
    assert max(delivered.values(), default=0) == 1
    assert set(delivered) > before
    assert len(set(it.lines("end")) - set(delivered)) <= AT_WORK_MAX
    assert row.events_done == len(delivered)
    assert len(it.client.job(it.job).outputs) == (1 if first else 2) * 2  # stdout and out.txt
    return set(delivered)


@pytest.mark.timeout(300)
def test_a_campaign_that_is_stopped_twice_runs_each_good_event_once_and_delivers_it(
    home: Home, outside: Path
) -> None:
    it = Campaign(home, outside, f"stopped-{home.path.name}")
    with home.running(
        "run", "--events", str(EVENTS), "--retries", "0", "--name", it.name, "--output", "out.txt", "--",
        "sh", str(it.program), "{event}",
    ) as run:  # fmt: skip
        wait_for(lambda: len(it.lines("end")) > 100, home.logs)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=WAIT_S)
    assert run.returncode == 1, said
    first = _stopped(it, set(), first=True)
    ended = set(it.lines("end"))
    ran_then = it.lines("start")

    with home.running("job", "retry", str(it.job), "--wait") as again:
        wait_for(lambda: len(it.lines("end")) > len(ended) + 100, home.logs)
        again.send_signal(signal.SIGINT)
        _, said = again.communicate(timeout=WAIT_S)
    assert again.returncode == 1, said
    second = _stopped(it, first, first=False)

    last = home.run("job", "retry", str(it.job), "--wait", timeout_s=200)
    assert last.returncode == 1, last.stderr
    detail = it.client.job(it.job)
    assert (detail.row.state, detail.row.events_done, detail.row.events_failed) == (
        "PARTIAL",
        EVENTS - len(BAD),
        len(BAD),
    )
    assert IntervalSet.parse(detail.failed) == IntervalSet((n, n + 1) for n in BAD)
    assert f"{len(BAD)} events failed: 7," in last.stderr

    delivered = it.delivered()
    assert delivered == Counter(set(range(EVENTS)) - BAD), "every good event is delivered once"
    ran = it.lines("start")
    assert all(ran[n] == ran_then[n] == 1 for n in first), "what was delivered never ran again"
    again_run = [n for n in set(range(EVENTS)) - BAD if it.lines("end")[n] > 1]
    assert len(again_run) <= AT_WORK_MAX, "only what slots had in hand may run twice"
    assert not set(again_run) & (first | second & first)

    failures = [each for each in it.client.failures(job=it.job) if each.final]
    assert {each.event for each in failures} == BAD
    assert all(each.evidence.stderr_tail == f"event {each.event} is broken\n" for each in failures)

    manifests = list((home.work / "tidemill-out").rglob(f"{it.name}/manifest-{it.job}.json"))
    assert len(manifests) == 1
    assert not it.client.kept_outputs(job=it.job)


def test_one_failing_event_withholds_nothing_and_a_retry_runs_it_alone(home: Home, outside: Path) -> None:
    it = Campaign(home, outside, f"one-{home.path.name}")
    done = home.run(
        "run", "--events", "40", "--pack", "tar", "--retries", "0", "--name", it.name, "--output", "out.txt", "--",
        "sh", str(it.program), "{event}",
    )  # fmt: skip
    assert done.returncode == 1
    assert "1 event failed: 7" in done.stderr
    assert it.delivered() == Counter(set(range(40)) - {7})
    paths = [Path(each.output.url.removeprefix("file://")) for each in it.client.outputs(job=it.job)]
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}

    it.program.write_text(PROGRAM.format(log=it.log, bad=""))
    again = home.run("job", "retry", str(it.job), "--wait")
    assert again.returncode == 0, again.stderr
    assert it.delivered() == Counter(range(40))
    assert it.lines("end") == Counter(range(40))
    assert it.lines("start") == Counter(range(40)) + Counter([7])
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths} == before
    assert it.client.job(it.job).row.state == "COMPLETED"


def test_fail_fast_stops_and_delivers_what_is_done(home: Home, outside: Path) -> None:
    it = Campaign(home, outside, f"fast-{home.path.name}")
    done = home.run(
        "run", "--events", "400", "--fail-fast", "--retries", "0", "--name", it.name, "--output", "out.txt", "--",
        "sh", str(it.program), "{event}",
    )  # fmt: skip
    assert done.returncode == 1
    detail = it.client.job(it.job)
    assert detail.row.state == "FAILED"
    assert detail.row.events_done < 400 - 8
    assert set(it.delivered()) == {n for n in range(400) if n in IntervalSet.parse(detail.done)}
