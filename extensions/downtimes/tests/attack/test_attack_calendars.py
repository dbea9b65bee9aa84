"""Calendars whose rules ask for hours of work: their child process ends, the server answers meanwhile, and what the
calendar said last holds."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.timing import timing
from tests.worlds.home.world import namespace_command

from tidemill.client import Client
from tidemill.errors import ConfigError
from tidemill.wire.hospital import DowntimeList
from tidemill_downtimes import calendars
from tidemill_downtimes import sources as downtimes
from tidemill_downtimes.settings import DowntimeSource

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
SUNDAY = "DTSTART:20261122T000000Z\r\nDURATION:PT1H\r\n"
CPU_S = 3
LARGEST = downtimes.BYTES_MAX - 10_000
DEADLINE_S = 300.0


def calendar(*events: str) -> str:
    inner = "".join(
        f"BEGIN:VEVENT\r\nUID:{number}@x\r\n{event}\r\nEND:VEVENT\r\n" for number, event in enumerate(events)
    )
    return f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n{inner}END:VCALENDAR\r\n"


def rule(text: str) -> str:
    return f"{SUNDAY}RRULE:{text}"


def repeated(head: str, each: str, size_bytes: int) -> str:
    return rule(head + ",".join([each] * (size_bytes // (len(each) + 1))))


ATTACKS: dict[str, Callable[[], str]] = {
    # each seventh day from a Sunday is never a Monday
    "days of the week that never match, 9 kB": lambda: calendar(
        repeated("FREQ=DAILY;INTERVAL=7;BYDAY=", "MO", 9_000)
    ),
    "days of the week that never match, 5 MB": lambda: calendar(
        repeated("FREQ=DAILY;INTERVAL=7;BYDAY=", "MO", LARGEST)
    ),
    "numbered days of the week": lambda: calendar(repeated("FREQ=YEARLY;BYMONTH=2;BYDAY=", "5MO", 9_000)),
    "days of the month that never match, 9 kB": lambda: calendar(
        repeated("FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=", "31", 9_000)
    ),
    "days of the month that never match, 5 MB": lambda: calendar(
        repeated("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=", "31", LARGEST)
    ),
    "days of the year": lambda: calendar(repeated("FREQ=YEARLY;INTERVAL=3;BYYEARDAY=", "366", 9_000)),
    "positions": lambda: calendar(repeated("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=", "31", 9_000)),
    "never": lambda: calendar(rule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30")),
    "9,999 rules that never match": lambda: calendar(*[rule("FREQ=DAILY;INTERVAL=7;BYDAY=MO")] * 9_999),
    "9,999 rules of one event": lambda: calendar(SUNDAY + "RRULE:FREQ=DAILY;INTERVAL=7;BYDAY=MO\r\n" * 9_999),
    "250,000 days that are left out": lambda: calendar(
        rule("FREQ=DAILY")
        + "".join(f"\r\nEXDATE:2026{1 + k % 12:02}{1 + k % 28:02}T000000Z" for k in range(250_000))
    ),
    "250,000 days in one line": lambda: calendar(
        rule("FREQ=DAILY") + "\r\nEXDATE:" + ",".join(["20261201T000000Z"] * 250_000)
    ),
    "days that are added": lambda: calendar(SUNDAY + "RDATE:" + ",".join(["20261201T000000Z"] * 250_000)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_calendar_takes_more_processor_time_than_its_process_may(attack: str) -> None:
    text = ATTACKS[attack]()
    before = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]

    try:
        found = calendars.parse(text, site="lmu", now=NOW, cpu_s=CPU_S)
    except ConfigError as error:
        assert error.message  # noqa: PT017 -- it may be read within its time, or be refused
    else:
        assert len(found.entries) <= 10_000

    child, own = (
        (after.ru_utime + after.ru_stime) - (then.ru_utime + then.ru_stime)
        for after, then in zip(
            [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)],
            before,
            strict=True,
        )
    )
    assert child < CPU_S + 12, "libraries are imported before the limit counts, on a machine that may be busy"
    assert own < 5, "the process that asks does not work itself"


@pytest.mark.parametrize(
    "services", ["[" + ",".join(['"x"'] * 1_200_000) + "]", '"' + "x," * 2_400_000 + '"']
)
@pytest.mark.timeout(120)
def test_endless_lists_of_services_are_read_in_linear_time(services: str) -> None:
    """JSON is read by the server's process: a list of 5 MB is one pass."""
    row = '{"site":"a","severity":"OUTAGE","start_time":"2026-11-25T08:00:00","affected_services":%s}'
    source = DowntimeSource(place="x", services=[f"service{number}" for number in range(100)])
    downtimes.parse("[" + row % services + "]", source, now_us=int(NOW.timestamp() * 1e6))


class Server:
    """A server that reads a calendar every second, in a PID namespace of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.calendar = home / "server" / "lrz.ics"
        self.calendar.parent.mkdir(mode=0o700)
        self.config = home / "server" / "server.toml"
        self.config.write_text(f'[[downtimes.sources]]\nfrom = "{self.calendar}"\nsite = "lrz"\n')
        self.client = Client(f"unix:{home}/server/api.sock", home=home, retry_s=60)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-m", "tidemill.cli.main", "server", "run", "--config", str(self.config)]
        with (self.home / "log").open("wb") as log, timing(server={"DOWNTIMES_EVERY_S": 1}):
            self.process = subprocess.Popen([*namespace_command(), *words], stdout=log, stderr=log)

    def asked(self) -> float:
        """The time that an answer takes, seconds."""
        begun = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(os.fspath(self.home / "server" / "api.sock"))
            connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        return time.monotonic() - begun

    def until(self, true: Callable[[DowntimeList], bool]) -> tuple[DowntimeList, list[float]]:
        """Ask until the downtimes are so; what they are, and how long answers took meanwhile."""
        took: list[float] = []
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            assert self.process is not None
            assert self.process.poll() is None, (self.home / "log").read_text()
            try:
                took.append(self.asked())
                found = self.client.downtimes()
            except (FileNotFoundError, ConnectionRefusedError):  # it starts
                time.sleep(0.1)
                continue
            if true(found):
                return found, took
            time.sleep(0.05)
        pytest.fail((self.home / "log").read_text())


@pytest.fixture
def server(short_path: Path) -> Iterator[Server]:
    made = Server(short_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


@pytest.mark.timeout(700)
def test_the_server_answers_meanwhile_and_the_last_good_calendar_holds(server: Server) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    good = f"SUMMARY:new racks\r\nDTSTART:{soon:%Y%m%dT%H%M%SZ}\r\nDURATION:PT4H"
    server.calendar.write_text(calendar(good))
    server.start()
    server.until(lambda found: [row.reason for row in found.downtimes] == ["new racks"])

    evil = repeated("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=", "31", 9_000)
    draft = server.calendar.with_suffix(".new")
    draft.write_text(calendar(good, *[evil] * 200))
    draft.rename(server.calendar)
    found, took = server.until(lambda found: any(each.error for each in found.sources))

    (source,) = found.sources
    assert f"more than {calendars.CPU_S_MAX} s of processor time: simplify its rules (RRULE)" in source.error
    assert [row.reason for row in found.downtimes] == ["new racks"]
    assert len(took) > 20, "it answered all the time"
    assert max(took) < 15

    draft.write_text(calendar(good, good.replace("new racks", "new cables")))
    draft.rename(server.calendar)
    found, _ = server.until(lambda found: not any(each.error for each in found.sources))
    assert [row.reason for row in found.downtimes] == ["new racks; new cables"]
