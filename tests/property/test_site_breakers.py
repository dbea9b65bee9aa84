"""Whatever one owner's jobs do, no other owner's job waits for it, unless the site's own probe fails."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.site.fleet.test_site_breakers import APP, HOST, S, may, reads, waits

from tidemill.model.failure import FailureClass
from tidemill.model.trouble import Scope
from tidemill.site.fleet.breakers import Reason, TroubleCause

CAUSES = [
    APP,
    TroubleCause(FailureClass.IMAGE, Scope.APP, "sim"),
    TroubleCause(FailureClass.STAGE_IN, Scope.INPUTS),
    TroubleCause(FailureClass.STAGE_IN, ""),
    *(
        TroubleCause(failure, Scope.INPUT, HOST)
        for failure in (FailureClass.STAGE_IN, FailureClass.CREDENTIAL)
    ),
]
DEEDS = st.tuples(
    st.sampled_from(["fail", "fail", "fail", "succeed", "ask", "step", "forget"]),
    st.integers(1, 30),
    st.sampled_from(CAUSES),
    st.sampled_from(["", "a/", "b/", "c/", "a/d/"]),
    st.integers(0, 4000),
)


@given(st.lists(DEEDS, max_size=80), st.booleans())
def test_failures_of_one_owner_alone_hold_up_no_other(deeds: list[tuple], probe: bool) -> None:  # type: ignore[type-arg]
    them, now_us = waits(), S
    for what, job, cause, path, later_s in deeds:
        now_us += later_s * S
        prefix = f"{HOST}/{path}" if cause.scope == Scope.INPUT else ""
        if what == "fail":
            them.failed(job, Reason(cause, "503", "", "eve", prefix), now_us, who=f"n{job % 4}")
        elif what == "succeed":
            them.succeeded(job, reads("eve", path), now_us, owner="eve", ran=bool(later_s % 2))
        elif what == "ask":
            may(them, job, "eve", path, now_us)
        elif what == "step":
            them.step(now_us)
            them.tend(range(20), now_us)
        else:
            them.forget(job)
        assert may(them, 1000, "ada", path, now_us)
        assert not [each for each in them.troubles(now_us) if each.is_open and not each.owner]
    if probe:
        them.probed(Reason(CAUSES[-2], "no answer"), now_us, is_well=False)
        assert not may(them, 1000, "ada", now_us=now_us)
