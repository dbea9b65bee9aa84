"""What attacks below the routes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.server_world import World as StoreWorld

from tidemill.server.database.store import Store


@pytest.fixture
def store_world(tmp_path: Path) -> Iterator[StoreWorld]:
    """A server's dispatcher on a database of its own."""
    store = Store(path=tmp_path / "t.db")
    store.init()
    made = StoreWorld(store)
    yield made
    made.reader.close()
    made.dispatcher.close()
