"""What Grid Engine prints becomes data."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tidemill.batch.contract import BatchSubmission, Ending
from tidemill.config.site import Cluster
from tidemill.errors import ProtocolError, SiteError
from tidemill_gridengine import command, replies, survey
from tidemill_gridengine.settings import GridEngineSettings

FIXTURES = Path(__file__).parents[1] / "fixtures"
PLAIN = GridEngineSettings()


def read(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_states_are_letters_that_combine() -> None:
    rows = {row.id: row for row in replies.read_rows(read("jobs.xml"))}
    assert rows["1"].runs
    assert (rows["1"].name, rows["1"].slots, rows["1"].walltime_s) == ("tm-here-e1-5", 8, 600)
    assert rows["4"].is_held
    assert not rows["4"].runs
    assert rows["5"].is_error
    assert any(row.is_deleted and row.runs for row in replies.read_rows(read("jobs.xml")))


def test_folded_tasks_are_unfolded() -> None:
    tasks = [row.tasks for row in replies.merge(replies.read_rows(read("jobs.xml"))) if row.id == "2"]
    assert tasks == [(1,), (3,), (5,), (7,), (9,), (12,)]


@pytest.mark.parametrize("text", ["x", "1-", "1-2-3", "1-999999999"])
def test_tasks_that_cannot_be_are_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="tasks"):
        replies.read_tasks(text)


def test_times_may_be_milliseconds() -> None:
    (row,) = replies.read_rows(read("univa.xml"))
    assert row.started_s == 1795231653.123
    assert row.runs


def test_unknown_jobs_are_none_although_it_is_no_xml() -> None:
    assert replies.read_contexts(read("unknown.xml")) == {}
    with pytest.raises(ProtocolError, match="invalid XML"):
        replies.read_rows(b"error: commlib")


def test_snapshot_of_hosts_and_jobs_over_several() -> None:
    instances, waiting = replies.read_instances(read("full.xml"))
    machine = survey.compose(instances, waiting, [], mine={"8"})
    states = {node.name: node.state.value for node in machine.nodes}
    assert states == {"n1": "busy", "n2": "busy", "n3": "idle", "n4": "away", "n5": "shared"}
    assert machine.nodes[0].memory_mb == 25274
    wide, small = machine.running
    assert (wide.nodes, wide.width, wide.whole, wide.ours) == (("n1", "n2"), 2, True, False)
    assert wide.ends_s == at("2026-11-22T03:39:53"), "the queue's limit"
    assert (small.nodes, small.whole, small.ours) == (("n5",), False, True)
    (queued,) = machine.queued
    assert (queued.width, queued.walltime_s, queued.eligible) == (3, 3600, True)
    assert machine.partitions[0].walltime_max_s == 86400
    assert machine.hidden
    assert not machine.are_jobs_hidden, "only what the scheduler plans is"


def test_a_snapshot_names_tasks_of_ours_as_allocations_and_those_of_others_as_they_are() -> None:
    row = replies.Row(id="7", name="tm-a-e1-1", owner="root", state="qw", slots=4, tasks=(1, 2))
    stranger = msgspec.structs.replace(row, id="8", name="theirs")
    seen = survey.compose([], [row, stranger], [], mine={"7"})
    assert [each.name for each in seen.queued] == ["tm-a-e1-1.0", "tm-a-e1-1.1", "theirs", "theirs"]
    hosts = [
        replies.Instance(
            queue="all.q", host=f"n{task}", state="", slots=4, used=4, reserved=0,
            rows=[msgspec.structs.replace(row, state="r", tasks=(task,), hosts=(f"n{task}",))],
        )
        for task in (1, 2)
    ]  # fmt: skip
    seen = survey.compose(hosts, [], [], mine={"7"})
    assert [(each.name, each.nodes) for each in seen.running] == [
        ("tm-a-e1-1.0", ("n1",)),
        ("tm-a-e1-1.1", ("n2",)),
    ]


def test_reservations_tell_hosts_and_times() -> None:
    (found,) = replies.read_reservations(read("reservations.xml"))
    assert found["hosts"] == "n1 n2"
    assert replies.read_time(found["start_time"]) == at("2026-12-31T23:59:00")


def test_accounts_tell_why() -> None:
    found = {each.id: each for each in replies.read_accounts(read("accounts.txt"))}
    endings = {number: each.ending for number, each in found.items()}
    assert endings == {
        "1": Ending.DONE, "2": Ending.WALLTIME, "3": Ending.CANCELED, "4": Ending.LAUNCH, "5": Ending.FAILED,
    }  # fmt: skip
    assert found["2"].task == 3
    assert found["1"].ended_s == at("2026-11-21T03:28:14")


def test_durations_and_sizes() -> None:
    assert replies.read_duration("24:00:00") == 86400
    assert replies.read_duration("600.000000") == 600
    assert replies.read_duration("infinity") is None
    assert replies.read_size_mb("23.539G") == 25274
    assert replies.read_size_mb("-") == 0


@pytest.mark.timing(batch={"NICE": 7})
def test_submission_needs_a_parallel_environment_for_more_than_one_slot() -> None:
    submission = BatchSubmission(
        name="tm-a-e1-1", command=["x"], nodes=2, cores=4, memory_mb=0, walltime_s=60
    )
    with pytest.raises(SiteError, match="parallel environment") as caught:
        command.submit_words(submission, Cluster(), PLAIN, key="k", account="")
    assert not caught.value.transient
    config = Cluster(exclude=["n9"], directives=["-l exclusive=true"])
    own = GridEngineSettings(parallel_environment="nodes")
    words = command.submit_words(submission, config, own, key="k", account="proj")
    assert words[words.index("-pe") : words.index("-pe") + 3] == ["-pe", "nodes", "8"]
    assert "hostname=!(n9)" in words
    assert words[words.index("-p") + 1] == "-7"
    regular = msgspec.structs.replace(submission, polite=False)
    assert "-p" not in command.submit_words(regular, config, own, key="k", account="proj")
    assert words[words.index("-P") + 1] == "proj"
    assert words[-2:] == ["-l", "exclusive=true"]


def test_comment_cannot_add_variables_to_the_context() -> None:
    submission = BatchSubmission(
        name="tm-a-e1-1", command=["x"], nodes=1, cores=1, memory_mb=0, walltime_s=60, comment="a,tidemill=b"
    )
    words = command.submit_words(submission, Cluster(), PLAIN, key="k", account="")
    assert words[words.index("-ac") + 1] == "tidemill=k,about=a_tidemill_b"


def test_number_is_found_among_a_sites_own_words() -> None:
    assert command.read_id(b"welcome\n7.1-10:1\n") == "7"
    with pytest.raises(SiteError, match="expected a number"):
        command.read_id(b"")
