"""No input makes a parser of what comes from outside do anything but read it, or refuse it as it says it does.

For each parser: its corpus, in which every input that ever was mishandled stays, then some mutations of it,
the same ones every time. `make fuzz` looks for longer, with other numbers: see `hunt.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.hunt import Effort, run_apart, seeds_of, told
from tests.fuzz.parsers import EXTENSIONS, PARSERS

CORPUS_BYTES_MAX = 300_000
CORPORA = {each.corpus for each in PARSERS.values()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With `--fuzz-of NAME` only the parsers of that extension: `make test-core` has tried all others."""
    if "name" in metafunc.fixturenames:
        extension: str = metafunc.config.getoption("--fuzz-of")
        below = EXTENSIONS / extension if extension else Path("/")
        metafunc.parametrize("name", [name for name, each in PARSERS.items() if below in each.corpus.parents])


def test_parser_reads_or_refuses_whatever_comes(name: str, request: pytest.FixtureRequest) -> None:
    effort = Effort(mutations=request.config.getoption("--fuzz-mutations"))
    report = run_apart(name, seed=request.config.getoption("--fuzz-seed"), effort=effort)
    assert not report.crashes, "\n".join(told(name, each) for each in report.crashes)
    assert report.refused_honest == [], "honest inputs of the corpus are refused"
    assert report.inputs > len(seeds_of(PARSERS[name])), "nothing was tried besides the corpus"


def test_every_parser_has_an_honest_input_and_every_folder_a_parser() -> None:
    assert {path.name for corpus in CORPORA for path in corpus.iterdir()} <= set(PARSERS)
    only_refused = {"certificate", "token", "mover-order"}  # none can be good for ever, or on another machine
    without = {name for name, each in PARSERS.items() if not any(n.startswith("ok") for n in seeds_of(each))}
    assert without == only_refused & PARSERS.keys()


def test_the_corpus_stays_small() -> None:
    assert (
        sum(path.stat().st_size for corpus in CORPORA for path in corpus.rglob("*") if path.is_file())
        <= CORPUS_BYTES_MAX
    )
