"""Who may see the page of a run: its owner and operators, no other submitter, no site, no stranger."""

from __future__ import annotations

from typing import Any

from tests.worlds.services.access_world import submission
from tests.worlds.services.attack_world import Attacked, attacked

__all__ = ["attacked"]
RUN = "levels-20261125T030000Z"


def test_a_run_is_seen_by_its_owner_and_by_operators_only(attacked: Attacked) -> None:
    level: dict[str, Any] = {"run": RUN, "number": 1, "planned": [{"title": "4", "level": 4}]}
    campaign = f"stress-{RUN}-1-0011223344"
    body = submission(campaign, "k-stress", timed=True, stress=level)
    assert attacked.call("ada", "POST", "/v1/jobs", body)[0] == 200
    for who, wanted in (("ada", 200), ("olga", 200), ("bob", 404), ("lrz", 403), (None, 303)):
        status, _, page = attacked.ask(who, "GET", f"/stress/{RUN}")
        assert status == wanted, who
        assert (b"0 of 1 level ended" in page) == (wanted == 200)
    for path in (f"/campaigns/{campaign}", f"/jobs/{attacked.job_of(f'ada/{campaign}')}"):
        page = attacked.ask("ada", "GET", path)[2]
        assert f'<a href="/stress/{RUN}?owner=ada">{RUN}</a>'.encode() in page, path
    assert attacked.ask("ada", "GET", "/stress/unheard-of")[0] == 404
