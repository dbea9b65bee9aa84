"""What a site measured towards origins and caches: round trips and throughput; and what its payloads showed.

    SITE/links.json     kept over restarts; what is lost with it is measured again

A place is measured once in `probe_s` at most, however often its figures are asked for, by PROBE_REPLIES connections one
after the other, and by the moves that are made anyway. The round trip is that of a first message, not of the
connection alone: a proxy accepts at once.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import read_bounded, write_durable
from tidemill.log import Log
from tidemill.net.names import addresses_within
from tidemill.routing.learned import AppReads, LearnedReads, ReadSample, learned, note_part, note_wait
from tidemill.routing.routes import RouteLink

NAME = "links.json"
PLACES_MAX = 1000
BYTES_MAX = 32 << 20
PROBE_TIMEOUT_S = 3.0
PROBE_REPLIES, PROBE_QUICK_S = 3, 1.0
"""A place is asked this often where the replies are quick; after this time no further one is asked for."""

PROBES_MAX, PROBES_S = 10, 60.0
"""So many places are measured in that time at most: a job may name hundreds of hosts, none of which answers."""

DOUBT_S = 10.0
"""A place that a payload failed to read from is measured again after this time."""

DOWN_S = 30.0
"""One that refused the last connection is measured this often: jobs wait for it."""

WRITE_S = 30.0
MOVED_BYTES_MIN = 1 << 20
"""Smaller moves say more about the round trip than about the throughput."""

NEWEST = 0.3
"""Weight of the newest measurement in the mean."""

PORTS = {
    "root": 1094,
    "roots": 1094,
    "xroot": 1094,
    "xroots": 1094,
    "http": 80,
    "dav": 80,
    "https": 443,
    "davs": 443,
}
_log = Log("routing")


class PlaceMeasured(msgspec.Struct, kw_only=True):
    """What is known of a place, and when it was measured or used last."""

    rtt_s: float | None = None
    bytes_per_s: float | None = None
    is_down: bool = False
    at_us: int = 0


class LinksRecord(msgspec.Struct, kw_only=True):
    """The content of the file with measured ways."""

    places: dict[str, PlaceMeasured] = {}
    apps: dict[str, AppReads] = {}  #: what payloads of each application read, and how long they waited


def place_of_url(url: str) -> str:
    """Scheme, host and port of a URL, the port always written; empty where nothing can be measured."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    scheme = parts.scheme.lower()
    if not host or scheme not in PORTS:
        return ""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port or PORTS[scheme]}"


class RouteLinks:
    """The measurements of one site. Thread-safe; no lock is held while something is measured or written."""

    def __init__(self, path: Path, probe_s: float, *, probe: Callable[[str], float] | None = None) -> None:
        """`probe`: the round trip to a place in seconds; raises OSError."""
        self._path = path
        self._probe_s = probe_s
        self._probe = probe or shortest_round_trip_s
        self._lock = threading.Lock()
        record = _read(path)
        self._places, self._apps = record.places, record.apps
        self._tried_s: dict[str, float] = {}  #: when a place was measured last, by our own clock
        self._busy: set[str] = set()
        self._latest_s: list[float] = []  #: when places were measured, the latest
        self._is_new = False
        self._next_write_s = 0.0

    def link(self, place: str) -> RouteLink:
        """What is known of a place; measures it when that is due and no other thread does. Takes four times
        `PROBE_TIMEOUT_S` at most, as `shortest_round_trip_s` does."""
        if not place:
            return RouteLink()
        if self._begin(place):
            rtt_s: float | None = None
            try:
                rtt_s = self._probe(place)
            except OSError as error:
                _log.info("place.unreachable", place=place, reason=str(error))
            finally:
                self._end(place, rtt_s)
        with self._lock:
            known = self._places.get(place, PlaceMeasured())
            return RouteLink(rtt_s=known.rtt_s, bytes_per_s=known.bytes_per_s, is_down=known.is_down)

    def is_down(self, place: str) -> bool:
        """Whether the place refused the last connection; measures nothing."""
        with self._lock:
            known = self._places.get(place)
            return known is not None and known.is_down

    def doubt(self, place: str) -> None:
        """A payload failed with this place on its way: it is measured again when it is asked for next."""
        with self._lock:
            tried_s = self._tried_s.get(place)
            if tried_s is not None and clock.monotonic_s() - tried_s > DOUBT_S:
                del self._tried_s[place]

    def note_moved(self, url: str, size_bytes: int, seconds: float) -> None:
        """Add the throughput of a whole file that arrived from this URL in `seconds`."""
        place = place_of_url(url)
        if not place or size_bytes < MOVED_BYTES_MIN or seconds <= 0:
            return
        rate = size_bytes / seconds
        with self._lock:
            known = self._known(place)
            before = known.bytes_per_s
            known.bytes_per_s = rate if before is None else (1 - NEWEST) * before + NEWEST * rate

    def note_read(self, app: str, size_bytes: int | None, *, read_bytes: float, owner: str = "") -> None:
        """Add how much of a file a payload of the application has read."""
        with self._lock:
            note_part(self._apps, app, ReadSample(clock.now_us(), read_bytes, size_bytes, owner))
            self._is_new = True

    def note_waited(
        self, app: str, size_bytes: int | None, *, key: str, seconds: float, owner: str = ""
    ) -> None:
        """Add how long a payload of the application waited for a file by one route."""
        with self._lock:
            note_wait(self._apps, app, key, ReadSample(clock.now_us(), seconds, size_bytes, owner))
            self._is_new = True

    def learned(self, app: str, size_bytes: int | None, owner: str = "") -> LearnedReads:
        """What payloads of the application showed this owner for a file of this size."""
        with self._lock:
            return learned(self._apps.get(app), size_bytes, clock.now_us(), owner)

    def write(self, *, at_once: bool = False) -> None:
        """Keep what is new, now and then. What cannot be written is measured again after a restart."""
        now_s = clock.monotonic_s()
        with self._lock:
            if not self._is_new or (now_s < self._next_write_s and not at_once):
                return
            self._next_write_s, self._is_new = now_s + WRITE_S, False
            content = msgspec.json.encode(LinksRecord(places=self._places, apps=self._apps))
        try:
            write_durable(self._path, content)
        except SiteError as error:
            _log.warning("links.unwritten", reason=error.message)

    def _begin(self, place: str) -> bool:
        """Whether this thread is to measure the place now."""
        now_s = clock.monotonic_s()
        with self._lock:
            tried_s = self._tried_s.get(place)
            known = self._places.get(place)
            is_down = known is not None and known.is_down
            pause_s = min(self._probe_s, DOWN_S) if is_down else self._probe_s
            is_due = tried_s is None or now_s - tried_s >= pause_s
            self._latest_s = [each for each in self._latest_s if now_s - each < PROBES_S]
            if not is_due or place in self._busy or len(self._latest_s) >= PROBES_MAX:
                return False
            self._latest_s.append(now_s)
            self._busy.add(place)
            while len(self._tried_s) >= PLACES_MAX:
                del self._tried_s[next(iter(self._tried_s))]
            self._tried_s.pop(place, None)
            self._tried_s[place] = now_s
            return True

    def _end(self, place: str, rtt_s: float | None) -> None:
        with self._lock:
            self._busy.discard(place)
            known = self._known(place)
            known.is_down = rtt_s is None
            if rtt_s is not None:
                before = known.rtt_s
                # a server that was busy answers late: the shorter of two counts more
                known.rtt_s = rtt_s if before is None or rtt_s < before else (before + rtt_s) / 2

    def _known(self, place: str) -> PlaceMeasured:
        """The entry of a place, as the newest. The lock is held."""
        known = self._places.pop(place, None) or PlaceMeasured()
        while len(self._places) >= PLACES_MAX:
            del self._places[next(iter(self._places))]
        known.at_us = clock.now_us()
        self._places[place] = known
        self._is_new = True
        return known


def shortest_round_trip_s(place: str) -> float:
    """The shortest of `PROBE_REPLIES` round trips: a server or login node that is busy for a moment answers late, which
    says nothing about the network. Raises OSError where the first fails. Takes four times `PROBE_TIMEOUT_S` at most:
    after a slow one no other is begun."""
    begun_s = clock.monotonic_s()
    shortest_s = round_trip_s(place)
    for _ in range(PROBE_REPLIES - 1):
        if clock.monotonic_s() - begun_s > PROBE_QUICK_S:
            break
        with suppress(OSError):
            shortest_s = min(shortest_s, round_trip_s(place))
    return shortest_s


def round_trip_s(place: str) -> float:
    """Seconds from a first message to the first byte of the reply. Raises OSError; takes three times `PROBE_TIMEOUT_S`
    at most: for the name, the connection and the reply."""
    parts = urlsplit(place)
    host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)
    try:
        addresses = addresses_within(host, PROBE_TIMEOUT_S)
    except UnicodeError as error:
        raise OSError(f"`{host}` cannot be the name of a host") from error
    if not addresses:
        raise OSError(f"`{host}` has no address")
    with socket.create_connection((addresses[0], port), PROBE_TIMEOUT_S) as connection:
        connection.settimeout(PROBE_TIMEOUT_S)
        message = _first_message(parts.scheme)
        begun_s = clock.monotonic_s()
        connection.sendall(message)
        if not connection.recv(1):
            raise ConnectionError("the server closed the connection")
        return clock.monotonic_s() - begun_s


def _first_message(scheme: str) -> bytes:
    """What a client of this protocol says first, and a server answers at once."""
    if scheme in ("https", "davs"):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context()
        context.check_hostname = False  # nothing is sent or believed: the connection ends after one byte
        context.verify_mode = ssl.CERT_NONE
        with suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing).do_handshake()
        return outgoing.read()
    if scheme in ("http", "dav"):
        return b"OPTIONS * HTTP/1.0\r\n\r\n"
    return struct.pack("!5i", 0, 0, 0, 4, 2012)  # the handshake of XRootD's protocol, section 2.1


def _read(path: Path) -> LinksRecord:
    try:
        content = read_bounded(path, BYTES_MAX)
        return LinksRecord() if content is None else msgspec.json.decode(content, type=LinksRecord)
    except (SiteError, *UNDECODABLE) as error:
        _log.warning("links.unreadable", reason=str(error))
        return LinksRecord()
