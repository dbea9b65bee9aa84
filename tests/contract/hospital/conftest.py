"""Worlds that are closed after a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.hospital.hospital_world import Hospital

from tidemill.server.database.store import Store


@pytest.fixture
def open_worlds(store: Store) -> Iterator[list[Hospital]]:
    store.init()
    worlds: list[Hospital] = []
    yield worlds
    for each in worlds:
        each.reader.close()
        each.dispatcher.close()
