"""Slurm's text and JSON of every release say the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.batch.contract import FAR_FUTURE_S
from tidemill.batch.slurm import document, text
from tidemill.batch.slurm.text import FIELD, RECORD
from tidemill.errors import ProtocolError
from tidemill.model.machine import Node, NodeState

FIXTURES = Path(__file__).parents[2] / "fixtures" / "slurm"


def ours(user: str, name: str, comment: str) -> bool:
    return (user, name[:3], comment[:9]) == ("me", "tm-", "tidemill ")


@pytest.mark.parametrize("release", ["21.08", "23.02", "23.11", "24.05", "25.11"])
def test_jobs_of_every_release_read_alike(release: str) -> None:
    content = (FIXTURES / f"jobs-{release}.json").read_bytes()
    running, queued = document.jobs(content, ours)
    assert document.release(content).startswith(release)
    mine, ending = running
    assert (mine.id, mine.name, mine.ours, mine.nodes) == (
        "101_3",
        "tm-bonn-e1-7.3",
        True,
        ("cn001", "cn002"),
    )
    assert (mine.started_s, mine.ends_s, mine.width) == (1795231000, 1795234600, 2)
    assert mine.whole == (release in ("24.05", "25.11"))
    assert (ending.name, ending.nodes) == ("ending", ("cn003",))
    assert [each.id for each in queued] == ["106_0", "106_1", "106_2", "106_8", "102", "103"]
    wide, held = queued[4:]
    assert (wide.width, wide.walltime_s, wide.features, wide.eligible) == (
        40,
        FAR_FUTURE_S,
        ("amd", "hdr"),
        True,
    )
    assert not held.eligible
    if release != "21.08":
        assert (wide.planned_s, len(wide.planned_nodes)) == (1795240000, 40)


@pytest.mark.parametrize("release", ["22.05", "25.11"])
def test_nodes_of_every_release_read_alike(release: str) -> None:
    nodes = document.nodes((FIXTURES / f"nodes-{release}.json").read_bytes())
    S = NodeState
    assert [each.state for each in nodes] == [
        S.BUSY, S.SHARED, S.IDLE, S.AWAY, S.AWAY, S.SLEEPING, S.WAKING, S.ENDING, S.RESERVED,
    ]  # fmt: skip
    mixed, idle = nodes[1:3]
    cores = 64 if release == "22.05" else 62
    assert (mixed.cores_free, idle.cores_free, nodes[0].cores_free) == (cores - 4, cores, 0)
    assert (idle.features, idle.devices, idle.partitions) == (
        ("amd", "hdr"),
        (("gpu", 4),),
        ("batch", "debug"),
    )


def test_reservations_of_json_and_text() -> None:
    works, own = document.reservations((FIXTURES / "reservations-24.05.json").read_bytes(), "ours")
    assert (works.nodes, works.maintenance, works.usable) == (("cn1", "cn2", "cn3"), True, False)
    assert (own.end_s, own.maintenance, own.usable) == (FAR_FUTURE_S, False, True)
    (told,) = text.reservations((FIXTURES / "reservations-22.05.txt").read_bytes(), "")
    assert (told.name, told.end_s - told.start_s, told.nodes) == ("works", 7200, ("n1", "n2"))
    assert told.maintenance
    assert text.reservations(b"No reservations in the system\n", "") == []


def test_nodes_of_text_tell_every_flag_and_nothing_that_stands_in_a_remark() -> None:
    first, second, third = text.nodes((FIXTURES / "nodes-22.05.txt").read_bytes())
    assert (first.state, first.memory_mb, first.devices) == (NodeState.BUSY, 256000, (("gpu", 4),))
    assert first.partitions == ("batch", "debug")
    assert (second.state, second.cores, second.cores_free) == (NodeState.SHARED, 62, 58)
    assert (second.features, second.devices, second.word) == ((), (), "MIXED+PLANNED")
    assert (third.state, third.partitions) == (NodeState.AWAY, ("batch",))


def test_partitions_of_text() -> None:
    content = (FIXTURES / "partitions-22.05.txt").read_bytes()
    batch, scavenge = text.partitions(content, preempts=True)
    assert (batch.nodes, batch.walltime_max_s, batch.width_max, batch.width_min) == (
        ("n1", "n2", "n3"), 172800, 128, 4,
    )  # fmt: skip
    assert (batch.is_default, batch.is_up, batch.is_shared, batch.preempted) == (True, True, False, "")
    assert (scavenge.walltime_max_s, scavenge.width_max, scavenge.width_min) == (None, None, 1)
    assert (scavenge.is_up, scavenge.is_shared, scavenge.preempted, scavenge.grace_s) == (
        False, True, "requeue", 120,
    )  # fmt: skip
    assert [each.preempted for each in text.partitions(content, preempts=False)] == ["", ""]


def test_jobs_that_ask_for_no_memory_get_the_default_of_their_partition_or_of_the_cluster() -> None:
    content = (
        b"PartitionName=own DefMemPerCPU=500\nPartitionName=plain DefMemPerNode=UNLIMITED\n"
        b"PartitionName=part DefMemPerNode=4000\n"
    )
    found = text.partitions(content, preempts=False)
    settings = {"SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerCPU": "1900"}
    own, plain, part = text.with_default_memory(found, settings)
    node = Node(name="n", state=NodeState.IDLE, cores=8, cores_free=8, memory_mb=16000)
    assert [each.given_mb(node) for each in (own, plain, part)] == [4000, 15200, 4000]
    small = msgspec.structs.replace(node, memory_mb=8000)
    assert plain.given_mb(small) == 8000, "no more than it has"
    for others in ({"SelectTypeParameters": "CR_CORE", "DefMemPerCPU": "1900"}, {}):
        assert [each.given_mb(node) for each in text.with_default_memory(found, others)] == [16000] * 3


def row(**changes: str) -> str:
    fields = {
        "i": "7", "t": "PD", "u": "alice", "D": "4", "N": "", "S": "N/A", "e": "N/A", "l": "1:00:00",
        "V": "2026-11-21T03:00:00", "P": "batch,debug", "f": "amd&hdr", "r": "Priority", "Q": "100", "Y": "(null)",
        "v": "(null)", "C": "256", "m": "4000M", "h": "OK", "j": "job", "k": "(null)",
    }  # fmt: skip
    return RECORD + FIELD.join({**fields, **changes}[letter] for letter in "ituDNSelVPfrQYvCmhjk") + "\n"


def test_waiting_jobs_come_by_falling_priority_and_arrays_unfold_as_far_as_they_could_run() -> None:
    rows = row(i="1", Q="5") + row(i="2_[0-9,20-29%8]", Q="9", D="2") + row(i="3", Q="7", D="1K")
    read = text.everybody(rows.encode(), ours, nodes=10)
    assert [each.id for each in read.queued] == ["2_0", "2_1", "2_2", "2_3", "2_4", "3", "1"]
    assert read.queued[0].name == "job.0"
    assert read.queued[5].width == 1024
    last = read.queued[-1]
    assert (last.walltime_s, last.cores, last.memory_mb_per_node) == (3600, 256, 4000)
    assert (last.features, last.is_feature_list_exact, last.partitions) == (
        ("amd", "hdr"),
        True,
        ("batch", "debug"),
    )


def test_plans_are_those_with_nodes() -> None:
    rows = row(S="2026-11-21T05:00:00", Y="n[1-2,7]") + row(i="8", S="2026-11-21T05:00:00", r="BeginTime")
    planned, begun = text.everybody(rows.encode(), ours, nodes=10).queued
    assert (planned.planned_nodes, planned.planned_s) == (("n1", "n2", "n7"), 1795237200.0)
    assert (begun.planned_nodes, begun.planned_s, begun.eligible) == ((), None, False)


@pytest.mark.parametrize(
    "reason", ["JobHeldAdmin", "Dependency", "AssocGrpCpuLimit", "QOSMaxJobsPerUserLimit", "PartitionDown"]
)
def test_jobs_that_could_not_start_on_free_nodes_are_not_eligible(reason: str) -> None:
    (job,) = text.everybody(row(r=reason).encode(), ours, nodes=1).queued
    assert not job.eligible


@pytest.mark.parametrize("features", ["amd|intel", "[rack1*2&rack2*1]", "amd&!old", "a100*4"])
def test_expressions_of_features_that_we_do_not_read_are_said_to_be_so(features: str) -> None:
    (job,) = text.everybody(row(f=features).encode(), ours, nodes=1).queued
    assert (job.features, job.is_feature_list_exact) == ((), False)


def test_running_jobs_of_all_living_states_hold_their_nodes_and_ended_ones_do_not() -> None:
    rows = "".join(
        row(i=str(i), t=state, N="n[1-2]", S="2026-11-21T03:00:00", e="2026-11-21T04:00:00", h="NO")
        for i, state in enumerate(["R", "CG", "CF", "S", "ST", "SO", "XX", "CD", "TO", "PR"])
    )
    running = text.everybody(rows.encode(), ours, nodes=1).running
    assert [each.id for each in running] == ["0", "1", "2", "3", "4", "5", "6"]
    assert all(each.whole and each.nodes == ("n1", "n2") for each in running)


def test_names_and_comments_may_hold_anything() -> None:
    odd = row(i="1", j="näme | ; \n%j", k="x\ny").encode() + row(i="2", j="zz").encode().replace(
        b"zz", b"\xff\xfe"
    )
    read = text.everybody(odd, ours, nodes=1)
    assert ([each.id for each in read.queued], read.unreadable) == (["1", "2"], 0)


def test_names_that_hold_our_separators_cost_their_own_row_only() -> None:
    rows = "".join(row(i=str(i)) for i in range(300)) + row(i="900", j=f"a{RECORD}1{FIELD}2")
    read = text.everybody(rows.encode(), ours, nodes=1)
    assert (len(read.queued), read.unreadable) == (300, 2)


def test_reply_in_which_much_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="4 of 4 rows"):
        text.everybody((RECORD + "what?\n").encode() * 4, ours, nodes=1)
    with pytest.raises(ProtocolError, match="before the first job"):
        text.everybody(b"Dear user, the system is in maintenance\n", ours, nodes=1)
    assert text.everybody(b"", ours, nodes=1).queued == []


def test_numbers_of_json_in_all_their_forms() -> None:
    infinite = {"set": False, "infinite": True, "number": 0}
    forms = [5, 5.0, "5", {"set": True, "infinite": False, "number": 5}]
    assert [document.number(each) for each in forms] == [5.0] * 4
    assert document.number(infinite) == document.INFINITE
    assert [document.number(each) for each in (None, "", {"set": False, "number": 7})] == [None] * 3
    wrong: list[object] = [True, [], "x"]
    for bad in wrong:
        with pytest.raises(ProtocolError):
            document.number(bad)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"jobs": 3}', b'{"jobs": [1]}', b'{"jobs": ['])
def test_document_that_is_none_is_an_error(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        document.jobs(content, ours)


def test_age_of_the_plan_is_read_from_sdiag() -> None:
    shown = b"Main schedule statistics:\n\tLast cycle:   5\n\nBackfilling stats\n"
    shown += b"\tLast cycle when: Sat Nov 21 03:12:11 2026 (1795230731)\n"
    assert text.plan_time(shown) == 1795230731
    assert text.plan_time(b"\tLast cycle when: N/A (0)\n") is None
    assert text.plan_time(b"") is None


def test_own_jobs_are_read_with_their_limit_and_whether_the_list_of_elements_is_whole() -> None:
    def line(number: str, limit: str) -> str:
        fields = [
            number,
            "PENDING",
            "me",
            "Priority",
            "",
            "N/A",
            "N/A",
            "2026-11-21T03:00:00",
            "8",
            "1",
            "OK",
            "N/A",
            limit,
            "tm-a-e1-1",
            "c",
        ]
        return text.RECORD + text.FIELD.join(fields) + "\n"

    rows = line("12_[0-3]", "1:00:00") + line("13_[0,2,4,...]", "20:00") + line("14", "UNLIMITED")
    found = text.own_jobs(rows.encode())
    assert [(each.number, each.limit_s, each.is_cut, each.name, each.comment) for each in found] == [
        ("12", 3600.0, False, "tm-a-e1-1", "c"),
        ("13", 1200.0, True, "tm-a-e1-1", "c"),
        ("14", None, False, "tm-a-e1-1", "c"),
    ]
