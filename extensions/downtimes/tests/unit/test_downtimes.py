"""Calendars of sites: what is understood, what is left out and said, and what hostile ones cost."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.services.mail_world import make_certificate

from tidemill import config
from tidemill.cli.main import main
from tidemill.config.server import ServerConfig
from tidemill.errors import ConfigError, SiteError
from tidemill.server.hospital.downtimes import reader_of
from tidemill_downtimes import calendars
from tidemill_downtimes import ical as ical_reader
from tidemill_downtimes import sources as downtimes
from tidemill_downtimes.entries import ENTRIES_MAX, LONGEST_DAYS, Calendar, settled
from tidemill_downtimes.settings import Downtimes, DowntimeSource

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOW_US = int(NOW.timestamp() * 1e6)
HOUR_US = 3_600_000_000


def calendar_text(*events: str, head: str = "") -> str:
    blocks = "".join(f"BEGIN:VEVENT\r\n{each}\r\nEND:VEVENT\r\n" for each in events)
    return f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\n{head}{blocks}END:VCALENDAR\r\n"


def ical(*events: str, head: str = "") -> Calendar:
    return settled(ical_reader.parse(calendar_text(*events, head=head), site="lmu", now=NOW), now_us=NOW_US)


def own(text: str, site: str = "") -> Calendar:
    return downtimes.parse(text, DowntimeSource(site=site, place="x"), now_us=NOW_US)


def cric(text: str, **names: str) -> Calendar:
    source = DowntimeSource(names=names, place="x")
    return downtimes.parse(text, source, now_us=NOW_US)


def times(calendar: Calendar) -> list[tuple[str, str]]:
    def text(at_us: int) -> str:
        return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%m-%dT%H:%M")

    return [(text(each.start_us), text(each.end_us)) for each in calendar.downtimes]


def test_times_in_utc_in_a_zone_and_of_whole_days() -> None:
    found = ical(
        "SUMMARY:power\\, cooling\r\nDTSTART:20261125T080000Z\r\nDTEND:20261125T100000Z",
        "DTSTART;TZID=Europe/Berlin:20261126T080000\r\nDURATION:PT2H30M",
        "DTSTART;VALUE=DATE:20261128",
        'DTSTART;VALUE=DATE;TZID="Europe/Berlin":20261201\r\nDTEND;VALUE=DATE;TZID=Europe/Berlin:20261203',
    )
    assert times(found) == [
        ("11-25T08:00", "11-25T10:00"), ("11-26T07:00", "11-26T09:30"), ("11-28T00:00", "11-29T00:00"),
        ("11-30T23:00", "12-02T23:00"),
    ]  # fmt: skip
    assert found.downtimes[0].reason == "power, cooling"
    assert not found.problems


def test_lines_that_are_folded_and_events_that_are_canceled() -> None:
    found = ical(
        "SUMMARY:long \r\n text\r\nDTSTART:2026112\r\n 5T080000Z\r\nDURATION:P1D",
        "STATUS:CANCELLED\r\nDTSTART:20261126T080000Z\r\nDURATION:P1D",
    )
    assert [each.reason for each in found.downtimes] == ["long text"]


# the first start is DTSTART: where it does not fit the rule, RFC 5545 leaves open what holds
@pytest.mark.parametrize(
    ("rule", "starts"),
    [
        ("FREQ=DAILY;COUNT=3", ["11-23", "11-24", "11-25"]),
        ("FREQ=DAILY;INTERVAL=10;UNTIL=20261214", ["11-23", "12-03", "12-13"]),
        ("FREQ=WEEKLY;BYDAY=MO,TH;COUNT=4", ["11-23", "11-26", "11-30", "12-03"]),
        ("FREQ=MONTHLY;BYDAY=1TU;COUNT=3", ["12-01", "01-05", "02-02"]),
        ("FREQ=MONTHLY;BYDAY=-1FR;UNTIL=20261231T000000Z", ["11-27", "12-25"]),
        ("FREQ=MONTHLY;BYMONTHDAY=31;COUNT=2", ["12-31", "01-31"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-1;COUNT=2", ["11-30", "12-31"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=1;COUNT=2", ["12-01", "01-04"]),
        ("FREQ=YEARLY;COUNT=2", ["11-23", "11-23"]),
    ],
)
def test_rules_that_repeat(rule: str, starts: list[str]) -> None:
    start = f"2026{starts[0].replace('-', '')}T060000Z"
    found = ical(f"DTSTART:{start}\r\nDURATION:PT1H\r\nRRULE:{rule}")
    assert [start for start, _ in times(found)] == [f"{each}T06:00" for each in starts]


def test_a_rule_keeps_its_wall_clock_when_clocks_change_and_may_leave_days_out() -> None:
    text = "DTSTART;TZID=Europe/Berlin:20270322T090000\r\nDURATION:PT1H\r\nRRULE:FREQ=WEEKLY;COUNT=3\r\n"
    found = ical(text + "EXDATE;TZID=Europe/Berlin:20270405T090000")
    assert [start for start, _ in times(found)] == ["03-22T08:00", "03-29T07:00"]


def test_an_endless_rule_of_years_ago_is_cut_at_the_horizon() -> None:
    found = ical("DTSTART:19700101T000000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=DAILY")
    assert 395 < len(found.downtimes) <= 402
    assert found.downtimes[0].end_us > NOW_US


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("DTSTART:20261125T080000\r\nDURATION:PT1H", "has no time zone"),
        ("DTSTART;TZID=Nowhere/City:20261125T080000\r\nDURATION:PT1H", "neither a time zone"),
        ("DTSTART:20261125T080000Z\r\nDTEND;VALUE=DATE:20261126", "of DTSTART and DTEND, one is a day"),
        ("DTSTART;TZID=../../etc/passwd:20261125T080000\r\nDURATION:PT1H", "neither a time zone"),
        ("DTSTART:20261325T080000Z\r\nDURATION:PT1H", "20261325T080000Z"),
        ("DURATION:PT1H", "no DTSTART"),
        ("DTSTART:20261125T080000Z\r\nDURATION:P", "DURATION"),
        ("DTSTART:20261125T080000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=SECONDLY", "not understood"),
        ("DTSTART:20261125T080000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=DAILY;INTERVAL=0", "not understood"),
        ("DTSTART:20261125T080000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=FORTNIGHTLY", "RRULE"),
        ("DTSTART:20261125T080000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=DAILY;COUNT=2;UNTIL=20261201", "RRULE"),
        ("DTSTART:20261125T080000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=DAILY;COUNT=-1", "RRULE"),
        ("DTSTART:20261125T080000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=DAILY;BYHOUR=1,5,9,13,17,21", "first 1000"),
        ("DTSTART:20261125T080000Z\r\nDTEND:20261124T080000Z", "ends before it begins"),
        ("DTSTART:20261125T080000Z", "has no end"),
        ("DTSTART:20261125T080000Z\r\nDTEND:20991124T080000Z", "lasts longer"),
    ],
)
def test_what_is_not_understood_is_named_and_the_others_count(event: str, why: str) -> None:
    found = ical(event, "DTSTART:20261222T080000Z\r\nDURATION:PT1H" if "no end" not in why else event)
    assert any(why in each for each in found.problems)
    assert found.downtimes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\n",
        "BEGIN:VCALENDAR\nEND:VEVENT\n",
        "BEGIN:VCALENDAR\n\0\n",
    ],
)
def test_what_is_no_calendar_is_refused_as_a_whole(text: str) -> None:
    source = DowntimeSource(site="lmu", place="x")
    with pytest.raises(ConfigError):
        downtimes.parse(text, source, now_us=NOW_US)


LOGIN = "\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LOGIN, "begins with `<!DOCTYPE html> <html><head><title>Sign in"),
        ("502 Bad Gateway", "begins with `502 Bad Gateway`"),
        ("3", "begins with `3`"),
        ('"x"', "begins with"),
        ("\x1b[31m", "begins with `[31m`"),
        ("", "it is empty"),
        (" \r\n\t\n", "it is empty"),
    ],
)
def test_what_is_in_none_of_the_formats_is_quoted(text: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        downtimes.parse(text, DowntimeSource(place="x"), now_us=NOW_US)
    assert found in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "is_read_as"),
    [
        ("\r\n BEGIN:VCALENDAR\r\nEND:VCALENDAR", "calendar"),
        ("begin:vcalendar\nend:vcalendar", "calendar"),
        ("\n{}", "cric"),
        ("[]", "cric"),
        ("[\n {", "cric"),
        ("[[downtime]]", "own"),
        ("[ [ downtime ] ]", "own"),
        ("# no downtimes", "own"),
        ("zone = 'UTC'", "own"),
    ],
)
def test_the_content_shows_the_format(text: str, is_read_as: str) -> None:
    assert downtimes.format_of(text) == is_read_as


def test_a_source_without_downtimes_is_not_an_error() -> None:
    for text in ("BEGIN:VCALENDAR\r\nEND:VCALENDAR", "{}", "[]", "# no downtimes"):
        assert downtimes.parse(text, DowntimeSource(site="lmu", place="x"), now_us=NOW_US).downtimes == []


@pytest.mark.parametrize(
    "text",
    [
        '{"message": "Too many requests"}',
        '{"error": {}}',
        '{"errors": []}',
        '{"error": {"code": 503}}',
        '{"detail": null}',
        '{"ok": true}',
        "[{}]",
        "# Service unavailable",
        "# 503\n\n## Down for maintenance",
    ],
)
def test_the_text_of_an_error_is_not_a_source_without_downtimes(text: str) -> None:
    for site in ("", "lmu"):
        with pytest.raises(ConfigError):
            downtimes.parse(text, DowntimeSource(site=site, place="x"), now_us=NOW_US)


def test_comments_alone_say_that_there_are_no_downtimes() -> None:
    for text in (
        "# site a\n#no downtimes now",
        '# [[downtime]]\n# site = "a"',
        "downtime = []",
        "zone = 'UTC'",
    ):
        assert own(text).downtimes == []


@pytest.mark.parametrize(
    ("place", "text", "why"),
    [
        ("/srv/lmu.ics", "{}", "is not a calendar: it begins with `{}`"),
        ("/srv/lmu.ICS", "# no downtimes", "is not a calendar"),
        ("https://h.example.org/lmu.ics?key=1", "[]", "is not a calendar"),
        ("/srv/d.toml", "[]", "is not TOML"),
        ("https://h.example.org/d.toml", "BEGIN:VCALENDAR\nEND:VCALENDAR", "is not TOML"),
    ],
)
def test_a_source_is_what_the_ending_of_its_name_says(place: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        downtimes.parse(text, DowntimeSource(site="lmu", place=place), now_us=NOW_US)
    assert why in caught.value.message


def test_a_calendar_without_a_site_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "calendar"
    path.write_text("BEGIN:VCALENDAR\r\nEND:VCALENDAR")
    for place in (str(path), str(tmp_path / "later.ics"), "https://h.example.org/lmu.ics"):
        downtimes.check(Downtimes(sources=[DowntimeSource(place=place, site="lmu")]))
        with pytest.raises(ConfigError, match="it is a calendar, which names no site: set `site`") as caught:
            downtimes.check(Downtimes(sources=[DowntimeSource(place=place)]))
        assert place in caught.value.message
    path.write_text("nonsense")  # it may be mended while the server runs
    for mended_later in (str(path), str(tmp_path / "none.toml"), str(tmp_path)):
        downtimes.check(Downtimes(sources=[DowntimeSource(place=mended_later)]))


def test_a_calendar_without_a_site_names_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "lmu.ics"
    path.write_text("BEGIN:VCALENDAR\r\nEND:VCALENDAR")
    (reading,) = downtimes.read_all(Downtimes(sources=[DowntimeSource(place=str(path))]), now_us=NOW_US)
    assert (reading.source, reading.calendar) == (str(path), None)
    assert reading.error == "it is a calendar, which names no site: set `site`"


def test_overlaps_are_one_downtime_and_one_without_an_end_counts_for_a_bounded_time() -> None:
    found = own(
        '[[downtime]]\nsite="a"\nstart=2026-11-25T08:00:00Z\nend=2026-11-25T12:00:00Z\nreason="power"\n'
        '[[downtime]]\nsite="a"\nstart=2026-11-25T10:00:00Z\nend=2026-11-25T14:00:00Z\nreason="network"\n'
        '[[downtime]]\nsite="b"\nstart=2026-11-25T10:00:00Z\n'
    )
    one, endless = found.downtimes
    assert (one.site, one.reason, one.end_us - one.start_us) == ("a", "power; network", 6 * HOUR_US)
    assert endless.end_us - endless.start_us == LONGEST_DAYS * 24 * HOUR_US
    assert "has no end" in found.problems[0]


def test_own_files_name_a_zone_or_are_told() -> None:
    text = '[[downtime]]\nsite="a"\nstart=2026-11-25T08:00:00\nend=2026-11-25T09:00:00\n'
    assert "names no time zone" in own(text).problems[0]
    assert times(own('zone="Europe/Berlin"\n' + text)) == [("11-25T07:00", "11-25T08:00")]
    for bad in ("downtime = 3", '[[downtime]]\nsight="a"\nstart=2026-11-25T08:00:00Z', 'zone="Moon/Base"'):
        with pytest.raises(ConfigError):
            own(bad)
    assert "names no site" in own("[[downtime]]\nstart=2026-11-25T08:00:00Z").problems[0]


RECORD = (
    '{"severity": "OUTAGE", "classification": "SCHEDULED", "start_time": "2026-11-25T08:00:00", '
    '"end_time": "2026-11-25T09:00:00.000", "description": "cooling", "info_url": "https://x", '
    '"affected_services": "XRootD, webdav", "rc_site": "LRZ-LMU"}'
)
NAMELESS = RECORD.replace(', "rc_site": "LRZ-LMU"', "")


@pytest.mark.parametrize(
    "text",
    [
        f'{{"LRZ-LMU": {{"4711": {NAMELESS}, "4712": {NAMELESS.replace("OUTAGE", "WARNING")}}}, "QUIET": {{}}}}',
        f"[{RECORD}, {RECORD.replace('OUTAGE', 'WARNING')}]",
        f'{{"17": {RECORD}}}',
        f'{{"LRZ-LMU": [{NAMELESS.replace("affected_services", "services")}], "QUIET": []}}',
    ],
    ids=["by site and entry", "list", "by number", "lists by site"],
)
def test_answers_of_cric_in_the_shapes_that_its_users_read(text: str) -> None:
    found = cric(text, **{"LRZ-LMU": "lmu"})
    assert [(each.site, each.reason) for each in found.downtimes] == [("lmu", "cooling")]
    assert times(found) == [("11-25T08:00", "11-25T09:00")]
    assert found.problems == []


def test_answers_that_are_none_of_crics_are_named_or_refused() -> None:
    bad = f'[{RECORD}, {{"site": "a"}}, 3, {{"start_time": "x", "site": "a"}}, {{"start_time": 17, "site": "a"}}]'
    found = cric(bad)
    assert (len(found.downtimes), len(found.problems)) == (1, 4)
    assert "is not a time" in found.problems[3]
    assert cric('[{"severity": "WARNING"}, 3]').problems == [
        "downtime number 2 is left out: it is not a record"
    ]
    for bad in ("{", '[{"site"', "{]"):
        with pytest.raises(ConfigError, match="is not JSON"):
            cric(bad)


@pytest.mark.parametrize(
    "told",
    ['"CE, SRM"', '["SRM", "CE"]', '[{"type": "SRM", "name": "se1"}, {"type": "CE", "name": "ce1"}]'],
    ids=["text", "list", "records"],
)
def test_an_outage_of_services_that_jobs_do_not_need_moves_no_queue(told: str) -> None:
    text = f"[{RECORD}]".replace('"XRootD, webdav"', told)
    found = [
        downtimes.parse(text, DowntimeSource(place="x", services=services), now_us=NOW_US)
        for services in ([], ["ce"], ["perfSONAR"])
    ]
    assert [len(each.downtimes) for each in found] == [1, 1, 0]
    silent = f"[{RECORD}]".replace('"XRootD, webdav"', "null")
    source = DowntimeSource(place="x", services=["CE"])
    assert len(downtimes.parse(silent, source, now_us=NOW_US).downtimes) == 1, "it may concern all"


def test_huge_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big.ics"
    path.write_text("BEGIN:VCALENDAR\n" + "X" * downtimes.BYTES_MAX)
    with pytest.raises(ConfigError, match="longer than"):
        downtimes.read(DowntimeSource(place=str(path)))
    rows = ",".join(
        f'{{"site": "s{k}", "start_time": "2026-11-25T08:00:00", "end_time": "2026-11-25T09:00:00"}}'
        for k in range(3000)
    )
    found = cric(f"[{rows}]")
    assert len(found.downtimes) == ENTRIES_MAX
    assert "the next 1000 are kept" in found.problems[-1]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        downtimes.read(DowntimeSource(place=str(path)))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://cric.example.org/x", "not an https address"),
        ("https://user:secret@cric.example.org/x", "not an https address"),
        ("file:///etc/passwd", "not an https address"),
    ],
)
def test_only_https_without_credentials_is_read(url: str, why: str) -> None:
    rules = Downtimes(sources=[DowntimeSource(place=url)])
    with pytest.raises(ConfigError, match=why):
        downtimes.check(rules)
    with pytest.raises(ConfigError, match=why):
        downtimes.read(rules.sources[0])


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as aim, socket.create_server(("127.0.0.1", 0)) as server:
        away = f"https://localhost:{aim.getsockname()[1]}/x"

        def answer() -> None:
            connection = tls.wrap_socket(server.accept()[0], server_side=True)
            with connection:
                connection.recv(65536)
                connection.sendall(
                    f"HTTP/1.1 302 Found\r\nLocation: {away}\r\nContent-Length: 0\r\n\r\n".encode()
                )

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        source = DowntimeSource(place=f"https://localhost:{server.getsockname()[1]}/x", ca=cert)
        with pytest.raises(SiteError, match="answers 302"):
            downtimes.read(source)
        thread.join(30)
        aim.setblocking(False)
        with pytest.raises(BlockingIOError):
            aim.accept()


def test_a_file_of_another_form_is_told_what_belongs_into_it(tmp_path: Path) -> None:
    source = DowntimeSource(place=str(tmp_path / "d.toml"))
    with pytest.raises(ConfigError, match="unknown field `sites`") as caught:
        downtimes.parse('[[downtime]]\nsites="a"\nstart=2026-11-25T08:00:00Z', source, now_us=NOW_US)
    assert "`site`, `start`, `end`" in str(caught.value.hint)
    with pytest.raises(ConfigError, match=r"^it cannot be read: No such file"):
        downtimes.read(source)


def test_a_file_is_checked_before_the_server_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    day = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    Path("d.toml").write_text(f'[[downtime]]\nsite="a"\nstart={day}T08:00:00Z\nend={day}T12:00:00Z')
    assert main(["downtimes", "check", "d.toml"]) == 0
    assert day in capsys.readouterr().out
    assert main(["downtimes", "check", "none.toml"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    Path("calendar").write_text("BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n")
    assert main(["downtimes", "check", "calendar"]) == 0
    Path("login.json").write_text(LOGIN)
    assert main(["downtimes", "check", "login.json"]) == 2
    assert "`login.json`: it is neither a calendar" in capsys.readouterr().err


def test_a_source_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text('[[downtime]]\nsite="a"\nstart=2026-11-25T08:00:00Z\nend=2026-11-25T12:00:00Z')
    rules = Downtimes(
        sources=[DowntimeSource(place=str(tmp_path / "none.toml")), DowntimeSource(place=str(good))]
    )
    bad, read = downtimes.read_all(rules, now_us=NOW_US)
    assert bad.calendar is None
    assert "cannot be read" in bad.error
    assert read.calendar is not None
    assert [each.site for each in read.calendar] == ["a"]


def test_the_server_gets_what_reads_the_sources_of_server_toml(tmp_path: Path) -> None:
    text = '[[downtimes.sources]]\nfrom = "good.toml"\nnames = { a = "lmu" }'
    source = tmp_path / "server.toml"
    reader = reader_of(config.loads(text, ServerConfig, source=source))
    assert reader.sources == (str(tmp_path / "good.toml"),)
    (unread,) = reader.read(NOW_US)
    assert (unread.calendar, "cannot be read" in unread.error) == (None, True)
    (tmp_path / "good.toml").write_text('[[downtime]]\nsite="a"\nstart=2026-11-25T08:00:00Z')
    (read,) = reader.read(NOW_US)
    assert ([each.site for each in read.calendar or []], read.format) == (["lmu"], "TOML")
    assert reader_of(config.loads("", ServerConfig, source=source)).sources == ()
    with pytest.raises(ConfigError, match="not an https address"):
        reader_of(config.loads(text.replace("good.toml", "http://a.org/x"), ServerConfig, source=source))


def test_the_element_of_a_table_of_names_that_is_wrong_is_named(tmp_path: Path) -> None:
    text = '[[downtimes.sources]]\nfrom = "a.ics"\nnames = { a = "b", c = 4 }'
    with pytest.raises(ConfigError, match=r"`downtimes.sources\[0\].names.c` is `4`, expected text"):
        config.loads(text, ServerConfig, source=tmp_path / "server.toml")


def test_a_new_server_toml_shows_an_example_of_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    path = tmp_path / "server" / "server.toml"
    assert main(["server", "init", "--config", str(path)]) == 0
    lines = path.read_text().splitlines()
    at = lines.index("# [[downtimes.sources]]")
    assert lines[at - 1].endswith("; an example of one:")
    assert lines[at + 1] == '# from = "downtimes.toml"'


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY;INTERVAL=7;BYDAY=" + ",".join(["MO"] * 100),  # begins on a Sunday: no day ever
        "FREQ=DAILY;COUNT=4999",
    ],
)
def test_a_calendar_of_ten_thousand_slow_rules_is_given_up_soon(rule: str) -> None:
    text = calendar_text(*[f"DTSTART:20150201T000000Z\r\nDURATION:PT1H\r\nRRULE:{rule}"] * 9_000)
    # without the bound it takes minutes
    with pytest.raises(ConfigError, match="more than 1 s of processor time"):
        calendars.parse(text, site="lmu", now=NOW, cpu_s=1)
    assert len(calendars.parse(calendar_text("DTSTART:20261125T080000Z"), site="lmu", now=NOW).entries) == 1


WEEKLY = (
    "UID:a@x\r\nSUMMARY:weekly\r\nDTSTART:20261201T080000Z\r\nDTEND:20261201T120000Z\r\n"
    "RRULE:FREQ=WEEKLY;COUNT=3"
)


@pytest.mark.parametrize(
    ("change", "starts"),
    [
        ("RECURRENCE-ID:20261208T080000Z\r\nDTSTART:20261210T090000Z\r\nDURATION:PT1H",
         ["12-01T08:00", "12-10T09:00", "12-15T08:00"]),
        ("RECURRENCE-ID:20261208T080000Z\r\nSTATUS:CANCELLED\r\nDTSTART:20261208T080000Z\r\nDURATION:PT1H",
         ["12-01T08:00", "12-15T08:00"]),
        ("RECURRENCE-ID;RANGE=THISANDFUTURE:20261208T080000Z\r\nDTSTART:20261208T100000Z\r\nDURATION:PT1H",
         ["12-01T08:00", "12-08T10:00", "12-15T10:00"]),
        ("SEQUENCE:2\r\nDTSTART:20261203T080000Z\r\nDURATION:PT1H", ["12-03T08:00"]),
        ("SEQUENCE:2\r\nSTATUS:CANCELLED\r\nDTSTART:20261203T080000Z\r\nDURATION:PT1H", []),
    ],
)  # fmt: skip
def test_an_occurrence_that_was_moved_or_canceled_is_not_a_downtime(change: str, starts: list[str]) -> None:
    for events in ((WEEKLY, f"UID:a@x\r\n{change}"), (f"UID:a@x\r\n{change}", WEEKLY)):
        found = ical(*events)
        assert ([start for start, _ in times(found)], found.problems) == (starts, [])


def test_a_change_of_another_event_moves_nothing() -> None:
    found = ical(
        WEEKLY, "UID:b@x\r\nRECURRENCE-ID:20261208T080000Z\r\nSTATUS:CANCELLED\r\nDTSTART:20261208T080000Z"
    )
    assert len(found.downtimes) == 3


def test_weeks_begin_where_the_rule_says() -> None:
    rule = (
        "DTSTART:20261201T090000Z\r\nDURATION:PT1H\r\nRRULE:FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST="
    )
    assert [start[:5] for start, _ in times(ical(rule + "SU"))] == ["12-01", "12-13", "12-15", "12-27"]
    assert [start[:5] for start, _ in times(ical(rule + "MO"))] == ["12-01", "12-06", "12-15", "12-20"]


def test_days_of_the_week_and_of_the_month_limit_each_other() -> None:
    days = ",".join(str(day) for day in range(9, 16))
    found = ical(
        f"DTSTART:20261209T060000Z\r\nDURATION:PT6H\r\nRRULE:FREQ=MONTHLY;COUNT=3;BYDAY=WE;BYMONTHDAY={days}"
    )
    assert [start[:5] for start, _ in times(found)] == ["12-09", "01-13", "02-10"]


def test_a_line_that_is_folded_inside_a_character_is_read(tmp_path: Path) -> None:
    path = tmp_path / "folded.ics"
    event = "SUMMARY:K\u00fchlung\r\nDTSTART:20261125T080000Z\r\nDURATION:PT1H"
    path.write_bytes(calendar_text(event).encode().replace(b"\xc3\xbc", b"\xc3\r\n \xbc"))
    source = DowntimeSource(site="lmu", place=str(path))
    found = downtimes.parse(downtimes.read(source), source, now_us=NOW_US)
    assert [each.reason for each in found.downtimes] == ["K\u00fchlung"]


def test_hours_are_exact_and_days_follow_the_calendar_when_clocks_change() -> None:
    start = "DTSTART;TZID=Europe/Berlin:20270327T080000\r\nDURATION:"
    assert times(ical(start + "PT24H")) == [("03-27T07:00", "03-28T07:00")]
    assert times(ical(start + "P1D")) == [("03-27T07:00", "03-28T06:00")]
    assert times(ical(start + "P1D\r\nRRULE:FREQ=DAILY;COUNT=1")) == [("03-27T07:00", "03-28T06:00")]
    end = "DTSTART;TZID=Europe/Berlin:20270320T220000\r\nDTEND;TZID=Europe/Berlin:20270321T060000\r\n"
    assert times(ical(end + "RRULE:FREQ=WEEKLY;COUNT=2"))[1] == ("03-27T21:00", "03-28T05:00")  # 8 hours


def test_zones_of_windows_and_of_the_file_itself_are_known() -> None:
    zone = (
        "BEGIN:VTIMEZONE\r\nTZID:Machine room\r\nBEGIN:STANDARD\r\nDTSTART:19700101T000000\r\n"
        "TZOFFSETFROM:+0300\r\nTZOFFSETTO:+0300\r\nEND:STANDARD\r\nEND:VTIMEZONE\r\n"
    )
    found = ical(
        "DTSTART;TZID=W. Europe Standard Time:20261125T080000\r\nDURATION:PT1H",
        "DTSTART;TZID=Machine room:20261126T080000\r\nDURATION:PT1H",
        head=zone,
    )
    assert ([start for start, _ in times(found)], found.problems) == (["11-25T07:00", "11-26T05:00"], [])


def test_what_takes_no_time_or_is_canceled_as_a_whole_is_left_out_and_said() -> None:
    found = ical("SUMMARY:party\r\nTRANSP:TRANSPARENT\r\nDTSTART:20261125T080000Z\r\nDURATION:PT1H", WEEKLY)
    assert len(found.downtimes) == 3
    assert found.problems == ["event `party` is left out: it takes no time (TRANSP:TRANSPARENT)"]
    found = ical(WEEKLY, head="METHOD:CANCEL\r\n")
    assert (found.downtimes, len(found.problems)) == ([], 1)


def test_one_day_is_left_out_of_a_rule_with_times() -> None:
    found = ical(WEEKLY + "\r\nEXDATE;VALUE=DATE:20261208")
    assert [start[:5] for start, _ in times(found)] == ["12-01", "12-15"]


def test_more_events_than_are_read_refuse_the_calendar() -> None:
    with pytest.raises(ConfigError, match="more than 10000 events"):
        ical(*["DTSTART:20261125T080000Z"] * 10_001)


def test_a_calendar_of_ten_megabytes_is_refused_by_its_size_alone(tmp_path: Path) -> None:
    path = tmp_path / "big.ics"
    path.write_bytes(b"BEGIN:VCALENDAR\n" + b"X-FILL:" + b"x" * 10_000_000 + b"\nEND:VCALENDAR\n")
    (reading,) = downtimes.read_all(
        Downtimes(sources=[DowntimeSource(place=str(path), site="a")]), now_us=NOW_US
    )
    assert reading.calendar is None
    assert "longer than 5000000 bytes" in reading.error


def test_a_server_that_never_answers_is_asked_beside_the_other_sources(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text("[[downtime]]\nsite = 'a'\nstart = 2026-11-25T08:00:00Z\nend = 2026-11-25T09:00:00Z\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://localhost:{silent.getsockname()[1]}/x"
        rules = Downtimes(sources=[DowntimeSource(place=url), DowntimeSource(place=str(path))])
        first = next(downtimes.read_all(rules, now_us=NOW_US))
        assert (first.source, len(first.calendar or [])) == (str(path), 1)


def test_texts_with_separators_of_unicode_and_parameters_with_several_values_are_read(tmp_path: Path) -> None:
    found = ical(
        "SUMMARY:power\u2028and\x85cooling\r\nDTSTART:20261125T080000Z\r\nDURATION:PT1H",
        'ATTENDEE;MEMBER="mailto:a@x","mailto:b@x";X-NOTE="x;y":mailto:c@x\r\nDTSTART:20261126T080000Z\r\n'
        "DURATION:PT1H",
    )
    assert times(found) == [("11-25T08:00", "11-25T09:00"), ("11-26T08:00", "11-26T09:00")]
    assert (found.downtimes[0].reason, found.problems) == ("power and cooling", [])
    path = tmp_path / "marked.ics"
    path.write_bytes("\ufeffBEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n".encode())
    source = DowntimeSource(site="lmu", place=str(path))
    assert downtimes.read(source).startswith("BEGIN:VCALENDAR")


def test_a_line_of_one_calendar_cannot_hide_the_sources_that_follow(tmp_path: Path) -> None:
    (tmp_path / "odd.ics").write_text('BEGIN:VCALENDAR\nX-P;A="x;y":v\nEND:VCALENDAR\n')
    (tmp_path / "own.toml").write_text('[[downtime]]\nsite = "a"\nstart = 2026-11-25T08:00:00Z\n')
    sources = [
        DowntimeSource(site="lmu", place=str(tmp_path / "odd.ics")),
        DowntimeSource(place=str(tmp_path / "own.toml")),
    ]
    found = list(downtimes.read_all(Downtimes(sources=sources), now_us=NOW_US))
    assert [each.calendar is not None for each in found] == [True, True]


@given(st.text(alphabet=st.sampled_from(list('BEGIN:VT;=",X-\r\n \t\u2028\ufeff0129Z'))), st.text())
def test_no_content_ends_the_reading_with_anything_but_a_sentence(text: str, other: str) -> None:
    for lines in (text, f"BEGIN:VEVENT\n{text}\nEND:VEVENT"):
        with suppress(ConfigError):
            ical_reader.parse(f"BEGIN:VCALENDAR\n{lines}\nEND:VCALENDAR\n", site="s", now=NOW)
    for content in (text, other, "{" + other, "[{" + other):
        for source in (
            DowntimeSource(site="s", place="x"),
            DowntimeSource(place="x"),
        ):
            with suppress(ConfigError):
                downtimes.parse(content, source, now_us=NOW_US)
