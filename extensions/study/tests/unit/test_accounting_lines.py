"""Logs that are not whole, and logs without a job: what is missing is said, in the file and line where it is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill_study.accounting.lines import gaps, log_lines, time_in
from tidemill_study.accounting.log import LogKind, history_of
from tidemill_study.accounting.past_jobs import Remark, Remarks

AT = "11/02/2026 09:12:44"
ENDED = "queue=workq qtime=1000 start=2000 end=5000 Resource_List.nodect=1"
HEAD = "JobID|Partition|Submit|Start|End|NNodes"
ROW = "|batch|2026-11-02T01:00:00|2026-11-02T02:00:00|2026-11-02T03:00:00|1\n"


def sentences(path: Path) -> list[str]:
    return list(history_of(path).remarks.sentences())


def test_a_gzip_file_that_ends_early_says_from_where_on_it_is_missing(tmp_path: Path) -> None:
    lines = [f"{AT};E;{k}.pbs;{ENDED} x={k * 7919}\n" for k in range(2000)]
    path = tmp_path / "20261102.gz"
    path.write_bytes(gzip.compress("".join(lines).encode())[:-400])

    history = history_of(path)

    (sentence,) = history.remarks.sentences()
    expected = f"everything after line {len(history):,} (2026-11-02 09:12) is missing"
    assert sentence == f"the gzip file ends early: {expected}"


def test_a_gzip_file_with_a_wrong_checksum_is_called_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(f"{AT};E;1.pbs;{ENDED}\n".encode()))
    packed[-8] ^= 1
    path = tmp_path / "log.gz"
    path.write_bytes(packed)

    (sentence,) = sentences(path)
    assert sentence.startswith(
        "the gzip file is damaged: what comes after line 1 (2026-11-02 09:12) is missing"
    )


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (f"{AT};E;1.pbs;x=2020-01-01T00:00", "2026-11-02 09:12"),
        ("1|2026-11-03T10:00:00|2026-11-03T09:12:59|Unknown", "2026-11-03 09:12"),
        ("1 0 5 60 4", ""),
    ],
)
def test_the_time_of_a_line_is_found(line: str, at: str) -> None:
    assert time_in(line) == at


def test_lines_of_a_directory_are_those_of_the_daily_file(tmp_path: Path) -> None:
    (tmp_path / "20261101").write_text(f"{AT};E;1.pbs;{ENDED}\n" * 3)
    (tmp_path / "20261102").write_text(f"{AT};E;2.pbs;{ENDED}\njunk\n")

    assert "1 line of 5 could not be read: not a record of PBS: `junk`, at line 2 of `20261102`" in sentences(
        tmp_path
    )
    assert [number for number, _ in log_lines(tmp_path, Remarks())] == [1, 2, 3, 4, 5]


def test_days_without_a_file_or_a_line_are_named(tmp_path: Path) -> None:
    for day in ("20261102", "20261105"):
        (tmp_path / day).write_text(f"{AT};E;{day}.pbs;{ENDED}\n")
    (tmp_path / "20261103").touch()

    said = "the log has a gap: `20261103` is empty, `20261104` is absent: jobs of those days are missing"
    assert said in sentences(tmp_path)
    assert gaps(["20261102", "20261103.gz"], {"20261103.gz"}) == ""  # the day may have just begun
    assert gaps(["README", "20260231"], {"README"}) == ""
    many = gaps(["20261101", "20261201"], set())
    assert many.endswith("`20261104` is absent, and 26 more: jobs of those days are missing")


def test_an_empty_log_is_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    with pytest.raises(ConfigError, match=r"log` is empty$"):
        history_of(path)


@pytest.mark.parametrize(
    ("text", "partition", "message", "hint"),
    [
        (f"{HEAD}\n", None, "it has a header of sacct and no job", "`sacct -a`"),
        (f"{AT};Q;1.pbs;queue=workq\n" * 7, None, "(7 records Q, none S or E)", "records S (start)"),
        (
            f"{HEAD}\n1{ROW}2{ROW}",
            "nosuch",
            "no job of partition `nosuch`",
            "partitions in the log: batch (2)",
        ),
        (f"{AT};E;1.pbs;{ENDED}\n", "nosuch", "no job of queue `nosuch`", "queues in the log: workq (1)"),
        (
            '# CERIT-SC,"a log" ' + "x" * 200 + "\n;\n1,2,3\n",
            None,
            "has no job that ran (2 of 2 lines are not records of the Standard Workload Format; the first is line 1)",
            "--kind says",
        ),
        (f"{HEAD}\n1|2\n", None, "could not be read", "--kind says"),
    ],
)
def test_a_log_without_a_job_says_what_it_has_instead(
    tmp_path: Path, text: str, partition: str | None, message: str, hint: str
) -> None:
    path = tmp_path / "log"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        history_of(path, partition=partition)

    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_all_missing_columns_are_named_with_the_file_and_the_least_that_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_text("JobID|Partition|State\n1|batch|COMPLETED\n")

    with pytest.raises(ConfigError, match=r"`s\.txt`, line 1 lacks `Start`, `End`, `NNodes`: ") as caught:
        history_of(path, kind=LogKind.SACCT)

    hint = caught.value.hint or ""
    assert "Submit,Start,End" in hint
    assert not any(each in hint for each in ("User", "Account", "JobName"))


def test_the_remark_of_a_cut_line_is_for_files_that_are_not_compressed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{AT};E;1.pbs;{ENDED}\n{AT};E;2.pbs;{ENDED}")
    assert history_of(path).remarks.count(Remark.CUT) == 1
