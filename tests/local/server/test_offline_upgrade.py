"""An upgrade by the offline file, as docs/install.md and docs/operations.md tell it: with work under way, and back.

Version A is this tree, version B the same with another number and one schema more. One script in a PID namespace does
what a person does; the tests ask what it saw.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.bundles import VERSION, bundle
from tests.worlds.home.world import namespace_command

from tidemill.server.database.queries import Dialect, migrations

SCHEMA = len(migrations(Dialect.SQLITE))
NEXT = f"{VERSION[:-1]}{(int(VERSION[-1]) + 1) % 10}"
MIGRATION = """-- A column for the trial.
ALTER TABLE activity_steps ADD COLUMN trial BIGINT NOT NULL DEFAULT 0;
"""
EVENTS = 8
JOBS = """campaign = "under-way"

[[job]]
name = "parts"
command = ["/bin/sh", "-c", "until [ {event} -lt 3 ] || [ -e GATE ]; do sleep 0.1; done; echo {event} > part.txt"]
events = 8
outputs = [{ name = "parts", path = "part.txt", kind = "concat" }]

[[job]]
name = "sum"
command = ["/bin/sh", "-c", "awk '{ s += $1 } END { print \\"sum\\", s }' parts > sum.txt"]
inputs = [{ name = "parts", url = "job:parts/parts" }]
outputs = [{ name = "sum", path = "sum.txt", kind = "concat" }]
"""
APPLICATION = """name = "hello"
version = "1"
help = "says hello"
executable = "/bin/echo"
arguments = ["hello", "{seed}"]
"""
SCRIPT = f"""
set -eu -o pipefail
home=$TIDEMILL_HOME old=$D/{VERSION}/bin/tidemill
until_true() {{
    for _ in $(seq 300); do eval "$1" >>until.out 2>&1 && return; sleep 0.3; done
    echo "never: $1"; exit 1
}}
fails() {{ status=0; "${{@:2}}" >"$1" 2>&1 || status=$?; echo "exit $status" >>"$1"; }}
has_begun() {{ tidemill jobs --campaign under-way --json | jq -e '[.[].events_done] | add >= 1'; }}

sh tidemill-{VERSION}-offline.sh --dir $D --python $PYTHON
export PATH=$D/bin:$PATH
tidemill up --detach --cores 2
tidemill run --name before --events 3 --output f-{{event}}.txt -- sh -c 'echo {{event}} > f-{{event}}.txt'
cp hello.toml $home/site/apps/
tidemill site deny mallory --reason 'mines coins'
until_true "tidemill app list | grep '^hello '"
tidemill submit jobs.toml
until_true has_begun
cp $home/site/site.toml site.toml.before

sh tidemill-{NEXT}-offline.sh --dir $D --python $PYTHON
ls $D >versions
tidemill --version >version
$old --version >version.old
tidemill jobs --json >jobs.running                           # the new client asks the old server
curl -sS --unix-socket $home/server/api.sock http://localhost/v1/health >health.running
tidemill server upgrade --dry-run >plan 2>&1                 # the old server runs
fails upgrade.running tidemill server upgrade

tidemill up --stop
tidemill up --detach --cores 2
curl -sS --unix-socket $home/server/api.sock http://localhost/v1/health >health.after
tidemill jobs --json >jobs.after
touch GATE
tidemill wait under-way
tidemill jobs --json >jobs.ended
tidemill app list >apps
tidemill site status >site.status
cp $home/site/site.toml site.toml.after
cp $home/../w/tidemill-out/under-way/*sum* sum
ls $home/server >server.files
tidemill up --stop

fails back.refused timeout 200 $old up --cores 2
rm -f $home/server/tidemill.db-wal $home/server/tidemill.db-shm
mv $home/server/tidemill.db.schema{SCHEMA} $home/server/tidemill.db
$old up --detach --cores 2
$old jobs --json >jobs.back
until_true "grep site.renumbered $home/server.log"
$old site reset-epoch local --reason 'the database is the copy'
$old wait under-way
$old jobs --json >jobs.back.ended
$old up --stop
"""


@pytest.fixture(scope="module")
def seen() -> Iterator[Path]:
    """The directory in which the script ran, with what each step printed."""
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        place = Path(name)
        work = place / "w"
        work.mkdir()
        bundle(work, VERSION)
        bundle(work, NEXT, migration=MIGRATION)
        (work / "jobs.toml").write_text(JOBS.replace("GATE", str(work / "GATE")))
        (work / "hello.toml").write_text(APPLICATION)
        ours = {"TIDEMILL_HOME": str(place / "h"), "D": str(place / "installed"), "PYTHON": sys.executable}
        done = subprocess.run(
            [*namespace_command(), "/bin/bash", "-c", SCRIPT], cwd=work,
            env={"PATH": os.environ["PATH"], "HOME": str(place), "LANG": "C.UTF-8", **ours},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{sorted(work.iterdir())}"
        yield work


def jobs(seen: Path, name: str) -> dict[str, Any]:
    return {f"{each['campaign']}/{each['name']}": each for each in json.loads((seen / name).read_text())}


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_the_new_version_stands_beside_the_old_one_which_goes_on_until_it_is_stopped(seen: Path) -> None:
    assert (seen / "versions").read_text().split() == [VERSION, NEXT, "bin"]
    assert (seen / "version").read_text() == f"tidemill {NEXT}\n"
    assert (seen / "version.old").read_text() == f"tidemill {VERSION}\n"
    assert json.loads((seen / "health.running").read_text())["version"] == VERSION
    running = jobs(seen, "jobs.running")
    assert (running["under-way/parts"]["state"], running["under-way/sum"]["state"]) == ("RUNNING", "WAITING")
    assert f"schema {SCHEMA} -> {SCHEMA + 1}" in (seen / "plan").read_text()
    refused = (seen / "upgrade.running").read_text()
    assert refused.endswith("exit 2\n"), refused
    assert "server" in refused


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_the_work_that_was_under_way_and_the_settings_are_there_after_it(seen: Path) -> None:
    assert json.loads((seen / "health.after").read_text())["version"] == NEXT
    before, after, ended = (jobs(seen, name) for name in ("jobs.running", "jobs.after", "jobs.ended"))
    assert before.keys() == after.keys() == ended.keys()
    done = [each["under-way/parts"]["events_done"] for each in (before, after)]
    assert 1 <= done[0] <= done[1] < EVENTS
    assert {name: each["state"] for name, each in ended.items()} == dict.fromkeys(ended, "COMPLETED")
    assert ended["under-way/parts"]["events_done"] == EVENTS
    assert (seen / "sum").read_text() == f"sum {sum(range(EVENTS))}\n", (
        "an event is missing or was counted twice"
    )
    assert (seen / "site.toml.after").read_text() == (seen / "site.toml.before").read_text()
    assert "hello " in (seen / "apps").read_text()
    assert "mallory: mines coins" in (seen / "site.status").read_text()


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_the_way_back_is_refused_without_the_copy_and_goes_on_with_it(seen: Path) -> None:
    refused = (seen / "back.refused").read_text()
    assert refused.endswith("exit 2\n"), refused
    assert f"has schema {SCHEMA + 1}, made by a newer tidemill" in refused, refused
    assert "put the copy from before the upgrade back" in refused, refused
    assert f"tidemill.db.schema{SCHEMA}" in (seen / "server.files").read_text()
    back, ended = jobs(seen, "jobs.back"), jobs(seen, "jobs.back.ended")
    assert back["under-way/parts"]["state"] != "COMPLETED"
    assert {name: each["state"] for name, each in ended.items()} == dict.fromkeys(ended, "COMPLETED")
    assert ended["under-way/parts"]["events_done"] == EVENTS
