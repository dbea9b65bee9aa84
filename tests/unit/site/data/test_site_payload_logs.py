"""Logs of payloads as the bundles' indexes name them, and whether more may come."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from tidemill.node.framed import frame
from tidemill.site.data.payload_logs import find_log
from tidemill.wire.api import FetchLogOrder
from tidemill.wire.node import IndexEntry


def keep(fleet: Path, kind: str, name: str, text: bytes) -> None:
    """A member of event 0 of job 7 at the end of the fleet's one bundle."""
    bundle = fleet / "bundle" / "p.r0.i1.tar"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    offset = bundle.stat().st_size if bundle.exists() else 0
    with bundle.open("ab") as file:
        file.write(text)
    entry = IndexEntry(
        kind=kind, job=7, first=0, count=1, name=name, offset=offset, length=len(text),
        sha256=hashlib.sha256(text).hexdigest(), truncated=False,
    )  # fmt: skip
    with bundle.with_suffix(".idx").open("ab") as file:
        file.write(frame(msgspec.json.encode(entry)))


@pytest.mark.parametrize(
    ("members", "stderr", "is_settled"),
    [
        ([], "", False),  # the record of a failure can be here before its log
        ([("log", "stderr", b"warning\n")], "warning\n", True),
        ([("output", "stdout", b"42\n")], "", True),  # it printed no log, and outputs come with all logs
    ],
)
def test_a_log_is_final_once_a_bundle_knows_of_its_event(
    tmp_path: Path, members: list[tuple[str, str, bytes]], stderr: str, is_settled: bool
) -> None:
    fleet = tmp_path / "e1-1"
    for kind, name, text in members:
        keep(fleet, kind, name, text)
    order = FetchLogOrder(n=1, request=3, job=7, event=0)
    fetched, settled = find_log(order, [fleet])
    assert (fetched.request, fetched.found, fetched.stderr, settled) == (3, bool(stderr), stderr, is_settled)
    assert not find_log(msgspec.structs.replace(order, job=8), [fleet])[1]
