"""Many small files leave few files on the shared file system, and any one of them is listed and read by one command."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from tests.worlds.home.homes import Home

FILES_MAX = 50
RANGES = 10_000
NAMES = ("a", "b", "c", "d", "e")


@pytest.mark.timeout(300)
def test_ten_thousand_ranges_with_five_files_each_leave_fewer_than_fifty_files() -> None:
    home = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        home.start()
        before = files(home)
        script = "; ".join(f'echo "{name} $1" > {name}.txt' for name in NAMES)
        outputs = ", ".join(f'{{ name = "{name}", path = "{name}.txt", kind = "each" }}' for name in NAMES)
        job_file = home.work / "job.toml"
        job_file.write_text(
            f"""
            campaign = "small"
            [[job]]
            command = ["/bin/sh", "-c", {json.dumps(script)}, "sh", "{{event}}"]
            events = {RANGES}
            resources = {{ event_s = 0.002, memory_mb = 100 }}
            outputs = [{outputs}]
            """
        )
        done = home.run("submit", str(job_file), "--wait", timeout_s=240)
        assert done.returncode == 0, done.stderr + home.logs()
        [row] = home.jobs("small")
        assert (row.state, row.events_done) == ("COMPLETED", RANGES)
        left = files(home) - before
        assert len(left) < FILES_MAX, sorted(left)
        listed = home.data("outputs", "ls", str(row.id), "--files")
        assert len(listed) == RANGES * len(NAMES)
        [one] = [each for each in listed if each["output"] == "c" and each["first"] == 4321]
        got = home.data("outputs", "get", str(row.id), "--file", one["name"])
        assert [Path(home.work / path).read_text() for path in got] == ["c 4321\n"]
        got = home.data("outputs", "get", str(row.id), "--output", "e", "--event", "9999")
        assert [Path(home.work / path).read_text() for path in got] == ["e 9999\n"]
    finally:
        home.end()


def files(home: Home) -> set[str]:
    """Everything below the home: server, site directory, delivered outputs."""
    found = (Path(folder) / name for folder, _, names in os.walk(home.path) for name in names)
    # `rglob` raises where the agent removes a directory meanwhile; `walk` goes on
    return {str(path) for path in found if path.is_file() and home.work not in path.parents}
