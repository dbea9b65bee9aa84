"""A month's allocations against the accounting: sums, reasons, the 1 % rule, and the files made of it."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest

from tidemill.errors import ConfigError
from tidemill_study.accounting.past_jobs import PastJob
from tidemill_study.report.forms import ApelFacts, apel_text, csv_text
from tidemill_study.report.reconcile import (
    AccountMonth,
    Charge,
    Mismatch,
    OwnAllocation,
    Reconciliation,
    month_span,
    own_jobs,
    reconcile,
)

FIRST, AFTER = month_span("2026-10")
HOUR = 3600
NOW = AFTER + 1000


def own(batch_id: str, *, start: int = 10, hours: float | None = 1.0, nodes: int = 4) -> OwnAllocation:
    start_s = FIRST + start * HOUR
    end_s = None if hours is None else start_s + round(hours * HOUR)
    return OwnAllocation(
        batch_id=batch_id, name=f"tm-a-e1-{batch_id}", nodes=nodes, cores=8, start_s=start_s, end_s=end_s
    )


def past(
    id: str, *, start: int = 10, hours: float | None = 1.0, nodes: int = 4, account: str = ""
) -> PastJob:
    start_s = FIRST + start * HOUR
    return PastJob(
        id=id, name=f"tm-a-e1-{id}", account=account, nodes=nodes, cores=8 * nodes, cpu_s=100, user="tide",
        state="COMPLETED", start_s=start_s, end_s=None if hours is None else start_s + round(hours * HOUR),
    )  # fmt: skip


def compared(ours: list[OwnAllocation], theirs: list[PastJob], *grants: str) -> Reconciliation:
    asked = AccountMonth(site="lrz", month="2026-10", grants=frozenset(grants))
    return reconcile(asked, ours, theirs, now_s=NOW)


def test_a_month_is_of_utc_and_december_ends_in_the_next_year() -> None:
    assert AFTER - FIRST == 31 * 86400
    assert month_span("2026-12")[1] == month_span("2027-01")[0]
    with pytest.raises(ValueError, match="does not match"):
        month_span("October")


def test_granted_and_harvested_hours_stand_apart_and_agree() -> None:
    data = compared(
        [own("1"), own("2", hours=2), own("3_1", nodes=1)],
        [past("1", account="grant"), past("2", hours=2), past("3_1", nodes=1, account="free")],
        "grant",
    )

    assert [(each.kind, each.allocations, each.node_h_here, each.node_h_there) for each in data.totals] == [
        ("granted", 1, 4.0, 4.0),
        ("harvested", 2, 9.0, 9.0),
        ("all", 3, 13.0, 13.0),
    ]
    assert (data.totals[-1].core_h_here, data.totals[-1].core_h_there) == (13 * 8, 13 * 8)
    assert (data.is_agreed, data.difference, data.differing) == (True, 0.0, [])


def test_every_difference_has_its_reason_the_largest_first() -> None:
    data = compared(
        [
            own("1"),
            own("2"),
            own("3", hours=3),
            own("4", start=8, hours=3),
            own("5"),
            own("6", hours=None, nodes=1),
        ],
        [
            past("2", nodes=5),
            past("3"),
            past("4", start=9, hours=2),
            past("5"),
            past("6", nodes=1),
            past("7", nodes=50),
        ],
    )

    assert {each.batch_id: each.reason for each in data.differing} == {
        "1": Mismatch.ONLY_HERE, "2": Mismatch.NODES, "3": Mismatch.END, "4": Mismatch.START, "6": Mismatch.RUNNING,
        "7": Mismatch.ONLY_THERE,
    }  # fmt: skip
    sizes = [abs(each.difference_h) for each in data.differing]
    assert sizes == sorted(sizes, reverse=True)
    assert not data.is_agreed
    assert {each.kind for each in data.pairs if each.batch_id == "1"} == {Charge.UNKNOWN}


@pytest.mark.parametrize(
    ("there", "is_agreed"), [(100.0, True), (99.02, True), (98.9, False), (101.2, False), (0.0, False)]
)
def test_totals_agree_within_one_percent_of_the_accounting(there: float, is_agreed: bool) -> None:
    theirs = [past("1", hours=there)] if there else []

    assert compared([own("1", hours=100)], theirs).is_agreed is is_agreed


def test_seconds_between_polls_are_no_difference() -> None:
    ours = [msgspec.structs.replace(own("1", hours=10), start_s=FIRST + 10 * HOUR + 25)]

    assert compared(ours, [past("1", hours=10)]).differing == []


def test_hours_before_and_after_the_month_do_not_count_on_either_side() -> None:
    data = compared(
        [
            own("1", start=-5, hours=10, nodes=1),
            own("2", start=31 * 24 - 1, hours=9, nodes=1),
            own("3", start=-9),
        ],
        [past("1", start=-5, hours=10, nodes=1), past("2", start=31 * 24 - 1, hours=9, nodes=1)],
    )

    assert (data.totals[-1].node_h_here, data.totals[-1].node_h_there) == (6.0, 6.0)


def test_runs_of_a_requeued_job_are_one_allocation() -> None:
    data = compared(
        [own("1", start=1, hours=1), own("1", start=5, hours=2)],
        [past("1", start=1, hours=1), past("1", start=5, hours=2)],
    )

    assert [(each.batch_id, each.here and each.here.node_h, each.reason) for each in data.pairs] == [
        ("1", 12.0, None)
    ]


def test_ids_of_pbs_are_the_same_with_and_without_their_server() -> None:
    assert compared([own("7.pbs01")], [past("7.pbs01.lrz.de")]).differing == []


def test_a_month_in_which_nothing_ran_agrees() -> None:
    data = compared([], [])

    assert (data.is_agreed, data.difference) == (True, None)


def test_tidemills_jobs_are_known_by_id_by_name_or_by_their_user() -> None:
    jobs = [
        past("1"),
        msgspec.structs.replace(past("2"), name="mine", user="ada"),
        msgspec.structs.replace(past("3"), name="mine"),
        msgspec.structs.replace(past("4"), name="hers", user="ada"),
        past("5", start=-100),
        msgspec.structs.replace(past("6"), start_s=None),
    ]

    def ids(user: str | None) -> list[str]:
        return [job.id for job in own_jobs(jobs, {"2"}, user=user, span=(FIRST, AFTER))]

    assert ids(None) == ["1", "2"]
    assert ids("tide") == ["1", "2", "3"]


def test_the_table_has_a_row_for_each_allocation_and_no_formula() -> None:
    data = compared([own("1")], [past("1"), msgspec.structs.replace(past("2"), name="=cmd()", account="@x")])

    rows = list(csv.DictReader(io.StringIO(csv_text(data))))

    assert [(row["batch_id"], row["reason"], row["node_h_here"], row["node_h_there"]) for row in rows] == [
        ("1", "", "4.0000", "4.0000"),
        ("2", "only in the accounting", "", "4.0000"),
    ]
    assert (rows[1]["name"], rows[1]["account"], rows[1]["start_here"]) == ("'=cmd()", "'@x", "")
    assert rows[0]["start_here"] == rows[0]["start_there"] == "2026-10-01T10:00:00Z"


def test_the_apel_message_has_a_record_for_each_shape_of_jobs_that_ended_in_the_month() -> None:
    jobs = [
        past("1"),
        past("2", start=-5, hours=10),
        past("5", start=-9),
        past("3", nodes=1),
        past("4", start=31 * 24 - 1, hours=9),
    ]
    facts = ApelFacts(site="LRZ-LMU", vo="atlas", benchmark=10.0)

    text = apel_text(jobs, "2026-10", facts)

    assert text.splitlines()[0] == "APEL-summary-job-message: v0.3"
    first, second, rest = text.partition("\n")[2].split("%%\n")
    assert rest == ""
    assert "Processors: 8\nNodeCount: 1\n" in first
    fields = dict(line.split(": ", 1) for line in second.splitlines())
    assert fields == {
        "Site": "LRZ-LMU", "Month": "10", "Year": "2026", "VO": "atlas", "Infrastructure": "grid", "Processors": "32",
        "NodeCount": "4", "EarliestEndTime": str(FIRST + 5 * HOUR), "LatestEndTime": str(FIRST + 11 * HOUR),
        "WallDuration": str(11 * HOUR), "CpuDuration": "200", "NormalisedWallDuration": str(110 * HOUR),
        "NormalisedCpuDuration": "2000", "NumberOfJobs": "2",
    }  # fmt: skip


def test_no_cpu_time_is_made_up_for_apel() -> None:
    facts = ApelFacts(site="LRZ-LMU", vo="atlas", benchmark=10.0)

    with pytest.raises(ConfigError, match="no CPU time of 1 jobs, such as 1"):
        apel_text([msgspec.structs.replace(past("1"), cpu_s=None)], "2026-10", facts)
