"""The packs of a store: chunks of images, each kept once. Knows no squashfs and no recipe.

A pack is written under a temporary name, synced, and renamed to the SHA-256 of its bytes; its index comes first, so a
pack that is seen can be read. Two writers at once may keep a chunk twice; neither can harm the other.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from tidemill.errors import SiteError
from tidemill.files import make_readable, names_in, sync, sync_directory, temporary, write_durable
from tidemill.wire.staged import Piece

FOLDER = "packs"
COPY_BYTES = 1 << 20
INDEX_LINE = re.compile(r"([0-9a-f]{64}) ([1-9][0-9]*)")


class ChunkPlace(msgspec.Struct, frozen=True):
    """Where a chunk is."""

    pack: str  #: SHA-256
    offset: int
    length: int


class Stored(msgspec.Struct, frozen=True):
    """What keeping a file came to."""

    sha256: str  #: of the whole file
    bytes: int
    pieces: list[Piece]  #: relative to the store
    added_bytes: int


def known_chunks(store: Path) -> dict[str, ChunkPlace]:
    """All chunks of a store's packs by their SHA-256. A pack whose index lacks, or whose size is not what its index
    says, is passed over: nothing new is to depend on it."""
    known: dict[str, ChunkPlace] = {}
    for pack in pack_names(store):
        at = 0
        chunks = []
        try:
            for digest, length in _read_index(store, pack):
                chunks.append((digest, ChunkPlace(pack, at, length)))
                at += length
            if (store / FOLDER / f"{pack}.pack").stat().st_size == at:
                known.update(chunks)
        except (OSError, ValueError):
            continue
    return known


def pack_names(store: Path) -> list[str]:
    """The SHA-256 of all packs of a store, sorted. Raises SiteError."""
    names = names_in(store / FOLDER) or []
    return [name[:-5] for name in names if re.fullmatch(r"[0-9a-f]{64}\.pack", name)]


def _read_index(store: Path, pack: str) -> Iterator[tuple[str, int]]:
    with (store / FOLDER / f"{pack}.index").open(encoding="ascii") as file:
        for line in file:
            match = INDEX_LINE.fullmatch(line.rstrip("\n"))
            if match is None:
                raise ValueError(line)
            yield match[1], int(match[2])


def store_file(file: Path, cuts: Sequence[tuple[int, int]], store: Path) -> Stored:
    """Keep a file: chunks that no pack of the store has go into a new one. Where nothing of it is known its bytes are
    the pack, so it is linked, not copied. Raises SiteError."""
    folder = store / FOLDER
    try:
        make_readable(folder)
        with file.open("rb") as source:
            whole, digests = _digests(source, cuts)
            known = known_chunks(store)
            fresh = [
                (digest, offset, length)
                for digest, (offset, length) in first_of(zip(digests, cuts, strict=True))
                if digest not in known
            ]
            spare = temporary(folder / "pack")
            try:
                if len(fresh) == len(cuts) and _is_linked(file, spare):
                    added = _publish(spare, fresh, whole, store)
                else:
                    added = _write_pack(source, fresh, spare, store)
            finally:
                spare.unlink(missing_ok=True)
    except OSError as error:
        raise SiteError(
            f"failed to write a pack in `{folder}`: {error.strerror}", hint="check its free space and quota"
        ) from error
    places = {**known, **added}
    _renew(store, {places[digest].pack for digest in digests if digest in known})
    return Stored(
        sha256=whole,
        bytes=sum(length for _, length in cuts),
        pieces=joined(places[digest] for digest in digests),
        added_bytes=sum(place.length for place in added.values()),
    )


def _renew(store: Path, reused: Iterable[str]) -> None:
    """Touch reused packs, so that no removal takes them before the recipe that needs them is written. If that is not
    permitted, or a pack has just been removed, the builder notices at its final check of the packs."""
    for pack in reused:
        with suppress(OSError):
            os.utime(store / FOLDER / f"{pack}.pack")


def first_of(chunks: Iterable[tuple[str, tuple[int, int]]]) -> list[tuple[str, tuple[int, int]]]:
    """Each chunk once, where it comes first."""
    found: dict[str, tuple[int, int]] = {}
    for digest, place in chunks:
        found.setdefault(digest, place)
    return list(found.items())


def joined(places: Iterable[ChunkPlace]) -> list[Piece]:
    """The chunks as pieces: those that lie one after the other in a pack are one."""
    pieces: list[Piece] = []
    for place in places:
        path = f"{FOLDER}/{place.pack}.pack"
        last = pieces[-1] if pieces else None
        if last is not None and last.path == path and last.offset + last.length == place.offset:
            pieces[-1] = Piece(path=path, offset=last.offset, length=last.length + place.length)
        else:
            pieces.append(Piece(path=path, offset=place.offset, length=place.length))
    return pieces


def _digests(source: BinaryIO, cuts: Sequence[tuple[int, int]]) -> tuple[str, list[str]]:
    """The SHA-256 of the whole, and of each chunk."""
    whole = hashlib.sha256()
    digests: list[str] = []
    source.seek(0)
    for _, length in cuts:
        one = hashlib.sha256()
        for piece in _pieces(source, length):
            one.update(piece)
            whole.update(piece)
        digests.append(one.hexdigest())
    return whole.hexdigest(), digests


def _pieces(source: BinaryIO, length: int) -> Iterator[bytes]:
    while length > 0:
        piece = source.read(min(COPY_BYTES, length))
        if not piece:
            raise SiteError(f"`{source.name}` is shorter than it was")
        yield piece
        length -= len(piece)


def _is_linked(file: Path, spare: Path) -> bool:
    """Give a file a second name; not every file system can."""
    try:
        os.link(file, spare)
    except OSError:
        return False
    return True


def _write_pack(
    source: BinaryIO, fresh: Sequence[tuple[str, int, int]], spare: Path, store: Path
) -> dict[str, ChunkPlace]:
    if not fresh:
        return {}
    whole = hashlib.sha256()
    with spare.open("xb") as pack:
        for _, offset, length in fresh:
            source.seek(offset)
            for piece in _pieces(source, length):
                whole.update(piece)
                pack.write(piece)
    return _publish(spare, fresh, whole.hexdigest(), store)


def _publish(
    path: Path, chunks: Sequence[tuple[str, int, int]], digest: str, store: Path
) -> dict[str, ChunkPlace]:
    """Give a written pack its name, after its index."""
    places: dict[str, ChunkPlace] = {}
    at = 0
    for chunk, _, length in chunks:
        places[chunk] = ChunkPlace(digest, at, length)
        at += length
    index = "".join(f"{chunk} {place.length}\n" for chunk, place in places.items())
    folder = store / FOLDER
    with path.open("r+b") as file:
        sync(file)
    write_durable(folder / f"{digest}.index", index.encode(), mode=0o644)
    path.rename(folder / f"{digest}.pack")
    sync_directory(folder)
    return places
