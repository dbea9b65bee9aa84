"""Whatever orders a server makes up: the site takes what passes the screen, and never more than there is room for."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import ProtocolError
from tidemill.model.job import Input, JobSpec, Output
from tidemill.site.link.screening import NUMBER_MAX, OrderLimits, Pace, Screen, room_of
from tidemill.site.state import site_state
from tidemill.site.state.log import _encoder
from tidemill.site.state.pool import WorkPool
from tidemill.wire import api

LIMITS = OrderLimits(jobs_max=5, spec_bytes_max=1_000, specs_bytes_max=2_000, events_max=1_000)
LEASES_MAX = 6
NUMBERS = st.one_of(
    st.integers(0, 12), st.integers(-(2**70), 2**70), st.sampled_from([2**31, 2**60, 2**62, 2**63, -1])
)
WORDS = st.one_of(st.sampled_from(["c", "a.b", "../x", "", "a\n", "x" * 200]), st.text(max_size=5))
SPECS = st.one_of(
    st.none(),
    st.builds(
        JobSpec,
        app=st.one_of(st.none(), WORDS),
        events=NUMBERS,
        params=st.dictionaries(WORDS, st.one_of(WORDS, NUMBERS, st.booleans()), max_size=3),
        inputs=st.lists(st.builds(Input, name=WORDS, url=WORDS), max_size=2),
        outputs=st.one_of(st.none(), st.lists(st.builds(Output, name=WORDS, path=WORDS), max_size=2)),
        name=st.one_of(st.none(), WORDS, st.just("y" * 2000)),
        retries=NUMBERS,
    ),
    st.just(JobSpec(app="sim", events=900)),
)
DONE = st.one_of(WORDS, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))).map(
    lambda pairs: ",".join(f"{a}-{b}" for a, b in pairs)
))  # fmt: skip
ORDERS = st.one_of(
    st.builds(
        api.LeaseOrder, n=NUMBERS, lease=NUMBERS, job=NUMBERS, first=NUMBERS, count=NUMBERS, campaign=WORDS,
        seed_base=NUMBERS, spec=SPECS, owner=WORDS,
    ),
    st.builds(api.CancelOrder, n=NUMBERS, job=NUMBERS, reason=WORDS, keep=st.booleans()),
    st.builds(api.DiscardOrder, n=NUMBERS, job=NUMBERS, first=NUMBERS, count=NUMBERS),
    st.builds(api.DeliverOrder, n=NUMBERS, job=NUMBERS, done=DONE, fresh=st.one_of(st.none(), DONE),
              merge=st.booleans(), delivery=st.one_of(st.just(1), NUMBERS)),
    st.builds(api.ForgetOrder, n=NUMBERS, job=NUMBERS),
    st.builds(api.FetchLogOrder, n=NUMBERS, request=NUMBERS, job=NUMBERS, event=st.one_of(st.none(), NUMBERS)),
    st.builds(api.DrainOrder, n=NUMBERS, drain=st.booleans(), reason=WORDS),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(replies=st.lists(st.lists(ORDERS, max_size=12), max_size=4), number=st.booleans())
def test_what_passes_can_be_logged_applied_and_is_bounded(replies: list[list[Any]], number: bool) -> None:
    pool = WorkPool(site_state.SiteState(site="x"))
    for orders in replies:
        if number:  # as an honest server would
            for n, order in enumerate(orders, pool.state.have + 1):
                order.n = n
        room = room_of(pool.settlement, LIMITS, leases_max=LEASES_MAX, paced=8)
        deny = {"c": "denied"}.get
        screened = Screen(pool.state, LIMITS, room, deny).screen_orders(orders)
        assert screened.passed < pool.state.have + api.ORDER_JUMP_MAX  # so that nobody uses the numbers up
        entry = site_state.Replied(
            acked=0,
            orders=screened.orders,
            at_us=0,
            refused=screened.refused,
            passed=screened.passed,
            illegal=list(screened.illegal),
        )
        again = msgspec.json.decode(_encoder.encode(entry), type=site_state.Replied)
        try:
            pool.apply(again)
        except ProtocolError as error:
            raise AssertionError(f"it should not have passed: {entry}") from error
        state = pool.state
        assert state.have == screened.passed < NUMBER_MAX
        assert not number or screened.passed + screened.left >= (orders[-1].n if orders else 0)
        assert state.leases_open <= LEASES_MAX
        assert len(state.jobs) <= LIMITS.jobs_max
        assert pool.settlement.spec_bytes <= LIMITS.specs_bytes_max + LIMITS.spec_bytes_max
        assert pool.settlement.spec_bytes == sum(job.spec_bytes for job in state.jobs.values())
        for job in state.jobs.values():
            assert 0 < job.id < site_state.STEP_BASE
            assert job.owner != "c"
            assert all(0 <= first < end <= job.spec.events for first, end in job.open)
        restored = msgspec.json.decode(_encoder.encode(state), type=dict[str, Any])
        assert restored["have"] == state.have


def test_a_rate_lets_a_minutes_leases_pass_at_once_and_then_as_time_goes_by() -> None:
    pace = Pace(60)
    assert pace.left(0.0) == 60
    pace.spend(60)
    assert pace.left(0.5) == 0
    assert pace.left(10.0) == 10
    assert pace.left(1e6) == 60
