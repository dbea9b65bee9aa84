"""What a waiting PBS job asks for, until the nodes that are released to it: nobody waits for Tidemill by an oversight,
and no node is kept for a job that could not start there."""

from __future__ import annotations

import grp
import os
from typing import Any

import pytest
from tests.effort import lines_run

from tidemill import clock
from tidemill.batch.pbs.comments import OwnLimits, may_start
from tidemill.batch.pbs.replies import Record, read_text
from tidemill.batch.pbs.resources import LEVELS_MAX
from tidemill.batch.pbs.survey import MachineReplies, compose_snapshot
from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Limits
from tidemill.harvest.snapshot.pools import Terms, cut
from tidemill.model.machine import NodeState, Snapshot

QUEUE = {"queue_type": "Execution", "enabled": "True", "started": "True"}


def vnode(name: str, cores: int = 64, *, used: int = 0, **available: str) -> Record:
    resources = {"ncpus": str(cores), "mem": "256gb", "host": name, **available}
    state = "free" if used < cores or not used else "job-busy"
    shown: Record = {"state": state, "sharing": "default_shared", "resources_available": resources}
    if used:
        shown |= {"resources_assigned": {"ncpus": str(used)}, "jobs": ["9.pbs/0"]}
    return shown


def job(select: str, **fields: Any) -> str:
    lines = {
        "job_state": "Q",
        "queue": "workq",
        "Job_Owner": "ada@login",
        "project": "_pbs_project_default",
        "Resource_List.select": select,
        "Resource_List.nodect": "1",
        "Resource_List.place": "free",
        "Resource_List.walltime": "01:00:00",
        "comment": "Not Running: Not enough free nodes available",
        **fields,
    }
    return "\n".join(f"    {name} = {value}" for name, value in lines.items())


def ours(*hosts: str) -> str:
    """Allocations of Tidemill's, one on each host."""
    return "".join(
        f"Job Id: {100 + number}.pbs\n    Job_Name = tm-{host}\n    job_state = R\n    Job_Owner = tide@login\n"
        f"    exec_vnode = ({host}:ncpus=64)\n    Resource_List.walltime = 24:00:00\n    project = tide\n"
        f"    Variable_List = OURS=1,TIDEMILL_NAME=tm-{host}\n\n"
        for number, host in enumerate(hosts)
    )


def snapshot(vnodes: dict[str, Record], jobs: str, **shown: Any) -> Snapshot:
    server = {"default_queue": "workq"}
    queues = {"workq": QUEUE, **shown.pop("queues", {})}
    text = read_text(jobs.encode(), "Job Id:")
    everything = MachineReplies(
        server=server, vnodes=vnodes, jobs=text, queues=queues, **{"reservations": b"", **shown}
    )
    return compose_snapshot(
        everything, is_ours=lambda each: "OURS=1" in str(each.get("Variable_List")), user="tide"
    )


def released(seen: Snapshot, **terms: Any) -> list[str]:
    """Hosts of the pools in which nodes are released, once for each node."""
    held = [Held(name=each.name, width=1, is_waiting=False) for each in seen.running if each.ours]
    backlog = Backlog(node_s=1e6, nodes_max=100, event_s=300)
    limits = Limits(nodes_max=50, allocations_max=40, width_max=8)
    found = []
    for pool in cut(seen, held, Terms(**terms), backlog=backlog, limits=limits):
        decision = decide(pool.situation, Policy.YIELD)
        for each in decision.cancel:
            found += ["+".join(sorted(pool.nodes))] * each.count
    return found


FOUR = {
    "n1": vnode("n1", left="True", Qlist="workq,fast", scratch="100gb"),
    "n2": vnode("n2", Qlist="workq", scratch="5gb"),
    "n3": vnode("n3", Qlist="slow"),
    "n4": vnode("n4", Qlist="slow", left="False"),
}


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("", "n1+n2+n3+n4"),
        (":vmem=10gb", "n1+n2+n3+n4"),
        (":Qlist=elsewhere", "n1+n2+n3+n4"),
        (":host=n9", "n1+n2+n3+n4"),
        (":gpu=False", "n1+n2+n3+n4"),
        (':vmem="10gb"', "n1+n2+n3+n4"),
        (":host=n2", "n2"),
        (":vnode=n3", "n3"),
        (":left=true", "n1"),
        (":left=1", "n1"),
        (":left=FALSE", "n2+n3+n4"),
        (":Qlist=workq", "n1+n2"),
        (":Qlist=slow:left=f", "n3+n4"),
        (":scratch=10gb", "n1"),
        (":scratch=1024mb", "n1+n2"),
    ],
)
def test_a_node_is_released_to_a_job_that_asks_for_a_resource_where_it_has_it(words: str, hosts: str) -> None:
    jobs = ours(*FOUR) + f"Job Id: 7.pbs\n{job(f'1:ncpus=4{words}')}\n"
    assert released(snapshot(FOUR, jobs)) == [hosts]


def canceled(seen: Snapshot, **terms: Any) -> list[str]:
    """Names of the allocations that end, by counts alone, as all of a holding do or the first."""
    held = [Held(name=each.name, width=each.width, is_waiting=False) for each in seen.running if each.ours]
    backlog = Backlog(node_s=1e6, nodes_max=100, event_s=300)
    limits = Limits(nodes_max=50, allocations_max=40, width_max=8)
    found: list[str] = []
    for pool in cut(seen, held, Terms(**terms), backlog=backlog, limits=limits):
        for each in decide(pool.situation, Policy.YIELD).cancel:
            found += pool.situation.holdings[each.key].names[: each.count]
    return sorted(found)


def jobs_for(*hosts: str, **fields: Any) -> str:
    return "".join(
        f"Job Id: {k}.pbs\n{job(f'1:ncpus=4:host={host}', **fields)}\n\n" for k, host in enumerate(hosts)
    )


EIGHT = {
    f"n{k}": vnode(f"n{k}", used=64 * (k > 6)) for k in range(1, 9)
}  #: n7 and n8 are busy, n5 and n6 idle


@pytest.mark.parametrize(
    ("hosts", "ended"),
    [
        (["n3"], ["tm-n3"]),
        (["n3", "n3", "n3"], ["tm-n3"]),
        (["n1", "n5", "n4"], ["tm-n1", "tm-n4"]),
        (["n5", "n5", "n5"], []),
        (["n7", "n8", "n7"], []),
        (["n8", "n6", "n4", "n3", "n2", "n1"], ["tm-n1", "tm-n2", "tm-n3", "tm-n4"]),
    ],
)
def test_a_job_that_names_a_host_gets_this_one_whatever_else_is_idle(
    hosts: list[str], ended: list[str]
) -> None:
    assert canceled(snapshot(EIGHT, ours("n1", "n2", "n3", "n4") + jobs_for(*hosts))) == ended


def test_jobs_that_name_hosts_are_left_out_host_by_host() -> None:
    seen = snapshot(EIGHT, ours("n1", "n2") + jobs_for("n1", "n2", "n1"))
    assert canceled(seen, left_out=frozenset({"0.pbs"})) == ["tm-n2"], "2.pbs asks for the same as 0.pbs"


def test_a_job_that_names_a_host_needs_no_more_than_this_one_and_an_end_before_it_is_closed() -> None:
    for select, ended in (("16:ncpus=4:host=n1", ["tm-n1"]), ("17:ncpus=4:host=n1", [])):
        assert canceled(snapshot(EIGHT, ours("n1", "n2") + f"Job Id: 7.pbs\n{job(select)}\n")) == ended
    closed = reservation(vnodes="(n1:ncpus=64)", in_s=1800, user="eve")  # of n1, and n2 is not closed
    nodes = {**EIGHT, "n1": {**EIGHT["n1"], "resv": "R17.pbs"}}
    for walltime, ended in (("00:20:00", ["tm-n1", "tm-n2"]), ("01:00:00", ["tm-n2"])):
        jobs = jobs_for("n1", "n2", **{"Resource_List.walltime": walltime})
        assert canceled(snapshot(nodes, ours("n1", "n2") + jobs, reservations=closed)) == ended


def test_an_allocation_of_several_nodes_ends_for_a_job_that_names_the_last_of_them() -> None:
    wide = ours("n1").replace("(n1:ncpus=64)", "(n1:ncpus=64)+(n2:ncpus=64)")
    assert canceled(snapshot(EIGHT, wide + jobs_for("n2"))) == ["tm-n1"]


def test_no_allocation_is_started_on_idle_nodes_that_jobs_name() -> None:
    seen = snapshot(EIGHT, jobs_for("n5", "n5", "n6", "n1"))
    backlog, limits = (
        Backlog(node_s=1e6, nodes_max=100, event_s=300),
        Limits(nodes_max=50, allocations_max=40),
    )
    asked: dict[str, int] = {}
    for pool in cut(seen, [], Terms(), backlog=backlog, limits=limits):
        decision = decide(pool.situation, Policy.YIELD)
        asked[pool.name] = sum(each.count for each in decision.submit)
        if pool.name.endswith("named"):
            assert decision.ready == ["0.pbs", "2.pbs", "3.pbs"], "one for each host"
    assert asked == {"workq/64c": 3, "workq/64c/named": 0}


def test_a_job_for_each_of_many_hosts_is_planned_with_work_in_proportion_to_them() -> None:
    def work(count: int) -> int:
        names = [f"n{k}" for k in range(count)]
        seen = snapshot({name: vnode(name) for name in names}, ours(*names[::2]) + jobs_for(*names))
        held = [Held(name=each.name, width=1, is_waiting=False) for each in seen.running if each.ours]
        backlog = Backlog(node_s=1e6, nodes_max=100, event_s=300)
        limits = Limits(nodes_max=50, allocations_max=40)
        assert len(cut(seen, held, Terms(), backlog=backlog, limits=limits)) == 1
        return lines_run(lambda: cut(seen, held, Terms(), backlog=backlog, limits=limits))

    assert work(400) < 2.5 * work(200)


def test_a_job_for_gpus_waits_for_hosts_that_have_enough_of_them() -> None:
    vnodes = {"n1": vnode("n1", ngpus="4"), "n2": vnode("n2")}
    for select, hosts in (
        ("1:ncpus=4:ngpus=2", ["n1"]),
        ("2:ncpus=4:ngpus=4", []),
        ("1:ncpus=4:ngpus=8", ["n1", "n2"]),
    ):
        jobs = ours("n1", "n2") + f"Job Id: 7.pbs\n{job(select)}\n"
        assert sorted(released(snapshot(vnodes, jobs))) == hosts, select


@pytest.mark.parametrize(
    ("shown", "wanted", "hosts"),
    [
        ("rack=1,2,3", "rack=1", "n1"),
        ("rack=1,2,3", "rack=2", "n2"),
        ("slots=1,2,3", "slots=2", "n2+n3"),
        ("fpga=2,4,8", "fpga=3", "n2+n3"),
        ("naccelerators=2,4,8", "naccelerators=4", "n2+n3"),
        ("ngpus=2,4,8", "ngpus=4", "n2+n3"),
        ("scratch=2gb,4gb,8gb", "scratch=4gb", "n2+n3"),
        ("scratch=2gb,4gb,8gb", "scratch=3000000000", "n2+n3"),
    ],
)
def test_a_number_is_a_name_where_a_host_has_just_that_unless_it_is_known_to_be_an_amount(
    shown: str, wanted: str, hosts: str
) -> None:
    name, _, values = shown.partition("=")
    vnodes = {f"n{k}": vnode(f"n{k}") for k in (1, 2, 3)}
    for each, value in zip(vnodes.values(), values.split(","), strict=True):
        each["resources_available"][name] = value
    vnodes["n1"]["resources_assigned"] = {"slots": "0"}
    seen = snapshot(vnodes, f"Job Id: 7.pbs\n{job(f'1:ncpus=4:{wanted}')}\n")
    words = set(seen.queued[0].features)
    fit = [node.name for node in seen.nodes if words <= {*node.features, *node.amounts}]
    assert "+".join(fit) == hosts


def test_amounts_between_those_of_two_hosts_are_one_feature_however_many_jobs_ask_for_them() -> None:
    vnodes = {f"n{k}": vnode(f"n{k}", scratch=f"{1 + k % 3}00gb") for k in range(6)}
    texts = [f"{size}kb" for size in range(110_000_000, 310_000_000, 500_000)]
    jobs = "".join(f"Job Id: {k}.pbs\n{job(f'1:scratch={text}')}\n\n" for k, text in enumerate(texts))
    seen = snapshot(vnodes, jobs)
    assert {node.amounts for node in seen.nodes} == {
        (), ("scratch>=200gb",), ("scratch>=200gb", "scratch>=300gb"),
    }  # fmt: skip


def test_hosts_that_all_differ_are_told_apart_by_a_limited_number_of_amounts() -> None:
    vnodes = {f"n{k}": vnode(f"n{k}", scratch=f"{100 + k}mb") for k in range(200)}
    jobs = "".join(f"Job Id: {k}.pbs\n{job(f'1:scratch={100 + k}mb')}\n\n" for k in range(200))
    seen = snapshot(vnodes, jobs)
    told = {each for node in seen.nodes for each in node.amounts}
    assert len(told) <= LEVELS_MAX
    totals = {node.name: 100 + k for k, node in enumerate(seen.nodes)}
    for queued in seen.queued:
        wanted = 100 + int(queued.id.partition(".")[0])
        fit = {node.name for node in seen.nodes if set(queued.features) <= {*node.features, *node.amounts}}
        assert fit >= {name for name, total in totals.items() if total >= wanted}


def test_amounts_that_jobs_ask_for_are_not_what_tidemill_asks_for() -> None:
    jobs = ours("n1") + f"Job Id: 7.pbs\n{job('1:ncpus=4:scratch=10gb:Qlist=workq')}\n"
    seen = snapshot(FOUR, jobs)
    limits, backlog = Limits(nodes_max=9, allocations_max=9), Backlog(node_s=1e6, nodes_max=9, event_s=300)
    pools = cut(seen, [], Terms(), backlog=backlog, limits=limits)
    assert {pool.features for pool in pools} == {("Qlist=workq",), ()}


def test_chunks_that_differ_may_want_any_node() -> None:
    jobs = ours(*FOUR) + f"Job Id: 7.pbs\n{job('1:ncpus=4:host=n1+1:ncpus=64:left=True', whole='')}\n"
    assert released(snapshot(FOUR, jobs)) == ["n1+n2+n3+n4"] * 2


@pytest.mark.parametrize(
    ("select", "place", "nodes"),
    [
        ("64:ncpus=1", "free", 1),
        ("4:ncpus=16", "free", 1),
        ("5:ncpus=16", "free", 2),
        ("4:ncpus=16", "free:exclhost", 1),
        ("4:ncpus=16", "scatter", 4),
        ("4:ncpus=16", "vscatter", 4),
        ("4:ncpus=16", "vscatter:excl", 4),
        ("4:ncpus=4:scratch=80gb", "free", 4),
        ("4:ncpus=4:scratch=40gb", "free", 2),
        ("4:ncpus=4:scratch=40gb", "pack", 1),
        ("3:ncpus=4:vmem=200gb", "free", 3),
        ("3:ncpus=4:naccelerators=4", "free", 3),
        ("3:ncpus=4:ngpus=4", "free", 3),
        ("3:ncpus=4:fpga=1", "free", 3),
        ("3:ncpus=4:Qlist=workq", "free", 1),
        ("2:ncpus=1:mem=200gb", "free", 2),
        ("64:ncpus=1", "pack", 1),
        ("ncpus=64", "free", 1),
        ("3", "free", 1),
        ("2:ncpus=64+32:ncpus=2", "free", 3),
    ],
)
def test_chunks_share_nodes_unless_they_are_scattered(select: str, place: str, nodes: int) -> None:
    fields = {"Resource_List.place": place, "Resource_List.nodect": "64"}
    has = {
        "scratch": "100gb",
        "vmem": "250gb",
        "naccelerators": "4",
        "ngpus": "4",
        "Qlist": "workq",
        "fpga": "1",
    }
    vnodes = {f"n{k}": vnode(f"n{k}") for k in range(4)}
    for each in vnodes.values():
        each["resources_available"].update(has)
    jobs = ours(*vnodes) + f"Job Id: 7.pbs\n{job(select, **fields)}\n"
    seen = snapshot(vnodes, jobs)
    assert [each.width for each in seen.queued if not each.ours] == [nodes]
    assert len(released(seen)) == nodes


@pytest.mark.parametrize(
    ("select", "hosts"),
    [
        ("6:ncpus=1:scratch=90gb", "n1+n2"),  # five on n2 alone
        ("64:ncpus=1:rack=1", "n1+n2"),
        ("64:ncpus=1:scratch=90gb", ""),
    ],
)
def test_all_nodes_are_released_where_it_is_not_clear_how_many_chunks_share_one(
    select: str, hosts: str
) -> None:
    vnodes = {
        "n1": vnode("n1", scratch="100gb", rack="1"),
        "n2": vnode("n2", scratch="500gb", rack="1"),
        "n3": vnode("n3", rack="2"),
    }
    vnodes["n3"]["state"] = "offline"
    jobs = ours("n1", "n2") + f"Job Id: 7.pbs\n{job(select)}\n"
    assert released(snapshot(vnodes, jobs)) == [hosts] * 2 * bool(hosts)


@pytest.mark.parametrize("place", ["free", "scatter"])
def test_nodes_in_part_use_take_some_chunks_of_a_job_that_needs_more_nodes_than_are_free(place: str) -> None:
    vnodes = {"n1": vnode("n1", used=16), "n2": vnode("n2")}
    fields = {"Resource_List.place": place}
    select = "2:ncpus=16" if place == "scatter" else "7:ncpus=16"
    jobs = ours("n2") + f"Job Id: 7.pbs\n{job(select, **fields)}\n"
    assert len(released(snapshot(vnodes, jobs))) == 1
    whole = (
        ours("n2") + f"Job Id: 7.pbs\n{job(select, **{**fields, 'Resource_List.place': 'scatter:excl'})}\n"
    )
    assert released(snapshot(vnodes, whole)) == []


@pytest.mark.parametrize(
    ("used", "select", "nodes"),
    [
        ({"mem": "256gb"}, "5:ncpus=32:mem=100gb", 0),
        ({"mem": "250gb"}, "5:ncpus=32:mem=100gb", 0),
        ({"mem": "50gb"}, "5:ncpus=32:mem=100gb", 2),
        ({}, "5:ncpus=32:mem=100gb", 2),
        ({"mem": "256gb"}, "5:ncpus=32", 2),
        ({"ngpus": "4"}, "5:ncpus=32:ngpus=2", 0),
        ({"ngpus": "2"}, "5:ncpus=32:ngpus=2", 2),
        ({"mem": "256gb"}, "3:ncpus=32:mem=100gb", 2),
    ],
)
def test_nodes_in_part_use_take_chunks_as_far_as_all_amounts_are_free(
    used: dict[str, str], select: str, nodes: int
) -> None:
    vnodes = {
        "n1": vnode("n1", used=32, ngpus="4"),
        "n2": vnode("n2", ngpus="4"),
        "n3": vnode("n3", ngpus="4"),
    }
    vnodes["n1"]["resources_assigned"].update(used)
    jobs = ours("n2", "n3") + f"Job Id: 7.pbs\n{job(select)}\n"
    assert len(released(snapshot(vnodes, jobs))) == nodes


def test_a_node_in_part_use_whose_memory_is_not_known_takes_no_chunk_that_asks_for_memory() -> None:
    vnodes = {"n1": vnode("n1", used=32), "n2": vnode("n2")}
    del vnodes["n1"]["resources_available"]["mem"]
    for select, nodes in (("3:ncpus=32:mem=1gb", 0), ("3:ncpus=32", 1)):
        jobs = ours("n2") + f"Job Id: 7.pbs\n{job(select)}\n"
        assert len(released(snapshot(vnodes, jobs))) == nodes


def test_chunks_on_vnodes_of_their_own_may_share_hosts_that_have_several() -> None:
    vnodes = {f"n{k}[{half}]": vnode(f"n{k}", 32) for k in range(2) for half in range(2)}
    jobs = ours("n0[0]", "n1[0]")
    for count, nodes in ((2, 2), (4, 2), (9, 0)):
        text = job(f"{count}:ncpus=32", **{"Resource_List.place": "vscatter"})
        assert len(released(snapshot(vnodes, f"{jobs}Job Id: 7.pbs\n{text}\n"))) == nodes


def test_chunks_of_several_kinds_may_share_the_only_node() -> None:
    vnodes = {"n1": vnode("n1")}
    jobs = ours("n1") + f"Job Id: 7.pbs\n{job('1:ncpus=1+1:ncpus=2')}\n"
    assert len(released(snapshot(vnodes, jobs))) == 1


def test_hosts_without_cores_are_away_and_requests_that_fit_nowhere_are_harmless() -> None:
    vnodes = {"lic": vnode("lic", 0), "n1": vnode("n1")}
    seen = snapshot(vnodes, ours("n1") + f"Job Id: 7.pbs\n{job('1:ncpus=500')}\n")
    assert {node.name: node.state for node in seen.nodes}["lic"] is NodeState.AWAY
    assert released(seen) == []


@pytest.mark.parametrize(
    ("comment", "may"),
    [
        ("Node has reached job run limit", True),
        ("Server job limit has been reached.", True),
        ("Queue workq job limit has been reached.", True),
        ("would exceed overall limit on resource ncpus in queue workq", True),
        ("would exceed overall limit on resource ncpus in complex", True),
        ("Group has reached server running limit.", True),
        ("Node has reached user run limit", True),
        ("Insufficient amount of resource: ncpus (R: 4 A: 0 T: 64)", True),
        ("would exceed group tide's limit on resource ncpus in complex", True),
        ("would exceed group muons's limit on resource ncpus in complex", False),
        ("Server job limit reached for group muons", False),
        ("User has reached server running job limit.", False),
        ("User has reached queue workq running job limit.", False),
        ("Queue workq per-user limit reached on resource ncpus", False),
        ("Queue workq job limit reached for user ada", False),
        ("would exceed user ada's limit on resource ncpus in queue workq", False),
        ("would exceed project higgs's limit on resource ncpus in complex", False),
        ("Project has reached queue workq's running limit.", False),
        ("Queue not started.", False),
        ("Queue not an execution queue.", False),
        ("Job will run in nonprimetime only", False),
        ("Job will cross into primetime", False),
        ("Dedicated time conflict", False),
        ("Job would cross dedicated time boundary", False),
        ("Number of concurrent running subjobs limit reached", False),
    ],
)
def test_only_limits_that_tidemill_cannot_fill_keep_a_job_from_free_nodes(comment: str, *, may: bool) -> None:
    own = OwnLimits(user="tide", projects={"tide"}, groups=lambda: {"tide"})
    record: Record = {"Job_Owner": "ada@login", "project": "higgs", "comment": f"Not Running: {comment}"}
    assert may_start(record, QUEUE, own) is may
    if "user" in comment.lower():
        assert may_start({**record, "Job_Owner": "tide@login"}, QUEUE, own), "Tidemill fills its user's limit"
    if "project" in comment.lower():
        assert may_start({**record, "project": "tide"}, QUEUE, own)


def test_the_groups_of_the_agent_are_looked_up_once_for_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = grp.getgrgid(os.getegid())
    asked: list[int] = []

    def answer(number: int) -> grp.struct_group:
        asked.append(number)
        return mine

    monkeypatch.setattr(grp, "getgrgid", answer)
    limit = f"Not Running: would exceed group {mine.gr_name}'s limit on resource ncpus in complex"
    jobs = "".join(f"Job Id: {k}.pbs\n{job('1:ncpus=4', comment=limit)}\n\n" for k in range(50))
    assert all(each.eligible for each in snapshot(FOUR, jobs).queued)
    assert len(asked) == len({os.getegid(), *os.getgroups()})


def test_jobs_of_queues_that_start_none_are_not_waited_for() -> None:
    for queue in ({**QUEUE, "started": "False"}, {"queue_type": "Route", "started": "True"}):
        jobs = ours(*FOUR) + f"Job Id: 7.pbs\n{job('1:ncpus=4', queue='night')}\n"
        assert released(snapshot(FOUR, jobs, queues={"night": queue})) == []
        assert released(snapshot(FOUR, jobs, queues={"night": QUEUE})) == ["n1+n2+n3+n4"]


def test_elements_that_wait_share_the_comment_of_their_array() -> None:
    limit = "Not Running: User has reached server running job limit."
    element = "Job Id: 12[3].pbs\n" + "\n".join(job("1:ncpus=4").splitlines()[:-1])
    for comment, count in ((limit, 0), ("Job Array Began at Fri Nov 27 at 00:20", 1)):
        array = f"Job Id: 12[].pbs\n{job('1:ncpus=4', comment=comment)}\n"
        assert len(released(snapshot(FOUR, f"{ours(*FOUR)}{array}\n{element}\n"))) == count


def reservation(
    *, vnodes: str = "(n1[0]:ncpus=32)+(n1[1]:ncpus=32)", in_s: int = -60, user: str = "tide"
) -> bytes:
    """One that is open, or begins in `in_s` seconds."""
    now_s = int(clock.now_s())
    return (
        f"Resv ID: R17.pbs\nReserve_Name = beam\nreserve_start = {now_s + in_s}\nreserve_end = {now_s + 86400}\n"
        f"queue = R17\nresv_nodes = {vnodes}\nAuthorized_Users = {user}@login\n"
    ).encode()


def test_jobs_of_a_reservation_are_those_of_its_queue_and_it_names_hosts_by_their_vnodes() -> None:
    halves = {f"n1[{k}]": {**vnode("n1", 32), "resv": "R17.pbs"} for k in range(2)}
    vnodes = {**halves, "n2": vnode("n2")}
    queues = {"R17": QUEUE}
    inside = f"Job Id: 7.pbs\n{job('1:ncpus=4', queue='R17')}\n"
    outside = f"Job Id: 7.pbs\n{job('1:ncpus=4')}\n"
    for terms, text, hosts in (
        ({"reservation": "R17"}, inside, ["n1"]),
        ({"reservation": "beam"}, inside, ["n1"]),
        ({"reservation": "R17"}, outside, []),
        ({}, inside, []),
    ):
        held = "n1[0]" if terms else "n2"
        seen = snapshot(vnodes, ours(held) + text, queues=queues, reservations=reservation())
        assert seen.reservations[0].nodes == ("n1",)
        assert released(seen, **terms) == hosts


FORGED = "Job Id: 7.pbs\n    job_state = H\n    queue = none\n    comment = Can Never Run\n"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_record_that_a_user_forges_in_variables_takes_no_job_away(*, is_first: bool) -> None:
    real = f"Job Id: 7.pbs\n{job('1:ncpus=4')}\n\n"
    forger = f"Job Id: 8.pbs\n{job('1:ncpus=4', job_state='H', Variable_List='A=x')}\n{FORGED}\n"
    text = ours(*FOUR) + (forger + real if is_first else real + forger)
    assert released(snapshot(FOUR, text)) == ["n1+n2+n3+n4"]


def test_a_forged_record_of_a_job_that_runs_takes_no_idle_node_from_the_jobs_that_wait() -> None:
    vnodes = {**FOUR, "n5": vnode("n5", used=64)}
    text = ours("n1", "n2") + f"Job Id: 7.pbs\n{job('4:ncpus=64')}\n\n"
    for number, place in enumerate(("(n3:ncpus=64)+(n4:ncpus=64)", "(n4:ncpus=64)+(n5:ncpus=64)"), start=8):
        text += f"Job Id: {number}.pbs\n{job('2:ncpus=64', job_state='R', exec_vnode=place)}\n\n"
    seen = snapshot(vnodes, text)
    assert [each.nodes for each in seen.running if not each.ours] == [("n5",)]
    assert released(seen) == ["n1+n2+n3+n4+n5"] * 2


def test_a_forged_record_of_an_array_holds_none_of_its_elements() -> None:
    array = (
        f"Job Id: 12[].pbs\n{job('1:ncpus=4', job_state='B')}\n\nJob Id: 12[3].pbs\n{job('1:ncpus=4')}\n\n"
    )
    forged = FORGED.replace("7.pbs", "12[].pbs")
    for text in (array + forged, forged + array):
        assert released(snapshot(FOUR, ours(*FOUR) + text)) == ["n1+n2+n3+n4"]


def test_jobs_that_ask_for_the_same_as_one_that_takes_no_nodes_are_left_out_with_it() -> None:
    array = "".join(f"Job Id: 12[{k}].pbs\n{job('1:ncpus=4')}\n\n" for k in range(50))
    other = f"Job Id: 13.pbs\n{job('1:ncpus=4', Job_Owner='bob@login')}\n"
    assert released(snapshot(FOUR, ours(*FOUR) + array), left_out=frozenset({"12[0].pbs"})) == []
    found = released(snapshot(FOUR, ours(*FOUR) + array + other), left_out=frozenset({"12[0].pbs"}))
    assert found == ["n1+n2+n3+n4"]
