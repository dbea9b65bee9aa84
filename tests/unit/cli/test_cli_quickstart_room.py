"""`tidemill quickstart` asks for the free space that its server will ask for."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemill.cli.start.quickstart import FREE_BYTES_MIN, _check_free
from tidemill.config.quotas import Quotas
from tidemill.errors import SiteError
from tidemill.server.core.limits.storage import FREE_BYTES, Storage
from tidemill.server.errors import RoomError

GB = 1_000_000_000


@pytest.mark.parametrize("total_gb", [10, 250, 4000])
def test_a_quickstart_that_begins_has_the_room_that_its_server_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total_gb: int
) -> None:
    free = [0]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=total_gb * GB, free=free[0]))
    storage = Storage(tmp_path / "t.db", Quotas())
    assert storage.free_bytes_min <= FREE_BYTES <= GB

    free[0] = storage.free_bytes_min + FREE_BYTES_MIN - 1
    with pytest.raises(SiteError, match="are free at"):
        _check_free(tmp_path / "new" / "place", hint="", serves=True)
    free[0] += 1
    _check_free(tmp_path / "new" / "place", hint="", serves=True)
    free[0] -= FREE_BYTES_MIN  # a run takes less
    storage.check_free()
    free[0] -= 1
    with pytest.raises(RoomError):
        storage.check_free()
    free[0] = FREE_BYTES_MIN
    _check_free(tmp_path, hint="", serves=False)
