"""What pilots measured of their nodes: FLEET/monitor read, and counters made into quantities.

Any process that has the fleet's secret can write samples: one that no pilot writes is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidemill.errors import ProtocolError, SiteError
from tidemill.files import names_in
from tidemill.model.metrics.nodes import QUANTITIES
from tidemill.node.framed import FramedTail
from tidemill.wire.monitoring import MountUse
from tidemill.wire.node import FIGURES, MOUNT_FIGURES, Sampled

READ_BYTES_MAX = 2 << 20
"""Of one file at once: some tenths of a second of the agent. At every 10 s enough for 8,000 nodes at 30 s."""
FILES_MAX = 64
"""Read at once. With a lead there are two; without one, each pilot has its own, and more take turns."""

FIGURE_MAX = 1 << 60
TEXT_CHARACTERS_MAX = 255
MOUNTS_MAX = 8
OVER_US_MAX = 86_400_000_000
_NAME = re.compile(r"(.+)\.(\d{1,18})\.log")
_decode = msgspec.json.Decoder(Sampled).decode


def _decode_sampled(content: bytes) -> Sampled:
    """A sample with numbers and texts within what a pilot writes. Raises ValueError."""
    sampled: Sampled = _decode(content)
    numbers = [*sampled.figures, *(each for row in sampled.mounts.values() for each in row)]
    texts = [sampled.p, sampled.node, sampled.cores, *sampled.mounts]
    if len(numbers) > 4 * len(FIGURES) or len(sampled.mounts) > MOUNTS_MAX:
        raise ValueError("it has too many figures")
    if not all(each is None or 0 <= each < FIGURE_MAX for each in numbers):
        raise ValueError("a figure is out of range")
    if not all(len(text) <= TEXT_CHARACTERS_MAX and text.isprintable() for text in texts):
        raise ValueError("a text is too long, or not printable")
    if not (0 < sampled.over_us <= OVER_US_MAX and 0 <= sampled.at_us < FIGURE_MAX):
        raise ValueError("its time is out of range")
    return sampled


class MonitorFiles:
    """Reads what is new in FLEET/monitor. One `read` costs one listing and one open per file that is read."""

    def __init__(self, directory: Path, *, files_max: int = FILES_MAX) -> None:
        self._directory, self._files_max = directory, files_max
        self._tails: dict[str, FramedTail[Sampled]] = {}
        self._turn = 0

    def read(self) -> list[Sampled]:
        """New samples, at most READ_BYTES_MAX bytes of each file. Raises SiteError; a file that cannot be read is tried
        again by the next call."""
        names = [
            name for name in sorted(names_in(self._directory) or [], key=_order) if _NAME.fullmatch(name)
        ]
        self._tails = {
            name: self._tails.get(name) or FramedTail(self._directory / name, _decode_sampled, refuse=_ignore)
            for name in names
        }
        start = self._turn % len(names) if len(names) > self._files_max else 0
        chosen = (names[start:] + names[:start])[: self._files_max]
        self._turn = start + len(chosen)
        found: list[Sampled] = []
        failed: SiteError | ProtocolError | None = None
        for name in chosen:
            try:
                found += self._tails[name].read(READ_BYTES_MAX)
            except (SiteError, ProtocolError) as error:
                failed = error
        if failed is not None and not found:
            raise failed
        return found


def _order(name: str) -> tuple[str, int]:
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)


def _ignore(_why: str) -> None:
    """Samples are for people; one that is malformed is left out."""


# ---- figures into quantities ----------------------------------------------------------------------------------------

Figures = dict[str, int]


def _share(figure: str) -> Callable[[Figures, float], float | None]:
    """A quantity: the share of a figure in the time of all cores."""

    def value(found: Figures, over_s: float) -> float | None:
        if figure not in found or not found.get("cores"):
            return None
        return min(1.0, found[figure] / 1e3 / (over_s * found["cores"]))

    return value


def _level(figure: str, factor: float = 1.0) -> Callable[[Figures, float], float | None]:
    return lambda found, _: found[figure] * factor if figure in found else None


def _rate(figure: str) -> Callable[[Figures, float], float | None]:
    return lambda found, over_s: found[figure] / over_s if figure in found else None


def _waited(figure: str, unit: float = 1e6) -> Callable[[Figures, float], float | None]:
    """A time, as a share of the interval."""
    return lambda found, over_s: min(1.0, found[figure] / unit / over_s) if figure in found else None


_FORMULAS: dict[str, Callable[[Figures, float], float | None]] = {
    **{f"cpu_{mode}": _share(f"{mode}_ms") for mode in ("user", "nice", "system", "iowait", "idle", "steal")},
    "cores": _level("cores"), "load1": _level("load_milli", 1e-3), "running": _level("running"),
    "pressure_cpu_some": _waited("cpu_some_us"),
    "pressure_memory_some": _waited("memory_some_us"), "pressure_memory_full": _waited("memory_full_us"),
    "pressure_io_some": _waited("io_some_us"), "pressure_io_full": _waited("io_full_us"),
    "memory": _level("memory_kb", 1024), "memory_used": _level("used_kb", 1024),
    "page_cache": _level("cached_kb", 1024), "swap_used": _level("swap_kb", 1024),
    "swap_in": _rate("swapped_in"), "swap_out": _rate("swapped_out"), "major_faults": _rate("major_faults"),
    "network_in": _rate("net_in_bytes"), "network_out": _rate("net_out_bytes"),
    "packets_in": _rate("net_in_packets"), "packets_out": _rate("net_out_packets"),
    "disk_read": _rate("disk_read_bytes"), "disk_write": _rate("disk_write_bytes"), "disk_ops": _rate("disk_ops"),
    "disk_busy": _waited("disk_busy_ms", 1e3),
    "nfs_ops": _rate("nfs_ops"), "nfs_retransmissions": _rate("nfs_again"),
    "nfs_read": _rate("nfs_read_bytes"), "nfs_write": _rate("nfs_write_bytes"), "nfs_rtt": _level("nfs_rtt_us", 1e-6),
    "lustre_ops": _rate("lustre_ops"), "lustre_read": _rate("lustre_read_bytes"),
    "lustre_write": _rate("lustre_write_bytes"),
    "gpu_busy": _level("gpu_busy", 0.01), "gpu_memory": _level("gpu_memory_mb", 1 << 20),
    "nfs_opens": _rate("nfs_opens"), "nfs_closes": _rate("nfs_closes"),
    "lustre_opens": _rate("lustre_opens"), "lustre_closes": _rate("lustre_closes"),
}  # fmt: skip
_IN_ORDER = [_FORMULAS[each.name] for each in QUANTITIES]


def values_of(sampled: Sampled) -> list[float | None]:
    """The quantities of a sample, in the order of `QUANTITIES`."""
    found = {
        name: value
        for name, value in zip(FIGURES, sampled.figures, strict=False)  # of another version: more, or fewer
        if value is not None
    }
    over_s = sampled.over_us / 1e6
    return [None if (value := formula(found, over_s)) is None else rounded(value) for formula in _IN_ORDER]


def rounded(value: float) -> float:
    """Four digits: more is noise, and costs bytes on the way."""
    return float(f"{value:.4g}")


def mounts_of(sampled: Sampled) -> list[MountUse]:
    """What the sample says of single mounts."""
    over_s = sampled.over_us / 1e6

    def use(mount: str, row: list[int | None]) -> MountUse:
        found = dict(zip(MOUNT_FIGURES, row, strict=False))

        def rate(name: str) -> float | None:
            value = found.get(name)
            return None if value is None else rounded(value / over_s)

        rtt_us = found.get("rtt_us")
        return MountUse(
            mount=mount, ops_per_s=rate("ops"), retransmissions_per_s=rate("again"),
            read_bytes_per_s=rate("read_bytes"), write_bytes_per_s=rate("write_bytes"),
            rtt_s=None if rtt_us is None else rounded(rtt_us / 1e6),
            opens_per_s=rate("opens"), closes_per_s=rate("closes"),
        )  # fmt: skip

    return [use(mount, row) for mount, row in sorted(sampled.mounts.items())]
