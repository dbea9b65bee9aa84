"""XCache's records: read as Debian's XCache sends them, and anything else is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import ProtocolError
from tidemill_caches.figures.gstream import SEQUENCE, Sequences, parse_datagram

#: as XRootD 5.5.3 sent it
REAL = (
    b'{"code":"g","pseq":  1,"stod":1795404694,"sid":264145738656289,"src":{"site":"","host":"vm","port":15018,'
    b'"inst":"cache"},"gs":{"type":"C","tbeg":1795405341,"tend":1795405342}}\n'
    b'{"event":"file_close","lfn":"/ds/a/g.root","size":10500000,"blk_size":1048576,"n_blks":11,"n_blks_done":11,'
    b'"access_cnt":1,"attach_t":1795405341,"detach_t":1795405341,"remotes":["127.0.0.1:30438"],"b_hit":9830400,'
    b'"b_miss":669600,"b_bypass":0,"n_cks_errs":0}\n'
    b'{"event":"file_close","lfn":"/ds/a/g.root","size":10500000,"blk_size":1048576,"n_blks":11,"n_blks_done":11,'
    b'"access_cnt":2,"attach_t":1795405341,"detach_t":1795405341,"remotes":[],"b_hit":10500000,"b_miss":0,'
    b'"b_bypass":0,"n_cks_errs":0}\x00'
)


def changed(**changes: Any) -> bytes:
    """The first real record with other values."""
    head, first, _ = REAL.split(b"\n")
    return head + b"\n" + json.dumps({**json.loads(first), **changes}).encode() + b"\0"


def test_a_real_datagram_is_read() -> None:
    datagram = parse_datagram(REAL)
    assert datagram is not None
    assert (datagram.number, datagram.malformed) == (1, 0)
    first, second = datagram.closes
    assert (first.name, first.size_bytes, first.origins) == ("/ds/a/g.root", 10_500_000, ["127.0.0.1:30438"])
    assert (first.hit_bytes, first.miss_bytes, first.served_bytes) == (9_830_400, 669_600, 10_500_000)
    assert first.bytes_of(11) == 10_500_000
    assert (second.access, second.origins) == (2, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"size": -1},
        {"b_hit": 1 << 70},
        {"n_blks_done": 12},
        {"n_blks": 1 << 40, "n_blks_done": 1 << 39},
        {"blk_size": 0},
        {"lfn": "relative"},
        {"lfn": "/a\nb"},
        {"lfn": "/" + "x" * 5000},
        {"remotes": ["a"] * 100},
        {"access_cnt": "1"},
    ],
)
def test_a_record_that_no_xcache_sends_is_counted_as_malformed(changes: dict[str, Any]) -> None:
    datagram = parse_datagram(changed(**changes))
    assert datagram is not None
    assert (datagram.closes, datagram.malformed) == ([], 1)


def test_other_events_and_other_streams_are_left_alone() -> None:
    datagram = parse_datagram(changed(event="file_open"))
    assert datagram is not None
    assert not datagram.closes
    assert not datagram.malformed
    assert parse_datagram(REAL.replace(b'"type":"C"', b'"type":"T"')) is None
    assert parse_datagram(b'{"code":"=","pseq":1,"stod":1,"sid":1,"src":{}}') is None


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for text in (content, REAL.split(b"\n")[0] + b"\n" + content):
        with contextlib.suppress(ProtocolError):
            parse_datagram(text)


@given(st.sets(st.integers(0, 40), max_size=20))
def test_datagrams_that_do_not_arrive_are_counted(dropped: set[int]) -> None:
    sequences = Sequences()
    sent = range(45)
    for index in sent:
        if index not in dropped:
            sequences.on_datagram("one", (index + 980) % SEQUENCE)
    # those before the first that arrives are lost from number 1 on
    first, last = min(set(sent) - dropped), max(set(sent) - dropped)
    before = (first + 980) % SEQUENCE - 1
    assert sequences.lost == max(0, before) + len([each for each in dropped if first < each < last])


def test_a_restarted_server_starts_from_zero_and_late_records_are_counted() -> None:
    sequences = Sequences()
    for number in (1, 2, 3):
        sequences.on_datagram("one", number)
    for number in (1, 3, 2, 4):
        sequences.on_datagram("two", number)
    assert sequences.lost == 0
