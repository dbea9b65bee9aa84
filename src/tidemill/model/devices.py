"""Devices that a slot asks for: whole GPUs, or a share of one."""

from __future__ import annotations

from collections.abc import Mapping

GPU = "gpu"
"""Kind of whole GPUs."""

GPU_PERCENT = "gpu_percent"
"""Kind of a share of one GPU, in hundredths: payloads that together ask for at most 100 run on it at the same time. The
GPU divides its time among them, and nothing divides its memory."""


def parse_gpus(text: str) -> dict[str, int]:
    """Devices of `2` (whole GPUs), `0.25` (a share of one), or `0` (none). Raises ValueError."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"`{text}` is not a number") from None
    percent = round(number * 100) if 0 <= number < 2**20 else -1
    if percent < 0 or abs(number * 100 - percent) > 1e-6:
        raise ValueError(
            f"`{text}` is neither a number of GPUs nor a share of one in hundredths, such as 0.25"
        )
    if percent % 100 == 0:
        return {GPU: percent // 100} if percent else {}
    if percent > 100:
        raise ValueError(f"`{text}`: a payload gets whole GPUs, or a share of one, such as 0.25")
    return {GPU_PERCENT: percent}


def with_shares(devices: Mapping[str, int]) -> dict[str, int]:
    """What one slot of a node with these devices can have: where there are GPUs, also a share of one."""
    shares = {GPU_PERCENT: 100} if devices.get(GPU, 0) > 0 else {}
    return {**shares, **devices}


def without_gpus(devices: Mapping[str, int]) -> dict[str, int]:
    """These devices but for GPUs and shares of them."""
    return {kind: number for kind, number in devices.items() if kind not in (GPU, GPU_PERCENT)}


def merged(asked: Mapping[str, int] | None, own: Mapping[str, int] | None) -> dict[str, int]:
    """What a job asks for over what its application does: a job that says anything of GPUs has the word on them."""
    first, second = dict(asked or {}), dict(own or {})
    if GPU in first or GPU_PERCENT in first:
        second.pop(GPU, None)
        second.pop(GPU_PERCENT, None)
    return {kind: number for kind, number in {**second, **first}.items() if number}


def asks_gpus(devices: Mapping[str, int] | None) -> bool | None:
    """Whether GPUs are asked for, whole or in part; None = nothing is said of them. `merged` reads it alike."""
    if devices is None or not (GPU in devices or GPU_PERCENT in devices):
        return None
    return bool(devices.get(GPU) or devices.get(GPU_PERCENT))


def fault_of(devices: Mapping[str, int]) -> str | None:
    """What is wrong with the devices of a slot; None = nothing."""
    percent = devices.get(GPU_PERCENT, 0)
    if percent > 100:
        return f"`resources.devices.{GPU_PERCENT}` is {percent}, legal is 0 to 100: it is a share of one GPU"
    if percent and devices.get(GPU, 0):
        return f"`resources.devices` asks for `{GPU}` and `{GPU_PERCENT}`: whole GPUs, or a share of one"
    return None


def devices_text(devices: Mapping[str, int]) -> str:
    """For people: `2 GPUs`, `0.25 of a GPU`, `no GPU`; other kinds by name."""
    words = []
    for kind, number in sorted(devices.items()):
        if kind == GPU and number:
            words.append("1 GPU" if number == 1 else f"{number} GPUs")
        elif kind == GPU_PERCENT and number and not devices.get(GPU):
            words.append(f"{number / 100:g} of a GPU")
        elif kind not in (GPU, GPU_PERCENT) and number:
            words.append(f"{number} {kind}")
    return ", ".join(words) or "no GPU"
