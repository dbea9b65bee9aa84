"""Memory that programs take on a node, and what they get where nothing is asked for. Pure.

A slot takes what its payloads may use and what its work directory may grow to, since both are memory. Images are there
once for all slots. `crates/wire/src/memory.rs` counts alike. A site may name a place besides memory for large work
directories (`fast_dir`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.model.application import DEFAULT_MEMORY_MB, DEFAULT_SCRATCH_MB
from tidemill.wire.node import ImageUse, Program

MB = 1 << 20
IMAGE_SERVER_MB = 64
"""Of a squashfuse with its cache of blocks; an image that is unpacked takes more, where there is more."""

SCRATCH_MB_MIN = 50
"""A work directory of default size is never smaller."""

SCRATCH_SHARE = 4
"""... and takes such a part of a core's memory where there is little."""


def images_mb(images: Sequence[ImageUse]) -> int:
    """Memory that images take at least, each counted once."""
    bytes_of = {image.file.sha256: image.file.bytes for image in images}
    return sum(-(-size // MB) + IMAGE_SERVER_MB for size in bytes_of.values())


def has_room(program: Program, memory_mb: int, *, spills: bool) -> bool:
    """Whether a node of `memory_mb` that is otherwise empty has room for a slot of the program."""
    scratch_mb = 0 if spills else program.scratch_mb
    return program.memory_mb + scratch_mb + images_mb(program.images) <= memory_mb


def slot_memory(asked_mb: int | None, scratch_mb: int | None, *, share_mb: int) -> tuple[int, int]:
    """Memory and work directory of a slot in MB, with defaults chosen so that a core's part of the node's
    memory (`share_mb`) does for both, if that is possible. Who asks for a larger work directory has no less memory."""
    left_mb = share_mb // SCRATCH_SHARE if asked_mb is None else share_mb - asked_mb
    usual_mb = max(SCRATCH_MB_MIN, min(DEFAULT_SCRATCH_MB, left_mb))
    if scratch_mb is None:
        scratch_mb = usual_mb
    if asked_mb is None:
        asked_mb = max(1, min(DEFAULT_MEMORY_MB, share_mb - min(scratch_mb, usual_mb)))
    return asked_mb, scratch_mb


def largest_slot_mb(memory_mb: int) -> int:
    """The most memory that a job may ask for on nodes with `memory_mb`: some is needed for its work directory."""
    return max(0, memory_mb - SCRATCH_MB_MIN)
