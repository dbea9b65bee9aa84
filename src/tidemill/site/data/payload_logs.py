"""Stdout and stderr of payloads that the server asks for, found in the bundles of the site's fleets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from tidemill import clock
from tidemill.errors import TidemillError
from tidemill.log import Log
from tidemill.node.bundle import IndexTail, bundles, member_of, read_chunks
from tidemill.site.state.served_site import ServedSite
from tidemill.site.state.site_state import LogFetched
from tidemill.wire.api import FetchLogOrder
from tidemill.wire.node import IndexEntry

LOG_BYTES_MAX = 1 << 20
FETCHES_MAX = 8
STDOUT = "stdout"
"""The log, and the output of a job that keeps its stdout."""

CUT_BY_PILOT = (
    "[the pilot keeps the first and the last part: `log_bytes_max` of the application, 64 KiB by default]"
)

SETTLE_S, AGAIN_S = 1.0, 0.1
"""A failed payload's record may arrive before its log: the log is searched for again every AGAIN_S, for SETTLE_S."""
_log = Log("logs")


class LogFetches:
    """Logs that helper threads search for."""

    def __init__(self, site: ServedSite) -> None:
        self._site = site
        self._under_way: dict[int, Future[tuple[LogFetched, bool]]] = {}
        self._missing: dict[int, tuple[float, float]] = {}  #: request -> when to look again, when to give up

    @property
    def under_way(self) -> list[Future[tuple[LogFetched, bool]]]:
        """What threads search for now; `step` takes each that is done."""
        return list(self._under_way.values())

    def step(self) -> bool:
        """Note the logs that were found, search for others; whether anything was found."""
        done = [request for request, future in self._under_way.items() if future.done()]
        now_s = clock.monotonic_s()
        asked = {order.request for order in self._site.state.fetches}
        self._missing = {request: each for request, each in self._missing.items() if request in asked}
        for request in done:
            fetched, is_settled = _outcome(request, self._under_way.pop(request))
            if request not in asked:
                continue
            _, last_s = self._missing.setdefault(request, (0.0, now_s + SETTLE_S))
            if is_settled or now_s >= last_s:
                del self._missing[request]
                self._site.log.apply(fetched)
            else:
                self._missing[request] = (now_s + AGAIN_S, last_s)
        for order in self._site.state.fetches[:FETCHES_MAX]:
            again_s, _ = self._missing.get(order.request, (0.0, 0.0))
            if order.request not in self._under_way and now_s >= again_s:
                fleets = [self._site.fleets_dir / name for name in reversed(self._site.state.fleets)]
                self._under_way[order.request] = self._site.pools.logs.submit(find_log, order, fleets)
        return bool(done)


def _outcome(request: int, search: Future[tuple[LogFetched, bool]]) -> tuple[LogFetched, bool]:
    """What a search found; of one that failed, why: it is repeated like one that found nothing yet."""
    try:
        return search.result()
    except (TidemillError, OSError) as error:
        _log.warning("log.unreadable", request=request, reason=str(error))
        reason = f"[not readable: {error}]"
        return LogFetched(request=request, found=True, stdout="", stderr=reason), False


def find_log(order: FetchLogOrder, fleets: list[Path]) -> tuple[LogFetched, bool]:
    """The newest log of the payload that ran the event (of the job, where no event is named), and whether that is all
    there will be: its outputs or logs are in a bundle. A stdout that was kept as an output is its log, too. Reads whole
    indexes."""
    logs: dict[str, tuple[Path, IndexEntry]] = {}
    kept: dict[str, tuple[Path, IndexEntry]] = {}
    is_settled = False
    for fleet in fleets:  # newest first
        span = _newest(order, fleet) if order.event is None else None
        for bundle, entry in _of(order, fleet):
            is_settled = True
            if span is not None and (entry.first, entry.count) != span:
                continue  # of one payload: not the stdout of one beside the stderr of another
            if entry.kind == "log":
                logs[entry.name] = (bundle, entry)
            elif _is_stdout(entry):
                kept[STDOUT] = (bundle, entry)
        if logs or kept:
            break
    found = {**logs, **kept}  # an event with an output is done: no later try of it failed
    texts = {name: _text(bundle, entry) for name, (bundle, entry) in found.items()}
    log = LogFetched(
        request=order.request,
        found=bool(texts),
        stdout=texts.get("stdout", ""),
        stderr=texts.get("stderr", ""),
    )
    return log, is_settled


def _of(order: FetchLogOrder, fleet: Path) -> Iterator[tuple[Path, IndexEntry]]:
    """What the bundles of a fleet hold of the job, or of the event."""
    for bundle in bundles(fleet / "bundle"):
        for entry in _entries(bundle):
            if entry.job == order.job and _holds(entry, order.event):
                yield bundle, entry


def _newest(order: FetchLogOrder, fleet: Path) -> tuple[int, int] | None:
    """The events (first, count) of the last payload that printed something; None if none did."""
    span = None
    for _, entry in _of(order, fleet):
        if entry.kind == "log" or _is_stdout(entry):
            span = entry.first, entry.count
    return span


def _is_stdout(entry: IndexEntry) -> bool:
    return (entry.kind, entry.name) == ("output", STDOUT)


def _entries(bundle: Path) -> list[IndexEntry]:
    tail = IndexTail(bundle)
    entries: list[IndexEntry] = []
    try:
        while new := tail.read():
            entries += new
    except TidemillError as error:
        _log.warning("index.unreadable", bundle=str(bundle), reason=error.message)
    return entries


def _holds(entry: IndexEntry, event: int | None) -> bool:
    return event is None or entry.first <= event < entry.first + entry.count


def _text(bundle: Path, entry: IndexEntry) -> str:
    """The text of a log, its middle left out where it is longer than LOG_BYTES_MAX; the text says so."""
    text = _Ends(LOG_BYTES_MAX)
    try:  # its index may say that it is larger than this machine's memory
        for piece in read_chunks(bundle.parent, member_of(bundle.name, entry)):
            text.add(piece)
    except TidemillError as error:
        return f"[not readable: {error.message}]"
    return text.text() + (f"\n{CUT_BY_PILOT}\n" if entry.truncated else "")


class _Ends:
    """The first and the last half of `limit` bytes of a text, whatever its length."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._length = 0

    def add(self, piece: bytes) -> None:
        """Append bytes."""
        self._length += len(piece)
        room = self._half - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        del self._tail[: -self._half]

    def text(self) -> str:
        """Both ends; a line between them says how many bytes are left out."""
        left_out = self._length - len(self._head) - len(self._tail)
        note = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        return (bytes(self._head) + note + bytes(self._tail)).decode(errors="replace")
