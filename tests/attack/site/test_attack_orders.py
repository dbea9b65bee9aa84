"""A hostile server's orders one by one: every kind, every field, with every value that could lead somewhere.

Whole replies of a hostile server against a real agent, with places of inputs and outputs:
`tests/e2e/test_hostile_server.py`; orders that chance makes up: `tests/property/test_site_screen.py`.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tidemill.model.failure import is_jobs_own, step_after
from tidemill.model.job import JobSpec, Output, OutputKind
from tidemill.site.link.screening import NUMBER_MAX, OrderLimits, Screen, Screened, room_of
from tidemill.site.state import site_state
from tidemill.site.state.log import _encoder
from tidemill.site.state.pool import WorkPool
from tidemill.wire import api

LIMITS = OrderLimits()
HONEST: dict[str, dict[str, Any]] = {
    "lease": {"lease": 9, "job": 2, "first": 0, "count": 5, "campaign": "c", "seed_base": 0, "owner": "ada",
              "spec": {"app": "sim", "events": 5}, "from_jobs": {}, "cure": {"ward": "far-data", "read": "cache"}},
    "cancel": {"job": 1, "reason": "x", "keep": True},
    "cancel_events": {"job": 1, "events": "2-4"},
    "discard": {"job": 1, "first": 0, "count": 1},
    "deliver": {"job": 1, "done": "0-4", "fresh": "2-4", "merge": True, "delivery": 1, "output_dir": "/out"},
    "forget": {"job": 1},
    "fetch_log": {"request": 1, "job": 1, "event": 0},
    "drain": {"drain": True, "reason": "x"},
}  # fmt: skip
NUMBERS = [-1, 0, 2**31, 2**53, 2**60, 2**60 + 16, 2**62, 2**63, 2**64, 2**200, 1.5, "1", None, [], True]
OTHERS = [False, "true", {}, {"x": 1}, [[]], ["0-4"]]
EVENTS = [
    "-1",
    "0-4,",
    "0--1",
    "4-0",
    "0,0",
    "\u0661",
    "0-4\n",
    "1e9",
    "0-" + str(2**63),
    "0-4,2",
    "99999-100000",
    ",".join(str(2 * k) for k in range(50_000)),
]
TEXTS = [
    "",
    "../../x",
    "/etc/passwd",
    "a\0b",
    "\x1b[2J",
    "a\nb",
    "x" * 100_000,
    "9-0",
    "0-" + "9" * 40,
    "5,1",
    "\u202e",
    5,
    None,
]


def pool() -> WorkPool:
    """A site that has one job of five events, of another owner."""
    made = WorkPool(site_state.SiteState(site="here"))
    spec = JobSpec(app="sim", events=5)
    lease = api.LeaseOrder(
        n=1, lease=1, job=1, first=0, count=5, campaign="c", seed_base=0, spec=spec, owner="eve"
    )
    made.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
    made.apply(site_state.Replied(acked=0, orders=[lease], at_us=0, passed=1))
    return made


def screened(made: WorkPool, order: dict[str, Any]) -> Screened | None:
    """What becomes of an order as it comes, taken into the site's log and read again; None: it cannot be read."""
    try:
        (read,) = msgspec.json.decode(msgspec.json.encode([order]), type=list[api.Order])
    except (msgspec.DecodeError, OverflowError):
        return None
    room = room_of(made.settlement, LIMITS, leases_max=100, paced=100)
    found = Screen(made.state, LIMITS, room, lambda _: None).screen_orders([read])
    entry = site_state.Replied(
        acked=0, orders=found.orders, at_us=0, refused=found.refused, passed=found.passed,
        illegal=list(found.illegal),
    )  # fmt: skip
    made.apply(msgspec.json.decode(_encoder.encode(entry), type=site_state.Replied))
    msgspec.json.decode(
        _encoder.encode(made.state), type=site_state.SiteState, dec_hook=site_state.decode_hook
    )
    return found


def test_every_kind_of_order_is_tried_and_an_honest_one_is_taken() -> None:
    kinds = {each.__struct_config__.tag: each for each in get_args(api.Order)}
    assert kinds.keys() == HONEST.keys()
    for tag, fields in HONEST.items():
        assert {"n", *fields} == set(kinds[tag].__struct_fields__), tag
        found = screened(pool(), {"t": tag, "n": 2, **fields})
        assert found is not None
        assert (len(found.orders), found.refused) == (1, {}), tag


@pytest.mark.parametrize("tag", list(HONEST))
def test_no_field_of_an_order_leads_anywhere(tag: str) -> None:
    for field in (*HONEST[tag], "n"):
        for value in (*NUMBERS, *TEXTS, *OTHERS, *EVENTS):
            made = pool()
            found = screened(made, {"t": tag, "n": 2, **HONEST[tag], field: value})
            state = made.state
            # Taken, left for want of room, or passed over with the reason
            assert found is None or found.why or found.orders or found.left or found.passed < 2, (
                field,
                value,
            )
            assert all(1 <= job.terms.delivery < NUMBER_MAX for job in state.jobs.values()), value
            assert 0 <= state.have < NUMBER_MAX
            assert all(0 < job.id < site_state.STEP_BASE for job in state.jobs.values())
            assert all(
                0 <= first < end <= job.spec.events for job in state.jobs.values() for first, end in job.open
            )
            assert all(job.owner.isprintable() or not job.owner for job in state.jobs.values())
            assert state.jobs[1].owner == "eve" if 1 in state.jobs else True
            for report in state.reports:
                assert len(msgspec.json.encode(report)) < 10_000, (field, value)
            serves(made, value)


def serves(made: WorkPool, value: object) -> None:
    """The site takes an honest lease after all that, and the order to deliver it."""
    n = made.state.have + 1
    lease = {"t": "lease", "n": n, **HONEST["lease"], "job": 77}
    found = screened(made, lease)
    assert found is not None
    assert (len(found.orders), found.refused, found.dropped) == (1, {}, 0), value
    assert 77 in made.state.jobs, value
    found = screened(made, {"t": "deliver", "n": n + 1, **HONEST["deliver"], "job": 77})
    assert found is not None
    assert (len(found.orders), found.dropped) == (1, 0), value
    assert made.state.deliveries[77] == "0-4"
    assert made.state.jobs[77].terms == site_state.DeliveryTerms(fresh="2-4", merge=True, delivery=1)
    assert made.state.jobs[77].spec.output_dir == "/out"


@pytest.mark.parametrize(
    "spec",
    [
        {"app": "sim", "events": 4}, {"app": "sim", "events": 6}, {"app": "../sim", "events": 5}, {"events": 5},
        {"app": "sim", "events": 5, "command": ["sh"]}, {"app": "sim", "events": 5, "name": "../x"},
    ],
)  # fmt: skip
def test_a_lease_does_not_make_another_job_of_one_that_is_here(spec: dict[str, Any]) -> None:
    made = pool()
    before = msgspec.json.encode(made.state.jobs[1].spec)
    found = screened(made, {"t": "lease", "n": 2, **HONEST["lease"], "job": 1, "spec": spec})
    assert found is not None
    assert list(found.refused) == [2]
    assert msgspec.json.encode(made.state.jobs[1].spec) == before


@pytest.mark.parametrize(
    ("changed", "is_jobs"),
    [
        ({"spec": {"app": "sim", "events": 5, "name": "my prog"}}, True),
        ({"spec": {"app": "sim", "events": 5, "retries": -1}}, True), ({"owner": "a\tb"}, False),
        ({"campaign": "../c"}, False),
    ],
)  # fmt: skip
def test_a_job_that_is_not_legal_goes_back_for_its_own_fault_and_any_other_for_the_sites(
    changed: dict[str, Any], is_jobs: bool
) -> None:
    made = pool()
    found = screened(made, {"t": "lease", "n": 2, **HONEST["lease"], **changed})
    assert found is not None
    assert list(found.refused) == [2]
    (report,) = made.state.reports
    assert isinstance(report, api.ReleaseReport)
    assert report.evidence is not None
    assert is_jobs_own(report.evidence) is is_jobs
    assert ("changed as the message says" in step_after(report.evidence)) is is_jobs


@pytest.mark.parametrize("told", [{"x": 1}, {"in": -1}, {"in": 2**63}, {"../in": 1}, {"in": 1, "x": 2}])
def test_an_input_comes_from_no_job_that_it_does_not_name(told: dict[str, int]) -> None:
    spec = {"app": "sim", "events": 5, "inputs": [{"name": "in", "url": "file:///data/in"}]}
    found = screened(pool(), {"t": "lease", "n": 2, **HONEST["lease"], "spec": spec, "from_jobs": told})
    assert found is not None
    assert (list(found.refused) == [2]) or found.passed, told


@pytest.mark.parametrize("merge", ["../x", "/bin/sh", "a b", "", "x\n", "x" * 200])
def test_a_merge_step_names_an_application_and_nothing_else(merge: str) -> None:
    output = Output(name="o", path="o", kind=OutputKind.MERGE, merge=merge)
    spec = msgspec.to_builtins(JobSpec(app="sim", events=5, outputs=[output]))
    found = screened(pool(), {"t": "lease", "n": 2, **HONEST["lease"], "spec": spec})
    assert found is None or list(found.refused) == [2]


@pytest.mark.parametrize("delivery", [-(2**63), -1, 0, 2**62, 2**63 - 1])
def test_a_delivery_has_a_number_from_one_on(delivery: int) -> None:
    made = pool()
    found = screened(made, {"t": "deliver", "n": 2, **HONEST["deliver"], "delivery": delivery})
    assert found is not None
    assert found.orders == []
    assert "out of range" in found.why
    assert made.state.deliveries == {}


@pytest.mark.parametrize("place", ["a\0b", "\x1b[2J", "a\nb", "/" + "x" * 100_000])
def test_an_order_to_deliver_elsewhere_names_a_place_that_may_be_one(place: str) -> None:
    made = pool()
    found = screened(made, {"t": "deliver", "n": 2, **HONEST["deliver"], "output_dir": place})
    assert found is not None
    assert (found.orders, found.why) == ([], "order 2: its directory for outputs is not legal")
    assert made.state.jobs[1].spec.output_dir is None


@pytest.mark.parametrize("field", ["done", "fresh"])
@pytest.mark.parametrize("events", EVENTS[:-3])
def test_a_list_of_events_that_is_malformed_is_passed_over_with_the_reason(field: str, events: str) -> None:
    made = pool()
    found = screened(made, {"t": "deliver", "n": 2, **HONEST["deliver"], field: events})
    assert found is not None
    assert (found.orders, found.dropped, made.state.deliveries) == ([], 1, {})
    assert "list of events" in found.why


def test_a_cancel_that_keeps_what_is_done_stops_a_job_once_however_often_it_is_sent() -> None:
    made = pool()
    for n in range(2, 200):
        found = screened(made, {"t": "cancel", "n": n, "job": 1, "reason": "x", "keep": True})
        assert found is not None
        assert len(found.orders) == 1
    assert made.state.stopping == [1]
    assert len(_encoder.encode(made.state)) < 10_000
    made.apply(site_state.LetGo(jobs=[1]))
    (report,) = made.state.reports
    assert isinstance(report, api.ReleaseReport)
    assert (report.job, report.count, made.state.leases_open) == (1, 5, 0)


@pytest.mark.parametrize("tag", ["deliver", "discard", "fetch_log", "forget", "cancel"])
def test_orders_about_jobs_that_are_not_here_change_nothing(tag: str) -> None:
    for job in (2, 10**9, site_state.STEP_BASE - 1):
        made = pool()
        before = _encoder.encode(made.state.jobs)
        screened(made, {"t": tag, "n": 2, **HONEST[tag], "job": job})
        assert _encoder.encode(made.state.jobs) == before
        assert job not in made.state.jobs
