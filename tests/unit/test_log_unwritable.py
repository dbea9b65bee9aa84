"""A log that cannot be written: the program goes on, and prints no traceback about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FULL = Path("/dev/full")

LIMITED = """
import logging, resource, sys
from pathlib import Path
from tidemill import log
path = Path(sys.argv[1])
log.to_file(path)
it = log.Log("agent")
it.info("first")
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
for number in range(300):  # more than a buffer takes
    it.info("second", number=number)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
it.info("third")
it.info("fourth")
logging.getLogger("library").warning("of a library")
"""


def python(code: str, *words: str, stderr: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_log_file_on_a_full_disk_leaves_stderr_alone() -> None:
    code = "import sys; from pathlib import Path; from tidemill import log; log.to_file(Path(sys.argv[1]))\n"
    done = python(f"{code}log.Log('agent').warning('lost', n=1); print('went on')", str(FULL))
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_lines_are_missed_and_counted_until_the_disk_has_room_again(tmp_path: Path) -> None:
    path = tmp_path / "site.log"
    done = python(LIMITED, str(path))
    assert "Logging error" not in done.stderr + path.read_text()
    assert "Traceback" not in done.stderr
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # the line that the limit cut
            continue
    events = [each["event"] for each in lines]
    assert events[0] == "first"
    assert events[-1] == "fourth"
    (resumed,) = [each for each in lines if each["event"] == "log.resumed"]
    assert resumed["component"] == "log"
    assert 0 < resumed["lines"] <= 300
    assert "File too large" in resumed["reason"]


def test_a_closed_stderr_stops_no_program() -> None:
    code = "import os; from tidemill import log; log.to_stderr(); os.close(2)\n"
    done = python(f"{code}log.Log('agent').warning('lost'); print('went on')")
    assert (done.stdout, done.returncode in (0, 120)) == ("went on\n", True)
