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
    _server_view,
    away_text,
    data_lines,
    mode_text,
    plan_text,
    quarantine_lines,
    stale_text,
    status_lines,
    trouble_lines,
    why_text,
)
from tidemill.config.site import Cluster, Harvest, SiteConfig
from tidemill.errors import SiteError
from tidemill.harvest.account.broker_log import PlanMade
from tidemill.harvest.account.ledger import Line, Standing
from tidemill.model.figures.awaited import Hindrance, NodeCounts, QueuedReason
from tidemill.model.metrics import Sample
from tidemill.model.trouble import Trouble
from tidemill.site.state.epoch import claim
from tidemill.site.state.status import (
    NAME,
    BatchOutage,
    DataFigures,
    HarmFigures,
    LastPoll,
    SiteStatus,
    amend_status,
    note_failed_run,
    outage_after,
    outage_of,
    read_status,
    write_status,
)
from tidemill.wire.monitoring import AwaitedNodes, BadNode, RegularWaits

HOURS = 3_600.0
GRANT = Line(
    account="sci", granted_s=1_000 * HOURS, settled_s=120.5 * HOURS, in_flight_s=HOURS, committed_s=4 * HOURS,
    left_s=854.5 * HOURS, standing=Standing.OPEN,
)  # fmt: skip
DATA = DataFigures(
    0, 0, 60_000_000_000, 0, 0, 0, [], reserved_bytes=30_000_000_000, waiting_bytes=200_000_000_000,
    waiting_jobs=7,
)  # fmt: skip
KNOWN = SiteStatus(
    at_us=1, grants=[GRANT], left_node_s=95.25 * HOURS, causes=["idle", "failed_starts", "new"], data=DATA,
    harm=HarmFigures(all_s=99.0, today_s=42.0, low_s=40.0, high_s=44.0, jobs=2),
    waits=[RegularWaits(size="1", length="5min", jobs=3, delayed=2, wait_s=90.0, share_s=42.0)],
    figures=[Sample("tidemill_noted_total", 2, (("topic", "memory"), ("mode", "no_fit")))],
)  # fmt: skip


def polled(*plans: PlanMade, **changes: object) -> LastPoll:
    return LastPoll(at_s=100.0, pools=list(plans), **changes)  # type: ignore[arg-type]


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


def test_figures_become_lines_about_grants_bounds_and_harm() -> None:
    lines = dict(status_lines(KNOWN))
    assert lines["account"] == "sci: 121.5 of 1000 node-hours used, 4.0 more may be by what runs, 854.5 left"
    assert lines["node-hours"].startswith("95.2")
    assert (
        lines["why no more"]
        == "no node is wholly idle; starts have failed, and the next is tried after a pause; new"
    )
    told = plan(100, waits_for="3 did not start; the next try at 20:41")
    at_length = msgspec.structs.replace(KNOWN, poll=polled(plan(99, waits_for="idle"), told))
    assert dict(status_lines(at_length))["why no more"] == (
        "no node is wholly idle; 3 did not start; the next try at 20:41; new"
    )
    stopped = dict(status_lines(at_length, is_stopped=True))
    assert stopped["why no more"] == "the site is stopped", "the figures are older"
    assert "why no more" not in dict(status_lines(at_length, is_served=False))
    assert lines["stage"] == "60 GB in use, 30 GB reserved; 7 jobs wait for 200 GB more"
    assert lines["memory"].startswith("2 no_fit")
    assert lines["today"] == (
        "2 regular jobs waited 42 s (40 to 44 s) because of Tidemill; all regular jobs that started waited 90 s, "
        "`tidemill site harm` gives details"
    )
    assert status_lines(SiteStatus()) == []


def test_a_status_that_is_missing_damaged_or_old_is_told_as_such(tmp_path: Path) -> None:
    config = SiteConfig(name="here", server="unix:/s")
    assert read_status(tmp_path) == (
        SiteStatus(),
        f"`{tmp_path / NAME}` is missing: no agent has written it yet",
    )
    write_status(tmp_path, KNOWN)
    assert read_status(tmp_path) == (KNOWN, "")
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:99])
    status, problem = read_status(tmp_path)
    assert (status, "is damaged" in problem) == (SiteStatus(), True)
    now_us = 1_000_000_000
    new = SiteStatus(at_us=now_us - 59_000_000)
    old = SiteStatus(at_us=now_us - 61_000_000)
    assert stale_text(new, config, is_served=True, now_us=now_us) == ""
    said = "the figures below are of 1 m 01 s ago: "
    assert (
        stale_text(old, config, is_served=True, now_us=now_us)
        == said + "its agent may hang or wait for its batch system"
    )
    assert stale_text(old, config, is_served=False, now_us=now_us) == said + "no agent runs"
    assert "no figures" in stale_text(SiteStatus(), config, is_served=True, now_us=now_us)


def test_runs_of_the_agent_that_fail_are_counted_beside_the_figures(tmp_path: Path) -> None:
    for number in range(3):
        note_failed_run(tmp_path, SiteError(f"no partition, try {number}", hint="name one"))
    failed = read_status(tmp_path).status.failed
    assert failed is not None
    assert (failed.times, failed.reason, failed.hint) == (3, "no partition, try 2", "name one")
    assert failed.since_us < failed.at_us
    amend_status(tmp_path, failed=None)
    assert read_status(tmp_path) == (SiteStatus(), "")


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
    data = DataFigures(23, int(pinned + idle), int(pinned), 3, 1, 0, [])
    assert data_lines(data)[0] == ("data cache", said)


def test_why_no_more_nodes_are_asked_for_is_said_with_the_figures_of_the_last_poll() -> None:
    now_us = clock.now_us()
    counts = NodeCounts(nodes=7, shared=6, free_min=3, free_max=3, cores=8, away=1)
    awaits = AwaitedNodes(polled_us=now_us, hindrances=[Hindrance(cause="idle", nodes=counts)])
    known = SiteStatus(causes=["idle"], poll=polled(awaits=awaits))
    said = why_text(known)
    assert said == (
        "waiting for a wholly idle node: 6 nodes have 3 of 8 cores free, and this version uses whole nodes; "
        "1 is down or drained"
    )
    beside = why_text(msgspec.structs.replace(known, poll=polled(awaits=awaits, is_at_work=True)))
    assert beside == f"for more nodes: {said}"
    word = "PartitionTimeLimit"
    queued = [QueuedReason(reason=word, allocations=4, meaning=slurm_meaning(word))]
    asked = msgspec.structs.replace(awaits, asked_us=now_us - 77_000_000, starting=1)
    both = why_text(SiteStatus(poll=polled(awaits=asked)))
    assert both.endswith(f"its pilot has not reported yet; for more nodes: {said}")
    waits = msgspec.structs.replace(awaits, asked_us=now_us - 77_000_000, queued=queued, hindrances=[])
    said = why_text(SiteStatus(poll=polled(awaits=waits)))
    assert said == (
        "4 allocations of Tidemill, asked for 1 m 17 s ago, wait in the queue; the batch system says "
        "`PartitionTimeLimit`: its time limit is above the limit of the partition: it cannot start as it is"
    )


def test_a_batch_system_that_does_not_answer_is_told_with_what_came_back() -> None:
    first = BatchOutage(since_us=7)
    away = outage_after(
        first,
        BatchOutage(
            since_us=99,
            reason="`squeue` failed with status 1: Unable to contact slurm controller",
            hint="see `cluster`",
        ),
    )
    assert away_text(away, now_s=away.since_us / 1e6 + 120) == (
        "it has given no usable answer for 2 m 00 s, and is asked again and again: `squeue` failed with status 1: "
        "Unable to contact slurm controller (see `cluster`)"
    )
    assert away.since_us == 7


def test_a_batch_system_that_answers_and_starts_nothing_is_told_apart() -> None:
    failed = BatchOutage(since_us=7, reason="`qstat` failed")
    stopped = outage_after(failed, BatchOutage(since_us=99, reason=NO_SCHEDULER, answers=True))
    assert stopped.since_us == 99, "it began later"
    assert away_text(stopped, now_s=stopped.since_us / 1e6 + 120) == (
        "PBS's scheduler does not run (`qmgr -c 'list sched'`: state = down), for 2 m 00 s: jobs wait, and Tidemill "
        "submits none until it is back"
    )


def test_what_an_agent_left_behind_does_not_tell_of_the_batch_system(tmp_path: Path) -> None:
    amend_status(tmp_path, away=BatchOutage(since_us=1, reason="`squeue` failed"))
    known = read_status(tmp_path).status
    assert outage_of(tmp_path, known) is None  # nobody's
    identity = claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=60)
    assert outage_of(tmp_path, known) == known.away
    owner = tmp_path / "epoch" / "000001.json"
    owner.write_bytes(msgspec.json.encode(msgspec.structs.replace(identity.owner, start=1)))
    assert outage_of(tmp_path, known) is None  # of one that was killed: another process has its number
    identity = claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=60)
    assert outage_of(tmp_path, known) == known.away
    identity.leave()
    assert outage_of(tmp_path, known) is None


def test_the_mode_tells_policy_and_bounds() -> None:
    config = SiteConfig(
        name="n", server="unix:/s", batch="slurm", mode="observe", nodes_max=4, cluster=Cluster(partition="batch"),
        harvest=Harvest(node_hours_max=100),
    )  # fmt: skip
    assert mode_text(config) == (
        "observe on slurm partition `batch`, policy yield, at most 4 nodes, 100 node-hours in all; it submits nothing: "
        "`tidemill site enable`"
    )


def test_nodes_in_quarantine_are_told_with_reason_and_end() -> None:
    bad = [
        BadNode(
            node=node, since_us=0, until_us=until_us, why="3 starts failed within 2 s", evidence=["exit 1"]
        )
        for node, until_us in (("n1", 100_000_000), ("n2", 50_000_000))
    ]
    line = ("quarantine", "n1 until 1970-01-01T00:01:40Z: 3 starts failed within 2 s")
    assert quarantine_lines(SiteStatus(bad_nodes=bad, bad_nodes_total=2), now_s=60) == [line]
    many = SiteStatus(bad_nodes=bad, bad_nodes_total=9)
    assert quarantine_lines(many, now_s=60) == [line, ("quarantine", "and 7 more nodes")]
    assert quarantine_lines(SiteStatus(), now_s=0) == []


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


def test_doubted_replies_are_said_with_their_age_and_what_would_end_them() -> None:
    reason = "`squeue` does not show 1 job"
    away = BatchOutage(since_us=0, reason=reason, hint="compare both", answers=True, doubted=True)
    assert away_text(away, now_s=120) == (
        "`squeue` does not show 1 job, for 2 m 00 s: Tidemill submits nothing new; what to do: compare both"
    )
