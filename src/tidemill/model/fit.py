"""Whether what a job asks of a slot is anywhere to be had, and what comes nearest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemill.model.application import DEFAULT_CORES, DEFAULT_MEMORY_MB
from tidemill.model.devices import devices_text
from tidemill.model.job import JobSpec
from tidemill.model.quantities import count_text, counted_text
from tidemill.model.width import check_place
from tidemill.model.width import text as width_text


class SlotNeed(NamedTuple):
    """What one slot is to have; memory 0 = any."""

    cores: int
    memory_mb: int
    devices: Mapping[str, int] = {}


class LargestSlot(NamedTuple):
    """The largest slot of a site. `nodes`: the most of one payload, which `launcher` starts on them; empty = there is
    none."""

    site: str
    cores: int
    memory_mb: int
    devices: Mapping[str, int] = {}
    nodes: int = 0
    launcher: str = ""


class SlotDefault(NamedTuple):
    """What a job that asks for nothing gets."""

    cores: int = DEFAULT_CORES
    memory_mb: int = DEFAULT_MEMORY_MB


def is_fit(need: SlotNeed, slot: LargestSlot) -> bool:
    """Whether the slot has all that is asked for."""
    return (
        need.cores <= slot.cores
        and need.memory_mb <= slot.memory_mb
        and all(slot.devices.get(kind, 0) >= number for kind, number in need.devices.items())
    )


def nearest(need: SlotNeed, slots: Iterable[LargestSlot]) -> tuple[LargestSlot, SlotNeed] | None:
    """The site where the least of what is asked has to be given up, and the most that fits there; None of no site."""
    best: tuple[float, str, LargestSlot, SlotNeed] | None = None
    for slot in slots:
        devices = {kind: min(number, slot.devices.get(kind, 0)) for kind, number in need.devices.items()}
        fitting = SlotNeed(min(need.cores, slot.cores), min(need.memory_mb, slot.memory_mb), devices)
        lost = 1 - fitting.cores / max(1, need.cores)
        lost += 1 - fitting.memory_mb / need.memory_mb if need.memory_mb else 0.0
        lost += sum(1 - devices[kind] / number for kind, number in need.devices.items() if number)
        if best is None or (lost, slot.site) < best[:2]:
            best = (lost, slot.site, slot, fitting)
    return None if best is None else best[2:]


def misfit_of(
    spec: JobSpec, slots: Iterable[LargestSlot], *, default: SlotDefault | None = None, as_keys: bool = False
) -> tuple[str, str] | None:
    """Why no site can run a job, and what comes nearest; None if one can, or nothing is known of any. `slots`: of all
    sites; `as_keys`: in keys of a job file, not in options."""
    own = [slot for slot in slots if spec.site in (None, slot.site)]
    if not own:
        return None
    if spec.resources.width is not None:
        return _too_wide(spec, own)
    usual = default or SlotDefault()
    need = SlotNeed(
        spec.resources.cores or usual.cores,
        spec.resources.largest.memory_mb or usual.memory_mb,
        {kind: number for kind, number in (spec.resources.devices or {}).items() if number},
    )
    near = nearest(need, own)
    if near is None or any(is_fit(need, slot) for slot in own):
        return None
    slot, amount = near
    what = "the site" if spec.site is not None else "any site"
    return (
        f"no slot of {what} has {amount_text(need)}",
        f"the most that fits is {amount_text(amount)} at site `{slot.site}`: "
        + (keys_text if as_keys else options_text)(amount, need),
    )


def _too_wide(spec: JobSpec, slots: Iterable[LargestSlot]) -> tuple[str, str] | None:
    """Why no site can start a payload over nodes, and how many nodes there are at most. What an application may span,
    the server and `job explain` say."""
    width = spec.resources.width
    assert width is not None, "the caller asked"
    found: list[tuple[int, str, str]] = []
    for each in slots:
        cores = spec.resources.cores or DEFAULT_CORES
        why = check_place(
            width, cores=cores, nodes=each.nodes, cores_per_node=each.cores, launcher=each.launcher
        )
        if why is None:
            return None
        found.append((-each.nodes, each.site, why))
    _, name, why = min(found)
    what = "the site" if spec.site is not None else "any site"
    return f"no pilot of {what} can start {width_text(width)}", f"site `{name}` comes nearest: {why}"


def amount_text(amount: SlotNeed) -> str:
    """`2 cores, 3,000 MB, 1 GPU`, for people."""
    words = [counted_text(amount.cores, "core")]
    words += [f"{count_text(amount.memory_mb)} MB"] if amount.memory_mb else []
    words += [devices_text(amount.devices)] if amount.devices else []
    return ", ".join(words)


def options_text(amount: SlotNeed, need: SlotNeed) -> str:
    """The options that ask for less, where it is less: `--cores 2 --gpus 0`."""
    words = [f"--cores {amount.cores}"] if amount.cores < need.cores else []
    words += [f"--memory {amount.memory_mb}MB"] if amount.memory_mb < need.memory_mb else []
    for kind, number in amount.devices.items():
        if number < need.devices[kind]:
            words.append(f"--gpus {number}" if kind.startswith("gpu") else f"{number} {kind}")
    return " ".join(words)


def keys_text(amount: SlotNeed, need: SlotNeed) -> str:
    """An amount as keys of `resources` in a job file: `cores = 2, devices = {gpu = 0}`."""
    words = [f"cores = {amount.cores}"] if amount.cores < need.cores else []
    words += [f"memory_mb = {amount.memory_mb}"] if amount.memory_mb < need.memory_mb else []
    fewer = any(number < need.devices[kind] for kind, number in amount.devices.items())
    devices = ", ".join(f"{kind} = {number}" for kind, number in amount.devices.items())
    return ", ".join([*words, f"devices = {{{devices}}}"] if fewer else words)
