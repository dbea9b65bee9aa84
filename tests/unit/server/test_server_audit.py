"""The audit log: what is altered, cut or left out is found; notes arrive once, whatever stops in between."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.contract.server_world import Site, World

from tidemill.errors import SiteError
from tidemill.model.identity import LOCAL, Act, Identity, Role, Via
from tidemill.model.job import JobSpec
from tidemill.server.audit import audit_log
from tidemill.server.audit.audit_log import AuditLog, verify
from tidemill.server.core import credential_expiry
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.database.store import Store
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.api import ActionRequest, Capacity, SubmitRequest, SyncRequest

NOV, DEC = 1_795_000_000_000_000, 1_798_000_000_000_000  # 2026-11-18, 2026-12-23
ADA = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE, subject="/O=x/CN=ada", credential="ab12")


def parse_us(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000_000


def body(on: str) -> bytes:
    return msgspec.json.encode(audit_log.entry(ADA, Act.SUBMIT, on, jobs=3))


def filled(place: Path, notes: int = 6) -> Path:
    log = AuditLog(place)
    log.append([(number, NOV, body(f"campaign {number}")) for number in range(1, notes)])
    AuditLog(place).append([(notes, DEC, body("campaign last"))])
    return place / "audit"


def test_months_are_files_of_one_chain(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    assert [path.name for path in sorted(folder.iterdir())] == ["2026-11.jsonl", "2026-12.jsonl"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    found = verify(tmp_path, at_least=6)
    assert (found.files, found.lines, found.first, found.last) == (2, 6, 1, 6)
    line = msgspec.json.decode((folder / "2026-12.jsonl").read_bytes())
    assert (line["subject"], line["credential"], line["on"]) == ("/O=x/CN=ada", "ab12", "campaign last")


@pytest.mark.parametrize("way", ["altered", "removed", "inserted", "swapped", "file gone", "cut", "half"])
def test_what_is_altered_is_found(tmp_path: Path, way: str) -> None:
    folder = filled(tmp_path)
    path = folder / "2026-11.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    match way:
        case "altered":
            lines[2] = lines[2].replace(b"ada", b"eve")
        case "removed":
            del lines[1]
        case "inserted":
            lines.insert(2, lines[1])
        case "swapped":
            lines[1], lines[2] = lines[2], lines[1]
        case "half":
            lines[2] = lines[2][:40] + b"\n"
        case "cut":
            (folder / "2026-12.jsonl").unlink()
        case "file gone":
            lines = []
    path.write_bytes(b"".join(lines))
    with pytest.raises(SiteError, match="was altered"):
        verify(tmp_path, at_least=6)


def test_notes_that_the_log_has_are_not_written_again(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    notes = [(number, NOV, body(f"campaign {number}")) for number in (1, 2, 3)]
    assert log.append(notes[:2]) == 2
    assert log.append(notes) == 3
    assert AuditLog(tmp_path).append(notes) == 3  # the database had not been told
    assert verify(tmp_path).lines == 3


def test_a_line_that_a_power_cut_has_torn_is_told_and_no_alteration(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    path = folder / "2026-12.jsonl"
    with path.open("ab") as file:
        file.write(b'{"role":"subm')
    log = AuditLog(tmp_path)
    assert log.append([(7, DEC, body("campaign 7"))]) == 7
    log.append([(8, DEC, body("campaign 8"))])
    assert verify(tmp_path, at_least=8).lines == 8


def test_a_disk_that_was_full_leaves_a_torn_line_and_loses_no_note(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    log = AuditLog(tmp_path)
    path = folder / "2026-12.jsonl"
    path.rename(folder / "away")
    path.mkdir()  # what cannot be opened for writing, even by root
    with pytest.raises(SiteError, match="cannot be written"):
        log.append([(7, DEC, body("campaign 7"))])
    path.rmdir()
    (folder / "away").rename(path)
    with path.open("ab") as file:
        file.write(b'{"role":')
    assert log.append([(7, DEC, body("campaign 7"))]) == 7
    assert verify(tmp_path, at_least=7).lines == 7


def test_refusals_are_told_a_hundred_a_minute(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    for number in range(audit_log.REFUSED_MAX + 50):
        log.refused("10.0.0.1", f"no credential was given {number}")
    assert log.append([]) == audit_log.REFUSED_MAX + 1
    text = next((tmp_path / "audit").iterdir()).read_text()
    assert '"why":"50 more refusals"' in text
    log.refused("10.0.0.1", "again")
    assert log.append([]) == audit_log.REFUSED_MAX + 1  # within the same minute


def test_refusals_of_a_day_fill_no_disk(tmp_path: Path) -> None:
    now = [NOV]
    log = AuditLog(tmp_path, now_us=lambda: now[0])
    minutes = audit_log.REFUSED_DAY_MAX // audit_log.REFUSED_MAX + 60

    def minute() -> int:
        now[0] += 60_000_000
        before = log.head[0]
        for number in range(audit_log.REFUSED_MAX + 1):
            log.refused("10.0.0.1", f"no credential was given {number}")
        return log.append([]) - before

    told = [minute() for _ in range(minutes)]
    assert sum(told) == audit_log.REFUSED_DAY_MAX + minutes
    assert told[-1] == 1
    assert (
        f'"why":"{audit_log.REFUSED_MAX + 1} more refusals"'
        in next((tmp_path / "audit").iterdir()).read_text()
    )
    now[0] += audit_log.DAY_US
    assert minute() == audit_log.REFUSED_MAX + 1


def test_the_start_reads_the_end_of_a_large_log_only(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    path = folder / "2026-12.jsonl"
    last = path.read_bytes()
    with path.open("wb") as file:
        file.seek(64 * 1024 * 1024)
        file.write(b"\n" + last)
    tracemalloc.start()
    try:
        assert AuditLog(tmp_path).head[0] == 6
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\n\n", b"a", b"ab\n", b"abc\n\nde", b"one\ntwo\nthree\n", b"x" * 20]
)
def test_lines_are_found_from_the_end_whatever_the_pieces(tmp_path: Path, text: bytes, piece: int) -> None:
    path = tmp_path / "lines"
    path.write_bytes(text)
    assert list(audit_log._lines_back(path, piece)) == text.splitlines()[::-1]


def test_a_month_that_begins_with_a_torn_line_follows_the_one_before(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    (folder / "2026-12.jsonl").write_bytes(b'{"role":"subm')
    assert AuditLog(tmp_path).append([(6, DEC, body("campaign last"))]) == 6
    assert verify(tmp_path, at_least=6).lines == 6


def test_what_syncs_did_is_told_once_whatever_transaction_is_undone(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "x.db")
    store.init()
    world = World(store)
    world.dispatcher.close()
    dispatcher = world.dispatcher = Dispatcher(
        store,
        server_clock=ServerClock(
            monotonic_s=lambda: world.now_s, wall_us=lambda: NOV + int(world.now_s * 1e6)
        ),
    )
    site = Site(world)
    site.sync(want=0)  # told at once: the first of this agent
    for _ in range(3):
        world.submit(JobSpec(app="sim", events=2))
        site.sync()
    world.now_s += 61
    request = SyncRequest(
        site="s", epoch=1, host="h", version="1", reports=[], have=site.have, offers=[],
        capacity=Capacity(
            want_core_s=0, want_ranges_max=0, slot_cores_max=1, slot_memory_mb_max=1, devices={}, event_s={},
            nodes=0, busy_cores=0, adhoc=False,
        ),
    )  # fmt: skip

    def undone(work: UnitOfWork) -> None:
        dispatcher._tallies.note(work, LOCAL, request)
        raise SiteError("the disk is full")

    try:
        with pytest.raises(SiteError):
            dispatcher.writer.write(undone)
        site.sync(want=0)
        site.sync(want=0)
    finally:
        dispatcher.close()
    rows = world.reader.rows("audit_pending", limit=100)
    world.reader.close()
    found = [msgspec.json.decode(row[2], type=audit_log.AuditNote) for row in rows]
    told = [(each.facts["syncs"], each.facts["events"]) for each in found if each.act == "sync"]
    assert told == [(1, 0), (4, 6)]


def test_old_months_go_and_the_rest_still_holds(tmp_path: Path) -> None:
    months = [f"{2025 + number // 12}-{number % 12 + 1:02}" for number in range(15)]
    log = AuditLog(tmp_path, now_us=lambda: parse_us("2026-03-20"))
    for number, month in enumerate(months, start=1):
        log.append([(number, parse_us(f"{month}-15"), body(f"campaign {number}"))])
    assert log.begins_us() == parse_us("2025-01-01")
    assert log.prune(400 * 86400.0) == ["2025-01.jsonl"]
    assert log.begins_us() == parse_us("2025-02-01")
    assert log.prune(400 * 86400.0) == []
    found = verify(tmp_path, at_least=15)
    assert (found.first, found.lines) == (2, 15)  # the last one tells of the removal


def test_a_clock_that_is_years_ahead_removes_nothing(tmp_path: Path) -> None:
    now = [NOV]
    log = AuditLog(tmp_path, now_us=lambda: now[0])
    log.append([(1, NOV, body("campaign 1"))])
    now[0] = DEC + 3 * 365 * audit_log.DAY_US
    log.append([(2, now[0], body("campaign 2"))])
    assert log.prune(400 * 86400.0) == []
    assert verify(tmp_path).first == 1


def request(campaign: str = "c", key: str = "k", events: int = 1) -> SubmitRequest:
    return SubmitRequest(key=key, campaign=campaign, jobs=[JobSpec(app="sim", events=events)])


def test_changes_are_noted_with_their_transaction_and_refused_ones_not(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "x.db")
    store.init()
    dispatcher = Dispatcher(store)
    try:
        first = dispatcher.handle_submit(request(), ADA)
        dispatcher.handle_submit(request(), ADA)  # repeated: nothing is changed
        with pytest.raises(Exception, match="used for other content"):
            dispatcher.handle_submit(request(events=2), ADA)
        with pytest.raises(Exception, match="is -3"):
            dispatcher.handle_submit(request(key="k3", events=-3), ADA)
        dispatcher.handle_cancel(ActionRequest(jobs=[first.first_job], reason="wrong"), ADA)
        dispatcher.handle_retry(ActionRequest(campaign="c"), LOCAL)
    finally:
        dispatcher.close()
    session = store.reader()
    notes = [
        msgspec.json.decode(row[2], type=audit_log.AuditNote)
        for row in session.rows("audit_pending", limit=100)
    ]
    session.close()
    assert [(each.act, each.on, each.name) for each in notes] == [
        ("submit", "campaign ada/c", "ada"),
        ("cancel", f"jobs {first.first_job}", "ada"),
        ("retry", "campaign ada/c", ""),
    ]
    assert notes[0].facts == {"first_job": first.first_job, "jobs": 1, "events": 1, "apps": ["sim"]}


def test_a_credential_that_ends_before_the_jobs_is_remarked(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "x.db")
    store.init()
    dispatcher = Dispatcher(store)
    try:
        now_us = dispatcher.server_clock.now_us()
        short = msgspec.structs.replace(ADA, expires_us=now_us + 3_600_000_000)
        long = request(key="long", events=7200)
        assert "your certificate ends at" in dispatcher.handle_submit(long, short).remark
        assert dispatcher.handle_submit(request(key="short"), short).remark == ""
        assert dispatcher.handle_submit(request(key="never", events=7200), ADA).remark == ""
    finally:
        dispatcher.close()
    assert credential_expiry.expected_s(request(events=100), []) == 100.0


def test_refusals_outlast_a_disk_that_refuses_to_write(tmp_path: Path) -> None:
    minutes = iter(range(10))
    log = AuditLog(tmp_path, now_us=lambda: NOV + next(minutes) * 60_000_000)
    log.refused("ada", "wrong role")
    (tmp_path / "audit" / "2026-11.jsonl").mkdir()  # what is to be written cannot be
    for _ in range(2):
        with pytest.raises(SiteError, match="cannot be written"):
            log.append([])
        log.refused("bob", "no certificate")
    (tmp_path / "audit" / "2026-11.jsonl").rmdir()
    log.append([])
    text = (tmp_path / "audit" / "2026-11.jsonl").read_text()
    assert [text.count(each) for each in ("wrong role", "no certificate")] == [1, 2]
    assert verify(tmp_path).lines == 3
