"""`tidemill windows` on PBS, which has no `showbf` either: by fake commands that are complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.batch.batch_pbs import PbsWorld, person, world

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
WAIT_S = 60.0
CTIME = "%a %b %d %H:%M:%S %Y"


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    with world(request, tmp_path) as found:
        yield found


def look(*words: str, home: Path) -> Any:
    done = subprocess.run(
        [*TIDEMILL, "windows", "--batch", "pbs", "--guard", "5s", *words],
        env={**os.environ, "TIDEMILL_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in words else done


def test_idle_nodes_are_free_until_a_reservation(pbs: PbsWorld, tmp_path: Path) -> None:
    start = datetime.now(UTC) + timedelta(minutes=30)
    end = start + timedelta(hours=2)
    (pbs.state / "rstat").write_text(
        "Resv ID: M17.server\nReserve_Name = repair\nReserve_Owner = root@server\nreserve_state = RESV_CONFIRMED\n"
        f"reserve_start = {start.strftime(CTIME)}\nreserve_end = {end.strftime(CTIME)}\n"
        "reserve_duration = 7200\nqueue = M17\nresv_nodes = (n2:ncpus=4)\nAuthorized_Users = root@server\n\n"
    )
    found = look("--json", home=tmp_path)
    assert (found["nodes"], found["idle"]) == (2, 2)
    assert [step["nodes"] for step in found["steps"]] == [1, 2]
    assert found["steps"][1]["by"] == "reservation M17 repair"
    assert 1700 < found["steps"][1]["seconds"] <= 1795


def test_a_node_with_a_job_on_it_is_not_free(pbs: PbsWorld, tmp_path: Path) -> None:
    script = pbs.space / "sleep"
    script.write_text("sleep 600\n")
    resources = ["-l", "select=1:ncpus=4", "-l", "place=scatter:excl", "-l", "walltime=00:20:00"]
    subprocess.run(["qsub", *resources, str(script)], env=person(), check=True, capture_output=True)
    found = look("--json", home=tmp_path)
    assert (found["nodes"], found["idle"]) == (2, 1)
    assert [step["nodes"] for step in found["steps"]] == [1]
    told = look(home=tmp_path)
    assert told.stdout.splitlines()[0].split()[:2] == ["NODES", "FOR"]
    assert "not seen: " in told.stderr
