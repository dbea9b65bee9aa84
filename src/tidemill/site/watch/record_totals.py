"""What pilots' records add up to since the agent's start, for the metrics: payloads, events, failures, slots, remarks.

Remarks of pilots on how they do things also go to the agent's log, the first of each kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tidemill.log import Log
from tidemill.model.failure import FailureClass
from tidemill.model.metrics import AGENT, OTHER, Sample
from tidemill.site.setup.limitations import WITHOUT_NAMESPACES
from tidemill.wire.node import Done, Ended, Failed, Noted, Record, Started

_REASONS = frozenset(AGENT["tidemill_pilots_ended_total"].labels["reason"].values)
_CLASSES = frozenset(str(each) for each in FailureClass)
KINDS_MAX = 200
"""Different kinds of remarks that are counted and logged."""

_log = Log("agent")


class RecordTotals:
    """Sums of all pilots' records."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._rss_kb = 0
        self._ended: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._remarks: Counter[tuple[str, str]] = Counter()  #: by topic and mode

    def add(self, records: Iterable[Record]) -> None:
        """Add new records."""
        for record in records:
            kind = type(record)
            if kind is Done:
                self._done(record)  # type: ignore[arg-type]  # mypy does not narrow by `type(...) is`
            elif isinstance(record, Failed):
                self._sums["failed"] += record.count if record.event is None else 1
                self._failures[record.failure if record.failure in _CLASSES else OTHER] += 1
            elif isinstance(record, Started):
                self._sums["pilots"] += 1
                _log_isolation(record)
            elif isinstance(record, Noted):
                self._count(record)
            elif isinstance(record, Ended):
                self._ended[record.reason if record.reason in _REASONS else OTHER] += 1
                self._sums["busy_us"] += record.busy_us
                self._sums["idle_us"] += max(0, record.slot_us - record.busy_us)

    def _done(self, record: Done) -> None:
        sums = self._sums
        sums["kept"] += record.count
        sums["payloads"] += record.payloads
        sums["wall_us"] += record.wall_us
        sums["setup_us"] += record.setup_us
        sums["user_us"] += record.user_us
        sums["system_us"] += record.system_us
        sums["read"] += record.read_bytes or 0
        sums["write"] += record.write_bytes or 0
        self._rss_kb = max(self._rss_kb, record.rss_kb)

    def _count(self, record: Noted) -> None:
        """Count a remark; the first of its kind is logged."""
        kind = (record.topic, record.mode)
        if kind not in self._remarks:
            if len(self._remarks) >= KINDS_MAX:
                return
            _log.info(
                "node.noted", pilot=record.p, topic=record.topic, mode=record.mode, reason=record.message
            )
        self._remarks[kind] += 1

    def samples(self) -> Iterator[Sample]:
        """The sums as they stand."""
        sums = self._sums
        yield Sample("tidemill_pilots_started_total", sums["pilots"])
        for reason in sorted(_REASONS):
            yield Sample("tidemill_pilots_ended_total", self._ended[reason], (("reason", reason),))
        yield Sample("tidemill_payloads_total", sums["payloads"])
        yield Sample("tidemill_payload_wall_seconds_total", sums["wall_us"] / 1e6)
        yield Sample("tidemill_payload_setup_seconds_total", sums["setup_us"] / 1e6)
        for mode in ("user", "system"):
            yield Sample("tidemill_payload_cpu_seconds_total", sums[f"{mode}_us"] / 1e6, (("mode", mode),))
        for direction in ("read", "write"):
            yield Sample("tidemill_payload_bytes_total", sums[direction], (("direction", direction),))
        yield Sample("tidemill_payload_resident_max_bytes", self._rss_kb * 1024)
        for outcome in ("kept", "failed"):
            yield Sample("tidemill_events_total", sums[outcome], (("outcome", outcome),))
        for failure, count in sorted(self._failures.items()):
            yield Sample("tidemill_failures_total", count, (("class", failure),))
        for state in ("busy", "idle"):
            yield Sample("tidemill_slot_seconds_total", sums[f"{state}_us"] / 1e6, (("state", state),))
        for (topic, mode), count in sorted(self._remarks.items()):
            yield Sample("tidemill_noted_total", count, (("topic", topic), ("mode", mode)))


def _log_isolation(record: Started) -> None:
    """A site's operator should hear of it when the kernel gave payloads no place of their own."""
    if record.isolation != "namespaces":
        fields = {
            "pilot": record.p,
            "node": record.node,
            "isolation": record.isolation,
            "reason": record.note,
            "open": WITHOUT_NAMESPACES,
        }
        _log.warning("pilot.not_isolated", **fields)
