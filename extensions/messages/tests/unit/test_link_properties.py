"""broker.py and link.py: what a message's properties may hold without ending the connection that reads it."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill_messages.broker import library
from tidemill_messages.link import Delivery, Link

library()
from pika import frame, spec  # noqa: E402 - as `library` leaves it

USER, KIND = b"cms", b"submit"
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, TYPE, USER_ID = 1 << 15, 1 << 14, 1 << 13, 1 << 5, 1 << 4
DEEP = 5000


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def header_frame(flags: int, properties: bytes) -> bytes:
    content = struct.pack(">HHQ", spec.BasicProperties.INDEX, 0, 0) + struct.pack(">H", flags) + properties
    return struct.pack(">BHL", spec.FRAME_HEADER, 1, len(content)) + content + bytes([spec.FRAME_END])


def properties_of(encoded: bytes) -> Any:
    size, read = frame.decode_frame(encoded)
    assert size == len(encoded)
    return cast("Any", read).properties


def table(kind: bytes, value: bytes) -> bytes:
    entry = short(b"x") + kind + value
    return struct.pack(">I", len(entry)) + entry


def nested(depth: int) -> bytes:
    found = table(b"V", b"")
    for _ in range(depth):
        found = table(b"F", found)
    return found


@pytest.mark.parametrize(
    "headers",
    [
        table(b"T", b"\xff" * 8),
        table(b"d", struct.pack(">d", float("nan"))),
        table(b"d", struct.pack(">d", float("inf"))),
        table(b"?", b""),
        nested(DEEP),
    ],
    ids=["time", "nan", "inf", "kind", "nested"],
)
@pytest.mark.parametrize("encoding", [b"", b"gzip"])
def test_headers_that_cannot_be_read_are_left_out_and_the_rest_is_read(
    headers: bytes, encoding: bytes
) -> None:
    flags = CONTENT_TYPE | HEADERS | TYPE | USER_ID | (CONTENT_ENCODING if encoding else 0)
    before = short(b"application/json") + (short(encoding) if encoding else b"")
    found = properties_of(header_frame(flags, before + headers + short(KIND) + short(USER)))
    assert (found.content_type, found.headers, found.type, found.user_id) == (
        "application/json", None, "submit", "cms",
    )  # fmt: skip
    assert found.content_encoding == (encoding.decode() or None)


def test_headers_that_can_be_read_are() -> None:
    found = properties_of(header_frame(HEADERS | USER_ID, table(b"I", struct.pack(">i", 7)) + short(USER)))
    assert (found.headers, found.user_id) == ({"x": 7}, "cms")


def test_properties_that_are_no_text_become_text() -> None:
    """What compares or quotes them takes them for text; an error there would meet the message again and again."""
    wild = b"\xff" * 255
    properties = spec.BasicProperties(
        user_id=USER, type=wild, message_id=wild, correlation_id=wild, reply_to=wild, content_type=wild
    )
    method = SimpleNamespace(delivery_tag=1, exchange="tidemill.submit.cms", routing_key="cms")
    found = Delivery(cast("Link", None), None, (method, properties, b""))
    for text in (found.type, found.id, found.correlation, found.reply_to, found.content_type):
        assert not text.startswith("amq.")
        assert 0 < len(text.encode()) <= 255
    assert found.user == "cms"
