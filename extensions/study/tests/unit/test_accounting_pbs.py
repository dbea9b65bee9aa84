"""Accounting logs of PBS: runs by their E and R records, the rest counted."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tidemill.batch.pbs.places import count_cores
from tidemill_study.accounting import pbs
from tidemill_study.accounting.history import History
from tidemill_study.accounting.log import history_of
from tidemill_study.accounting.past_jobs import PastJob, Remark, Remarks

AT = "10/24/2026 14:07:17"
USED = (
    "user=ada group=phys project=_pbs_project_default jobname=a queue=workq ctime=1000 qtime=1000 etime=1001 "
    "start=2000 exec_host=n1/0*64+n2/0*64 Resource_List.ncpus=128 Resource_List.nodect=2 "
    'Resource_List.walltime=01:00:00 account="high energy"'
)


def parsed(*records: str) -> tuple[list[PastJob], Remarks]:
    remarks = Remarks()
    lines = enumerate((f"{AT};{record}\n" for record in records), start=1)
    return list(pbs.read(lines, remarks)), remarks


def test_an_e_record_is_a_job() -> None:
    ((job,), remarks) = parsed(
        "Q;7.pbs;queue=workq",
        f"S;7.pbs;{USED}",
        f"E;7.pbs;{USED} session=1 end=5000 Exit_status=0 resources_used.cput=00:50:00",
    )

    assert (job.id, job.user, job.account, job.partition, job.name) == (
        "7.pbs",
        "ada",
        "high energy",
        "workq",
        "a",
    )
    assert (job.submit_s, job.eligible_s, job.start_s, job.end_s) == (1000, 1001, 2000, 5000)
    assert (job.nodes, job.cores, job.limit_s, job.cpu_s, job.state) == (2, 128, 3600, 3000, "COMPLETED")
    assert not remarks.noted


@pytest.mark.parametrize(
    ("places", "nodes", "cores"),
    [
        # PBS: four chunks of a core on each of two hosts are two nodes, not eight
        ("exec_host=a/0+a/1+a/2+a/3+b/0+b/1+b/2+b/3 Resource_List.ncpus=8 Resource_List.nodect=8", 2, 8),
        ("exec_host=a/0*32+b/0*32 exec_vnode=(a:ncpus=32)+(b:ncpus=32) Resource_List.nodect=2", 2, 64),
        ("exec_host=a/0*8+a/1*8 exec_vnode=(a[0]:ncpus=8)+(a[1]:ncpus=8) Resource_List.nodect=2", 1, 16),
        ("exec_host=a/0*0 exec_vnode=(a:ngpus=1) Resource_List.ncpus=0 Resource_List.nodect=1", 1, 0),
        ("exec_host=a.example.org/0*4 exec_vnode=(a:ncpus=4) Resource_List.nodect=1", 1, 4),
        # Cray: the login node starts the job
        ("exec_host=login1/0*36+login1/1*36 exec_vnode=(c_7:ncpus=36)+(c_9:ncpus=36) Resource_List.nodect=2", 2, 72),
        # Torque: a range of cores; the resources that were asked for are of one node
        ("exec_host=a/0-1,5,11+b/0-15 Resource_List.nodect=2 Resource_List.nodes=1:ppn=4 "
         "total_execution_slots=20 unique_node_count=2", 2, 20),
        ("exec_host=a/0-1,5,11+b/0-15 Resource_List.nodect=2 Resource_List.nodes=1:ppn=4", 2, 20),
        ("exec_host=a/0-7 Resource_List.nodect=2 Resource_List.nodes=2:ppn=4 unique_node_count=1", 1, 8),
        # Torque before 5.1
        ("exec_host=a/3+a/2+b/1 Resource_List.nodect=2 Resource_List.nodes=2:ppn=2", 2, 3),
        # no place shows
        ("unique_node_count=3 Resource_List.nodect=4 Resource_List.ncpus=16", 3, 16),
        ("Resource_List.nodect=4", 4, 0),
    ],
)  # fmt: skip
def test_nodes_are_hosts_and_cores_are_counted_in_each_form(places: str, nodes: int, cores: int) -> None:
    ((job,), remarks) = parsed(f"E;8.pbs;queue=q qtime=1000 start=2000 {places} end=5000 Exit_status=0")
    assert (job.nodes, job.cores) == (nodes, cores)
    assert not remarks.noted


@pytest.mark.parametrize("text", ["a/", "a/x", "a/9-1", "a/0-99999999", "a/1*", "/", "a/1,,2"])
def test_a_damaged_place_counts_as_one_processor(text: str) -> None:
    assert count_cores(text) == 1


def test_a_job_without_times_of_its_submission_was_submitted_when_its_record_q_says() -> None:
    bare = "start=1793577764 Resource_List.nodect=2"  # 2026-11-02T00:02:44Z, by a clock of two hours more
    lines = [
        "11/02/2026 01:52:44;Q;7.pbs;queue=workq\n", f"11/02/2026 02:02:45;S;7.pbs;{bare}\n",
        f"11/02/2026 02:32:44;E;7.pbs;{bare} end=1793579564\n",
        f"11/02/2026 02:33:00;E;8.pbs;{bare} end=1793579580\n",
        "11/02/2026 02:34:00;Q;9.pbs;queue=workq\n",
        f"11/02/2026 02:40:00;S;9.pbs;{bare.replace('577764', '580000')}\n",
    ]  # fmt: skip
    seven, eight, nine = list(pbs.read(enumerate(lines, start=1), Remarks()))

    assert (seven.start_s, seven.submit_s) == (1793577764, 1793577764 - 600)
    assert (eight.id, eight.submit_s) == ("8.pbs", None)
    assert (nine.state, nine.submit_s) == ("RUNNING", 1793579640)


def test_waits_of_a_log_without_submissions_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "20261024"
    lines = [f"{AT};E;{k}.pbs;{USED} end=5000 Exit_status=0\n" for k in range(40)]
    path.write_text("".join(lines))
    history = history_of(path)
    assert history.trace(history.machine(None), 100).has_submissions

    path.write_text("".join(line.replace("ctime=1000 qtime=1000", "") for line in lines))
    history = history_of(path)
    assert not history.trace(history.machine(None), 100).has_submissions

    path.write_text("".join([*lines[1:], lines[0].replace("ctime=1000 qtime=1000", "")]))
    assert history_of(path).has_submissions


def test_jobs_that_were_deleted_before_a_start_are_counted_as_left_out(tmp_path: Path) -> None:
    path = tmp_path / "20261024"
    lines = [f"{AT};E;{k}.pbs;{USED} end=5000 Exit_status=0\n" for k in range(3)]
    path.write_text("".join([*lines, f"{AT};D;9.pbs;requestor=ada@h\n"]))
    history = history_of(path)
    assert history.trace(history.machine(None), 100).skipped == {"never started": 1}


def test_nodes_are_counted_by_hosts_where_their_number_is_not_told() -> None:
    hosts = "exec_host=n1/0+n1/1+n2/0+n2/1"
    torque = f"user=ada queue=q qtime=1 start=2 {hosts} Resource_List.nodes=2:ppn=2 end=9 Exit_status=271"
    ((job,), _) = parsed(f"E;7.pbs;{torque}")

    assert (job.nodes, job.cores, job.state) == (2, 4, "CANCELLED")


def test_each_run_of_a_rerun_job_counts() -> None:
    jobs, remarks = parsed(
        f"S;7.pbs;{USED}",
        f"R;7.pbs;{USED} end=2500 Exit_status=-11 run_count=1",
        f"S;7.pbs;{USED.replace('start=2000', 'start=3000')}",
        f"E;7.pbs;{USED.replace('start=2000', 'start=3000')} end=5000 Exit_status=0 run_count=2",
    )

    assert [(job.start_s, job.end_s, job.requeue, job.state) for job in jobs] == [
        (2000, 2500, 0, "REQUEUED"),
        (3000, 5000, 1, "COMPLETED"),
    ]
    assert remarks.count(Remark.REQUEUED) == 1


def test_a_rerun_that_does_not_tell_its_end_uses_the_time_used() -> None:
    ((job,), _) = parsed(f"R;7.pbs;{USED} resources_used.walltime=00:05:00")

    assert (job.start_s, job.end_s) == (2000, 2300)


def test_what_was_deleted_before_its_start_held_no_nodes_and_what_runs_is_told() -> None:
    jobs, remarks = parsed(
        "D;6.pbs;requestor=ada@login",
        "E;5.pbs;user=ada queue=q qtime=1 end=9 Exit_status=-1",
        f"S;7.pbs;{USED}",
        "D;7.pbs;requestor=ada@login",
        "L;license;floating",
    )

    assert [(job.id, job.start_s, job.end_s) for job in jobs] == [("7.pbs", 2000, None)]
    assert (remarks.count(Remark.NOT_STARTED), remarks.count(Remark.RUNNING)) == (2, 1)


def test_what_cannot_be_read_is_counted() -> None:
    remarks = Remarks()
    lines = [
        f"{AT};E;7.pbs;start=noon end=5\n",
        "nonsense\n",
        f"{AT};E;8.pbs;start=5\n",
        f"{AT};E;9.pbs;{USED} end=50",
    ]

    assert list(pbs.read(enumerate(lines, start=1), remarks)) == []
    assert list(remarks.sentences()) == [
        "3 lines of 4 could not be read: record E of 7.pbs: start is `noon`, first at line 1",
        "the log is cut short: its last line is left out, at line 4",
    ]


def test_daily_files_of_a_directory_are_one_log(tmp_path: Path) -> None:
    first = f"{AT};S;7.pbs;{USED}\n"
    second = f"{AT};E;7.pbs;{USED} end=5000 Exit_status=0\n"
    (tmp_path / "20261024").write_text(first)
    (tmp_path / "20261025.gz").write_bytes(gzip.compress(second.encode()))

    history: History = history_of(tmp_path)

    assert (history.kind, len(history), list(history.timeline)) == ("pbs", 1, [(2000, 2), (5000, 0)])


def test_a_damaged_compressed_log_costs_its_end_only(tmp_path: Path) -> None:
    lines = "".join(f"{AT};E;{k}.pbs;{USED} end=5000 Exit_status=0 x={k * 7919}\n" for k in range(2000))
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(lines.encode())[:-400])

    history = history_of(path)

    assert 0 < len(history) < 2000
    assert history.remarks.count(Remark.GZIP_SHORT) == 1
