"""A site whose every number is as small or as large as can be, and whose clock is years off: all can still be read.

Counts of events are in test_attack_reports.py, numbers that lock a site out in tests/attack/site/test_attack_epoch.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from tests.attack.server.test_attack_reports import Lease, numbers
from tests.worlds.services.attack_world import Attacked, attacked

from tidemill.wire.api import SyncRequest
from tidemill.wire.views import types

__all__ = ["attacked"]
YEAR_10000_US = 253_402_300_800 * 10**6
VALUES = [(-(2**63), -1e308), (-1, -1.0), (2**53, 1e308), (YEAR_10000_US, 1e30), (2**63 - 1, 1.7e308)]
READ = [
    "/v1/counts", "/v1/jobs", "/v1/failures", "/v1/sites", "/v1/campaigns", "/v1/owners", "/metrics", "/",
    "/v1/allocations?site=lrz", "/v1/placements?site=lrz", "/v1/audit?site=lrz&batch_id=4711", "/v1/core-hours",
    "/v1/audit?site=lrz&node=nid01&at_us=1", "/hospital",
]  # fmt: skip
PAGES_MAX = 150  #: that are reached by links


def filled(kind: inspect.Type, whole: int, number: float) -> Any:
    """A message of this type in which each number is this one, and each list has one entry of each kind."""
    plain = {
        inspect.IntType: whole,
        inspect.AnyType: whole,
        inspect.FloatType: number,
        inspect.BoolType: True,
    }
    match kind:
        case inspect.UnionType(types=types):
            return filled(types[0], whole, number)
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.ListType(item_type=item):
            kinds = item.types if isinstance(item, inspect.UnionType) else (item,)
            return [filled(each, whole, number) for each in kinds if not isinstance(each, inspect.NoneType)]
        case inspect.TupleType(item_types=items):
            return [filled(each, whole, number) for each in items]
        case inspect.DictType(value_type=value):
            return {"x": filled(value, whole, number)}
        case inspect.StructType():
            values = {each.encode_name: filled(each.type, whole, number) for each in kind.fields}
            tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
            return list(values.values()) if kind.array_like else tag | values
    return plain.get(type(kind), "x")


def messages(lease: Lease, whole: int, number: float) -> Iterator[dict[str, Any]]:
    """What `lrz` sends: one report, part of its view, or figure of its capacity after the other, with such numbers."""
    honest = lease.world.busy(site="lrz", have=lease.have)
    base = honest | {"host": os.uname().nodename}
    extreme = filled(inspect.type_info(SyncRequest), whole, number)
    for report in extreme["reports"]:
        known = {
            "n": next(numbers),
            "job": lease.job,
            "lease": lease.lease,
            "name": "td-1",
            "batch_id": "4711",
        }
        named = {**report, **{key: value for key, value in known.items() if key in report}}
        yield base | {"reports": [named]}
        if "count" in report:
            yield base | {"reports": [named | {"n": next(numbers), "first": 0, "count": 5}]}
    for name, kind in types().items():
        yield base | {"views": {name: filled(inspect.type_info(kind.record), whole, number)}}
    for name, figure in extreme["capacity"].items():
        yield base | {"capacity": honest["capacity"] | {name: figure}}
    yield base | {"offers": extreme["offers"], "allocations": extreme["allocations"]}


@pytest.mark.parametrize(("whole", "number"), VALUES)
def test_every_page_and_answer_can_be_read_whatever_numbers_a_site_reports(
    attacked: Attacked, whole: int, number: float
) -> None:
    lease = Lease(attacked, f"n{next(numbers)}")
    for message in messages(lease, whole, number):
        status, answer = attacked.call("lrz", "POST", "/v1/sync", message)
        assert status in (200, 400), answer
    seen: set[str] = set()
    waiting = [*READ, f"/v1/jobs/{lease.job}", f"/v1/jobs/{lease.job}/times", "/allocations", "/sites/lrz"]
    while waiting and len(seen) < PAGES_MAX:
        path = waiting.pop(0)
        status, _, body = attacked.ask("olga", "GET", path)
        assert status < 500, (path, body[:300])
        found = re.findall(r'href="(/[^"#]*)"', body.decode()) if b"<html" in body else []
        seen.add(path)
        waiting += [each for each in (one.replace("&amp;", "&") for one in found) if each not in seen]
    assert attacked.call("nemo", "POST", "/v1/sync", attacked.busy(site="nemo"))[0] == 200
    attacked.call("lrz", "POST", "/v1/sync", attacked.busy(site="lrz", offers=[]))


def allocation(name: str, at_us: int) -> dict[str, Any]:
    return {
        "t": "allocation", "n": next(numbers), "name": name, "batch_id": name, "state": "COMPLETED", "nodes": 2**62,
        "cores": 8, "at_us": at_us, "reason": "", "busy_us": 0, "slot_us": 0, "hosts": ["nid01"],
        "started_us": 1, "ended_us": 2,
    }  # fmt: skip


def test_allocations_of_a_day_when_a_sites_clock_was_years_ahead_come_before_later_ones(
    attacked: Attacked,
) -> None:
    lease = Lease(attacked, f"n{next(numbers)}")
    for name, at_us in (("ahead", 2**63 - 1), ("ahead-2", YEAR_10000_US), ("later", None)):
        now_us = msgspec.json.decode(attacked.ask(None, "GET", "/v1/health")[2])["now_us"]
        assert lease.send("lrz", allocation(name, now_us if at_us is None else at_us))[0] == 200
    rows = attacked.call("olga", "GET", "/v1/allocations?site=lrz")[1]
    assert rows[0]["name"] == "later"
    assert {"ahead", "ahead-2"} <= {each["name"] for each in rows}
