"""Payloads in C++, shell and the documentation, against the strict pilot."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.examples import HERE, try_ranges
from tidemill.examples.try_ranges import Trial

DOCS = Path(__file__).parents[3] / "docs"


def build(source: Path, program: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    command = [
        compiler,
        "-std=c++11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{HERE / 'cpp'}",
        "-o",
        str(program),
    ]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")


def code_of(page: str, language: str) -> list[str]:
    """The fenced blocks of one language on a page of the documentation."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.mark.parametrize("bytewise", [False, True])
def test_cpp_example_is_compiled_and_does_every_event_once(
    tmp_path: Path, work_dir: Path, bytewise: bool
) -> None:
    build(HERE / "cpp" / "darts.cpp", tmp_path / "darts")
    outcome = try_ranges.run(
        [str(tmp_path / "darts")], work_dir, Trial(events=20, size=3, seed=77, bytewise=bytewise)
    )
    assert (outcome.error, outcome.exit_status) == (None, 0)
    lines = [line.split() for line in outcome.joined("hits").decode().splitlines()]
    assert [line[:2] for line in lines] == [[str(k), str(77 + k)] for k in range(20)]
    assert all(700 < int(line[2]) < 870 for line in lines)


def test_cpp_payload_reports_failed_events_strange_names_and_logs(tmp_path: Path, work_dir: Path) -> None:
    source = tmp_path / "all.cpp"
    source.write_text(r"""
#include <fstream>
#include "tidemill_ranges.hpp"
int main() {
    tidemill::Ranges ranges(1, 2);
    tidemill::Range r;
    while (ranges.next(r)) {
        ranges.log("two\nlines");
        ranges.beat();
        if (r.first == 2) {
            ranges.failed(2, "no");
            ranges.done(3, 1);
            continue;
        }
        const std::string path = "a b%\n" + std::to_string(r.first);
        std::ofstream(path) << r.first << ";";
        ranges.done(r.first, r.count, {{"o", path}});
    }
}
""")
    build(source, tmp_path / "all")
    outcome = try_ranges.run([str(tmp_path / "all")], work_dir, Trial(events=6, size=6))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert outcome.ranges == [(0, 2), (2, 2), (4, 2)]
    assert outcome.failed == {2: "no"}
    assert [piece.outputs for piece in outcome.pieces] == [{"o": b"0;"}, {}, {"o": b"4;"}]
    assert (outcome.log, outcome.beats) == (["two lines"] * 3, 3)


@pytest.mark.parametrize("bytewise", [False, True])
def test_shell_example_does_every_event_once(work_dir: Path, bytewise: bool) -> None:
    command = ["sh", str(HERE / "shell" / "payload.sh")]
    outcome = try_ranges.run(command, work_dir, Trial(events=20, size=6, seed=9, bytewise=bytewise))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert outcome.joined("text").decode() == "".join(f"{k} {9 + k}\n" for k in range(20))


@pytest.mark.parametrize("language", ["python", "sh"])
def test_complete_examples_in_the_protocol_page_run(tmp_path: Path, work_dir: Path, language: str) -> None:
    complete = [code for code in code_of("range-protocol.md", language) if "complete example" in code]
    assert complete
    for number, code in enumerate(complete):
        script = tmp_path / f"payload{number}"
        script.write_text(code)
        interpreter = sys.executable if language == "python" else "sh"
        outcome = try_ranges.run(
            [interpreter, str(script)], work_dir, Trial(events=10, size=4, seed=3, cores=2)
        )
        assert (outcome.error, outcome.exit_status, outcome.failed) == (None, 0, {})
        assert len(outcome.done()) == 10


def test_complete_cpp_examples_in_the_protocol_page_run(tmp_path: Path, work_dir: Path) -> None:
    complete = code_of("range-protocol.md", "cpp")
    assert complete
    for number, code in enumerate(complete):
        source = tmp_path / f"payload{number}.cpp"
        source.write_text(code)
        build(source, tmp_path / f"payload{number}")
        outcome = try_ranges.run([str(tmp_path / f"payload{number}")], work_dir, Trial(events=10, size=4))
        assert (outcome.error, outcome.exit_status) == (None, 0)
        assert len(outcome.done()) == 10


def test_the_protocol_page_tells_the_limits_of_the_library() -> None:
    import tidemill.payload as library

    text = (DOCS / "range-protocol.md").read_text(encoding="utf-8")
    assert f"{library.LINE_BYTES_MAX:,}" in text
    assert f"{library.MESSAGE_BYTES_MAX:,}" in text
    assert try_ranges.LINE_BYTES_MAX == library.LINE_BYTES_MAX
