"""A crowded machine and a slow controller: what we cost stays within its bounds. The commands are fakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.slurm.fake import install

from tidemill import clock
from tidemill.batch.contract import Answer, BatchSubmission, Ending
from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.model.state import AllocationState

KEY = "0123456789abcdef"

Fake = Callable[..., tuple[SlurmBatchSystem, Callable[..., None]]]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """`fake(config, **state)`: the adapter, and a function that changes the state."""

    def start(cluster: Cluster, **state: Any) -> tuple[SlurmBatchSystem, Callable[..., None]]:
        path = install(tmp_path / "bin", {"calls": str(tmp_path / "calls"), **state})
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")

        def change(**values: Any) -> None:
            path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

        return SlurmBatchSystem(tmp_path / "batch", cluster, key=KEY), change

    return start


def submission(name: str, **changes: Any) -> BatchSubmission:
    return BatchSubmission(
        name=name, command=["true"], nodes=1, cores=1, memory_mb=0, walltime_s=600, comment="x", **changes
    )


def test_snapshot_of_a_crowded_machine_costs_three_queries(fake: Fake) -> None:
    batch, _ = fake(Cluster(), crowd={"running": 8000, "waiting": 12000, "nodes": 8000})
    batch.snapshot()
    calls = batch.calls.queries
    machine = batch.snapshot()
    assert batch.calls.queries - calls == 3
    assert (len(machine.nodes), len(machine.running)) == (8000, 8000)
    assert len(machine.queued) >= 12000
    assert [each.priority for each in machine.queued[:2]] == [4_293_900_000.0, 4_293_899_999.0]


@pytest.mark.parametrize(("text", "elements"), [("1001", 1000), ("1", 0), ("0", 0), ("(null)", None)])
def test_a_snapshot_says_how_many_elements_an_array_may_have(
    fake: Fake, text: str, elements: int | None
) -> None:
    batch, _ = fake(
        Cluster(), crowd={"running": 1, "waiting": 1, "nodes": 2}, config=[f"MaxArraySize = {text}"]
    )
    assert batch.snapshot().array_max == elements


def test_status_costs_one_query_whatever_the_crowd_and_our_number(fake: Fake) -> None:
    batch, _ = fake(Cluster(calls_per_min_max=1000), crowd={"running": 100, "waiting": 20000, "nodes": 100})
    batch.submit(submission("tm-x-e1-1", count=1000))
    names = [f"tm-x-e1-1.{i}" for i in range(1000)]
    before = batch.calls.queries, batch.calls.bytes
    answers = batch.status(names)
    assert {each.state for each in answers.values()} == {AllocationState.QUEUED}
    assert batch.calls.queries - before[0] == 1
    assert batch.calls.bytes - before[1] < 1000


@pytest.mark.timing(batch={"SLOW_S": 0.3, "SLOWDOWN_MAX": 4})
def test_slow_controller_makes_polls_rarer_up_to_a_bound(fake: Fake) -> None:
    config = Cluster(calls_per_min_max=1000)
    batch, change = fake(config, crowd={"nodes": 4}, delay_s=0.4)
    factors = []
    for _ in range(3):
        batch.snapshot()
        factors.append(batch.calls.interval_factor)
    assert factors == [2.0, 4.0, 4.0]
    assert batch.calls.slow >= 9
    change(delay_s=0)
    for _ in range(50):  # a machine that others use may be slow again
        batch.snapshot()
        if batch.calls.interval_factor == 1.0:
            break
    assert batch.calls.interval_factor == 1.0


@pytest.mark.timing(batch={"COMMAND_TIMEOUT_S": 1})
def test_controller_that_hangs_costs_no_more_than_the_time_allowed(fake: Fake) -> None:
    batch, _ = fake(Cluster(), delay_s=30)
    with pytest.raises(SiteError, match="did not answer within 1 s"):  # nobody waits for the other 29
        batch.status(["tm-x-e1-1"])


@pytest.mark.timing(batch={"REPLY_BYTES_MAX": 1000000})
def test_reply_that_is_too_large_is_given_up(fake: Fake) -> None:
    batch, _ = fake(Cluster(), crowd={"waiting": 20000, "nodes": 10})
    with pytest.raises(SiteError, match="more than 1000000 bytes"):
        batch.snapshot()
    assert batch.calls.failures == 1


def test_calls_a_minute_are_bounded(fake: Fake, tmp_path: Path) -> None:
    batch, _ = fake(Cluster(calls_per_min_max=8), crowd={"nodes": 4})
    refused = 0
    for _ in range(20):
        try:
            batch.status(["tm-x-e1-1"])
        except SiteError as error:
            refused += "commands a minute" in error.message
        if refused:
            break
    assert refused == 1
    assert (tmp_path / "calls").read_text().count("squeue") <= 8


def test_rate_limit_is_no_answer_and_slows_polls(fake: Fake) -> None:
    batch, change = fake(Cluster(calls_per_min_max=1000), crowd={"nodes": 4})
    batch.status(["tm-x-e1-1"])
    change(refuse="Rate limit exceeded, please retry momentarily")
    with pytest.raises(SiteError) as caught:
        batch.status(["tm-x-e1-1"])
    assert caught.value.transient
    assert batch.calls.interval_factor == 2.0
    change(refuse="", warn="RPC rate limited 1 time(s). Sleeping then trying again.")
    batch.status(["tm-x-e1-1"])
    assert batch.calls.interval_factor == 4.0


def test_submission_that_was_not_confirmed_is_looked_up_before_it_is_repeated(fake: Fake) -> None:
    batch, change = fake(Cluster(calls_per_min_max=1000))
    change(refuse="Batch job submission failed: Socket timed out on send/recv operation")
    with pytest.raises(SiteError) as caught:
        batch.submit(submission("tm-x-e1-1"))
    assert caught.value.transient
    taken = {"id": 77, "name": "tm-x-e1-1", "comment": f"tidemill {KEY} x", "user": "me", "state": "RUNNING"}
    change(refuse="", jobs=[taken])
    assert batch.submit(submission("tm-x-e1-1")) == "77"
    assert batch.calls.actions == 1


def test_of_two_jobs_of_one_submission_the_one_that_runs_goes_on(fake: Fake, tmp_path: Path) -> None:
    batch, change = fake(Cluster(calls_per_min_max=1000))
    batch.submit(submission("tm-x-e1-1"))
    both = [
        {"id": 78, "name": "tm-x-e1-1", "comment": f"tidemill {KEY} x", "user": "me", "state": "PENDING"},
        {"id": 79, "name": "tm-x-e1-1", "comment": f"tidemill {KEY} x", "user": "me", "state": "RUNNING"},
    ]
    change(jobs=both)
    assert batch.status(["tm-x-e1-1"])["tm-x-e1-1"].batch_id == "79"
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "scancel 78"
    assert batch.status(["tm-x-e1-1"])["tm-x-e1-1"].batch_id == "79"
    assert (tmp_path / "calls").read_text().count("scancel") == 1


def test_refused_submission_may_be_made_again(fake: Fake) -> None:
    batch, change = fake(Cluster(calls_per_min_max=1000))
    change(refuse="Batch job submission failed: Job violates accounting/QOS policy (job submit limit)")
    with pytest.raises(SiteError) as caught:
        batch.submit(submission("tm-x-e1-1"))
    assert caught.value.transient
    change(refuse="Batch job submission failed: Invalid account or account/partition combination specified")
    with pytest.raises(SiteError) as caught:
        batch.submit(submission("tm-x-e1-1"))
    assert not caught.value.transient


def test_job_between_queue_and_accounting_is_unclear_and_then_told(fake: Fake) -> None:
    config = ["AccountingStorageType = accounting_storage/slurmdbd"]
    batch, change = fake(Cluster(calls_per_min_max=1000), config=config)
    number = batch.submit(submission("tm-x-e1-1"))
    change(jobs=[])
    assert batch.status(["tm-x-e1-1"])["tm-x-e1-1"].answer is Answer.UNCLEAR
    row = [
        number,
        "TIMEOUT",
        "0:0",
        "2026-11-21T03:00:00",
        "2026-11-21T04:00:00",
        "n1",
        "8",
        "cpu=8",
        "",
        "tm-x-e1-1",
    ]
    change(accounted=["\x1f".join(row)])
    status = batch.status(["tm-x-e1-1"])["tm-x-e1-1"]
    assert (status.answer, status.ending, status.nodes) == (Answer.FOUND, Ending.WALLTIME, ("n1",))
    queries = batch.calls.queries
    change(accounted=[])
    assert batch.status(["tm-x-e1-1"])["tm-x-e1-1"] == status
    assert batch.calls.queries - queries == 1, "what has ended is not looked up again"


@pytest.mark.timing(batch={"UNKNOWN_S": 0.3})
def test_job_that_nobody_knows_is_unclear_for_a_while_and_then_gone(fake: Fake) -> None:
    batch, change = fake(Cluster(calls_per_min_max=1000))
    batch.submit(submission("tm-x-e1-1"))
    change(jobs=[])
    assert batch.status(["tm-x-e1-1"])["tm-x-e1-1"].answer is Answer.UNCLEAR
    deadline_s = clock.monotonic_s() + 20
    while batch.status(["tm-x-e1-1"])["tm-x-e1-1"].answer is not Answer.GONE:
        assert clock.monotonic_s() < deadline_s


def test_limit_is_lowered_in_minutes_where_its_end_cannot_be_set(fake: Fake) -> None:
    now_s = clock.now_s()
    mine = {"id": 77, "name": "tm-x-e1-1", "comment": f"tidemill {KEY} x", "user": "me", "state": "RUNNING"}
    mine |= {"start": now_s - 100, "minutes": 60}
    batch, _ = fake(Cluster(calls_per_min_max=1000), jobs=[mine], allow=["TimeLimit"])
    assert batch.shorten({"tm-x-e1-1": now_s + 500}) == {"tm-x-e1-1": now_s - 100 + 600}
    assert batch.shorten({"tm-x-e1-1": now_s - 50}) == {"tm-x-e1-1": now_s - 100 + 180}, "used, and a minute"
    batch, _ = fake(Cluster(calls_per_min_max=1000), jobs=[mine], allow=[])
    assert batch.shorten({"tm-x-e1-1": now_s + 500}) == {"tm-x-e1-1": now_s - 100 + 3600}


def test_text_that_cannot_be_read_is_read_as_json(fake: Fake) -> None:
    crowd = {"running": 5, "waiting": 0, "nodes": 4}
    odd = [
        {"id": i, "name": "a\x1e\x1eb", "user": "u", "state": "RUNNING", "where": "n00001"} for i in range(9)
    ]
    batch, _ = fake(Cluster(calls_per_min_max=1000), crowd=crowd, jobs=odd)
    assert len(batch.snapshot().running) == 14
