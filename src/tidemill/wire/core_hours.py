"""When allocations held nodes and what payloads used of them, from the server to clients: for core-hours."""

from __future__ import annotations

import msgspec


class PlacementRow(msgspec.Struct, kw_only=True):
    """When an allocation held its nodes. `ended_us` None: it still does. `cores` of a node; 0 = no longer known."""

    site: str
    name: str
    batch_id: str
    nodes: int
    cores: int
    started_us: int
    ended_us: int | None


class CoreUse(msgspec.Struct, kw_only=True):
    """A campaign's and application's part of an allocation. `core_us`: payload time x cores; `held_core_us`,
    `held_gpu_us`: its part of what the allocation held, split by `core_us`. `app` empty: a command."""

    owner: str
    campaign: str
    app: str
    core_us: int
    held_core_us: int
    held_gpu_us: int


class AllocationUse(msgspec.Struct, kw_only=True):
    """What an allocation held and what payloads used of it. Start and end are the batch system's own times; `ended_us`
    None: it runs, and what it holds is counted until now, or until its site was last heard. `cores`, `gpus`: of all its
    nodes; 0 cores = not known. `whole` False: only the parts of the one who asks, which `held_core_us`, `held_gpu_us`
    add up; nodes, cores and GPUs are 0 then."""

    site: str
    name: str
    batch_id: str
    nodes: int
    cores: int
    gpus: int
    started_us: int
    ended_us: int | None
    elapsed_us: int
    held_core_us: int
    held_gpu_us: int
    uses: list[CoreUse] = []
    whole: bool = True


class CoreHoursPage(msgspec.Struct, kw_only=True):
    """Allocations by site and name; `next`: pass as `after` for the following page; None on the last."""

    allocations: list[AllocationUse]
    next: str | None
