"""Dumps of sacct: what is read, what is counted as a remark, and that nothing is made up."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tidemill.batch.log_times import LogClock
from tidemill.errors import ConfigError
from tidemill_study.accounting import sacct
from tidemill_study.accounting.history import History
from tidemill_study.accounting.log import LogKind, history_of, jobs_of, kind_of
from tidemill_study.accounting.past_jobs import PastJob, Remark, Remarks
from tidemill_study.simulation.swf import skipped_text

HEAD = "JobID|User|Account|Partition|Submit|Start|End|Elapsed|NNodes|NCPUS|Timelimit|State"
DAY = 1_792_800_000  # 2026-10-24T00:00:00Z


def row(id: str = "1", **fields: str) -> str:
    """A line of a job of an hour on two nodes."""
    known = {
        "user": "u1", "account": "phys", "partition": "batch", "submit": "2026-10-24T00:00:00",
        "start": "2026-10-24T01:00:00", "end": "2026-10-24T02:00:00", "elapsed": "01:00:00", "nodes": "2",
        "cores": "256", "limit": "1-00:00:00", "state": "COMPLETED",
    }  # fmt: skip
    return "|".join([id, *{**known, **fields}.values()])


def parsed(
    *lines: str, head: str = HEAD, end: str = "\n", clock: LogClock | None = None
) -> tuple[list[PastJob], Remarks]:
    """The jobs of a dump, and the remarks on it."""
    text = [f"{line}\n" for line in (head, *lines)]
    text[-1] = text[-1][:-1] + end
    remarks = Remarks()
    jobs = list(sacct.read(enumerate(text, start=1), remarks, clock or LogClock()))
    return jobs, remarks


def test_columns_are_found_by_name_and_others_are_passed_over() -> None:
    ((job,), remarks) = parsed(
        "x|COMPLETED|2|2026-10-24T02:00:00|7|2026-10-24T01:00:00||2026-10-24T00:30:00|91",
        head="Comment|State|NNodes|End|JobID|Start|Reservation|Submit|TimelimitRaw",
    )

    assert (job.id, job.nodes, job.limit_s, job.state, job.user) == ("7", 2, 5460, "COMPLETED", "")
    assert (job.submit_s, job.start_s, job.end_s) == (DAY + 1800, DAY + 3600, DAY + 7200)
    assert not remarks.noted


@pytest.mark.parametrize("separator", ["|", "|#", ";", "\x1f"])
def test_any_separator_is_found_in_the_header(separator: str) -> None:
    jobs, remarks = parsed(row().replace("|", separator), head=HEAD.replace("|", separator))

    assert [job.nodes for job in jobs] == [2]
    assert not remarks.noted


def test_lines_that_end_with_the_separator_are_as_good() -> None:
    jobs, remarks = parsed(row() + "|", head=HEAD + "|")

    assert [job.state for job in jobs] == ["COMPLETED"]
    assert not remarks.noted


def test_a_dump_without_a_needed_column_is_refused_with_the_command_that_makes_one() -> None:
    with pytest.raises(ConfigError, match="line 1 lacks `NNodes`") as caught:
        parsed("1|a", head="JobID|Start|End|Submit")
    assert "sacct -a -D -X -P" in (caught.value.hint or "")


def test_lines_that_cannot_be_read_are_counted_with_the_first_of_them() -> None:
    jobs, remarks = parsed(
        row("1"), "1|2", row("x7"), row("2", start="noon"), row("3", nodes="many"),
        row("4", submit="2026-13-01T00:00:00"), row("5"),
    )  # fmt: skip

    assert [job.id for job in jobs] == ["1", "5"]
    assert list(remarks.sentences()) == [
        "5 lines of 7 could not be read: 2 fields instead of 12, first at line 3",
    ]


@pytest.mark.parametrize(
    ("line", "end"),
    [(row("2")[:-4], ""), (row("2")[:40], ""), (row("2"), "")],
    ids=["in the last field", "early", "whole"],
)
def test_a_last_line_without_a_line_end_is_left_out_as_its_last_field_may_be_cut(line: str, end: str) -> None:
    jobs, remarks = parsed(row("1"), line, end=end)

    assert [job.id for job in jobs] == ["1"]
    assert list(remarks.sentences()) == ["the log is cut short: its last line is left out, at line 3"]


def test_a_last_line_without_a_line_end_counts_when_its_last_field_is_of_no_use() -> None:
    jobs, remarks = parsed(
        "1|2026-10-24T01:00:00|2026-10-24T02:00:00|2|why", head="JobID|Start|End|NNodes|Reason", end=""
    )

    assert [job.nodes for job in jobs] == [2]
    assert not remarks.count(Remark.CUT)


@pytest.mark.parametrize("start", ["Unknown", "None", ""])
def test_jobs_that_were_canceled_before_their_start_held_no_nodes(start: str) -> None:
    ((job,), remarks) = parsed(row(start=start, elapsed="00:00:00", state="CANCELLED by 1000"))

    assert (job.start_s, job.end_s, job.state) == (None, None, "CANCELLED")
    assert remarks.count(Remark.NOT_STARTED) == 1


def test_a_canceled_job_that_ends_before_it_starts_never_started() -> None:
    ((job,), remarks) = parsed(row(end="2026-10-24T00:30:00", elapsed="00:00:00", state="CANCELLED by 1000"))

    assert job.start_s is None
    assert (remarks.count(Remark.NOT_STARTED), remarks.count(Remark.ELAPSED)) == (1, 0)


@pytest.mark.parametrize(
    ("start", "end", "elapsed", "run_s"),
    [
        ("2026-10-25T01:30:00", "2026-10-25T02:30:00", "02:00:00", 7200),  # back by an hour while it ran
        ("2026-03-29T01:30:00", "2026-03-29T03:30:00", "01:00:00", 3600),  # forward
        ("2026-10-25T02:50:00", "2026-10-25T02:10:00", "00:20:00", 1200),  # ends before it starts
    ],
)
def test_a_clock_change_is_seen_by_the_elapsed_time(start: str, end: str, elapsed: str, run_s: int) -> None:
    ((job,), remarks) = parsed(row(start=start, end=end, elapsed=elapsed))

    assert job.start_s is not None
    assert job.end_s == job.start_s + run_s
    assert remarks.count(Remark.ELAPSED) == 1


def test_suspended_time_is_no_clock_change() -> None:
    ((job,), remarks) = parsed(row(end="2026-10-24T02:20:00", elapsed="01:00:00"))

    assert job.end_s == DAY + 2 * 3600 + 1200
    assert not remarks.noted


def test_times_of_a_zone_with_two_offsets_are_placed_by_it() -> None:
    clock = LogClock(ZoneInfo("Europe/Berlin"))
    ((summer, winter), _) = parsed(
        row("1", start="2026-10-24T01:00:00", end="2026-10-24T02:00:00"),
        row("2", submit="2026-10-25T00:00:00", start="2026-10-25T12:00:00", end="2026-10-25T13:00:00"),
        clock=clock,
    )

    assert summer.start_s == DAY - 3600
    assert winter.start_s == DAY + 86400 + 11 * 3600
    assert clock.hour_of_week(summer.start_s or 0) == 5 * 24 + 1


def test_steps_are_part_of_their_job_and_those_without_one_are_told() -> None:
    jobs, remarks = parsed(
        row("1_2"), row("1_2.batch"), row("1_2.0"), row("9.extern"), row("3+1"), row("3+1.0")
    )

    assert [job.id for job in jobs] == ["1_2", "3+1"]
    assert list(remarks.sentences()) == [
        "1 line left out: a step whose job is not in the log: step `9.extern`, at line 5",
    ]


def test_each_run_of_a_requeued_job_counts_and_a_repeated_line_does_not() -> None:
    again = row("1", submit="2026-10-24T03:00:00", start="2026-10-24T04:00:00", end="2026-10-24T05:00:00")
    jobs, remarks = parsed(row("1", state="REQUEUED"), again, row("2"), again, row("7_1"), row("7_1"))

    assert [(job.id, job.requeue) for job in jobs] == [("1", 0), ("1", 1), ("2", 0), ("7_1", 0)]
    assert (remarks.count(Remark.REQUEUED), remarks.count(Remark.REPEATED)) == (1, 2)


def test_dumps_that_were_put_together_bring_their_headers() -> None:
    jobs, remarks = parsed(row("1"), "JobID|NNodes|Start|End", "2|4|2026-10-24T01:00:00|2026-10-24T02:00:00")

    assert [(job.id, job.nodes) for job in jobs] == [("1", 2), ("2", 4)]
    assert remarks.lines == 2


@pytest.mark.parametrize(("text", "nodes"), [("1K", 1024), ("1.50K", 1536), ("12", 12)])
def test_numbers_with_a_unit_are_read(text: str, nodes: int) -> None:
    ((job,), _) = parsed(row(nodes=text))

    assert job.nodes == nodes


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "sacct.txt"
    path.write_text("".join(f"{line}\n" for line in (HEAD, *lines)))
    return path


def test_jobs_that_still_run_hold_their_nodes_to_the_end_of_the_log(tmp_path: Path) -> None:
    running = row("1", end="Unknown", elapsed="05:00:00", state="RUNNING")
    late = row("2", submit="2026-10-24T05:00:00", start="2026-10-24T05:00:00", end="2026-10-24T06:00:00")

    history = history_of(written(tmp_path, running, late))

    assert list(history.run_s) == [5 * 3600, 3600]
    assert history.remarks.count(Remark.RUNNING) == 1


def test_a_job_without_an_end_long_past_its_limit_is_one_that_slurmdbd_missed(tmp_path: Path) -> None:
    lost = row("1", end="Unknown", state="RUNNING", limit="01:00:00")
    late = row("2", submit="2026-10-29T05:00:00", start="2026-10-29T05:00:00", end="2026-10-29T06:00:00")

    history = history_of(written(tmp_path, lost, late))

    assert history.machine(None).nodes == 2
    assert list(history.timeline) == [(DAY + 5 * 86400 + 5 * 3600, 2), (DAY + 5 * 86400 + 6 * 3600, 0)]
    assert history.remarks.count(Remark.RUNAWAY) == 1


def test_jobs_that_end_before_they_start_are_left_out_where_nothing_tells_the_truth(tmp_path: Path) -> None:
    history = History("log", Remarks())
    history.add_jobs(
        [PastJob(id="1", start_s=100, end_s=50, nodes=1), PastJob(id="2", start_s=100, end_s=150, nodes=1)]
    )

    assert len(history) == 1
    assert history.remarks.count(Remark.BACKWARDS) == 1


def test_a_log_of_which_no_job_is_left_says_why(tmp_path: Path) -> None:
    path = written(tmp_path, row("1", start="Unknown", state="PENDING"), "1|2")

    with pytest.raises(ConfigError, match="1 line of 2 could not be read: 2 fields instead of 12, at line 3"):
        history_of(path)


def test_an_empty_dump_is_refused() -> None:
    with pytest.raises(ConfigError, match="no header"):
        list(sacct.read([], Remarks(), LogClock()))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (HEAD, LogKind.SACCT),
        ("User|Start|JobIDRaw|End|NNodes", LogKind.SACCT),
        ("06/06/2005 14:04:25;D;408.ign1;requestor=guest@ign1", LogKind.PBS),
        ("; Version: 2.2", LogKind.SWF),
        ("1 0 5 60 4 -1 -1 4 90 -1 1 1 1 1 1 1 -1 -1", LogKind.SWF),
    ],
)
def test_the_kind_of_a_log_is_seen_by_its_first_line(line: str, kind: LogKind) -> None:
    assert kind_of(line + "\n") is kind


def test_bytes_that_are_no_text_cost_no_line(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_bytes(f"{HEAD}\n{row('1', account='A')}\n".encode().replace(b"|A|", b"|\xff\xfe|"))
    remarks = Remarks()

    (job,) = jobs_of(path, remarks, kind=LogKind.SACCT, header={})

    assert (job.id, job.nodes) == ("1", 2)


def test_of_the_weeks_before_a_dump_begins_only_long_jobs_are_in_it_and_they_are_not_counted_as_idle(
    tmp_path: Path,
) -> None:
    long = row(
        "1",
        submit="2026-10-14T00:00:00",
        start="2026-10-14T00:00:00",
        end="2026-10-24T02:00:00",
        elapsed="10-02:00:00",
    )
    rest = [
        row(str(k), submit=f"{hour}:00:00", start=f"{hour}:30:00", end=f"{hour}:50:00", elapsed="00:20:00")
        for k in range(2, 40)
        for hour in [f"2026-10-{24 + k // 24}T{k % 24:02d}"]
    ]  # fmt: skip

    history = history_of(written(tmp_path, long, *rest))

    assert history.span == (DAY + 7200, DAY + 39 * 3600)
    assert len(history.recent(100)) == 38
    skipped = history.trace(history.machine(None), 100).skipped
    assert skipped == {"before the first end": 1}


def test_jobs_that_are_left_out_are_counted(tmp_path: Path) -> None:
    never = row("3", start="Unknown", end="2026-10-24T00:30:00", state="CANCELLED")
    back = row("4", end="2026-10-24T00:30:00", elapsed="")
    elsewhere = row("5", partition="debug", start="Unknown", state="PENDING")
    path = written(tmp_path, row("1"), row("2"), never, back, elsewhere)

    history = history_of(path, partition="batch")
    skipped = history.trace(history.machine(None), 100).skipped

    assert skipped == {"never started": 1, "an end before the start": 1}
    assert skipped_text(skipped) == "1 record with an end before the start, 1 job never started"


def test_cores_of_a_whole_node_are_the_most_that_more_than_a_few_jobs_have(tmp_path: Path) -> None:
    rows = [row(str(k), nodes="1", cores=str(cores)) for k, cores in enumerate([4] * 14 + [32] * 5 + [128])]
    history = history_of(written(tmp_path, *rows))

    assert history.whole_cores() == 32
    assert history.part_nodes(32) == 14


@pytest.mark.parametrize("trailing", ["", "|"])
def test_a_name_with_the_separator_does_no_harm_in_the_last_column(trailing: str) -> None:
    head = "JobID|Start|End|NNodes|JobName" + trailing
    jobs, remarks = parsed(
        f"1|2026-10-24T01:00:00|2026-10-24T02:00:00|2|a|b||c{trailing}",
        f"2|2026-10-24T01:00:00|2026-10-24T02:00:00|2|d{trailing}",
        head=head,
    )

    assert [job.name for job in jobs] == ["a|b||c", "d"]
    assert not remarks.noted


def test_what_a_real_slurmdbd_prints_is_read(tmp_path: Path) -> None:
    remarks = Remarks()
    path = Path(__file__).parents[4] / "tests" / "fixtures" / "slurm" / "sacct-22.05.txt"

    jobs = list(jobs_of(path, remarks, kind=LogKind.SACCT, header={}))

    assert [(job.id, job.requeue, job.state, job.end_s is None) for job in jobs] == [
        ("1196", 0, "COMPLETED", False),
        ("1197", 0, "CANCELLED", True),
        ("1198", 0, "NODE_FAIL", False),
        ("1198", 1, "COMPLETED", False),
        ("1199", 0, "COMPLETED", False),
        ("1200", 0, "COMPLETED", False),
        ("1201", 0, "RUNNING", True),
    ]
    assert {(job.limit_s, job.name, job.account, job.cpu_s) for job in jobs} == {(7200, "job|x", "phys", 0)}
    assert sorted(remarks.noted) == [Remark.NOT_STARTED, Remark.REQUEUED, Remark.RUNNING]
