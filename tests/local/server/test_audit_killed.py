"""A server that is killed at any moment: every change stands in the audit log once, and the chain holds."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.server_process import Server, jobs, until

from tidemill.errors import SiteError
from tidemill.server.audit.audit_log import verify
from tidemill.server.run import lines_told


def logged(folder: Path) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in sorted((folder / "audit").glob("*.jsonl"))]
    texts = [text.rpartition("\n")[0] for text in texts]  # the last line may be half written
    return [json.loads(line) for text in texts for line in text.splitlines()]


def test_notes_of_a_killed_server_come_once(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    keys: list[str] = []
    for number, pause_s in enumerate((0.0, 0.6, 1.1, 1.4)):
        server = Server(folder).ready()
        for part in range(3):
            keys.append(f"k{number}-{part}")
            spec = {"app": "sim", "events": 1}
            body = jobs(spec, key=keys[-1]) | {"campaign": keys[-1]}
            assert server.call("POST", "/v1/jobs", body)[0] == 200
        time.sleep(pause_s)  # the notes are moved once a second: before, amid and after
        server.process.kill()
        server.process.wait()
    last = Server(folder).ready()

    def all_there() -> bool:
        return [each["on"] for each in logged(folder) if each["act"] == "submit"] == [
            f"campaign /{key}" for key in keys
        ]

    until(all_there)
    assert last.stop() == 0
    assert all_there()
    assert verify(folder, at_least=lines_told(folder)).lines == len(logged(folder))


def test_changes_are_told_after_an_older_copy_of_the_database_was_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    for keys in (["a", "b", "c"], ["d", "e"]):
        server = Server(folder).ready()
        for key in keys:
            body = jobs({"app": "sim", "events": 1}, key=key) | {"campaign": key}
            assert server.call("POST", "/v1/jobs", body)[0] == 200
        assert server.stop() == 0
        for path in folder.glob("tidemill.db*"):
            path.unlink()  # as if the copy had been made before the first job
    told = [each["on"] for each in logged(folder) if each["act"] == "submit"]
    assert told == [f"campaign /{key}" for key in "abcde"]
    assert [each["facts"]["numbers"] for each in logged(folder) if each["act"] == "database"] == [3]
    verify(folder)


def test_a_log_that_was_removed_and_begun_anew_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    for keys in (["a", "b", "c"], ["d"]):
        server = Server(folder).ready()
        for key in keys:
            assert server.call("POST", "/v1/jobs", jobs({"app": "sim", "events": 1}, key=key))[0] == 200
        assert server.stop() == 0
        if len(keys) > 1:
            shutil.rmtree(folder / "audit")
    with pytest.raises(SiteError, match="the database knows of"):
        verify(folder, at_least=lines_told(folder))
