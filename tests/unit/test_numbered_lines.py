"""Lines of large files by their number."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tidemill.lines import STEP, NumberedLines


@pytest.mark.parametrize("count", [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP])
def test_each_line_is_found_by_its_number(tmp_path: Path, count: int) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"line {n}\n" for n in range(count)))
    lines = NumberedLines(path)

    assert lines.count == count
    assert lines.read(0, count + 5) == [f"line {n}" for n in range(count)]
    for first in {0, count // 2, max(0, count - 1)}:
        assert lines.read(first, first + 2) == [f"line {n}" for n in range(first, min(count, first + 2))]


def test_only_a_newline_ends_a_line_as_in_the_pilot(tmp_path: Path) -> None:
    """A line more or less would give all later events another file than their line says."""
    path = tmp_path / "lines"
    path.write_bytes("a\u2028b\r\n\x0cc\x0b\n\x85d\n\nlast".encode())

    assert NumberedLines(path).read(0, 9) == ["a\u2028b", "c", "d", "", "last"]


def test_two_hundred_thousand_lines_take_a_few_kilobytes(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"root://origin.example.org//store/{n}\n" for n in range(200_000)))
    tracemalloc.start()
    found = NumberedLines(path).read(199_990, 200_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found[-1].endswith("/199999")
    assert peak < 1_000_000


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"\xef\xbb\xbffirst\nsecond\n")
    lines = NumberedLines(tmp_path / "list")
    assert (lines.count, lines.read(0, 2)) == (2, ["first", "second"])
    (tmp_path / "list").write_bytes(b"\xef\xbb\xbf")
    assert NumberedLines(tmp_path / "list").read(0, 1) == [""]
