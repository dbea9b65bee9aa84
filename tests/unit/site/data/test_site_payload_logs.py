"""Logs of payloads as the bundles' indexes name them, and whether more may come."""

from __future__ import annotations

import hashlib
from concurrent.futures import wait
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import pytest
from tests.unit.site.state.test_site_log import open_log

from tidemill.node.framed import frame
from tidemill.site.data.payload_logs import LOG_BYTES_MAX, LogFetches, find_log
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.site.state.served_site import HelperPools, ServedSite, open_pools
from tidemill.wire.api import FetchLogOrder
from tidemill.wire.node import IndexEntry


def keep(fleet: Path, kind: str, name: str, text: bytes, *, event: int = 0) -> None:
    """A member of an event of job 7 at the end of the fleet's one bundle."""
    bundle = fleet / "bundle" / "p.r0.i1.tar"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    offset = bundle.stat().st_size if bundle.exists() else 0
    with bundle.open("ab") as file:
        file.write(text)
    entry = IndexEntry(
        kind=kind, job=7, first=event, count=1, name=name, offset=offset, length=len(text),
        sha256=hashlib.sha256(text).hexdigest(), truncated=False,
    )  # fmt: skip
    with bundle.with_suffix(".idx").open("ab") as file:
        file.write(frame(msgspec.json.encode(entry)))


@pytest.mark.parametrize(
    ("members", "texts", "is_settled"),
    [
        ([], ("", ""), False),  # the record of a failure can be here before its log
        ([("log", "stderr", b"warning\n")], ("", "warning\n"), True),
        ([("output", "hits", b"42\n")], ("", ""), True),  # it printed no log, and outputs come with all logs
        ([("output", "stdout", b"42\n")], ("42\n", ""), True),  # kept as an output, it is a log as well
    ],
)
def test_a_log_is_final_once_a_bundle_knows_of_its_event(
    tmp_path: Path, members: list[tuple[str, str, bytes]], texts: tuple[str, str], is_settled: bool
) -> None:
    fleet = tmp_path / "e1-1"
    for kind, name, text in members:
        keep(fleet, kind, name, text)
    order = FetchLogOrder(n=1, request=3, job=7, event=0)
    fetched, settled = find_log(order, [fleet])
    assert (fetched.request, fetched.found, settled) == (3, any(texts), is_settled)
    assert (fetched.stdout, fetched.stderr) == texts
    assert not find_log(msgspec.structs.replace(order, job=8), [fleet])[1]


def test_without_an_event_the_log_is_of_one_payload(tmp_path: Path) -> None:
    fleet = tmp_path / "e1-1"
    keep(fleet, "log", "stderr", b"event 6 failed\n", event=6)
    keep(fleet, "output", "stdout", b"event 8\n", event=8)
    fetched, _ = find_log(FetchLogOrder(n=1, request=3, job=7, event=None), [fleet])
    assert (fetched.stdout, fetched.stderr) == ("event 8\n", "")


def test_a_kept_stdout_goes_before_that_of_an_earlier_try(tmp_path: Path) -> None:
    fleet = tmp_path / "e1-1"
    keep(fleet, "log", "stdout", b"half\n")
    keep(fleet, "output", "stdout", b"whole\n")
    assert find_log(FetchLogOrder(n=1, request=3, job=7, event=0), [fleet])[0].stdout == "whole\n"


def test_a_long_stdout_is_shown_at_both_ends_with_what_is_left_out_between(tmp_path: Path) -> None:
    fleet = tmp_path / "e1-1"
    keep(fleet, "output", "stdout", b"first\n" + b"x" * (5 << 20) + b"\nlast\n")
    fetched, _ = find_log(FetchLogOrder(n=1, request=3, job=7, event=0), [fleet])
    assert fetched.stdout.startswith("first\n")
    assert fetched.stdout.endswith("\nlast\n")
    assert f"\n... {(5 << 20) + 12 - LOG_BYTES_MAX} bytes left out ...\n" in fetched.stdout
    assert len(fetched.stdout) < LOG_BYTES_MAX + 100


class _Searched(NamedTuple):
    """What `LogFetches` asks of the site."""

    state: site_state.SiteState
    log: SiteLog
    fleets_dir: Path
    pools: HelperPools


def test_nothing_is_kept_of_a_request_that_ended_and_a_bundle_that_cannot_be_read_ends_no_tick(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "log", 1)
    pools = open_pools()
    site = _Searched(log.pool.state, log, tmp_path / "fleets", pools)
    fetches = LogFetches(cast("ServedSite", site))
    try:
        (tmp_path / "fleets" / "f1").mkdir(parents=True)
        (tmp_path / "fleets" / "f1" / "bundle").symlink_to("bundle")  # ELOOP, as of a damaged file system
        log.apply(site_state.FleetOpened(fleet="f1", at_us=1))
        log.apply(
            site_state.Replied(acked=0, orders=[FetchLogOrder(n=1, request=3, job=7, event=0)], at_us=0)
        )
        fetches.step()
        wait(fetches.under_way)
        fetches.step()  # finds nothing yet: it looks again for a second
        assert list(fetches._missing) == [3]
        log.pool.state.fetches.clear()
        wait(fetches.under_way)
        fetches.step()
        assert not fetches._missing
        assert not fetches.under_way
    finally:
        pools.close()
        log.close()
