"""Whether what a job asks of a slot is anywhere to be had, and what comes nearest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemill.model.devices import devices_text
from tidemill.model.quantities import count_text, counted_text


class SlotNeed(NamedTuple):
    """What one slot is to have; memory 0 = any."""

    cores: int
    memory_mb: int
    devices: Mapping[str, int] = {}


class LargestSlot(NamedTuple):
    """The largest slot of a site."""

    site: str
    cores: int
    memory_mb: int
    devices: Mapping[str, int] = {}


def is_fit(asked: SlotNeed, slot: LargestSlot) -> bool:
    """Whether the slot has all that is asked for."""
    return (
        asked.cores <= slot.cores
        and asked.memory_mb <= slot.memory_mb
        and all(slot.devices.get(kind, 0) >= number for kind, number in asked.devices.items())
    )


def nearest(asked: SlotNeed, slots: Iterable[LargestSlot]) -> tuple[LargestSlot, SlotNeed] | None:
    """The site where the least of what is asked has to be given up, and the most that fits there; None of no site."""
    best: tuple[float, str, LargestSlot, SlotNeed] | None = None
    for slot in slots:
        devices = {kind: min(number, slot.devices.get(kind, 0)) for kind, number in asked.devices.items()}
        fitting = SlotNeed(min(asked.cores, slot.cores), min(asked.memory_mb, slot.memory_mb), devices)
        lost = 1 - fitting.cores / max(1, asked.cores)
        lost += 1 - fitting.memory_mb / asked.memory_mb if asked.memory_mb else 0.0
        lost += sum(1 - devices[kind] / number for kind, number in asked.devices.items() if number)
        if best is None or (lost, slot.site) < best[:2]:
            best = (lost, slot.site, slot, fitting)
    return None if best is None else best[2:]


def amount_text(amount: SlotNeed) -> str:
    """`2 cores, 3,000 MB, 1 GPU`, for people."""
    words = [counted_text(amount.cores, "core")]
    words += [f"{count_text(amount.memory_mb)} MB"] if amount.memory_mb else []
    words += [devices_text(amount.devices)] if amount.devices else []
    return ", ".join(words)


def options_text(amount: SlotNeed, asked: SlotNeed) -> str:
    """The options that ask for less, where it is less: `--cores 2 --gpus 0`."""
    words = [f"--cores {amount.cores}"] if amount.cores < asked.cores else []
    words += [f"--memory {amount.memory_mb}MB"] if amount.memory_mb < asked.memory_mb else []
    for kind, number in amount.devices.items():
        if number < asked.devices[kind]:
            words.append(f"--gpus {number}" if kind.startswith("gpu") else f"{number} {kind}")
    return " ".join(words)


def keys_text(amount: SlotNeed, asked: SlotNeed) -> str:
    """The same as keys of `resources` in a job file: `cores = 2, devices = {gpu = 0}`."""
    words = [f"cores = {amount.cores}"] if amount.cores < asked.cores else []
    words += [f"memory_mb = {amount.memory_mb}"] if amount.memory_mb < asked.memory_mb else []
    fewer = any(number < asked.devices[kind] for kind, number in amount.devices.items())
    devices = ", ".join(f"{kind} = {number}" for kind, number in amount.devices.items())
    return ", ".join([*words, f"devices = {{{devices}}}"] if fewer else words)
