"""What payloads of jobs read, by the way that they read it: sums of the tracer's counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tidemill.image.profile import RemoteReads, added_bins
from tidemill.wire.far import ReadView

JOBS_MAX = 100
"""Jobs of which the reads are kept: those that were traced last."""
PLACES_MAX = 10
"""Addresses of one job: of others only the bytes count, under one name."""
OTHERS = "(others)"

Places = Mapping[tuple[str, int], tuple[str, str]]
"""Address and port of each cache -> its form's way and its name."""


class JobReads:
    """Sums of the jobs that were traced last, by the address that they read from."""

    def __init__(self) -> None:
        self._jobs: dict[int, dict[tuple[str, int], ReadView]] = {}

    def add(self, job: int, app: str, reads: Iterable[RemoteReads]) -> None:
        """A payload of this job has read this."""
        places = self._jobs.pop(job, {})
        for each in reads:
            key = (each.address, each.port)
            if key not in places and len(places) >= PLACES_MAX:
                key = (OTHERS, 0)
            before = places.get(key, ReadView(job=job, app=app))
            places[key] = ReadView(
                job=job,
                app=app,
                payloads=before.payloads + 1,
                reads=before.reads + each.reads,
                bytes=before.bytes + each.bytes,
                waits=before.waits + each.waits,
                wait_us=before.wait_us + each.wait_us,
                wait_log2_us=added_bins(before.wait_log2_us, each.wait_log2_us),
            )
        self._jobs[job] = places
        while len(self._jobs) > JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]

    def rows(self, caches: Places) -> Iterator[ReadView]:
        """Newest jobs first, with the way of each address."""
        for places in reversed(self._jobs.values()):
            for (address, port), each in places.items():
                text = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
                way, place = caches.get((address, port), ("direct", text if port else OTHERS))
                yield _named(each, way, place)


def _named(each: ReadView, way: str, place: str) -> ReadView:
    return ReadView(
        job=each.job, app=each.app, way=way, place=place, payloads=each.payloads, reads=each.reads, bytes=each.bytes,
        waits=each.waits, wait_us=each.wait_us, wait_log2_us=each.wait_log2_us,
    )  # fmt: skip
