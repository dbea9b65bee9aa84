"""What the broker did and why, as `harvest/account/broker_log.py` has it.

SITE/harvest/YYYY-MM-DD.jsonl   what has changed; appends only

Evidence for people and for `site harm`; what must survive a crash is in the site's log. One write(2) a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tidemill import clock
from tidemill.errors import ProtocolError, SiteError
from tidemill.files import open_append, write_all
from tidemill.harvest.account.broker_log import (
    AnyRecord,
    PlanMade,
    PoolGone,
    decode,
    encode,
    file_name,
    plan_name,
)
from tidemill.log import Log
from tidemill.site.nodes.selection import Named

DAYS_KEPT = 400
RECENT_BYTES_MAX = 32 << 20
POOLS_MAX = 200
_NAME = re.compile(r"\d{4}-\d\d-\d\d\.jsonl")
_log = Log("harvest")


def plan_record(plan: Named, name: str, *, at_s: float) -> PlanMade:
    """What a plan saw and decided, as a record. Pure."""
    decision, situation = plan.decision, plan.situation
    held = [each for each in situation.holdings if not each.waiting]
    return PlanMade(
        at_s=at_s,
        plan=name,
        pool=plan.shape.pool,
        snapshot_s=situation.now_s,
        nodes=situation.nodes,
        idle=situation.idle,
        busy=sum(each.width for each in situation.busy),
        held=sum(each.width * each.count for each in held),
        waiting=sum(each.width * each.count for each in situation.holdings if each.waiting),
        queue=len(situation.queue),
        yields_to=decision.yields_to,
        cancel=len(plan.cancel),
        shorten=len(plan.ends_s),
        submit=sum(count for _, count, _ in plan.submit),
        waits_for=plan.waits_for,
        why=decision.why,
        counts=plan.nodes,
    )


class PlanLog:
    """Appends records to the file of their day."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = ""
        self._descriptor = -1
        self._plans = 0
        self._last: dict[str, tuple[object, ...]] = {}  #: pool -> what its last recorded plan decided

    def append(self, records: Sequence[AnyRecord]) -> None:
        """Write the records. A failure is logged: evidence is not worth stopping for."""
        for record in records:
            name = file_name(record.at_s)
            try:
                if name != self._name:
                    self._open(name)
                write_all(self._descriptor, encode(record))  # of a crash only the last lines are missed
            except OSError as error:
                why = f"failed to write `{self._directory / name}`: {error.strerror}"
                _log.error("planlog.unwritten", reason=why)
                return

    def made(self, plan: Named, *, epoch: int, observes: bool) -> PlanMade | None:
        """The record of a plan that acts, yields or differs from the last one of its pool; None for another."""
        decision = plan.decision
        decided = (
            plan.waits_for,
            len(plan.cancel),
            len(plan.ends_s),
            tuple(plan.submit),
            *decision.yields_to,
        )
        is_news = self._last.get(plan.shape.pool) != decided
        if not (is_news or (plan.acts and not observes) or decision.yields_to):
            return None
        self._last[plan.shape.pool] = decided
        self._plans += 1
        return plan_record(plan, plan_name(epoch, self._plans), at_s=clock.now_us() / 1e6)

    def retain(self, pools: Collection[str]) -> None:
        """Forget all other pools, and record that they disappeared. Names of pools follow what users' jobs ask for."""
        gone = sorted(self._last.keys() - set(pools))
        for name in gone:
            del self._last[name]
        self.append([PoolGone(at_s=clock.now_s(), pool=name) for name in gone])

    def recent(self) -> Iterator[AnyRecord]:
        """The records of the last two days, oldest first; at most the last `RECENT_BYTES_MAX` of each. A line that was
        torn by a crash is passed over. Raises SiteError."""
        for name in self._days()[-2:]:
            try:
                with (self._directory / name).open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - RECENT_BYTES_MAX))
                    lines = file.read().split(b"\n")
            except OSError as error:
                raise SiteError(f"failed to read `{self._directory / name}`: {error.strerror}") from error
            for line in lines:
                try:
                    yield decode(line)
                except ProtocolError:
                    continue

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._name = -1, ""

    def _open(self, name: str) -> None:
        self.close()
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = open_append(self._directory / name)
        self._name = name
        for old in self._days()[:-DAYS_KEPT]:
            (self._directory / old).unlink(missing_ok=True)

    def _days(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        return sorted(each.name for each in self._directory.iterdir() if _NAME.fullmatch(each.name))


def shown_pools(plans: Sequence[Named], *, at_s: float) -> list[PlanMade]:
    """The decisions as `LastPoll` has them, at most POOLS_MAX. `at_s`: when they were made."""
    return [plan_record(plan, "", at_s=at_s) for plan in plans[:POOLS_MAX]]
