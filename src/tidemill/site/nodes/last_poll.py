"""SITE/last_poll.json: what the last poll showed and what was decided on it, for `site status`.

The records of plans have changes only; this has the figures of the last poll whether or not they changed anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import read_bounded, replaced
from tidemill.harvest.account.records import PlanMade
from tidemill.log import Log
from tidemill.site.nodes.plan_log import plan_record
from tidemill.site.nodes.selection import Named
from tidemill.wire.monitoring import AwaitedNodes

NAME = "last_poll.json"
BYTES_MAX = 4 << 20
POOLS_MAX = 200
_log = Log("last_poll")


class LastPoll(msgspec.Struct, frozen=True, kw_only=True):
    """`at_s`: when it was decided, seconds since 1970; `pools`: the decision for each, at most POOLS_MAX; `awaits`: why
    no more nodes are asked for, whether or not work waits."""

    at_s: float
    pools: list[PlanMade]
    awaits: AwaitedNodes


def show_poll(site_dir: Path, plans: Sequence[Named], awaits: AwaitedNodes, *, at_s: float) -> None:
    """Write it. Nothing depends on the file: a failure is logged."""
    pools = [plan_record(plan, "", at_s=at_s) for plan in plans[:POOLS_MAX]]
    try:
        with replaced(site_dir / NAME, mode=0o644, durable=False) as file:
            file.write(msgspec.json.encode(LastPoll(at_s=at_s, pools=pools, awaits=awaits)))
    except (OSError, SiteError) as error:
        _log.warning("last_poll.unwritten", reason=str(error))


def read_last_poll(site_dir: Path) -> LastPoll | None:
    """The last poll; None where there is none, or it cannot be read."""
    try:
        content = read_bounded(site_dir / NAME, BYTES_MAX)
        return None if content is None else msgspec.json.decode(content, type=LastPoll)
    except (SiteError, *UNDECODABLE):
        return None
