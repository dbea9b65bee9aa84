"""Whose records of closed files count: those of this user's processes, not those of others on the host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from extensions.caches.tests.unit.test_cache_gstream import REAL

from tidemill_caches.figures.collector import FiguresCollector
from tidemill_caches.figures.connections import parse_udp, udp_owners

NOBODY = 65534


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[FiguresCollector]:
    (tmp_path / "figures").mkdir()
    made = FiguresCollector(tmp_path)
    yield made
    made.close()


def test_records_of_ones_own_processes_count(collector: FiguresCollector) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(REAL, ("127.0.0.1", collector.port))
        collector.step(0, 1094)
        sender.sendto(REAL, ("127.0.0.1", collector.port))
        collector.step(0, 1094)
    assert (collector.ledger.total.opens, collector.ledger.foreign) == (4, 0)


def test_what_is_no_record_is_counted_and_changes_nothing(collector: FiguresCollector) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for content in (b"", b"\0", b"{}", REAL[:100], REAL.replace(b"/ds", b"ds")):
            sender.sendto(content, ("127.0.0.1", collector.port))
        collector.step(0, 1094)
    assert (collector.ledger.total.opens, collector.ledger.foreign) == (0, 0)
    assert collector.ledger.malformed > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="sends as another user")
def test_records_that_another_user_of_the_host_sends_are_counted_and_left_out(
    collector: FiguresCollector,
) -> None:
    os.seteuid(NOBODY)
    try:
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    finally:
        os.seteuid(0)
    with other:
        other.sendto(REAL, ("127.0.0.1", collector.port))
        collector.step(0, 1094)
    assert (collector.ledger.total.opens, collector.ledger.foreign) == (0, 1)


def test_the_kernels_table_of_udp_is_read() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("127.0.0.1", 0))
        owners = udp_owners()
        assert owners is not None
        assert owners[mine.getsockname()[1]] == os.geteuid()
    assert parse_udp("") == {}
    assert parse_udp("head\n 1: 0100007F:ZZ 0:0 07 0:0 00:0 0 7 0\n  2: x") == {}
