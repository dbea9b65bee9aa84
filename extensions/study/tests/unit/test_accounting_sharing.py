"""Logs of cores on shared nodes are refused: their figures as whole nodes would be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill_study.accounting.log import history_of
from tidemill_study.simulation import swf

NODES, CORES = 4, 10


def swf_log(path: Path, *, cores: int, at_once: int, wait_s: int = 0) -> Path:
    """A day of jobs with `cores` cores each, `at_once` at any time, on four nodes of ten cores."""
    lines = [f"; MaxNodes: {NODES}", f"; MaxProcs: {NODES * CORES}"]
    for k in range(24 * at_once):
        lines.append(f"{k + 1} {k // at_once * 3600} {wait_s} 3600 {cores} -1 -1 {cores} 7200" + " -1" * 9)
    path.write_text("\n".join(lines) + "\n")
    return path


def sacct_log(path: Path, *, cores: int, at_once: int) -> Path:
    lines = ["JobID|State|Submit|Start|End|NNodes|NCPUS"]
    day = "2026-10-01T00:00:00|2026-10-01T00:00:00|2026-10-02T00:00:00"
    whole = [f"{10_000 + k}|COMPLETED|{day}|1|{CORES}" for k in range(at_once)]
    for k in range(24 * at_once):
        hour = k // at_once
        begin, end = f"2026-10-02T{hour:02}:00:00", f"2026-10-02T{hour:02}:59:59"
        lines.append(f"{k + 1}|COMPLETED|{begin}|{begin}|{end}|1|{cores}")
    path.write_text("\n".join(lines + whole) + "\n")
    return path


def test_a_log_of_cores_on_shared_nodes_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = swf_log(tmp_path / "shared.swf", cores=1, at_once=30)
    sentence = (
        r"log of cores on shared nodes: 720 of 720 jobs had a part of a node \(10 cores a node\), and with nodes of "
        r"their own they overfill the machine for 100 % of the time\n"
    )
    with pytest.raises(ConfigError, match=sentence):
        swf.read(path)
    with pytest.raises(ConfigError, match=sentence):
        history_of(path).machine(None)


def test_a_log_without_starts_is_refused_by_the_number_of_its_parts(tmp_path: Path) -> None:
    path = swf_log(tmp_path / "shared.swf", cores=1, at_once=30, wait_s=-1)
    for read in (swf.read, lambda path: history_of(path).machine(None)):
        with pytest.raises(ConfigError, match="does not record when jobs started"):
            read(path)


@pytest.mark.parametrize(("cores", "at_once"), [(7, 4), (20, 2), (40, 1)])
def test_jobs_that_leave_cores_of_their_own_nodes_unused_are_read(
    tmp_path: Path, cores: int, at_once: int
) -> None:
    path = swf_log(tmp_path / "whole.swf", cores=cores, at_once=at_once)
    assert swf.read(path).nodes == NODES
    assert history_of(path).machine(None).nodes == NODES


def test_a_dump_of_sacct_is_refused_alike(tmp_path: Path) -> None:
    log = history_of(sacct_log(tmp_path / "shared.txt", cores=1, at_once=30))
    with pytest.raises(ConfigError, match="log of cores on shared nodes"):
        log.machine(NODES)
    assert history_of(sacct_log(tmp_path / "whole.txt", cores=8, at_once=4)).machine(NODES).is_trusted


def test_a_line_that_cannot_be_read_is_quoted_with_what_is_wrong(tmp_path: Path) -> None:
    path = swf_log(tmp_path / "odd.swf", cores=10, at_once=1)
    path.write_text(path.read_text() + "99 90000 -5 3600 10 -1 -1 10 7200" + " -1" * 9 + "\n")
    (sentence,) = [each for each in history_of(path).remarks.sentences() if "could not be read" in each]
    assert "has a negative wait time: -5" in sentence
