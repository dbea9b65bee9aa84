"""What a supervisor remembers of its findings."""

from __future__ import annotations

from tidemill_caches.engine import health
from tidemill_caches.engine.state import CacheFinding

ORIGIN = "root://origin.example:1094"


def test_findings_are_remembered_with_their_time_and_their_number_is_bounded() -> None:
    full = CacheFinding(state="fail", check="descriptors", found="240 of 240 descriptors")
    origin = CacheFinding(state="warn", check="origin", found=f"`{ORIGIN}//d/` does not answer")
    kept = health.remembered([], [full, origin], now_us=1_000_000)
    kept = health.remembered(kept, [full], now_us=9_000_000)
    kept = health.remembered(kept, [full], now_us=30_000_000)

    assert [(each.check, each.subject, each.first_us, each.last_us) for each in kept] == [
        ("descriptors", "", 1_000_000, 9_000_000),
        ("origin", f"{ORIGIN}//d/", 1_000_000, 1_000_000),
        ("descriptors", "", 30_000_000, 30_000_000),
    ]
    for number in range(200):
        kept = health.ended(kept, f"end {number}", now_us=number)
    assert len(kept) == health.PAST_MAX
    assert health.started(kept, now_us=777)[-1].last_us == 777
