from __future__ import annotations

import random
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import lines_run

from tidemill.errors import SiteError
from tidemill.model.intervals import IntervalSet
from tidemill.node.framed import frame
from tidemill.node.journal import FleetJournal, JournalTail, read_interval_s, read_records, replay
from tidemill.wire.node import Ended, Record, Returned


def returned(pilot: str, number: int) -> Returned:
    return Returned(p=pilot, s=number, grant=1, job=1, first=number, count=1, reason="yield")


def ended(pilot: str, number: int) -> Ended:
    return Ended(p=pilot, s=number, reason="idle", message="", busy_us=1, slot_us=1, at_us=1)


def lines(*records: Record) -> bytes:
    return b"".join(frame(msgspec.json.encode(record)) for record in records)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_journal_torn_at_every_byte_gives_each_record_once(tmp_path: Path) -> None:
    records = [returned("a.r0.i1", number) for number in range(1, 4)]
    data = lines(*records)
    for cut in range(len(data) + 1):
        path = tmp_path / f"{cut}.log"
        append(path, data[:cut])
        tail = JournalTail(path)
        before = tail.read()
        assert before == records[: data[:cut].count(b"\n")]
        append(path, data[cut:])
        assert before + tail.read() == records
        assert tail.read() == []


def test_every_damaged_byte_hides_its_line_and_what_follows(tmp_path: Path) -> None:
    records = [returned("a.r0.i1", number) for number in range(1, 4)]
    data = lines(*records)
    first, second = (len(lines(*records[:k])) for k in (1, 2))
    for at in range(first, second):
        damaged = bytearray(data)
        damaged[at] ^= 0x01
        found, used = read_records(bytes(damaged))
        assert found == records[:1]
        assert used == first


def test_a_damaged_line_is_reported_and_passed_over_once_it_has_stayed_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [returned("a.r0.i1", number) for number in range(1, 5)]
    data = bytearray(lines(*records))
    start, end = (len(lines(*records[:k])) for k in (1, 2))
    for at in range(start, end):
        damaged = data.copy()
        damaged[at] ^= 0x01
        path = tmp_path / f"{at}.log"
        append(path, bytes(damaged))
        tail = JournalTail(path)
        assert tail.read() == records[:1]
        assert tail.read() == [], "a network file system may show it later"
        assert not caplog.records
        if at % 2:
            path.write_bytes(data)
            assert tail.read() == records[1:]
            continue
        tail.damage_s = 0.0
        assert tail.read() == records[2:]
        (said,) = caplog.records
        assert str(path) in str(said.__dict__)
        assert f"'start': {start}" in str(said.__dict__)
        caplog.clear()
        assert [each for piece in replay(tmp_path, {path.name: tail.offset}) for each in piece] == (
            records[:1] + records[2:]
        )


def test_damage_longer_than_any_line_is_passed_over_and_a_torn_tail_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lead-1.log"
    first, last = lines(returned("a.r0.i1", 1)), lines(returned("a.r0.i1", 9))
    append(path, first + b"\0" * (5 << 20) + b"\n" + last)
    tail = JournalTail(path)
    tail.damage_s = 0.0
    found = [record.s for _ in range(10) for record in tail.read(1)]
    assert found == [1, 9]
    append(path, last[:-1])
    assert tail.read() == []
    append(path, b"\n" + last)
    assert len(tail.read()) == 2


def test_an_allocation_is_retired_with_what_follows_a_damaged_line(tmp_path: Path) -> None:
    records = [returned("a.r0.i1", number) for number in range(1, 4)]
    data = bytearray(lines(*records))
    data[len(lines(records[0])) + 20] ^= 0x01
    append(tmp_path / "a.r0.i1.log", bytes(data))
    assert FleetJournal(tmp_path).retire("a") == [records[0], records[2]]


def test_a_journal_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    tail = JournalTail(tmp_path / "lead-1.log")
    assert tail.read() == []
    append(tail.path, lines(returned("a.r0.i1", 1)))
    assert len(tail.read()) == 1


def test_reading_in_pieces_gives_the_same(tmp_path: Path) -> None:
    path = tmp_path / "lead-1.log"
    records: list[Record] = [returned("a.r0.i1", number) for number in range(1, 20_001)]
    append(path, lines(*records))
    tail, found = JournalTail(path), []
    while piece := tail.read(1):
        assert len(piece) < len(records)
        found += piece
    assert found == records


def test_an_unknown_kind_of_record_is_named_and_the_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = frame(b'{"k":"paused","p":"a","s":1}')
    append(tmp_path / "lead-1.log", lines(returned("a", 1)) + unknown + lines(returned("b", 1)))

    assert [record.p for record in JournalTail(tmp_path / "lead-1.log").read()] == ["a", "b"]

    (said,) = caplog.records
    assert "paused" in str(said.__dict__)


def test_unknown_fields_of_newer_writers_are_ignored() -> None:
    content = msgspec.json.encode(returned("a.r0.i1", 1))
    found, _ = read_records(frame(content[:-1] + b',"colour":"blue"}'))
    assert found == [returned("a.r0.i1", 1)]


def test_a_record_in_both_journals_comes_once(tmp_path: Path) -> None:
    append(tmp_path / "lead-1.log", lines(returned("a.r0.i1", 1), returned("a.r0.i1", 2)))
    append(
        tmp_path / "a.r0.i1.log", lines(returned("a.r0.i1", 2), returned("a.r0.i1", 3), ended("a.r0.i1", 4))
    )
    journal = FleetJournal(tmp_path)
    assert [record.s for record in journal.read()] == [1, 2, 3, 4]
    assert journal.is_complete("a.r0.i1")


def test_records_of_a_pilot_are_put_in_order(tmp_path: Path) -> None:
    append(tmp_path / "lead-10.log", lines(returned("a.r0.i1", 3)))
    append(tmp_path / "lead-9.log", lines(returned("a.r0.i1", 1)))
    append(tmp_path / "a.r0.i1.log", lines(returned("a.r0.i1", 2)))
    assert [record.s for record in FleetJournal(tmp_path).read()] == [1, 2, 3]


def test_what_is_missing_of_a_pilot_is_told(tmp_path: Path) -> None:
    append(tmp_path / "lead-1.log", lines(returned("a.r0.i1", 1), ended("a.r0.i1", 5)))
    journal = FleetJournal(tmp_path)
    journal.read()
    assert not journal.is_complete("a.r0.i1")
    assert journal.missing("a.r0.i1") == [(2, 5)]
    append(tmp_path / "a.r0.i1.log", lines(*(returned("a.r0.i1", number) for number in (2, 3, 4))))
    assert len(journal.read()) == 3
    assert journal.is_complete("a.r0.i1")


@given(
    seed=st.integers(0, 2**32),
    pilots=st.integers(1, 4),
    numbers=st.integers(1, 30),
    restarts=st.integers(0, 3),
)
def test_any_spread_of_duplicates_over_journals_and_restarts_gives_each_record_once(
    seed: int, pilots: int, numbers: int, restarts: int
) -> None:
    chance = random.Random(seed)
    names = [f"a.r{rank}.i1" for rank in range(pilots)]
    everything = [(name, number) for name in names for number in range(1, numbers + 1)]
    writes: list[tuple[str, bytes]] = []
    for name, number in everything:
        journals = chance.sample(["lead-1.log", "lead-2.log", f"{name}.log"], k=chance.randint(1, 3))
        writes += [(journal, lines(returned(name, number))) for journal in journals]
    chance.shuffle(writes)
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        seen: dict[str, IntervalSet] = {}
        journal, found = FleetJournal(directory, seen=seen), []
        for step, (file, data) in enumerate(writes):
            cut = chance.randrange(len(data) + 1)
            append(directory / file, data[:cut])
            if step % 7 == 0:
                found += [(record.p, record.s) for record in journal.read()]
            append(directory / file, data[cut:])
            if restarts and chance.random() < restarts / len(writes):
                seen = {pilot: IntervalSet.parse(str(numbers)) for pilot, numbers in seen.items()}
                journal = FleetJournal(directory, offsets=journal.offsets, seen=seen)
        found += [(record.p, record.s) for record in journal.read()]
    assert sorted(found) == everything


def test_the_work_to_read_a_record_does_not_grow_with_the_journal(tmp_path: Path) -> None:
    records = [returned("tm-here-e1-1.r0.i1", number) for number in range(1, 20_001)]
    spent = []
    for count in (100, 20_000):
        directory = tmp_path / str(count)
        directory.mkdir()
        append(directory / "lead-1.log", lines(*records[:count]))
        journal, found = FleetJournal(directory), list[Record]()

        def read(journal: FleetJournal = journal, found: list[Record] = found) -> None:
            while piece := journal.read(bytes_max=20_000):
                found.extend(piece)

        spent.append(lines_run(read) / count)
        assert len(found) == count
    assert spent[1] < 1.1 * spent[0], "lines of Python for each record"


def test_the_journal_of_a_pilot_that_was_killed_is_left_alone_once_it_is_retired(tmp_path: Path) -> None:
    append(tmp_path / "a.7.r0.i1.log", lines(returned("a.7.r0.i1", 1)))
    append(tmp_path / "a.8.r0.i1.log", lines(returned("a.8.r0.i1", 1), ended("a.8.r0.i1", 2)))
    journal = FleetJournal(tmp_path)
    assert len(journal.read()) == 3
    append(tmp_path / "a.7.r0.i1.log", lines(returned("a.7.r0.i1", 2)))
    assert [record.s for record in journal.retire("a.7")] == [2]
    assert journal.read() == []
    assert journal.growing == 0
    append(tmp_path / "a.7.r0.i2.log", lines(returned("a.7.r0.i2", 1)))
    assert [record.p for record in journal.read()] == ["a.7.r0.i2"]
    assert journal.growing == 1


def test_a_journal_that_cannot_be_read_takes_nothing_of_the_others_with_it(tmp_path: Path) -> None:
    one, two, three = (f"a.{number}.r0.i1" for number in (1, 2, 3))
    for pilot in (one, three):
        append(tmp_path / f"{pilot}.log", lines(returned(pilot, 1)))
    (tmp_path / f"{two}.log").mkdir()  # opens, and cannot be read
    journal = FleetJournal(tmp_path)
    assert [record.p for record in journal.read()] == [one, three]
    for _ in range(2):  # the failure of before, and the one of now
        with pytest.raises(SiteError, match=two):
            journal.read()
    append(tmp_path / f"{three}.log", lines(returned(three, 2)))
    assert [record.s for record in journal.read()] == [2]
    with pytest.raises(SiteError, match=two):
        journal.read()
    (tmp_path / f"{two}.log").rmdir()
    append(tmp_path / f"{two}.log", lines(returned(two, 1)))
    assert [record.p for record in journal.read()] == [two]


def test_what_is_retired_is_read_again_where_one_of_its_journals_failed(tmp_path: Path) -> None:
    one, two = "a.1.r0.i1", "a.1.r1.i1"
    append(tmp_path / f"{one}.log", lines(returned(one, 1)))
    (tmp_path / f"{two}.log").mkdir()
    journal = FleetJournal(tmp_path)
    with pytest.raises(SiteError, match=two):
        journal.retire("a.1")
    assert journal.offsets[f"{one}.log"] == 0
    (tmp_path / f"{two}.log").rmdir()
    append(tmp_path / f"{two}.log", lines(returned(two, 1)))
    assert [record.p for record in journal.retire("a.1")] == [one, two]
    assert journal.read() == []


def test_many_journals_are_read_less_often_so_that_the_file_system_does_not_notice() -> None:
    rates = {
        count: (1 + 2 * count) / read_interval_s(count, operations_per_s_max=100, interval_s=2)
        for count in (1, 10, 1_000, 8_000)
    }
    assert all(rate <= 100 for rate in rates.values())
    assert read_interval_s(10, operations_per_s_max=100, interval_s=2) == 2
    assert read_interval_s(1_000, operations_per_s_max=100, interval_s=2) == pytest.approx(20, rel=0.01)


def test_what_a_read_has_moved_costs_no_look_at_pilots_that_wrote_nothing(tmp_path: Path) -> None:
    spent = []
    for count in (10, 1_000):
        directory = tmp_path / str(count)
        directory.mkdir()
        pilots = [f"tm-here-e1-{number}.r0.i1" for number in range(count)]
        append(directory / "lead-1.log", lines(*(returned(each, 2) for each in pilots)))
        journal = FleetJournal(directory)
        assert len(journal.read()) == count
        first = journal.moved()
        assert first == journal.offsets
        append(directory / "lead-1.log", lines(returned(pilots[0], 3)))
        assert len(journal.read()) == 1
        moved: list[dict[str, int]] = []
        spent.append(lines_run(lambda journal=journal, moved=moved: moved.append(journal.moved())))  # type: ignore[misc]
        assert moved == [journal.offsets]
        assert moved[0] != first
        assert journal.moved() == {}
    assert spent[0] == spent[1], "lines of Python"


def test_what_was_retired_counts_as_moved(tmp_path: Path) -> None:
    append(tmp_path / "a.7.r0.i1.log", lines(returned("a.7.r0.i1", 1)))
    journal = FleetJournal(tmp_path)
    assert len(journal.retire("a.7")) == 1
    assert journal.moved() == journal.offsets


def test_what_was_seen_and_who_has_ended_is_kept_by_the_caller_alone(tmp_path: Path) -> None:
    seen: dict[str, IntervalSet] = {"a.r0.i1": IntervalSet.parse("1-2")}
    ended_at: dict[str, int] = {}
    append(tmp_path / "a.r0.i1.log", lines(*(returned("a.r0.i1", number) for number in (1, 2, 3))))
    append(tmp_path / "a.r0.i1.log", lines(ended("a.r0.i1", 4)))
    journal = FleetJournal(tmp_path, seen=seen, ended=ended_at)
    assert [record.s for record in journal.read()] == [3, 4]
    assert ({pilot: str(numbers) for pilot, numbers in seen.items()}, ended_at) == (
        {"a.r0.i1": "1-4"},
        {"a.r0.i1": 4},
    )
    assert FleetJournal(tmp_path, seen=seen, ended=ended_at).read() == []
    assert FleetJournal(tmp_path, seen=seen, ended=ended_at).is_complete("a.r0.i1")
