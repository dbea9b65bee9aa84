"""Server and site as two programs of one home, the agent from cron: `site init`, `server run`, `site run --once`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.home.world import namespace_command

JOB = """campaign = "cron"
[[job]]
command = ["/bin/echo", "{event}"]
events = 5
"""
SCRIPT = """set -e
tidemill() { "$PYTHON" -m tidemill.cli.main "$@"; }
tidemill site init --batch local
sed -i 's/^# *allow_adhoc.*/allow_adhoc = true/' "$TIDEMILL_HOME/site/site.toml"
tidemill server run 2>server.log &
until [ -S "$TIDEMILL_HOME/server/api.sock" ]; do kill -0 $!; sleep 0.05; done
tidemill submit job.toml
for _ in $(seq 100); do
  tidemill site run --once
  tidemill jobs --json >jobs.json
  grep -q COMPLETED jobs.json && break
  sleep 0.1
done
tidemill site run --once --stop-pilots
"""


@pytest.fixture
def home(short_path: Path) -> Path:
    (short_path / "job.toml").write_text(JOB)
    return short_path


@pytest.mark.timeout(200)
def test_a_home_without_up_runs_jobs_from_cron_and_stops_its_pilots(home: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable, "TIDEMILL_HOME": str(home / "h")}
    command = [*namespace_command(), "/bin/bash", "-c", SCRIPT + "sleep 2; ps -e -o args= >ps.txt\n"]
    done = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    answer = json.loads((home / "jobs.json").read_text())
    (row,) = answer["jobs"] if isinstance(answer, dict) else answer
    assert (row["state"], row["events_done"]) == ("COMPLETED", 5)
    assert "--allocation" not in (home / "ps.txt").read_text()
    assert (home / "h").stat().st_mode & 0o777 == 0o700
