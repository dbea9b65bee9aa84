"""What pilots remark on how they do things: counted for the metrics, and told in the agent's log, each way once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidemill.log import Log
from tidemill.wire.node import Noted, Record, Started

KINDS_MAX = 200
"""Different kinds of remarks that are counted and told."""

_log = Log("agent")


class Remarks:
    """Remarks of all pilots since the agent's start."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  #: by topic and mode

    def take(self, records: Iterable[Record]) -> None:
        """Look through new records."""
        for record in records:
            if type(record) is Started:
                _tell_isolation(record)
            elif type(record) is Noted:
                self._count(record)

    def _count(self, record: Noted) -> None:
        """The first of its kind is told."""
        kind = (record.topic, record.mode)
        if kind not in self.counts:
            if len(self.counts) >= KINDS_MAX:
                return
            _log.info(
                "node.noted", pilot=record.p, topic=record.topic, mode=record.mode, reason=record.message
            )
        self.counts[kind] += 1


def _tell_isolation(record: Started) -> None:
    """A site's operator should hear of it when the kernel gave payloads no place of their own."""
    if record.isolation != "namespaces":
        fields = {
            "pilot": record.p,
            "node": record.node,
            "isolation": record.isolation,
            "reason": record.note,
        }
        _log.warning("pilot.not_isolated", **fields)
