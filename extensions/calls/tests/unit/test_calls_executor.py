"""An executor that cannot start, and calls that cannot travel."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidemill import ConfigError, Executor
from tidemill_calls.call import pickled
from tidemill_calls.functions import FunctionPickles


def test_an_executor_without_a_server_names_the_command_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)
    with pytest.raises(ConfigError, match="no server is named, and none runs") as raised:
        Executor()
    assert "`tidemill up --detach` starts your own server and site" in str(raised.value.hint)
    assert not (tmp_path / "home").exists()


def test_a_call_that_cannot_be_pickled_is_refused_where_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="failed to pickle the call of `print`") as raised:
        pickled((print, (threading.Lock(),), {}), tmp_path, FunctionPickles())
    assert "pass data that pickle takes" in str(raised.value.hint)
