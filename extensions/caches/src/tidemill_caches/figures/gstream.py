"""Records of closed files that XCache sends as JSON by UDP (`xrootd.mongstream pfc ... send json insthdr`). Pure.

A datagram is one line of JSON that names its sender, then one line for each record, and a zero byte (XRootD 5.5.3,
XrdXrootdGSReal.cc). Any process on the host may send to this port, so input is not trusted: a malformed datagram is
refused, a malformed record is counted. Records do not identify clients: no host, user, process or URL query.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.errors import UNDECODABLE, ProtocolError

DATAGRAM_BYTES_MAX = 1 << 16
NAME_CHARS_MAX = 4096
ORIGINS_MAX = 16
SEQUENCE = 1000
"""Numbers of datagrams go from 1 to 999, then from 0."""
REORDERED_MAX = 100
"""A number that is so little behind came late; one further behind has gone round."""
STREAMS_MAX = 16

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class FileClose(msgspec.Struct, frozen=True, kw_only=True, rename={
    "name": "lfn", "size_bytes": "size", "block_bytes": "blk_size", "blocks": "n_blks", "blocks_done": "n_blks_done",
    "access": "access_cnt", "attached_s": "attach_t", "detached_s": "detach_t", "origins": "remotes",
    "hit_bytes": "b_hit", "miss_bytes": "b_miss", "bypass_bytes": "b_bypass", "checksum_errors": "n_cks_errs",
}):  # fmt: skip
    """All that clients did with one file from its first open to its last close.

    `hit_bytes` were served from the cache, prefetched or not, and read twice count twice; `miss_bytes` were waited for;
    `bypass_bytes` went past the cache. `blocks_done` lie on the disk now, `access` is the number of this time since the
    file came into the cache.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    size_bytes: Count
    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    blocks: Count
    blocks_done: Count
    access: Count
    attached_s: Count
    detached_s: Count
    hit_bytes: Count
    miss_bytes: Count
    bypass_bytes: Count
    checksum_errors: Count = 0
    origins: list[str] = []

    @property
    def served_bytes(self) -> int:
        """What clients were sent, as XCache counts it."""
        return self.hit_bytes + self.miss_bytes + self.bypass_bytes

    def bytes_of(self, blocks: int) -> int:
        """The size of `blocks` blocks. A short last one counts whole until all are cached: records do not say which."""
        return min(blocks * self.block_bytes, self.size_bytes)


class Datagram(msgspec.Struct, frozen=True, kw_only=True):
    """One datagram. `stream` identifies a server between two restarts, `number` orders its datagrams."""

    stream: str
    number: int
    closes: list[FileClose]
    malformed: int  #: records that cannot be read


class _Kind(msgspec.Struct):
    type: str


class _Head(msgspec.Struct):
    code: str
    number: Annotated[int, msgspec.Meta(ge=0, lt=SEQUENCE)] = msgspec.field(name="pseq")
    started: Count = msgspec.field(name="stod")
    server: Count = msgspec.field(name="sid")
    kind: _Kind | None = msgspec.field(default=None, name="gs")


class _Event(msgspec.Struct):
    event: str


_HEAD = msgspec.json.Decoder(_Head)
_EVENT = msgspec.json.Decoder(_Event)
_CLOSE = msgspec.json.Decoder(FileClose)


def parse_datagram(content: bytes) -> Datagram | None:
    """What a datagram says; None = it is one of another stream, or the server names itself. Raises ProtocolError."""
    if len(content) > DATAGRAM_BYTES_MAX:
        raise ProtocolError(f"a datagram of {len(content)} bytes is not from XCache")
    first, *lines = content.rstrip(b"\0\n").split(b"\n")
    try:
        head = _HEAD.decode(first)
    except UNDECODABLE as error:
        raise ProtocolError(f"a datagram that is not from XCache: {first[:100]!r}: {error}") from error
    if head.code != "g" or head.kind is None or head.kind.type != "C":
        return None
    closes, malformed = [], 0
    for line in lines:
        try:
            if _EVENT.decode(line).event == "file_close":
                closes.append(_sane(_CLOSE.decode(line)))
        except (ProtocolError, *UNDECODABLE):
            malformed += 1
    stream = f"{head.server}.{head.started}"
    return Datagram(stream=stream, number=head.number, closes=closes, malformed=malformed)


def _sane(close: FileClose) -> FileClose:
    """Raises ProtocolError for what no XCache says."""
    name = close.name
    if not name.startswith("/") or not name.isprintable():
        raise ProtocolError(f"the name of a file is {name[:100]!r}")
    if close.blocks_done > close.blocks or close.blocks > -(-close.size_bytes // close.block_bytes):
        raise ProtocolError(f"{close.blocks_done} of {close.blocks} blocks of {close.size_bytes} bytes")
    if len(close.origins) > ORIGINS_MAX:
        raise ProtocolError(f"{len(close.origins)} origins of one file")
    return close


class Sequences:
    """Counts datagrams that did not arrive, from the gaps in their numbers. Bounded: STREAMS_MAX streams."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self.lost = 0

    def on_datagram(self, stream: str, number: int) -> None:
        """A datagram of this number has arrived. The first one of a stream has number 1."""
        last = self._last.pop(stream, None)
        if len(self._last) >= STREAMS_MAX:
            del self._last[next(iter(self._last))]
        if last is None:
            self.lost += max(0, number - 1)
            self._last[stream] = number
            return
        ahead = (number - last) % SEQUENCE
        if ahead >= SEQUENCE - REORDERED_MAX:
            self.lost = max(0, self.lost - 1)  # it came late, and was counted as lost
            self._last[stream] = last
        else:
            self.lost += max(0, ahead - 1)
            self._last[stream] = number
