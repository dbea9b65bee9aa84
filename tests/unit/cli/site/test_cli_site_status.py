"""What `site status` says of plans, metrics and bounds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill import clock
from tidemill.batch.pbs.survey import NO_SCHEDULER
from tidemill.batch.reasons import slurm_meaning
from tidemill.cli.site.status import (
    NONE_RUNS,
    LastKnown,
    Samples,
    _server_view,
    away_text,
    data_lines,
    metrics_lines,
    mode_text,
    newest_plans,
    plan_text,
    quarantine_lines,
    read_metrics,
    trouble_lines,
)
from tidemill.config.site import Cluster, Harvest, SiteConfig
from tidemill.harvest.account.records import PlanMade, PoolGone, Submitted, encode
from tidemill.harvest.machine.quarantine import NodeRecord, Sentence, State
from tidemill.model.figures.awaited import Hindrance, NodeCounts, QueuedReason
from tidemill.model.trouble import Trouble
from tidemill.site.nodes.outage import clear_outage, read_outage, show_outage
from tidemill.site.state.epoch import claim
from tidemill.wire.monitoring import AwaitedNodes

METRICS = """# HELP tidemill_nodes Nodes
# TYPE tidemill_nodes gauge
tidemill_grant_node_seconds{account="sci",kind="granted"} 3600000
tidemill_grant_node_seconds{account="sci",kind="settled"} 433800
tidemill_grant_node_seconds{account="sci",kind="in_flight"} 3600
tidemill_grant_node_seconds{account="sci",kind="committed"} 14400
tidemill_grant_node_seconds{account="sci",kind="left"} 3076200
tidemill_left_node_seconds 342900
tidemill_harm_today_seconds 42
tidemill_harm_today_jobs 2
tidemill_waits_for{cause="idle"} 1
tidemill_waits_for{cause="failed_starts"} 1
tidemill_waits_for{cause="new"} 1
tidemill_noted_total{topic="memory",mode="no_fit"} 2
tidemill_stage_bytes{state="used"} 60e9
tidemill_stage_bytes{state="reserved"} 30e9
tidemill_stage_bytes{state="waiting"} 200e9
tidemill_stage_waiting_jobs 7
tidemill_broken nothing
other_metric 1
"""


def plan(at_s: float, **changes: object) -> PlanMade:
    values = {"plan": "e1-1", "pool": "batch/8c", "snapshot_s": at_s, "nodes": 16, "idle": 3, "busy": 12, "held": 1,
              "waiting": 0, "queue": 5} | changes  # fmt: skip
    return PlanMade(at_s=at_s, **values)  # type: ignore[arg-type]


def test_a_private_server_that_has_not_started_is_no_failure(tmp_path: Path) -> None:
    own = SiteConfig(name="here", server=f"unix:{tmp_path}/server/api.sock")
    row, why = _server_view(own, tmp_path)
    assert (row, why) == (None, NONE_RUNS)
    elsewhere = SiteConfig(name="here", server=f"unix:{tmp_path}/other.sock")
    assert "failed to reach the server" in _server_view(elsewhere, tmp_path)[1]
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "api.sock").touch()
    assert "failed to reach the server" in _server_view(own, tmp_path)[1], "it should answer"


def test_metrics_become_lines_about_grants_bounds_and_harm(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text(METRICS)
    lines = dict(metrics_lines(read_metrics(path)))
    assert lines["account"] == "sci: 121.5 of 1000 node-hours used, 4.0 more may be by what runs, 854.5 left"
    assert lines["node-hours"].startswith("95.2")
    assert (
        lines["why no more"]
        == "no node is wholly idle; starts have failed, and the next is tried after a pause; new"
    )
    told = plan(100, waits_for="3 did not start; the next try at 20:41")
    at_length = dict(metrics_lines(read_metrics(path), LastKnown([plan(99, waits_for="idle"), told])))
    assert at_length["why no more"] == "no node is wholly idle; 3 did not start; the next try at 20:41; new"
    stopped = dict(metrics_lines(read_metrics(path), LastKnown([told], is_stopped=True)))
    assert stopped["why no more"] == "the site is stopped", "the metrics are older"
    assert lines["stage"] == "60 GB in use, 30 GB reserved; 7 jobs wait for 200 GB more"
    assert lines["memory"].startswith("2 no_fit")
    assert lines["today"].startswith("2 regular jobs waited 42 s because of Tidemill")
    assert read_metrics(tmp_path / "none") == {}
    assert metrics_lines({}) == []


def test_of_a_site_that_polls_no_machine_the_plans_say_what_holds_back_more() -> None:
    """Before, `the limit of nodes is reached` stood there with 0 nodes in use: metrics are some seconds old, and those
    of an agent that has ended are older."""
    causes: Samples = {"tidemill_waits_for": [({"cause": "nodes"}, 1.0), ({"cause": "wide"}, 1.0)]}
    over = LastKnown([plan(100, pool="local", waits_for="backlog")])
    assert dict(metrics_lines(causes, over))["why no more"] == (
        "there is no work for more nodes; a job that spans nodes waits for them"
    )
    ended = msgspec.structs.replace(plan(100, waits_for="nodes"), pool="local")
    assert "why no more" not in dict(metrics_lines(causes, LastKnown([ended], is_served=False)))


def test_the_newest_plan_of_each_pool_is_told_whatever_else_the_file_holds(tmp_path: Path) -> None:
    submit = Submitted(at_s=5, plan="e1-1", name="tm-a-e1-1", count=1, width=1, walltime_s=60)
    (tmp_path / "2026-01-01.jsonl").write_bytes(encode(plan(1)))
    newest = (
        encode(plan(90, pool="b")) + encode(plan(95)) + encode(submit) + encode(plan(99)) + b'{"kind":"pl'
    )
    (tmp_path / "2026-01-02.jsonl").write_bytes(newest)
    assert [(each.pool, each.at_s) for each in newest_plans(tmp_path)] == [("b", 90), ("batch/8c", 99)]
    assert newest_plans(tmp_path / "none") == []
    gone = encode(PoolGone(at_s=100, pool="b"))
    (tmp_path / "2026-01-02.jsonl").write_bytes(newest.removesuffix(b'{"kind":"pl') + gone)
    assert [each.pool for each in newest_plans(tmp_path)] == ["batch/8c"], "b is no longer there"
    (tmp_path / "2026-01-02.jsonl").write_bytes(
        newest.removesuffix(b'{"kind":"pl') + encode(plan(100, plan="e2-1"))
    )
    assert [each.at_s for each in newest_plans(tmp_path)] == [100], "what an earlier agent saw is over"


def test_a_plan_is_told_in_words() -> None:
    text = plan_text(plan(100, cancel=2, yields_to=["77"], why="job 77 could start"), now_s=110)
    assert text == (
        "batch/8c: 16 nodes: 3 idle, 12 in use by others, 1 in use by Tidemill; 5 regular jobs wait for them; "
        "2 allocations released for 77; as of 10 s ago"
    )
    counts = NodeCounts(nodes=6, shared=4, free_min=3, free_max=3, cores=8, ours=1, away=1)
    text = plan_text(plan(100, queue=1, waiting=2, counts=counts), now_s=104)
    assert text == (
        "batch/8c: 6 nodes: 4 nodes have 3 of 8 cores free; 1 is in use by Tidemill; 1 is down or drained; "
        "1 regular job waits for them; allocations of Tidemill wait for 2 nodes; as of 4.0 s ago"
    )


def test_the_local_batch_system_has_emulated_nodes() -> None:
    said = "run on local, policy demand, 1 emulated node"
    assert mode_text(SiteConfig(name="here", server="unix:/s", batch="local", mode="run")) == said


@pytest.mark.parametrize(
    ("pinned", "idle", "said"),
    [
        (0.0, 10700.0, "23 files, 10.7 kB; no job needs them now; 3 of 4 inputs were there already"),
        (5000.0, 10700.0, "23 files, 5 kB that jobs need, 10.7 kB kept; 3 of 4 inputs were there already"),
    ],
)
def test_what_the_data_cache_holds_is_told_by_whether_jobs_need_it(
    pinned: float, idle: float, said: str
) -> None:
    samples: Samples = {
        "tidemill_data_cache_files": [({}, 23.0)],
        "tidemill_data_cache_bytes": [({"state": "pinned"}, pinned), ({"state": "idle"}, idle)],
        "tidemill_data_cache_requests_total": [({"outcome": "hit"}, 3.0), ({"outcome": "miss"}, 1.0)],
    }
    assert data_lines(samples) == [("data cache", said)]


def test_why_no_more_nodes_are_asked_for_is_said_with_the_figures_of_the_last_poll() -> None:
    now_us = clock.now_us()
    counts = NodeCounts(nodes=7, shared=6, free_min=3, free_max=3, cores=8, away=1)
    awaits = AwaitedNodes(polled_us=now_us, hindrances=[Hindrance(cause="idle", nodes=counts)])
    causes: Samples = {"tidemill_waits_for": [({"cause": "idle"}, 1.0)]}
    said = dict(metrics_lines(causes, LastKnown(awaits=awaits)))["why no more"]
    assert said == (
        "waiting for a wholly idle node: 6 nodes have 3 of 8 cores free, and this version uses whole nodes; "
        "1 is down or drained"
    )
    beside = dict(metrics_lines(causes, LastKnown(awaits=awaits, is_at_work=True)))["why no more"]
    assert beside == f"for more nodes: {said}"
    word = "PartitionTimeLimit"
    queued = [QueuedReason(reason=word, allocations=4, meaning=slurm_meaning(word))]
    asked = msgspec.structs.replace(awaits, asked_us=now_us - 77_000_000, starting=1)
    both = dict(metrics_lines({}, LastKnown(awaits=asked)))["why no more"]
    assert both.endswith(f"its pilot has not reported yet; for more nodes: {said}")
    waits = msgspec.structs.replace(awaits, asked_us=now_us - 77_000_000, queued=queued, hindrances=[])
    said = dict(metrics_lines({}, LastKnown(awaits=waits)))["why no more"]
    assert said == (
        "4 allocations of Tidemill, asked for 1 m 17 s ago, wait in the queue; the batch system says "
        "`PartitionTimeLimit`: its time limit is above the limit of the partition: it cannot start as it is"
    )


def test_a_batch_system_that_does_not_answer_is_told_with_what_came_back(tmp_path: Path) -> None:
    claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=60)
    assert read_outage(tmp_path) is None
    show_outage(tmp_path, "")
    show_outage(
        tmp_path, "`squeue` failed with status 1: Unable to contact slurm controller", "see `cluster`"
    )
    away = read_outage(tmp_path)
    assert away is not None
    assert away_text(away, now_s=away.since_us / 1e6 + 120) == (
        "it has given no usable answer for 2 m 00 s, and is asked again and again: `squeue` failed with status 1: "
        "Unable to contact slurm controller (see `cluster`)"
    )
    clear_outage(tmp_path)
    assert read_outage(tmp_path) is None


def test_a_batch_system_that_answers_and_starts_nothing_is_told_apart(tmp_path: Path) -> None:
    claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=60)
    show_outage(tmp_path, "`qstat` failed")
    failed = read_outage(tmp_path)
    show_outage(tmp_path, NO_SCHEDULER, answers=True)
    stopped = read_outage(tmp_path)
    assert failed is not None
    assert stopped is not None
    assert stopped.since_us > failed.since_us, "it began later"
    assert away_text(stopped, now_s=stopped.since_us / 1e6 + 120) == (
        "PBS's scheduler does not run (`qmgr -c 'list sched'`: state = down), for 2 m 00 s: jobs wait, and Tidemill "
        "submits none until it is back"
    )


def test_what_an_agent_left_behind_does_not_tell_of_the_batch_system(tmp_path: Path) -> None:
    show_outage(tmp_path, "`squeue` failed")
    assert read_outage(tmp_path) is None  # nobody's
    identity = claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=60)
    assert read_outage(tmp_path) is not None
    owner = tmp_path / "epoch" / "000001.json"
    owner.write_bytes(msgspec.json.encode(msgspec.structs.replace(identity.owner, start=1)))
    assert read_outage(tmp_path) is None  # of one that was killed: another process has its number
    identity = claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=60)
    assert read_outage(tmp_path) is not None
    identity.leave()
    assert read_outage(tmp_path) is None


def test_the_mode_tells_policy_and_bounds() -> None:
    config = SiteConfig(
        name="n", server="unix:/s", batch="slurm", mode="observe", nodes_max=4, cluster=Cluster(partition="batch"),
        harvest=Harvest(node_hours_max=100),
    )  # fmt: skip
    assert mode_text(config) == (
        "observe on slurm partition `batch`, policy yield, at most 4 nodes, 100 node-hours in all; it submits nothing: "
        "`tidemill site enable`"
    )


def test_nodes_in_quarantine_are_told_with_reason_and_end(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.json"
    assert quarantine_lines(path, now_s=0) == []
    trail = [
        Sentence(node=node, since_s=0, until_s=until_s, why="3 starts failed within 2 s", evidence=["exit 1"])
        for node, until_s in (("n1", 100.0), ("n2", 50.0), ("n3", 100.0))
    ]
    nodes = {"n1": NodeRecord(until_s=100.0), "n3": NodeRecord(until_s=0.0)}
    path.write_bytes(msgspec.json.encode(State(nodes=nodes, trail=trail)))
    assert quarantine_lines(path, now_s=60) == [
        ("quarantine", "n1 until 1970-01-01T00:01:40Z: 3 starts failed within 2 s")
    ]
    path.write_text("{")
    assert "cannot be read" in quarantine_lines(path, now_s=60)[0][1]


def test_troubles_say_what_waits_and_what_would_end_it() -> None:
    proxy = Trouble(
        failure="credential", scope="input", name="https://dav.example.org", message="our certificate expired",
        hint="renew `/etc/proxy.pem`", jobs=1_200, is_open=True, next_us=2_000_000,
    )  # fmt: skip
    other = Trouble(failure="stage_in", scope="inputs", message="no space left at the site", jobs=1)
    assert trouble_lines([proxy, other]) == [
        (
            "breaker",
            "credential at https://dav.example.org, 1,200 jobs waiting: our certificate expired; to end it: renew "
            "`/etc/proxy.pem`; blocked for all owners: nothing more of it is taken; the next try is due now",
        ),
        ("waits", "stage_in, 1 job waiting: no space left at the site"),
    ]


def test_doubted_replies_are_said_with_their_age_and_what_would_end_them(tmp_path: Path) -> None:
    claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=20)
    show_outage(tmp_path, "`squeue` does not show 1 job", "compare both", answers=True, doubted=True)
    away = read_outage(tmp_path)
    assert away is not None
    assert away_text(away, now_s=away.since_us / 1e6 + 120) == (
        "`squeue` does not show 1 job, for 2 m 00 s: Tidemill submits nothing new; what to do: compare both"
    )
