"""Jobs whose programs open far files, run by a site and a server of their own until they have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.contract.transfer_world import Server
from tests.timing import passed_on
from tests.worlds.home.world import namespace_command

SCRIPT = """set -e
tidemill() { "$PYTHON" -m tidemill.cli.main "$@"; }
tidemill site init --batch local
sed -i 's/^# *allow_adhoc.*/allow_adhoc = true/' "$TIDEMILL_HOME/site/site.toml"
cat more.toml >>"$TIDEMILL_HOME/site/site.toml"
[ ! -e links.json ] || cp links.json "$TIDEMILL_HOME/site/"
tidemill server run 2>server.log &
until [ -S "$TIDEMILL_HOME/server/api.sock" ]; do kill -0 $!; sleep 0.05; done
tidemill submit job.toml
"$PYTHON" -m tidemill.cli.main site run 2>agent.log &
agent=$!
for _ in $(seq 400); do
  tidemill jobs --json >jobs.json
  [ "$(grep -Eo 'COMPLETED|FAILED|PARTIAL' jobs.json | wc -l)" -lt "$JOBS" ] || break
  kill -0 $agent
  sleep 0.2
done
for job in $(seq "$JOBS"); do
  for _ in $(seq 100); do  # the site shows it every 15 s
    tidemill job explain $job >explain.$job
    ! grep -Eq "$SHOWN" explain.$job || break
    sleep 0.3
  done
  tidemill job show $job --json >job.$job
done
kill $agent
wait $agent || true
"""
READ = """set -e
xrdcp --silent --nopbar "$1" got
{ cat got; echo "url $1"; env | grep -E '^(TIDEMILL_INPUT_|XRD_)' | sort; } >out.txt
"""


class Ran(NamedTuple):
    """A job that ended: its outputs, what `job show` and `job explain` said."""

    outputs: list[str]
    detail: dict[str, Any]
    explained: str

    @property
    def state(self) -> str:
        return str(self.detail["row"]["state"])

    @property
    def evidence(self) -> str:
        """The messages of its failures."""
        return "\n".join(str(each["evidence"]["message"]) for each in self.detail["failures"])


def run(home: Path, config: str, *, near_s: float = 0.02, **job: object) -> Ran:
    """Run a job in a new home until it has completed."""
    (ran,) = run_all(home, config, [job], near_s=near_s)
    assert ran.state == "COMPLETED", f"{ran.detail}\n{_logs(home)}"
    return ran


def run_all(
    home: Path,
    config: str,
    jobs: Sequence[dict[str, object]],
    *,
    near_s: float = 0.02,
    shown: str = "is read|FAILED",
) -> list[Ran]:
    """Run jobs in a new home until they have ended, and `tidemill job explain` prints a line like `shown`."""
    (home / "more.toml").write_text(config)
    usual = {
        "command": ["/bin/sh", "-c", READ, "read", "{input.data}"],
        "outputs": [{"name": "result", "path": "out.txt", "kind": "concat"}],
    }
    text = 'campaign = "far"\n'
    for job in jobs:
        text += "[[job]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in {**usual, **job}.items())
    (home / "job.toml").write_text(text)
    environ = {
        "PYTHON": sys.executable, "TIDEMILL_HOME": str(home / "h"), "JOBS": str(len(jobs)),
        "SHOWN": shown, **passed_on({"site": {"NEAR_S": near_s}}),
    }  # fmt: skip
    done = subprocess.run(
        [*namespace_command(), "/bin/bash", "-c", SCRIPT],
        cwd=home, env=os.environ | environ, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout + _logs(home)
    return [_ran(home, number) for number in range(1, len(jobs) + 1)]


def _ran(home: Path, number: int) -> Ran:
    detail = json.loads((home / f"job.{number}").read_text())
    files = (path for path in sorted((home / "h/site/out").rglob(f"{number}-*")) if path.is_file())
    outputs = [path.read_text() for path in files if not path.name.startswith("manifest-")]
    return Ran(outputs, detail, (home / f"explain.{number}").read_text())


def _logs(home: Path) -> str:
    return "".join(path.read_text()[-4000:] for path in sorted(home.glob("*.log")))


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return json.dumps(value)


def endpoint(server: Server, **more: object) -> str:
    """The site's permission to read from a server."""
    more = {"ca": str(server.endpoint.ca), **more} if server.endpoint.ca else more
    lines = "".join(f"{key} = {_toml(value)}\n" for key, value in more.items())
    return f'\n[[endpoints]]\nurl = "{server.base}"\n{lines}'
