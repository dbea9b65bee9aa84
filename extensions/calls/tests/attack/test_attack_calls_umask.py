"""An Executor under a umask of 000 and of 002: what it and its workers write is writable for their user alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from tests.strangers import UMASKS, opened, under
from tests.worlds.home.homes import WAIT_S, Home

from tidemill import Client, Executor


@pytest.mark.parametrize("umask", UMASKS, ids=lambda umask: f"{umask:03o}")
def test_nothing_that_an_executor_writes_is_writable_for_others(umask: int) -> None:
    with under(umask):
        home = Home(Path(tempfile.mkdtemp(prefix="tm-")))
        try:
            home.start()
            with Executor(Client(home=home.path), workers=1) as pool:
                assert pool.submit(abs, -3).result(WAIT_S) == 3
                assert (pool._scratch / "pool").exists()
                assert opened(home.path, without=(home.work, home.path / "up.log")) == []
            home.stop()
            assert opened(home.path, without=(home.work, home.path / "up.log")) == []
        finally:
            home.end()
