"""What a site reports of another's work, twice, or in numbers that cannot be: it counts for nothing.

Who may sync as which site is a cell of tests/local/server/test_access.py; sites that keep to the protocol, and ways
that lose and double messages, are in tests/property/test_server_sync.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.services.access_world import submission, sync
from tests.worlds.services.attack_world import Attacked, attacked

from tidemill.server.core.sync import UNTAKEN_MAX
from tidemill.server.database.unit_of_work import COMPLAINTS_MAX

__all__ = ["attacked"]
USAGE = {"payloads": 1, "wall_us": 5}
EVIDENCE = {"failure": "payload", "message": "forged", "at_us": 1}


class Lease:
    """Ten events of `ada` that `lrz` has, and reports by number."""

    def __init__(self, world: Attacked, name: str) -> None:
        self.world, self.name = world, name
        reply = world.call("ada", "POST", "/v1/jobs", submission(f"ada-{name}", f"k-{name}", site="lrz"))
        assert reply[0] == 200, reply
        self.job = int(reply[1]["first_job"])
        _, answer = world.call("lrz", "POST", "/v1/sync", sync("lrz"))
        found = [each for each in answer["orders"] if each["t"] == "lease" and each["job"] == self.job]
        self.lease = int(found[0]["lease"])
        self.have = max(each["n"] for each in answer["orders"])

    def report(self, kind: str, number: int, **changes: Any) -> dict[str, Any]:
        base: dict[str, Any] = {
            "t": kind,
            "n": number,
            "lease": self.lease,
            "job": self.job,
            "first": 0,
            "count": 5,
        }
        more: dict[str, dict[str, Any]] = {
            "done": {"outputs": False, "usage": USAGE},
            "release": {"reason": "forged", "evidence": EVIDENCE},
            "failure": {"event": 3, "final": True, "evidence": EVIDENCE},
        }
        return base | more[kind] | changes

    def send(self, who: str, *reports: dict[str, Any], have: int = 0) -> tuple[int, Any]:
        body = self.world.busy(site=who, have=have) | {"reports": list(reports)}
        return self.world.call(who, "POST", "/v1/sync", body)

    def row(self) -> dict[str, Any]:
        detail = self.world.call("ada", "GET", f"/v1/jobs/{self.job}")[1]
        row: dict[str, Any] = detail["row"]
        return {
            **row,
            "failures": detail["failures"],
            "outputs": detail["outputs"],
            "usage": detail["usage"],
        }


numbers = iter(range(1, 10_000_000))  #: of reports, ascending over the module's tests as a site's do


@pytest.fixture
def lease(attacked: Attacked, request: pytest.FixtureRequest) -> Lease:
    return Lease(attacked, f"l{next(numbers)}")


def test_a_site_reports_nothing_of_anothers_lease(lease: Lease) -> None:
    before = lease.row()
    output = {"name": "o", "url": "file:///etc/passwd", "size_bytes": 1, "sha256": "0" * 64}
    forged = [
        lease.report("done", next(numbers)),
        lease.report("done", next(numbers), outputs=True),
        lease.report("release", next(numbers)),
        lease.report("failure", next(numbers)),
        lease.report("failure", next(numbers), event=None),
        {"t": "delivered", "n": next(numbers), "job": lease.job, "outputs": [output], "evidence": None},
        {"t": "delivered", "n": next(numbers), "job": lease.job, "outputs": [], "evidence": EVIDENCE},
        {"t": "log", "n": next(numbers), "request": 1, "found": True, "stdout": "forged", "stderr": "forged"},
    ]
    for each in forged:
        status, answer = lease.send("nemo", each)
        assert status == 200, (each, answer)  # taken, and passed over
    assert lease.row() == before
    assert len(lease.world.events("report.refused")) >= 5


def test_a_report_that_comes_again_counts_once(lease: Lease) -> None:
    done = lease.report("done", next(numbers))
    for _ in range(3):
        assert lease.send("lrz", done, have=lease.have)[0] == 200
    assert lease.row()["events_done"] == 5
    # under a new number, and for a part of the same events
    for changes in ({}, {"first": 2, "count": 3}, {"first": 0, "count": 1}):
        assert lease.send("lrz", lease.report("done", next(numbers), **changes), have=lease.have)[0] == 200
        assert lease.row()["events_done"] == 5
    failed = lease.report("failure", next(numbers), first=2, count=1, event=2)
    assert lease.send("lrz", failed, have=lease.have)[0] == 200
    row = lease.row()
    assert (row["events_done"], row["events_failed"]) == (5, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"count": -5}, {"count": 0}, {"count": 2**62}, {"count": 2**64}, {"first": -1}, {"first": 2**63 - 1},
        {"first": 8, "count": 5}, {"count": 1e30}, {"count": "5"}, {"count": 5.5}, {"job": -1}, {"lease": 2**63},
        {"lease": -1}, {"usage": {"payloads": -1, "wall_us": -10**18}}, {"usage": {"payloads": 2**63}}, {"n": -1},
        {"n": 2**64},
    ],
    ids=str,
)  # fmt: skip
def test_counts_that_cannot_be_are_refused_or_count_nothing(lease: Lease, changes: dict[str, Any]) -> None:
    before = lease.row()
    status, answer = lease.send("lrz", lease.report("done", next(numbers), **changes), have=lease.have)
    assert status in (200, 400), answer
    after = lease.row()
    assert 0 <= after["events_done"] <= after["events"] == before["events"]
    assert after["events_leased"] >= 0
    if "usage" not in changes:
        assert after["events_done"] == 0, answer
    assert all(value >= 0 for value in after["usage"].values())
    assert lease.world.call("ada", "GET", "/v1/counts")[0] == 200  # what was reported can be read


def test_an_allocation_belongs_to_the_site_that_reports_it(lease: Lease) -> None:
    allocation = {
        "t": "allocation", "n": next(numbers), "name": "td-1", "batch_id": "4711", "state": "RUNNING", "nodes": 2,
        "cores": 8, "at_us": 2_000, "reason": "", "busy_us": 0, "slot_us": 0, "hosts": ["nid01"],
        "started_us": 1_000_000, "ended_us": 0,
    }  # fmt: skip
    assert lease.send("lrz", allocation, have=lease.have)[0] == 200
    taken = {**allocation, "n": next(numbers), "state": "FAILED", "reason": "forged", "hosts": ["evil"]}
    ran = {"t": "ran", "n": next(numbers), "allocation": "td-1", "ran": [[lease.job, "0-4", -1]]}
    assert lease.send("nemo", taken, ran)[0] in (200, 400)
    rows = lease.world.call("olga", "GET", "/v1/allocations?site=lrz")[1]
    assert [(each["name"], each["state"]) for each in rows if each["name"] != "tm-lrz"] == [
        ("td-1", "RUNNING")
    ]
    found = lease.world.call("olga", "GET", "/v1/audit?site=lrz&batch_id=4711")[1]
    assert [each["hosts"] if "hosts" in each else each["nodes"] for each in found] == [["nid01"]]
    assert "forged" not in str(rows) + str(found)


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "x" * 10_000, "a\nb", "\x1b[2J"])
def test_names_of_allocations_and_hosts_do_no_harm(lease: Lease, name: str) -> None:
    allocation = {
        "t": "allocation", "n": next(numbers), "name": name, "batch_id": name, "state": "RUNNING", "nodes": 1,
        "cores": 1, "at_us": 1, "reason": name, "busy_us": 0, "slot_us": 0, "hosts": [name], "started_us": 1,
        "ended_us": 0,
    }  # fmt: skip
    assert lease.send("nemo", allocation)[0] in (200, 400)
    assert lease.world.call("olga", "GET", "/v1/allocations?site=nemo")[0] == 200
    assert lease.world.ask("olga", "GET", "/allocations")[0] == 200


def test_a_site_speaks_for_itself_only(lease: Lease) -> None:
    before = lease.world.content()
    for claimed in ("lrz", "nobody", "LRZ", "lrz ", "../lrz"):
        body = lease.world.busy(site=claimed) | {"reports": [lease.report("done", 1)]}
        assert lease.world.call("nemo", "POST", "/v1/sync", body)[0] in (400, 403), claimed
    assert lease.world.content() == before


def test_a_site_that_takes_no_orders_makes_no_more_of_them_and_does_not_fill_the_log(
    attacked: Attacked,
) -> None:
    """What is refused is answered with an order to discard it: before, 20,000 in each sync, without end."""
    lease = Lease(attacked, f"l{next(numbers)}")
    flood = [lease.report("done", 0, job=10**9 + k, outputs=True) for k in range(10_000)]
    before, sent, acked = len(attacked.events("report.refused")), 0, -1
    for _ in range(2 + UNTAKEN_MAX // len(flood)):
        for each in flood:
            each["n"] = next(numbers)
        status, answer = lease.send("lrz", *flood)
        assert status == 200
        sent += 1
        if answer["acked"] == acked:
            break
        acked = answer["acked"]
    else:
        pytest.fail("the server takes reports without end")
    assert len(attacked.events("report.refused")) - before <= sent * COMPLAINTS_MAX
    assert attacked.events("reports.refused")[-1]["unlogged"] == len(flood) - COMPLAINTS_MAX
    # it goes on as soon as the site takes what it was sent
    have = 0
    while answer["orders"]:
        have = max(each["n"] for each in answer["orders"])
        status, answer = lease.send("lrz", lease.report("done", flood[-1]["n"]), have=have)
        assert status == 200
    assert answer["acked"] == flood[-1]["n"]
    assert lease.row()["events_done"] == 5
