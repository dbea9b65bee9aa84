"""A failing event does not hold up its job: it is bisected, named with its seed, and skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec, Resources

POISON = (Path(__file__).parent.parent / "payloads" / "poison.py").resolve()
BAD = (17, 4_000, 9_999)
EVENTS = 10_000

APP = """name = "poison"
executable = "{python}"
script = "{script}"
arguments = ["{{first_event}}", "{{events}}", "{{seed}}", "17,4000,9999", "exit"]
events_per_range_max = 500
range_s = 5.0
[resources]
event_s = 0.0005
"""
pytestmark = pytest.mark.fault


def check(it: World, job: int) -> None:
    row = it.wait_campaign("poison", timeout_s=110)
    detail = it.client.job(job)
    assert (row.events_done, row.events_failed) == (EVENTS - len(BAD), len(BAD)), it.tails()
    assert detail.failed == ",".join(str(event) for event in BAD)
    named = {one.event: one for one in it.client.failures(job=job) if one.final}
    assert set(named) == set(BAD)
    for event, one in named.items():
        assert event is not None
        assert one.seed == 1 + detail.seed_base + event
        assert one.evidence.failure == "payload"
        assert one.evidence.exit_status == 3
        assert f"poison: event {event}" in one.evidence.stderr_tail


@pytest.mark.timeout(180)
def test_three_poison_events_among_ten_thousand_in_chunks_are_found_and_skipped() -> None:
    with world(nodes=2) as it:
        text = APP.format(python=sys.executable, script=POISON)
        (it.home / "site" / "apps" / "poison.toml").write_text(text)
        it.restart("agent")
        (job,) = it.submit("poison", JobSpec(app="poison", events=EVENTS, failed_max=3, retries=1))
        check(it, job)
        assert it.client.job(job).row.state == "PARTIAL"


@pytest.mark.timeout(120)
def test_more_failed_events_than_allowed_fail_the_job() -> None:
    with world(nodes=1) as it:
        command = ["/bin/sh", "-c", 'test "$1" != 3', "sh", "{event}"]
        (job,) = it.submit(
            "one", JobSpec(command=command, events=20, retries=0, resources=Resources(event_s=0.01))
        )
        it.wait_campaign("one")
        detail = it.client.job(job)
        assert detail.row.state == "FAILED", it.tails()
        assert detail.failed == "3"
        assert "1 event" in detail.row.reason
