"""What a site shows people at its server: named values, each with its record and its bounds. No decision uses one.

A part of the site returns values by name; the server stores what it knows by this table, within the bounds, and hands
it to the page of that name. A name that a server does not know, and a value that is not of its type, is left out.
Extensions add views; those have `made`, by which a site makes the value of its status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tidemill import extensions
from tidemill.model.figures.job_classes import LENGTHS, SIZES
from tidemill.model.trouble import RefusedApplication
from tidemill.wire.far import CacheView, ReadView, RouteView
from tidemill.wire.monitoring import (
    AllocationSamples,
    BadNode,
    GrantView,
    RegularWaits,
    SiteSums,
    StagingView,
    TidePoint,
    TransferView,
)

ROWS_MAX = 100
INNER_MAX = 100
BYTES_MAX = 4 << 20
ADDED_BYTES_MAX = 256 << 10  #: of an extension's view: pages read it back as often as they are shown
ALL_ADDED_BYTES_MAX = 1 << 20  #: of all of them, in one message of a site
SECONDS_MAX = 2.0**62
TIDE_POINTS_MAX = 1_440  #: a day of minutes

Value = TypeVar("Value")
RawViews = dict[str, msgspec.Raw]
_STORED = msgspec.json.Decoder(RawViews)


class ViewType(NamedTuple, Generic[Value]):
    """A view: `empty` where a site shows none. The server keeps `rows_max` items of a list, `inner_max` of each list in
    a row, only rows that are `legal`, and nothing that takes more than `bytes_max` in JSON. What is not `is_kept` goes
    elsewhere. `made`: an extension's function from a site's `SiteStatus` to the value."""

    name: str
    record: Any
    empty: Value
    rows_max: int = ROWS_MAX
    inner_max: int = INNER_MAX
    bytes_max: int = BYTES_MAX
    legal: Callable[[Any], bool] | None = None
    is_kept: bool = True
    made: Callable[[Any], Value] | None = None

    def decode(self, views: Mapping[str, msgspec.Raw]) -> Value:
        """The value among these; the empty one where it is missing or is not of this type."""
        raw = views.get(self.name)
        if raw is None or len(memoryview(raw)) > self.bytes_max:
            return self.empty
        try:
            value: Value = msgspec.json.decode(raw, type=self.record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.empty
        return value


def _is_of_a_class(waits: RegularWaits) -> bool:
    is_known = waits.size in SIZES and waits.length in LENGTHS and waits.jobs > 0
    return is_known and 0 <= waits.wait_s <= SECONDS_MAX and 0 <= waits.share_s <= SECONDS_MAX


#: the minutes that no answered sync has reported yet
TIDE = ViewType[list[TidePoint]]("tide", list[TidePoint], [], rows_max=TIDE_POINTS_MAX, is_kept=False)
#: of nodes; VIEW_SAMPLES_MAX in all
SAMPLES = ViewType[list[AllocationSamples]](
    "samples", list[AllocationSamples], [], bytes_max=8 << 20, is_kept=False
)
BAD_NODES = ViewType[list[BadNode]]("bad_nodes", list[BadNode], [])
BAD_NODES_TOTAL = ViewType[int]("bad_nodes_total", int, 0)
TRANSFERS = ViewType[list[TransferView]]("transfers", list[TransferView], [])
TRANSFERS_TOTAL = ViewType[int]("transfers_total", int, 0)
GRANTS = ViewType[list[GrantView]]("grants", list[GrantView], [])
MODE = ViewType[str]("mode", str, "")  #: `run`, `observe`
WAITS_FOR = ViewType[str]("waits_for", str, "")  #: why no more nodes are asked for
STOPPED = ViewType[str]("stopped", str, "")  #: why the site is stopped, empty = it is not
DENIED = ViewType[list[str]]("denied", list[str], [])  #: submitters whose jobs its staff do not let run
ROUTES = ViewType[list[RouteView]]("routes", list[RouteView], [])  #: of the jobs that were laid out last
CACHES = ViewType[list[CacheView]]("caches", list[CacheView], [], inner_max=20)
READS = ViewType[list[ReadView]](
    "reads", list[ReadView], [], inner_max=64
)  #: of the jobs that were traced last
STAGING = ViewType[list[StagingView]]("staging", list[StagingView], [], inner_max=500)
SUMS = ViewType[SiteSums | None]("sums", SiteSums, None)
#: of other users, today
WAITS = ViewType[list[RegularWaits]]("waits", list[RegularWaits], [], legal=_is_of_a_class)
REFUSED = ViewType[list[RefusedApplication]]("refused", list[RefusedApplication], [])

_CORE: Iterable[ViewType[Any]] = (
    TIDE, SAMPLES, BAD_NODES, BAD_NODES_TOTAL, TRANSFERS, TRANSFERS_TOTAL, GRANTS, MODE, WAITS_FOR, STOPPED, DENIED,
    ROUTES, CACHES, READS, STAGING, SUMS, WAITS, REFUSED,
)  # fmt: skip


@cache
def types() -> dict[str, ViewType[Any]]:
    """All views by name: the core's, and those of extensions. What the core has stays the core's."""
    result = {each.name: each for each in _CORE}
    for extension, name, kind in extensions.entries(extensions.VIEWS):
        if name in result:
            extensions.warn(extension, f"its view `{name}` is left out: that name is taken")
        elif not isinstance(kind, ViewType) or kind.name != name:
            extensions.warn(extension, f"its view `{name}` is left out: it is not a `ViewType` of that name")
        else:
            result[name] = kind._replace(bytes_max=min(kind.bytes_max, ADDED_BYTES_MAX))
    return result


class SiteViews:
    """What one site shows, as it was stored."""

    def __init__(self, raw: Mapping[str, msgspec.Raw] | None = None) -> None:
        self.raw = dict(raw or {})

    @classmethod
    def stored(cls, body: bytes) -> SiteViews:
        """Those of a row of the database. Raises msgspec.DecodeError."""
        return cls(_STORED.decode(body))

    def __getitem__(self, name: str) -> Any:
        """The value of a name, for templates: `view.grants`."""
        return types()[name].decode(self.raw)


def packed(**values: Any) -> RawViews:
    """Values by name as they are sent."""
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}
