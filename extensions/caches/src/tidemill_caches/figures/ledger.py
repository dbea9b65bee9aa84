"""Sums of what a cache did: in all, by dataset, by origin, and by hour. Pure, and bounded in each of them.

What came from origins is counted in blocks: those that a file has now and did not have before. XCache's own `b_hit`
counts blocks that were prefetched for the same reader as hits; here what was served is a hit only as far as it exceeds
what was fetched meanwhile. So a first whole read has no hits, with prefetch or without.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidemill.model.quantities import bytes_text
from tidemill_caches.figures.gstream import FileClose

DATASETS_MAX = 1000
ORIGINS_MAX = 200
FILES_MAX = 20_000
HOURS_MAX = 72
HOUR_S = 3600
OTHERS = "(others)"
"""Beyond these limits what was used least recently counts as one."""
THRASHED_SHARE = 0.5
THRASHED_BYTES_MIN = 100 << 20
"""Refetching less than this does not raise an alarm."""


class Sums(msgspec.Struct, kw_only=True):
    """Bytes and numbers since the cache's directory was made."""

    opens: int = 0  #: times that a file was in use, from its first open to its last close
    hit_bytes: int = 0  #: as XCache counts: also what was prefetched
    miss_bytes: int = 0
    bypass_bytes: int = 0  #: served past the cache
    fetched_bytes: int = 0  #: blocks that came from origins
    again_bytes: int = 0  #: of these, blocks of files that the cache once had and lost
    known_bytes: int = 0  #: served beyond what was fetched meanwhile: hits without prefetch
    checksum_errors: int = 0
    unsure: int = (
        0  #: opens of files whose blocks before are not known: their `fetched_bytes` are a lower bound
    )

    @property
    def served_bytes(self) -> int:
        """Bytes that clients were sent."""
        return self.hit_bytes + self.miss_bytes + self.bypass_bytes

    @property
    def from_origin_bytes(self) -> int:
        """What origins sent, without what it takes to carry it."""
        return self.fetched_bytes + self.bypass_bytes

    def add(self, other: Sums) -> None:
        """Add all figures of other sums."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class KnownFile(msgspec.Struct, array_like=True):
    """What was on the disk of a file when it was closed last."""

    blocks: int
    access: int


class CacheLedger(msgspec.Struct, kw_only=True):
    """All sums; the newest of each table come last. Written to CACHE/figures as it is."""

    format: int = 1
    since_us: int = 0
    total: Sums = msgspec.field(default_factory=Sums)
    datasets: dict[str, Sums] = {}
    origins: dict[str, int] = {}  #: bytes that were fetched
    hours: dict[int, Sums] = {}
    files: dict[str, KnownFile] = {}
    lost: int = 0  #: datagrams that did not arrive
    malformed: int = 0  #: datagrams and records that could not be read
    foreign: int = 0  #: datagrams that another user of the host sent: they count nowhere
    wire_origin_bytes: int = 0  #: what the kernel counted on connections to origins: the truth
    wire_client_bytes: int = 0  #: ... and to clients: a lower bound, short connections come and go unseen

    def add_close(self, close: FileClose) -> Sums:
        """Add a record; what it added."""
        added = self._added(close)
        self.total.add(added)
        _at(self.datasets, dataset_of(close.name), DATASETS_MAX).add(added)
        hour = close.detached_s // HOUR_S
        if hour in self.hours or len(self.hours) < HOURS_MAX or hour > min(self.hours):
            self.hours.setdefault(hour, Sums()).add(added)
        while len(self.hours) > HOURS_MAX:
            del self.hours[min(self.hours)]
        for origin in close.origins[:1]:  # the first is where it was opened
            bytes_ = self.origins.pop(origin[:200], 0) + added.from_origin_bytes
            while len(self.origins) >= ORIGINS_MAX:
                first = next(iter(self.origins))
                rest = self.origins.pop(first)
                self.origins[OTHERS] = self.origins.pop(OTHERS, 0) + rest
                if first == OTHERS:
                    break
            self.origins[origin[:200]] = bytes_
        return added

    def _added(self, close: FileClose) -> Sums:
        file = self.files.pop(close.name, None)
        if len(self.files) >= FILES_MAX:
            del self.files[next(iter(self.files))]
        self.files[close.name] = KnownFile(close.blocks_done, close.access)
        is_new = close.access <= 1
        # a file that was removed and came back begins with the first access once more
        was_lost = file is not None and close.access <= file.access
        before = 0 if is_new or was_lost or file is None else file.blocks
        unsure = file is None and not is_new
        if unsure:
            fetched = min(close.miss_bytes, close.bytes_of(close.blocks_done))
        else:
            fetched = close.bytes_of(close.blocks_done) - close.bytes_of(min(before, close.blocks_done))
        again = min(fetched, close.bytes_of(file.blocks)) if was_lost and file is not None else 0
        return Sums(
            opens=1,
            hit_bytes=close.hit_bytes,
            miss_bytes=close.miss_bytes,
            bypass_bytes=close.bypass_bytes,
            fetched_bytes=fetched,
            again_bytes=again,
            known_bytes=max(0, close.hit_bytes + close.miss_bytes - fetched),
            checksum_errors=close.checksum_errors,
            unsure=int(unsure),
        )

    def recent(self, now_s: int, hours: int) -> Sums:
        """The sums of the current hour and some before it."""
        last = now_s // HOUR_S
        sums = Sums()
        for hour, each in self.hours.items():
            if last - hours < hour <= last:
                sums.add(each)
        return sums

    def busiest(self, most: int) -> Iterator[tuple[str, Sums]]:
        """The datasets of which most was served."""
        yield from sorted(self.datasets.items(), key=lambda item: (-item[1].served_bytes, item[0]))[:most]


def _at(table: dict[str, Sums], name: str, most: int) -> Sums:
    """The row of a name, which is the newest now; the oldest row gives way to it."""
    row = table.pop(name, None) or Sums()
    if len(table) >= most:
        first = next(each for each in table if each != OTHERS)
        rest = table.pop(OTHERS, None) or Sums()
        rest.add(table.pop(first))
        table[OTHERS] = rest
    table[name] = row
    return row


def dataset_of(name: str) -> str:
    """The directory of a file."""
    return name.rpartition("/")[0] or "/"


def is_thrashing(recent: Sums) -> bool:
    """Whether the cache mostly fetches what it had: it is too small for what is read."""
    return recent.again_bytes >= max(THRASHED_BYTES_MIN, int(recent.fetched_bytes * THRASHED_SHARE))


AGREE_SHARE = 0.05
AGREE_BYTES = 1 << 20
"""What carries data (handshakes, headers, checksums) and blocks that are on their way when sums are compared."""


def believe(ledger: CacheLedger) -> str:
    """Which figure of the bytes from origins to believe, empty = they agree."""
    records, wire = ledger.total.from_origin_bytes, ledger.wire_origin_bytes
    if wire == 0 and records:
        return "the kernel's counters of the cache's connections are missing: bytes from origins are XCache's records"
    if abs(wire - records) <= AGREE_BYTES + AGREE_SHARE * max(wire, records):
        return ""
    why = f"; {ledger.lost:,} datagrams were lost" if ledger.lost else ""
    return (
        f"believe the connections: they carried {bytes_text(wire)} from origins; XCache's records "
        f"of closed files add up to {bytes_text(records)}{why}"
    )
