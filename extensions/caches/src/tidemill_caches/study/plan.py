"""What a study reads, in which order, and where in the file. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

RANDOM_READS = 40
VECTORS, VECTOR_READS = 4, 64
PIECE_BYTES = 4096
SEQUENTIAL_BYTES = 1 << 20
"""Of each read of a sequential pass, one after the other."""

SEED = 1


def _block_text(size: int) -> str:
    """A block size as `--block` takes it: `512 KiB`, `1 MiB`."""
    return f"{size >> 20} MiB" if size % (1 << 20) == 0 else f"{size >> 10} KiB"


class ReadPattern(StrEnum):
    """How a program reads a file."""

    WHOLE = "whole"  # xrdcp: large reads, several under way
    SEQUENTIAL = "sequential"  # from the beginning, each read after the one before
    RANDOM = "random"  # small reads here and there, each after the one before
    VECTOR = "vector"  # many small reads in one request, as uproot and ROOT ask for baskets


class StudySetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache is tried with."""

    block_bytes: int = 1 << 20
    prefetch_blocks: int = 10

    @property
    def text(self) -> str:
        """The setting in a few words."""
        ahead = f"prefetch {self.prefetch_blocks}" if self.prefetch_blocks else "no prefetch"
        return f"{ahead}, {_block_text(self.block_bytes)} blocks"


class StudyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: a direct pass, or (`setting`) a first and a second pass through a cache that is empty before.
    `rtt_ms`: the round trip that is inserted, None = none is."""

    round: int
    rtt_ms: float | None
    pattern: ReadPattern
    setting: StudySetting | None = None


class StudySize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    patterns: Sequence[ReadPattern] = tuple(ReadPattern)
    settings: Sequence[StudySetting] = (StudySetting(prefetch_blocks=0), StudySetting())
    rtts_ms: Sequence[float | None] = (None,)
    rounds: int = 1


def steps(size: StudySize) -> Iterator[StudyStep]:
    """All measurements, one round after the other: when time runs out, the earliest rounds are complete.

    Every second round runs in reverse order, so that a machine that gets slower favours no setting.
    """
    for number in range(size.rounds):
        ways: list[StudySetting | None] = [None, *size.settings]
        if number % 2:
            ways.reverse()
        for rtt_ms in size.rtts_ms:
            for pattern in size.patterns:
                for way in ways:
                    yield StudyStep(round=number, rtt_ms=rtt_ms, pattern=pattern, setting=way)


def chunks(pattern: ReadPattern, size_bytes: int, *, bytes_max: int) -> list[list[tuple[int, int]]]:
    """The requests of a pattern, each a list of (offset, length): the same for the same size."""
    if pattern in (ReadPattern.WHOLE, ReadPattern.SEQUENTIAL):
        end = min(size_bytes, bytes_max)
        return [[(at, min(SEQUENTIAL_BYTES, end - at))] for at in range(0, end, SEQUENTIAL_BYTES)]
    chance = random.Random(SEED)
    last = max(0, size_bytes - PIECE_BYTES)
    length = min(PIECE_BYTES, size_bytes)
    if pattern is ReadPattern.RANDOM:
        return [[(chance.randint(0, last), length)] for _ in range(RANDOM_READS)]
    return [sorted((chance.randint(0, last), length) for _ in range(VECTOR_READS)) for _ in range(VECTORS)]
