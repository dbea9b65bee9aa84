"""`tidemill run` as a plain submitter of a server elsewhere: the command runs there, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.home.world import namespace_command
from tests.worlds.services.ports import free_port

SCRIPT = """set -e
tidemill() { "$PYTHON" -m tidemill.cli.main "$@"; }
for each in init "issue server 127.0.0.1" "issue site lrz" "issue submitter ada" "issue operator olga"; do
  tidemill certs $each --dir ca >/dev/null
done
mkdir -m 0700 srv
cat >srv/server.toml <<END
listen = "127.0.0.1:$PORT"
[tls]
certificate = "../ca/127.0.0.1.pem"
key = "../ca/127.0.0.1.key"
ca = "../ca/ca.pem"
END
export TIDEMILL_HOME="$PWD/h"
tidemill site init --batch local --name lrz --server "https://127.0.0.1:$PORT"
site="$TIDEMILL_HOME/site/site.toml"
sed -i -e 's/^# *allow_adhoc.*/allow_adhoc = true/' \
  -e "s|^# *certificate *=.*|certificate = \\"$PWD/ca/lrz.pem\\"|" -e "s|^# *key *=.*|key = \\"$PWD/ca/lrz.key\\"|" \
  -e "s|^# *ca *=.*|ca = \\"$PWD/ca/ca.pem\\"|" "$site"
"$PYTHON" -m tidemill.cli.main server run --upgrade --config srv/server.toml 2>server.log &
server=$!
until [ -S srv/api.sock ]; do kill -0 $!; sleep 0.05; done
export TIDEMILL_HOME="$PWD/mine" TIDEMILL_SERVER="https://127.0.0.1:$PORT" TIDEMILL_CA="$PWD/ca/ca.pem"
as() { export TIDEMILL_CERTIFICATE="$PWD/ca/$1.pem" TIDEMILL_KEY="$PWD/ca/$1.key"; }
as ada
runs() {
  local name=$1 s=0; shift
  tidemill run --name "$name" "$@" >"$name.out" 2>"$name.err" || s=$?
  echo $s >"$name.status"
}
interrupted() {
  local name=$1 s=0; shift
  # A command in the background of a shell ignores SIGINT
  "$PYTHON" -c 'import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])' \
    "$PYTHON" -m tidemill.cli.main run --name "$name" "$@" >"$name.out" 2>"$name.err" &
  local it=$!
  until tidemill jobs --campaign "$name" 2>/dev/null | grep -q "$STATE"; do kill -0 $it; sleep 0.2; done
  for _ in $(seq 300); do grep -q "$WORDS" "$name.err" && break; sleep 0.1; done
  kill -INT $it; wait $it || s=$?; echo $s >"$name.status"
}
STATE=WAITING WORDS=never.joined interrupted nowhere --site elsewhere -- /bin/echo x & all=$!
# Once a site is known, the name of an unknown one is refused
until tidemill jobs --campaign nowhere 2>/dev/null | grep -q WAITING; do kill -0 $all; sleep 0.2; done
"$PYTHON" -m tidemill.cli.main site run "$PWD/h/site" 2>site.log &
agent=$!
runs slow -- /bin/sleep 11 & all="$all $!"
runs good --events 3 -- /bin/echo here {event} & all="$all $!"
wait $all
runs one -- /bin/echo alone & all=$!
# Where the site's files are not mounted
export -f runs tidemill
unshare --mount bash -c 'mount -t tmpfs none h && runs away -- /bin/echo x' & all="$all $!"
runs bad --events 2 -- /bin/sh -c 'exit 3' & all="$all $!"
STATE=RUNNING WORDS= interrupted running --events 2 -- /bin/sleep 1000 & all="$all $!"
wait $all
tidemill jobs --json >jobs.json
kill $agent; wait $agent || true
kill $server; wait $server
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_submitter_runs_commands_at_a_server_elsewhere_and_leaves_nothing_behind(short_path: Path) -> None:
    port = free_port()
    environment = os.environ | {"PYTHON": sys.executable, "PORT": str(port)}
    done = subprocess.run(
        [*namespace_command(), "/bin/bash", "-c", SCRIPT],
        cwd=short_path, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout + (short_path / "server.log").read_text()
    names = ("good", "one", "away", "slow", "bad", "running", "nowhere")
    ended = {name: int((short_path / f"{name}.status").read_text()) for name in names}
    errors = {name: (short_path / f"{name}.err").read_text() for name in names}
    assert ended == {"good": 0, "one": 0, "away": 0, "slow": 0, "bad": 1, "running": 1, "nowhere": 1}, errors
    assert not any("may not" in each or "allocations" in each for each in errors.values()), errors
    assert "3 of 3 events done" in errors["good"]
    assert (short_path / "one.out").read_text() == "alone\n"
    assert "its stdout (2 B) cannot be read here: it is at `file://" in errors["away"]
    assert "the only site that it may run at has never joined" in errors["nowhere"]
    rows = {each["campaign"]: each["state"] for each in json.loads((short_path / "jobs.json").read_text())}
    assert rows == {
        "good": "COMPLETED", "one": "COMPLETED", "away": "COMPLETED", "slow": "COMPLETED", "bad": "FAILED",
        "running": "CANCELED", "nowhere": "CANCELED",
    }  # fmt: skip
