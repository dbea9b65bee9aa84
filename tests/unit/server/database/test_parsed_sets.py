"""Sets that the writer remembers: read again only where the text is another, within a bound on bytes."""

from __future__ import annotations

from tests.effort import lines_run

from tidemill.model.intervals import IntervalSet
from tidemill.server.database.parsed_sets import GAP_BYTES, LARGE_TEXT, ParsedSets

GAPS = 2_000


def text_of(gaps: int, first: int = 0) -> str:
    return ",".join(str(number) for number in range(first, first + 2 * gaps, 2))


def test_a_text_is_parsed_once_however_often_it_is_read() -> None:
    parsed, text = ParsedSets(), text_of(GAPS)

    assert lines_run(lambda: parsed.parse((1, "done"), text)) > GAPS
    assert lines_run(lambda: parsed.parse((1, "done"), text)) < 50
    assert parsed.parse((1, "done"), text) == IntervalSet.parse(text)


def test_what_was_written_is_known_when_it_is_read_again() -> None:
    parsed = ParsedSets()
    events = parsed.parse((1, "done"), text_of(GAPS))
    events.add(10_001, 10_005)
    text = parsed.text((1, "done"), events)

    assert text == str(events)
    assert lines_run(lambda: parsed.parse((1, "done"), text)) < 50
    assert parsed.parse((1, "done"), text) == events


def test_a_set_that_has_not_changed_is_not_written_anew() -> None:
    parsed, text = ParsedSets(), text_of(GAPS)
    events = parsed.parse((1, "done"), text)

    assert lines_run(lambda: parsed.text((1, "done"), events)) < 50
    assert parsed.text((1, "done"), events) == text


def test_a_set_that_was_given_out_may_be_changed_without_harm_to_what_is_remembered() -> None:
    parsed, text = ParsedSets(), text_of(GAPS)
    for _ in range(2):
        parsed.parse((1, "done"), text).remove(0, 100)
    events = IntervalSet.parse(text)
    written = parsed.text((1, "leased"), events)
    events.remove(0, 100)

    assert parsed.parse((1, "done"), text) == IntervalSet.parse(text)
    assert parsed.parse((1, "leased"), written) == IntervalSet.parse(text)


def test_another_text_is_parsed_whatever_was_remembered() -> None:
    parsed = ParsedSets()
    parsed.parse((1, "done"), text_of(GAPS))
    other = text_of(GAPS, first=1)

    assert parsed.parse((1, "done"), other) == IntervalSet.parse(other)


def test_small_texts_are_not_remembered_nor_is_what_became_small() -> None:
    parsed = ParsedSets()
    parsed.parse((1, "done"), text_of(GAPS))
    parsed.text((1, "done"), IntervalSet([(0, 100)]))
    parsed.parse((2, "done"), "1" * (LARGE_TEXT - 1))

    assert parsed.bytes == 0


def test_what_was_used_last_stays_within_the_bound_on_bytes() -> None:
    text = text_of(GAPS)
    size = len(text) + GAP_BYTES * GAPS
    parsed = ParsedSets(bytes_max=2 * size)
    for job in (1, 2, 1, 3):
        parsed.parse((job, "done"), text)

    assert parsed.bytes == 2 * size
    assert lines_run(lambda: parsed.parse((1, "done"), text)) < 50
    assert lines_run(lambda: parsed.parse((2, "done"), text)) > GAPS
    parsed.parse((1, "leased"), text_of(3 * GAPS))
    assert parsed.bytes == 2 * size, "what is larger than the bound is not remembered"
