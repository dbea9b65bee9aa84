"""Server and site as two programs that speak https, with keys from `tidemill certs`; afterwards: who ran what?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.world import namespace_command
from tests.worlds.services.ports import free_port

from tidemill.model.intervals import IntervalSet

SCRIPT = """set -e
tidemill() { "$PYTHON" -m tidemill.cli.main "$@"; }
for each in init "issue server 127.0.0.1" "issue site lrz" "issue submitter ada" "issue submitter bob" \\
    "issue operator olga"; do
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
tidemill site init --batch local --name lrz --server "https://127.0.0.1:$PORT"
site="$TIDEMILL_HOME/site/site.toml"
sed -i -e 's/^# *allow_adhoc.*/allow_adhoc = true/' \
  -e "s|^# *certificate *=.*|certificate = \\"$PWD/ca/lrz.pem\\"|" -e "s|^# *key *=.*|key = \\"$PWD/ca/lrz.key\\"|" \
  -e "s|^# *ca *=.*|ca = \\"$PWD/ca/ca.pem\\"|" "$site"
tidemill site deny bob --reason "a test"
tidemill site check --offline >check.txt || true
"$PYTHON" -m tidemill.cli.main server run --upgrade --config srv/server.toml 2>server.log &
server=$!
until [ -S srv/api.sock ]; do kill -0 $!; sleep 0.05; done
export TIDEMILL_SERVER="https://127.0.0.1:$PORT" TIDEMILL_CA="$PWD/ca/ca.pem"
as() { export TIDEMILL_CERTIFICATE="$PWD/ca/$1.pem" TIDEMILL_KEY="$PWD/ca/$1.key"; }
as ada; tidemill submit job.toml
as bob; sed 's/mine/bobs/' job.toml >bob.toml; tidemill submit bob.toml
for _ in $(seq 100); do
  tidemill site run --once
  as olga; tidemill jobs --json >jobs.json
  grep -q COMPLETED jobs.json && [ "$(tidemill job explain 2 | grep -c denies)" -ge 1 ] && break
  sleep 0.1
done
as ada; tidemill jobs --json >ada.json
as olga; tidemill errors --json >errors.json
tidemill job explain 2 >explained.txt
curl -s --cacert ca/ca.pem --cert ca/olga.pem --key ca/olga.key "$TIDEMILL_SERVER/v1/allocations" >allocations.json
ids=$("$PYTHON" -c 'import json; print(*{row["batch_id"] for row in json.load(open("allocations.json"))})')
for id in $ids; do tidemill audit --batch-id "$id" --json >>audit.jsons; done
tidemill site run --once --stop-pilots
kill $server; wait $server
tidemill audit --verify --dir srv --json >verify.json
"""
JOB = """campaign = "mine"
[[job]]
command = ["/bin/echo", "{event}"]
events = 5
"""


@pytest.mark.timeout(300)
def test_a_site_and_two_submitters_by_certificate_one_of_whom_the_site_denies(short_path: Path) -> None:
    (short_path / "job.toml").write_text(JOB)
    port = free_port()
    environment = os.environ | {
        "PYTHON": sys.executable, "TIDEMILL_HOME": str(short_path / "h"), "PORT": str(port),
    }  # fmt: skip
    done = subprocess.run(
        [*namespace_command(), "/bin/bash", "-c", SCRIPT],
        cwd=short_path, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout + (short_path / "server.log").read_text()
    assert "CN=lrz" in (short_path / "check.txt").read_text()
    rows = {each["campaign"]: each for each in read(short_path / "jobs.json")}
    assert (rows["mine"]["state"], rows["mine"]["events_done"]) == ("COMPLETED", 5)
    assert rows["bobs"]["state"] == "WAITING", "another site may take his jobs"
    assert "denies submitter `bob`" in (short_path / "explained.txt").read_text()
    assert "denies submitter `bob`" in (short_path / "errors.json").read_text()
    assert {each["campaign"] for each in read(short_path / "ada.json")} == {"mine"}
    found = (short_path / "audit.jsons").read_text().replace("]\n[", ",")
    ran = [each for each in json.loads(found) if each["job"] is not None]
    assert {(each["owner"], each["campaign"], each["subject"]) for each in ran} == {
        ("ada", "mine", "/O=Tidemill/OU=submitter/CN=ada")
    }
    # on a busy machine a second allocation may take some of the events
    assert IntervalSet.parse(",".join(each["events"] for each in ran)) == IntervalSet.parse("0-4")
    assert all(each["nodes"] for each in ran)
    assert json.loads((short_path / "verify.json").read_text())["lines"] >= 3


def read(path: Path) -> list[dict[str, Any]]:
    answer = json.loads(path.read_text())
    rows: list[dict[str, Any]] = answer["jobs"] if isinstance(answer, dict) else answer
    return rows
