"""`site harm`: each regular job's wait, our share and the evidence, from the lines that the agent writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemill.cli.main import main
from tidemill.harvest.account.broker_log import (
    AnyRecord,
    Canceled,
    PlanMade,
    RegularStarted,
    decode,
    encode,
    file_name,
)
from tidemill.harvest.account.delays import harm, read_records
from tidemill.harvest.account.harm import Totals
from tidemill.harvest.account.promise import PromiseState

DAY_S = 20_000 * 86400.0  #: midnight of 2024-10-04


def plan(name: str, at_s: float, *yields_to: str) -> PlanMade:
    return PlanMade(
        at_s=at_s,
        plan=name,
        pool="batch/64c",
        snapshot_s=at_s,
        nodes=16,
        idle=0,
        busy=12,
        held=4,
        waiting=0,
        queue=2,
        yields_to=list(yields_to),
        cancel=2,
        why="2 nodes for job 7",
    )


def began(job: str, at_s: float, *plans: str, **fields: Any) -> RegularStarted:
    told: dict[str, Any] = {"user": "ann", "width": 2, "submitted_s": at_s - 100, "uncertainty_s": 30}
    if plans:
        told |= {"could_start_s": at_s - 12, "share_s": 12}
    else:
        told |= {"could_start_s": None, "share_s": 0}
    return RegularStarted(at_s=at_s + 1, id=job, plans=list(plans), **{**told, "started_s": at_s, **fields})


RECORDS: list[AnyRecord] = [
    began("5", DAY_S + 100),
    plan("e1-1", DAY_S + 200, "7", "9"),
    Canceled(at_s=DAY_S + 201, plan="e1-1", names=["tm-a-e1-3.0", "tm-a-e1-3.1"]),
    began("7", DAY_S + 210, "e1-1"),
    plan("e1-2", DAY_S + 86400, "8"),
    began("8", DAY_S + 86500, "e1-2", started_s=None, share_s=40),
]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "harvest").mkdir()
    (tmp_path / "site.toml").write_text('name = "a"\nserver = "unix:/nowhere"\n')
    for record in RECORDS:
        with (tmp_path / "harvest" / file_name(record.at_s)).open("ab") as file:
            file.write(encode(record))
    with (tmp_path / "harvest" / "2024-10-05.jsonl").open("ab") as file:
        file.write(b'{"kind":"plan","at_s":17')
    return tmp_path


def test_each_job_has_its_wait_our_share_and_the_plans_and_cancels() -> None:
    found = harm(RECORDS)
    five, seven, eight, nine = found.jobs

    assert (five.state, five.wait_s, five.share_s, five.evidence) == ("started", 100, 0, [])
    assert (seven.state, seven.wait_s, seven.share_s, seven.uncertainty_s) == ("started", 100, 12, 30)
    (act,) = seven.evidence
    assert (act.plan, act.at_s, act.canceled_s) == ("e1-1", DAY_S + 200, DAY_S + 201)
    assert act.canceled == ["tm-a-e1-3.0", "tm-a-e1-3.1"]
    assert (eight.state, eight.share_s, eight.evidence[0].canceled) == ("left", 40, [])
    assert (nine.id, nine.state, nine.could_start_s) == ("9", "waiting", DAY_S + 200)
    assert found.totals == Totals(
        jobs=3, delayed=2, share_s=52, worst_s=40, worst_id="8", share_low_s=10, share_high_s=112, wait_s=301
    )


def of_class(job: str, width: int, wait_s: float, share_s: float, **fields: Any) -> RegularStarted:
    told = {"submitted_s": DAY_S + 500 - wait_s, "share_s": share_s, "limit_s": 600.0, "nodes": 1024}
    return began(job, DAY_S + 500, "e1-1", width=width, **{**told, **fields})


def test_classes_have_means_bounds_and_a_verdict() -> None:
    small = [of_class(str(k), 4, 60.0, share_s) for k, share_s in enumerate((18.0, 22.0, 20.0, 24.0, 16.0))]
    large = [of_class(f"{k}x", 900, 50_000.0, 10.0, limit_s=86_400.0) for k in range(3)]
    found = harm([*small, *large])

    (first, last) = found.by_size
    assert (first.size, first.length, first.jobs, first.delayed) == ("1/64", "", 5, 5)
    assert (first.wait_s, first.share_s) == (60, 20)
    assert first.share_of_wait == pytest.approx(1 / 3)
    # s = 3.162 of the five shares; 2.776 * 3.162 / sqrt(5)
    assert first.share_low_s == pytest.approx(20 - 3.926, abs=1e-3)
    assert first.share_high_s == pytest.approx(20 + 3.926, abs=1e-3)
    assert first.verdict is PromiseState.BROKEN
    assert (last.size, last.wait_s, last.share_s, last.verdict) == ("1", 50_000, 10, PromiseState.KEPT)
    assert [(each.size, each.length, each.jobs) for each in found.by_length] == [
        ("", "1h", 5),
        ("", "longer", 3),
    ]
    assert [(each.size, each.length) for each in found.by_size_and_length] == [
        ("1/64", "1h"),
        ("1", "longer"),
    ]


def test_only_jobs_over_a_quarter_of_the_machine_have_the_bound_of_the_largest() -> None:
    def verdict(width: int) -> PromiseState:
        (of_size,) = harm([of_class(str(k), width, 50_000.0, 700.0) for k in range(3)]).by_size
        return of_size.verdict

    assert verdict(900) is PromiseState.BROKEN  # 1.4 %
    assert verdict(200) is PromiseState.KEPT  # the largest that came, but small


def test_records_of_earlier_agents_count_as_of_unknown_length_on_the_machine_of_the_plans() -> None:
    old = b'{"kind":"regular","at_s":1728000211.0,"id":"7","user":"ann","width":2,"submitted_s":1728000110.0,'
    old += b'"could_start_s":null,"started_s":1728000210.0,"share_s":0.0,"uncertainty_s":30.0,"plans":[]}'
    found = harm([plan("e1-1", DAY_S), decode(old)])

    assert [(each.size, each.length) for each in found.by_size_and_length] == [("1/4", "unknown")]
    assert [each.size for each in harm([decode(old)]).by_size] == ["unknown"]


def test_the_verb_prints_classes_and_what_it_cannot_know(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "harm", "--dir", str(site)]) == 0
    told = capsys.readouterr()
    assert "over 1/16, up to 1/4 of the machine" in told.out
    assert "walltime unknown" in told.out
    assert "there is no run without Tidemill" in told.err

    assert main(["site", "harm", "--dir", str(site), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["size"] for each in document["by_size"]] == ["1/4"]
    assert document["by_size"][0]["share_s"] == pytest.approx(52 / 3)
    assert document["note"].startswith("An estimate")


def test_one_job_or_a_time_can_be_asked_for() -> None:
    assert [each.id for each in harm(RECORDS, job="7").jobs] == ["7"]
    late = harm(RECORDS, since_s=DAY_S + 86400)
    assert ([each.id for each in late.jobs], late.totals.jobs) == (["8"], 1)


def test_torn_lines_are_counted_and_old_days_passed_over(site: Path) -> None:
    records, unreadable = read_records(site / "harvest")
    assert (records, unreadable) == (RECORDS, 1)
    assert len(read_records(site / "harvest", since_s=DAY_S + 2 * 86400)[0]) == 2
    assert read_records(site / "none") == ([], 0)


def test_the_verb_prints_delayed_jobs_and_totals(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "harm", "--dir", str(site)]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].split() == [
        "JOB",
        "USER",
        "NODES",
        "SUBMITTED",
        "WAITED",
        "TIDEMILL",
        "FROM",
        "TO",
        "STATE",
    ]
    assert [line.split()[0] for line in lines[1:4]] == ["7", "8", "9"]
    assert lines[4].startswith(
        "3 regular jobs started, 2 of them later because of Tidemill: 52 s in all (10 s to 1 m 52 s) of 5 m 01 s that "
        "they waited, job 8 the most"
    )
    assert lines[5] == "1 more wait that could start without Tidemill, by the last records"
    assert "1 unreadable lines" in told.err


def test_the_verb_shows_the_evidence_of_one_job(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "harm", "7", "--dir", str(site)]) == 0
    told = capsys.readouterr().out
    assert "could have started without Tidemill at 2024-10-04T00:03:18Z" in told
    assert "2024-10-04T00:03:20Z  plan e1-1: 2 nodes for job 7" in told
    assert "2024-10-04T00:03:21Z  canceled tm-a-e1-3.0, tm-a-e1-3.1" in told

    assert main(["site", "harm", "5", "--dir", str(site)]) == 0
    assert "job 5 never waited for nodes of Tidemill" in capsys.readouterr().out


def test_an_unknown_job_is_not_found_rather_than_not_delayed(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--json"]):
        assert main(["site", "harm", "99", "--dir", str(site), *more]) == 3
        told = capsys.readouterr()
        assert "job 99 is not found in the site's records" in told.out + told.err
        assert "regular jobs started" not in told.out


def test_the_verb_gives_all_of_it_as_json(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "harm", "--since", "2024-10-05T00:00Z", "--dir", str(site), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in told["jobs"]] == ["8"]
    assert told["totals"] == {
        "jobs": 1, "delayed": 1, "share_s": 40.0, "worst_s": 40.0, "worst_id": "8", "share_low_s": 10.0,
        "share_high_s": 70.0, "wait_s": 101.0,
    }  # fmt: skip


def test_a_site_without_records_has_harmed_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.toml").write_text('name = "a"\nserver = "unix:/nowhere"\n')
    assert main(["site", "harm", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "0 regular jobs started, 0 of them later because of Tidemill: "
        "0.0 s in all (0.0 s to 0.0 s) of 0.0 s that they waited\n"
    )
