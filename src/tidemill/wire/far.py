"""Far data in messages: what a site is near to and holds, which ways its jobs read, what its caches did."""

from __future__ import annotations

import msgspec


class NearData(msgspec.Struct, frozen=True, array_like=True):
    """Data that a site is near to: URLs that begin with `prefix`, and the seconds that a gigabyte takes from there."""

    prefix: str
    s_per_gb: float  #: measured; 0 = it is local


class HeldData(msgspec.Struct, frozen=True, array_like=True):
    """A dataset (a directory of URLs) of which a site's caches hold a share, 0 to 1."""

    dataset: str
    share: float


class RouteView(msgspec.Struct, frozen=True, kw_only=True):
    """By which way payloads of a job read an input that their program opens. `event` None = all of them; `url`: what
    they open, without a query; `way`: `direct`, `cache`, `node` or `stage`."""

    job: int
    name: str
    event: int | None = None
    way: str = ""
    url: str = ""
    why: str = ""


class CacheFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a cache, or of a dataset in it. `served` (with `hit` and `bypass`): XCache's own counts;
    `known` were there before they were asked for; `fetched` came in blocks, `again` of them not for the first time."""

    name: str = ""  #: of the dataset
    opens: int = 0
    served: int = 0
    hit: int = 0
    known: int = 0
    fetched: int = 0
    bypass: int = 0
    again: int = 0


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """A cache of a site. `state`: `running`, `waiting`, `stopped`, ..., `other` = another site runs it, `unknown`."""

    name: str
    url: str = ""
    form: str = "shared"
    state: str = "unknown"
    at_us: int = 0  #: of the state
    restarts: int = 0
    findings: list[str] = []
    since_us: int = 0  #: of the sums
    total: CacheFigures = CacheFigures()
    datasets: list[CacheFigures] = []  #: those of which most was served
    wire_origin: int = 0  #: bytes on connections to origins, by the kernel
    lost: int = 0  #: records that did not arrive
    unread: int = 0  #: records that could not be read
    unsure: int = 0  #: records of files of which it is not known what was there before
    believe: str = ""  #: which figures to believe, empty = they agree
    thrashing: bool = False


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """What traced payloads of a job read from one place. `way`: `cache`, `node` or `direct`; `place`: the cache's name,
    or address and port. A wait is the time from a request to the first bytes of its reply."""

    job: int
    app: str = ""
    way: str = "direct"
    place: str = ""
    payloads: int = 0
    reads: int = 0
    bytes: int = 0
    waits: int = 0
    wait_us: int = 0
    wait_log2_us: list[int] = []  #: waits of less than 2, 4, 8, ... microseconds
