"""Failures of a report by month, site, class and component. Streams; keeps counts only."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec

from tidemill.errors import UNDECODABLE
from tidemill.model.failure import Evidence, fault_of
from tidemill.server.archive.operation import month_of
from tidemill_report.operation.source import ReportFiles

COLUMNS = ("job", "campaign", "site", "final", "evidence")
UNREADABLE = "unreadable"
_EVIDENCE = msgspec.json.Decoder(Evidence)


class FailureKey(NamedTuple):
    """`component`: whose fault it was (`FaultKind`), as evidence or else the class says."""

    month: str
    site: str
    failure: str
    component: str
    is_final: bool


def count_failures(source: ReportFiles) -> Counter[FailureKey]:
    """Failures of the window by these keys. One that this version cannot read counts as `unreadable`."""
    found: Counter[FailureKey] = Counter()
    for path, piece in source.pieces("failures", COLUMNS):
        table = source.of_campaign(piece, path)
        sites, finals = table["site"].to_pylist(), table["final"].to_pylist()
        for site, final, body in zip(sites, finals, table["evidence"].to_pylist(), strict=True):
            try:
                evidence = _EVIDENCE.decode(body)
            except UNDECODABLE:
                found[FailureKey("", site or "", UNREADABLE, UNREADABLE, bool(final))] += 1
                continue
            if source.window.has(evidence.at_us):
                component = str(fault_of(evidence))
                key = (month_of(evidence.at_us), site or "", str(evidence.failure), component, bool(final))
                found[FailureKey(*key)] += 1
    return found
