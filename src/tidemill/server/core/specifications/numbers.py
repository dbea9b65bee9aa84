"""The numbers of kinds and specifications: found, or made. Equal ones are stored once for each owner."""

from __future__ import annotations

import hashlib

from tidemill.server.database.rows import KIND_COLUMNS, KindKey, StoredKind
from tidemill.server.database.store import value
from tidemill.server.database.unit_of_work import UnitOfWork, take_numbers

SPEC_IDS_MAX = 200_000  #: specifications whose numbers the writer remembers; about 100 bytes each


def spec_digest(owner: str, digest: bytes) -> bytes:
    """What an owner's specification is found by; `digest`: of its text."""
    return hashlib.sha256(owner.encode() + b"\0" + digest).digest()[:16] if owner else digest


def kind_number(work: UnitOfWork, key: KindKey) -> int:
    """The number of a kind, which is stored if it is new."""
    result = work.memory.kind_ids.get(key)
    if result is None:
        words = dict(zip(KIND_COLUMNS, key, strict=True))
        result = value(work.session, "kind_by_key", **words)  # one without open jobs is not in memory
        if result is not None:
            work.memory.find_kinds(work.session, [result])
        else:
            result = int(value(work.session, "insert_kind", **words))
            work.memory.add_kind(StoredKind(result, *key).kind)
    return result


class SpecNumbers:
    """Numbers of one owner's specifications. `most`: how many may be new; `fresh`: rows of those that are."""

    def __init__(self, work: UnitOfWork, most: int) -> None:
        self._work, self._most = work, most
        self._next: int | None = None
        self.fresh: list[tuple[int, bytes, bytes]] = []

    def number(self, owner: str, *, body: bytes, digest: bytes) -> int:
        """The number of a specification; `digest`: of `body`. Owners share none: who pays for it is who is credited
        when it goes."""
        memory, session = self._work.memory, self._work.session
        mark = spec_digest(owner, digest)
        result = memory.spec_ids.get(mark)
        if result is not None:
            return result
        stored = value(session, "spec_by_hash", hash=mark)
        if len(memory.spec_ids) >= SPEC_IDS_MAX:
            memory.spec_ids.clear()
        if stored is not None:
            result = memory.spec_ids[mark] = int(stored)
            return result
        if self._next is None:
            self._next = take_numbers(session, "next_spec", self._most)
        result = self._next
        self._next += 1
        self.fresh.append((result, mark, body))
        memory.add_spec(mark, result)
        return result
