"""The commands of the tutorials and how-tos run as they are written, each page in a home of its own."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.pages import DOCS, EXTENSIONS, Step, missing, steps
from tests.worlds.home.world import namespace_command

from tidemill.harvest.plan.waves import SENTENCES
from tidemill.model.failure import FailureClass
from tidemill.server.read.waiting import Cause

PAGES = [
    "first-campaign",
    "cheat-sheet",
    "transfers",
    "core-hours",
    "sweeps",
    "python-notebooks",
    "from-other-tools",
    "gpus",
    "software-environments",
    "troubleshooting",
    "applications",
    "stress",
]
#: what a test makes shorter in the files of a page
SHORTER = {"stress": {"levels = [1, 2, 4]": "levels = [2]", 'hold_s = "15s"': 'hold_s = "8s"'}}
#: pages whose blocks other tests run
ELSEWHERE = {
    "first-campaign-slurm": "tests/slurm/test_first_use_slurm.py",
    "range-protocol": "tests/local/examples/test_examples_languages.py",
}
SHELL = """
set -eu -o pipefail
n=0
while [ -e "step-$n.sh" ]; do
    . "./step-$n.files"
    (set -eu -o pipefail; . "./step-$n.sh") >"step-$n.out" 2>&1
    n=$((n + 1))
done
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/var/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


def run(page: list[Step], place: Path) -> list[str]:
    """What each step printed; asserts that all succeed. The processes that they leave end with the page's namespace."""
    work = place / "w"
    work.mkdir()
    for number, step in enumerate(page):
        (work / f"step-{number}.sh").write_text(step.commands)
        copies = []
        for name, content in step.files.items():
            (place / f"{number}-{name}").write_text(content)
            copies.append(f"cp {place}/{number}-{name} {name}\n")
        (work / f"step-{number}.files").write_text("".join(copies))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*namespace_command(), "/bin/bash", "-c", SHELL],
        cwd=work,
        env={**os.environ, "PATH": path, "TIDEMILL_HOME": str(place / "h"), "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    printed = [
        (work / f"step-{n}.out").read_text() for n in range(len(page)) if (work / f"step-{n}.out").exists()
    ]
    assert done.returncode == 0, f"{page[len(printed) - 1].commands}\n{printed[-1]}\n{done.stderr}"
    return printed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_shows(page: str, place: Path) -> None:
    read = steps(page)
    for long, short in SHORTER.get(page, {}).items():
        (step,) = (each for each in read if any(long in content for content in each.files.values()))
        step.files = {name: content.replace(long, short) for name, content in step.files.items()}
    for step, printed in zip(read, run(read, place), strict=True):
        assert missing(step.shown, printed) == [], f"{step.commands}\n{printed}"


def test_every_page_with_commands_to_run_is_run() -> None:
    with_commands = {
        path.stem
        for path in [*DOCS.rglob("*.md"), *EXTENSIONS]
        if "\n```sh\n" in path.read_text(encoding="utf-8")
    }
    assert with_commands == {*PAGES, *ELSEWHERE}
    root = DOCS.parent
    assert [path for path in ELSEWHERE.values() if not (root / path).exists()] == []


def test_troubleshooting_names_causes_and_classes_that_exist() -> None:
    tables = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").partition("## A campaign waits")[2]
    waits, _, fails = tables.partition("## An event fails")
    waits = waits.partition("## The cluster has idle nodes")[0]
    named = {
        word
        for row in re.findall(r"^\| [^|]+ \| (`.*?) \|", waits, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", row)
    }
    classes = {
        word
        for row in re.findall(r"^\| (`.*?) \|", fails.partition("## Nothing")[0], re.MULTILINE)
        for word in re.findall(r"`(\w+)`", row)
    }
    assert named <= set(Cause)
    assert classes <= set(FailureClass)
    assert len(named) > 5
    assert len(classes) > 5


def test_troubleshooting_quotes_what_a_site_says_of_idle_nodes() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    said = page.partition("What the line `why no more` says:")[2].partition("\n##")[0]
    quoted = {quote for row in re.findall(r"^\| (`.*?) \|", said, re.MULTILINE) for quote in quotes(row)}
    known = {sentence.strip() for sentence in SENTENCES.values()}
    assert {quote for quote in quoted if "..." not in quote} <= known
    assert len(quoted & known) > 5


def quotes(text: str) -> list[str]:
    """What stands in one backtick, or in two."""
    return [double.strip() or single for double, single in re.findall(r"``(.+?)``(?!`)|`([^`]+)`", text)]


def apart(text: str) -> list[str]:
    """Headings and first entries of lists and tables without a blank line before: the generator makes them part of what
    is above, a heading after a table one of its rows."""
    lines = re.sub(r"^( *)```.*?^\1```[ ]*$", "```", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    found = []
    for above, line in itertools.pairwise(lines):
        if not above.strip() or not line.strip():
            continue
        is_list = bool(re.match(r"(?:[-*]|1\.) ", line)) and bool(re.match(r"\w.*:$", above))
        is_table = line.startswith("|") and not above.startswith(("|", "<!-- "))
        after_table = above.startswith("|") and not line.startswith(("|", "<!-- end"))
        if re.match(r"#{1,6} ", line) or is_list or is_table or after_table:
            found.append(line)
    return found


def test_headings_lists_and_tables_of_pages_stand_apart() -> None:
    root = DOCS.parent
    pages = [*DOCS.rglob("*.md"), *EXTENSIONS, *root.glob("*.md")]
    assert {str(page.relative_to(root)): apart(page.read_text(encoding="utf-8")) for page in pages} == {
        str(page.relative_to(root)): [] for page in pages
    }
    assert apart("| a |\n|---|\n## b\n\nRejected:\n- c\n| d |\n") == ["## b", "- c", "| d |"]


def test_a_line_that_is_not_printed_is_missing() -> None:
    printed = "job 7 (fit)\nCOMPLETED: 2 of 2 events done, 0.6 s\n"
    assert missing(["job ... (fit)", "COMPLETED: 2 of 2 events done, ..."], printed) == []
    assert missing(["COMPLETED: 3 of 3 events done, ..."], printed) == ["COMPLETED: 3 of 3 events done, ..."]
