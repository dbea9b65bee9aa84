"""Inputs from one protocol, outputs to another, on real servers; moved by the agent or by a process beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.transfer_world import Server
from tests.worlds.home.world import namespace_command

from tidemill.config import describe
from tidemill.config.transfer import Endpoint

EVENTS = 6
SCRIPT = """set -e
tidemill() { "$PYTHON" -m tidemill.cli.main "$@"; }
tidemill site init --batch local
sed -i 's/^# *allow_adhoc.*/allow_adhoc = true/' "$TIDEMILL_HOME/site/site.toml"
[ "$APART" = 0 ] || printf '[transfer]\nwhere = "apart"\n' >>"$TIDEMILL_HOME/site/site.toml"
cat endpoints.toml >>"$TIDEMILL_HOME/site/site.toml"
tidemill server run 2>server.log &
until [ -S "$TIDEMILL_HOME/server/api.sock" ]; do kill -0 $!; sleep 0.05; done
tidemill submit job.toml
tidemill site run 2>agent.log &
if [ "$APART" = 1 ]; then
  tidemill site run --only transfer 2>mover-1.log &
  mover=$!
  until [ -n "$(ls "$TIDEMILL_HOME/site/stage/files" 2>/dev/null)" ]; do sleep 0.05; done
  kill -9 $mover
  tidemill site run --only transfer --take-over 2>mover-2.log &
fi
for _ in $(seq 400); do
  tidemill jobs --json >jobs.json
  grep -Eq 'COMPLETED|FAILED|PARTIAL' jobs.json && break
  sleep 0.2
done
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    made: dict[str, Server] = {}
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        for scheme in ("https", "root", "gsiftp"):
            (Path(folder) / scheme).mkdir(mode=0o711)
            made[scheme] = Server(scheme, Path(folder) / scheme)
        yield made
        for server in made.values():
            server.stop()


def endpoints(*servers: Server) -> str:
    return "".join(f"\n[[endpoints]]\n{_lines(server.endpoint)}" for server in servers)


def _lines(endpoint: Endpoint) -> str:
    values: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name in (key.key for key in describe(Endpoint))
        if (value := getattr(endpoint, name)) not in (None, [])
    }
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def run(home: Path, config: str, job: str, *, apart: bool = False) -> None:
    """Run the job in a new home until it has ended."""
    (home / "endpoints.toml").write_text(config)
    (home / "job.toml").write_text(job)
    environment = os.environ | {
        "PYTHON": sys.executable, "TIDEMILL_HOME": str(home / "h"), "APART": str(int(apart)),
    }  # fmt: skip
    done = subprocess.run(
        [*namespace_command(), "/bin/bash", "-c", SCRIPT],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    logs = "".join(path.read_text()[-3000:] for path in sorted(home.glob("*.log")))
    assert done.returncode == 0, done.stderr + done.stdout + logs
    rows = json.loads((home / "jobs.json").read_text())
    (row,) = rows["jobs"] if isinstance(rows, dict) else rows
    assert row["state"] == "COMPLETED", f"{row}\n{logs}"


def job(shared: str, lines: str, output: str) -> str:
    command = ["/bin/sh", "-c", "cat geometry one > out.txt"]
    return f"""campaign = "far"
[[job]]
command = {json.dumps(command)}
events = {EVENTS}
inputs = [
  {{ name = "geometry", url = {json.dumps(shared)} }},
  {{ name = "one", url = {json.dumps(lines)}, kind = "each" }},
]
outputs = [{{ name = "result", path = "out.txt", url = {json.dumps(output)} }}]
"""


def check_bundle(path: Path) -> None:
    with tarfile.open(path) as bundle:
        contents = sorted(bundle.extractfile(each).read() for each in bundle.getmembers())  # type: ignore[union-attr]
    assert contents == sorted(b"the geometry\nevent %d\n" % n for n in range(EVENTS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("apart", [False, True], ids=["agent", "apart"])
@pytest.mark.parametrize(("source", "target"), [("https", "root"), ("gsiftp", "https")])
def test_inputs_of_one_protocol_become_outputs_of_another(
    servers: dict[str, Server], short_path: Path, source: str, target: str, apart: bool
) -> None:
    come, go = servers[source], servers[target]
    shared = come.make("geometry", b"the geometry\n")
    each = [come.make(f"events/{n}", b"event %d\n" % n) for n in range(EVENTS)]
    lines = come.make("list", "".join(f"{url}\n" for url in each).encode())
    name = f"results-{source}-{apart}/far.tar"
    run(short_path, endpoints(come, go), job(shared, lines, go.address(name)), apart=apart)
    check_bundle(go.data / name)
