"""What the site gets of these settings."""

from __future__ import annotations

from tidemill.routing.copies import KnownCopies
from tidemill_replicas.lists import ReplicaLists
from tidemill_replicas.rucio import RucioReplicas
from tidemill_replicas.settings import Replicas

KEPT_S = 600.0
"""Rucio's answer about a file is used again for this time: replicas move over hours."""


def copies_of(settings: Replicas) -> KnownCopies:
    """The lists, and Rucio where the settings name it. Reads and connects to nothing yet."""
    lists = ReplicaLists(settings)
    if not settings.rucio.url:
        return KnownCopies(lists.copies)
    return KnownCopies(lists.copies, RucioReplicas(settings.rucio, KEPT_S).look_up)
