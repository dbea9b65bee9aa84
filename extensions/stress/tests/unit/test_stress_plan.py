"""Test files: what is legal, the steps of a run and a scan, the job of a step, and what a run decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill_stress import holding, plan
from tidemill_stress.holding import Seen, SteadyWindow, StopRun
from tidemill_stress.payloads import Payload
from tidemill_stress.plan import PayloadPlan, Plan, ScanPlan, StressStep

GOOD = """
name = "levels"
levels = [4, 8]
hold_s = "10m"
[payload]
app = "pythia8"
event_s = 12
"""


def load(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "test.toml"
    path.write_text(text)
    return plan.load(path)


def test_a_file_becomes_steps_for_each_site_and_level(tmp_path: Path) -> None:
    found = plan.steps(load(tmp_path, 'sites = ["a", "b"]\n' + GOOD))
    assert [(each.number, each.site, each.level) for each in found] == [
        (1, "a", 4),
        (2, "a", 8),
        (3, "b", 4),
        (4, "b", 8),
    ]
    assert found[0].title == "a: 4"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[4, 8]", "[8, 4]", "must rise"),
        ("[4, 8]", "[]", "nothing would run"),
        ("[4, 8]", "[0, 8]", "legal is 1 to"),
        ("[4, 8]", "[4, 8]\nrunning_max = 6", "level 8 is above the site's limit of 6"),
        ('"10m"', "20", "hardly any payload"),
        ('"levels"', '"a/b"', "legal are letters"),
        ("event_s = 12", "event_s = 0", "event_s"),
        ('app = "pythia8"', "", "either `app` or `command`"),
        (
            "event_s = 12",
            'event_s = 12\n[[prometheus]]\ntitle = "x"\nurl = "file:/x"\nquery = "up"',
            "not an http",
        ),
        ("event_s = 12", "event_s = 12\n[stop]\nfailed_share = 2", "stop.failed_share"),
        ("hold_s", "hold", "unknown key `hold`"),
        ("event_s = 12", "event_s = 12\n[stop]\nharm_s = -1", "`stop.harm_s` is -1.0, legal is 0 or more"),
        ("[4, 8]", '[4, 8]\nsites = ["a"]\ntogether = true', "`sites` must name two or more"),
        ("[4, 8]", '[4, 8]\nsites = ["a", "a"]', "names a site twice"),
        (
            "event_s = 12",
            'event_s = 12\n[[guard]]\ntitle = "x"\nurl = "http://x"\nquery = "up"\nabove = 1\nsite = "b"',
            "guard `x` is for site `b`, which `sites` does not name",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(tmp_path, GOOD.replace(old, new))


def test_sites_that_run_together_take_each_level_at_the_same_time(tmp_path: Path) -> None:
    test = load(tmp_path, 'sites = ["a", "b"]\ntogether = true\n' + GOOD)
    found = plan.steps(test)
    assert [(each.number, each.site, each.level) for each in found] == [
        (1, "a", 4), (2, "b", 4), (3, "a", 8), (4, "b", 8),
    ]  # fmt: skip
    assert [[each.title for each in each_round] for each_round in plan.rounds(test, found)] == [
        ["a: 4", "b: 4"], ["a: 8", "b: 8"],
    ]  # fmt: skip
    alone = load(tmp_path, 'sites = ["a", "b"]\n' + GOOD)
    assert [len(each) for each in plan.rounds(alone, plan.steps(alone))] == [1, 1, 1, 1]


def test_a_scan_at_sites_that_run_together_keeps_their_passes_in_step() -> None:
    scan = ScanPlan(node_cores=4, slots=[1, 2], passes=2)
    payload = PayloadPlan(event_s=1, command=["x"])
    test = Plan(name="s", payload=payload, scan=scan, sites=["a", "b"], together=True)
    found = plan.rounds(test, plan.scan_steps(test))
    assert [[(each.site, each.slots, each.pass_) for each in one] for one in found] == [
        [("a", 1, 1), ("b", 1, 1)], [("a", 2, 1), ("b", 2, 1)], [("a", 2, 2), ("b", 2, 2)], [("a", 1, 2), ("b", 1, 2)],
    ]  # fmt: skip


def test_more_levels_than_a_run_may_have_are_refused(tmp_path: Path) -> None:
    sites = str([f"s{k}" for k in range(300)]).replace("'", '"')
    with pytest.raises(ConfigError, match="make 600 levels, at most 500"):
        load(tmp_path, f"sites = {sites}\n" + GOOD)


def test_a_scan_leaves_out_what_does_not_fit_on_a_node() -> None:
    scan = ScanPlan(node_cores=8, domains=2, placements=["core", "pair", "domain"], passes=1)
    found = plan.scan_steps(Plan(name="s", payload=PayloadPlan(event_s=1, command=["x"]), scan=scan))
    of = {
        name: [(each.slots, each.cores) for each in found if each.placement == name]
        for name in plan.PLACEMENTS
    }
    assert of["core"] == [(1, 1), (2, 1), (4, 1), (6, 1), (8, 1)]
    assert of["pair"] == [(1, 2), (2, 2), (4, 2)]
    assert of["domain"] == [(1, 4), (2, 4), (4, 2), (6, 1), (8, 1)]


def test_a_scan_goes_up_and_down_again() -> None:
    scan = ScanPlan(node_cores=4, slots=[1, 2, 4], passes=3)
    found = plan.scan_steps(Plan(name="s", payload=PayloadPlan(event_s=1, command=["x"]), scan=scan))
    assert [(each.slots, each.pass_) for each in found] == [
        (1, 1), (2, 1), (4, 1), (4, 2), (2, 2), (1, 2), (1, 3), (2, 3), (4, 3),
    ]  # fmt: skip
    assert [each.number for each in found] == list(range(1, 10))
    assert found[4].title == "2 per node, core, pass 2"


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("passes = 0", "`scan.passes` is 0, legal is 1 to 10"),
        ("gain_percent = 100", "`scan.gain_percent` is 100.0, legal is 0 to below 100"),
        ("slots = [4, 2]", "`scan.slots` must rise from 1"),
        ('placements = ["socket"]', "legal are core, pair, domain"),
    ],
)
def test_a_wrong_scan_is_refused_with_a_sentence(tmp_path: Path, key: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(tmp_path, f"{GOOD}\n[scan]\nnode_cores = 8\n{key}\n")


def test_the_job_of_a_step_is_timed_and_counts_failures_without_repeating_them() -> None:
    test = Plan(name="t", payload=PayloadPlan(event_s=2, app="pythia8", cores=2), levels=[4], sites=["here"])
    spec = plan.spec(test, plan.steps(test)[0], 100)
    assert (spec.timed, spec.retries, spec.failed_max, spec.outputs, spec.site) == (True, 0, 100, [], "here")
    assert (spec.resources.cores, spec.resources.event_s) == (2, 2)


TEST = Plan(name="t", payload=PayloadPlan(event_s=10, command=["x"]), levels=[2], hold_s=100, ramp_up_s=60)
STEP = plan.steps(TEST)[0]


def ran(slots: int, until: float, *, failure: str = "") -> list[Payload]:
    return [
        Payload(f"n{slot}", float(at), at + 10.0, 5.0, 0.0, 0 if failure else 1, failure)
        for slot in range(slots)
        for at in range(0, int(until) - 9, 10)
    ]


def decide(payloads: list[Payload], now: float, **more: object) -> object:
    return holding.decide(TEST, STEP, Seen(payloads, 0.0, now, **more))  # type: ignore[arg-type]


def test_a_level_that_is_held_gives_its_window_and_not_before() -> None:
    assert decide(ran(2, 90), 100) is None
    found = decide(ran(2, 140), 150)
    assert isinstance(found, SteadyWindow)
    assert found.end_s - found.start_s == pytest.approx(100)


def test_a_level_that_is_never_reached_ends_with_what_was() -> None:
    found = decide(ran(1, 100), 110, nodes=1)
    assert isinstance(found, StopRun)
    assert found.unreached
    assert (
        "level 2 was not reached within 60 s: at most 1 payload ran together; the site had 1 node"
        in found.reason
    )


def test_a_level_that_is_lost_again_is_not_called_held() -> None:
    found = decide([*ran(2, 40), *ran(1, 300)[4:]], 320)
    assert isinstance(found, StopRun)
    assert "not held" in found.reason


def test_short_payloads_between_which_slots_are_idle_are_named_as_the_reason() -> None:
    short = [
        Payload(f"n{k % 2}", at, at + 1.0, 0.9, 0.0, 1)
        for k in range(2)
        for at in (i * 1.1 for i in range(300))
    ]
    found = decide(short, 330)
    assert isinstance(found, StopRun)
    assert found.unreached
    assert "0.1 s between two payloads of a slot explain that, as a payload takes only 1 s" in found.reason
    assert "explain" not in str(decide(ran(1, 100), 110, nodes=1))


def test_a_payload_that_always_fails_is_given_no_more() -> None:
    found = decide(ran(1, 60, failure="exit_code"), 61)
    assert isinstance(found, StopRun)
    assert found.job
    assert found.reason == "the payload always fails: 6 of 6 failed (6 of class exit_code)"


def test_too_many_failures_lost_nodes_and_guards_stop_a_run() -> None:
    mixed = [*ran(2, 100), *ran(1, 60, failure="exit_code")]
    assert "6 of 26 payloads failed" in str(decide(mixed, 101))
    assert decide(ran(2, 50), 60, nodes=8, nodes_top=16) == StopRun("the site has 8 of 16 nodes left")
    assert decide(ran(2, 50), 60, nodes=9, nodes_top=16) is None
    assert "a guard of the test says stop: I/O" in str(decide(ran(2, 50), 60, guards=["I/O"]))


def test_events_that_run_out_say_what_to_mend() -> None:
    found = decide(ran(2, 50), 60, exhausted=True)
    assert isinstance(found, StopRun)
    assert "`event_s`" in found.reason


OTHER = StressStep(2, "b", 4)


def together(*looks: tuple[StressStep, Seen]) -> list[object]:
    return list(holding.decide_together(TEST, list(looks)))


def test_sites_together_have_one_window_that_begins_when_the_last_has_reached_its_level() -> None:
    early, late = ran(2, 180), [each for each in ran(4, 180) if each.start_s >= 50]
    assert together((STEP, Seen(early, 0.0, 150)), (OTHER, Seen(late, 0.0, 150))) == [None, None]
    one, other = together((STEP, Seen(early, 0.0, 195)), (OTHER, Seen(late, 0.0, 195)))
    assert one == other
    assert isinstance(one, SteadyWindow)
    assert one.start_s >= 60


def test_a_site_that_stops_does_not_stop_the_others() -> None:
    good, bad = Seen(ran(2, 140), 0.0, 150), Seen(ran(4, 140), 0.0, 150, sums=["over its I/O budget"])
    assert together((STEP, good), (OTHER, bad)) == [SteadyWindow(10, 110), StopRun("over its I/O budget")]


def test_of_sites_together_the_one_that_is_never_held_ends() -> None:
    wave = [*ran(4, 40), *ran(1, 400)[4:]]
    ends = together((STEP, Seen(ran(2, 400), 0.0, 420)), (OTHER, Seen(wave, 0.0, 420)))
    assert ends[0] is None
    assert isinstance(ends[1], StopRun)
    assert "level 4 was reached, and not held" in ends[1].reason


def test_what_the_site_itself_reports_stops_a_run_without_an_outside_server() -> None:
    found = decide(ran(2, 50), 60, sums=["site here was over its I/O budget"])
    assert found == StopRun("site here was over its I/O budget")
