"""A few nodes are left idle where small jobs come often, none where they do not."""

from __future__ import annotations

from tidemill.harvest.plan.headroom import FREE_MIN, POOLS_MAX, Headroom, Headrooms
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Decision, Limits, Situation, Waiting

HOUR = 3600.0


def kept(headroom: Headroom, now_s: float, free: int = 1000) -> int:
    return headroom.nodes(now_s, free=free, look_s=7.5, death_s=5.0)


def situation(queue: list[Waiting], *, idle: int = 20, headroom: int = 0, now_s: float = 0.0) -> Situation:
    return Situation(
        now_s=now_s,
        nodes=128,
        idle=idle,
        busy=[],
        queue=queue,
        outages=[],
        holdings=[],
        backlog=Backlog(node_s=1e9, nodes_max=128, event_s=60.0),
        limits=Limits(nodes_max=128, allocations_max=1000),
        headroom=headroom,
    )


def test_no_arrivals_keep_nothing_idle() -> None:
    headroom = Headroom()
    for at_s in range(0, 7200, 30):
        headroom.note(float(at_s), 0)
    assert kept(headroom, 7200.0) == 0


def test_rare_arrivals_cost_more_idle_nodes_than_they_save() -> None:
    headroom = Headroom()
    for hour in range(72):
        headroom.note(hour * HOUR + 100, 4)
    assert kept(headroom, 71 * HOUR + 200) == 0


def test_a_burst_keeps_as_many_as_it_wants_and_is_forgotten_within_the_hour() -> None:
    headroom = Headroom()
    for at_s in range(0, 900, 20):
        headroom.note(float(at_s), 4)
    assert kept(headroom, 900.0) == 4
    assert kept(headroom, 900.0 + HOUR) == 0


def test_the_hour_of_the_day_is_remembered() -> None:
    headroom = Headroom()
    for day in range(10):
        for at_s in range(0, 3600, 20):
            headroom.note(day * 24 * HOUR + 9 * HOUR + at_s, 2)
        headroom.note(day * 24 * HOUR + 11 * HOUR, 0)
    tenth_s = 10 * 24 * HOUR
    headroom.note(tenth_s, 0)
    assert kept(headroom, tenth_s + 9 * HOUR + 5) == 2
    assert kept(headroom, tenth_s + 15 * HOUR) == 0


def test_a_small_share_of_the_free_nodes_is_the_most() -> None:
    headroom = Headroom()
    for at_s in range(0, 900, 5):
        headroom.note(float(at_s), 200)
    assert kept(headroom, 900.0, free=1000) == 10
    assert kept(headroom, 900.0, free=50) == 1
    assert kept(headroom, 900.0, free=FREE_MIN - 1) == 0


def test_only_new_small_jobs_that_could_start_are_learned() -> None:
    def learned(queue: list[Waiting], ready: list[str]) -> int:
        rooms = Headrooms()
        rooms.learn("a", situation([Waiting("old", 1, 600.0)]), Decision(ready=["old"]), present={})
        for at_s in range(0, 900, 10):
            fresh = [Waiting(f"{each.id}.{at_s}", each.width, each.walltime_s) for each in queue]
            decision = Decision(ready=[f"{name}.{at_s}" for name in ready])
            now = situation([Waiting("old", 1, 600.0), *fresh], idle=128, now_s=float(at_s))
            rooms.learn("a", now, decision, present={})
        return rooms.nodes("a", situation([], idle=128, now_s=900.0), look_s=7.5)

    assert learned([Waiting("small", 1, 600.0)], ["small"]) == 1
    assert learned([Waiting("blocked", 1, 600.0)], []) == 0
    assert learned([Waiting("large", 64, 600.0)], ["large"]) == 0
    assert learned([], ["old"]) == 0


def test_pools_that_are_gone_are_forgotten() -> None:
    rooms = Headrooms()
    for poll in range(3 * POOLS_MAX):
        rooms.retain(["stays", f"gone-{poll}"])
        for at_s in (30.0 * poll, 30.0 * poll + 10):
            for name in ("stays", f"gone-{poll}"):
                present = {f"{name}-{at_s}": 1}
                rooms.learn(name, situation([], now_s=at_s), Decision(), present=present)
    assert len(rooms._pools) <= POOLS_MAX + 1
    assert set(rooms._known) == {"stays", f"gone-{3 * POOLS_MAX - 1}"}
    now_s = 90.0 * POOLS_MAX
    assert rooms.nodes("stays", situation([], idle=128, now_s=now_s), look_s=7.5) == 1


def test_a_job_that_started_on_the_headroom_is_learned_too() -> None:
    rooms = Headrooms()
    rooms.learn("a", situation([]), Decision(), present={})
    for at_s in range(10, 900, 10):
        rooms.learn("a", situation([], now_s=float(at_s)), Decision(), present={f"j{at_s}": 1})
    assert rooms.nodes("a", situation([], idle=128, now_s=900.0), look_s=7.5) == 1


def test_the_broker_leaves_the_headroom_idle_and_says_why() -> None:
    decision = decide(situation([], headroom=3), Policy.YIELD)
    assert sum(each.width * each.count for each in decision.submit) == 17
    assert decision.waits_for == "headroom"
    decision = decide(situation([], idle=3, headroom=3), Policy.YIELD)
    assert not decision.submit
    assert decision.waits_for == "headroom"
