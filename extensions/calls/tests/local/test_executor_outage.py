"""An Executor while its server is gone: calls of workers that run go on, new workers come afterwards.

The outage lasts as long as the test needs; `TIDEMILL_OUTAGE_S=600` makes it ten minutes, with calls all the time.
"""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import wait_for
from tests.worlds.home.world import namespace_command

from tidemill import Client, Executor

OUTAGE_S = float(os.environ.get("TIDEMILL_OUTAGE_S", "0"))
SCRIPT = """set -e
tidemill() { exec "$PYTHON" -m tidemill.cli.main "$@"; }
(tidemill site init --batch local)
sed -i -E '/^(# *)?(data_roots|allow_adhoc) =/d' "$TIDEMILL_HOME/site/site.toml"
sed -i '1i data_roots = ["/"]\\nallow_adhoc = true' "$TIDEMILL_HOME/site/site.toml"
(tidemill site run 2>site.log) &
while :; do
  while [ -e down ]; do sleep 0.05; done
  (tidemill server run 2>>server.log) & server=$!
  while [ ! -e down ]; do sleep 0.05; done
  kill -9 $server
  touch gone
done
"""


@pytest.fixture
def home(short_path: Path) -> Iterator[Path]:
    """A server that is gone as long as the file `down` is there, and a site that goes on."""
    environment = os.environ | {"PYTHON": sys.executable, "TIDEMILL_HOME": str(short_path / "h")}
    with (short_path / "out.log").open("wb") as log:
        process = subprocess.Popen(
            [*namespace_command(), "/bin/bash", "-c", SCRIPT],
            cwd=short_path, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    wait_for(lambda: (short_path / "h" / "server" / "api.sock").is_socket(), lambda: _logs(short_path))
    yield short_path
    process.kill()
    process.wait()


def _logs(home: Path) -> str:
    return "\n".join(f"--- {each}\n{each.read_text()[-3000:]}" for each in home.glob("*.log"))


def _lose_worker(marker: str) -> int:
    """Kill the worker, once; the call then runs in another one."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return os.getppid()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
    return 0


@pytest.mark.timeout(300 + 2 * OUTAGE_S)
def test_an_outage_of_the_server_delays_new_workers_and_no_call(home: Path) -> None:
    client = Client(home=home / "h", retry_s=0.2)
    with Executor(client, workers=1) as pool:
        before = pool.submit(os.getpid).result(100)
        (home / "down").touch()
        wait_for((home / "gone").exists, lambda: _logs(home))
        began = time.monotonic()
        while True:
            assert list(pool.map(operator.add, range(100), range(100), timeout=60)) == list(range(0, 200, 2))
            assert pool.submit(os.getpid).result(60) == before
            if time.monotonic() >= began + OUTAGE_S:
                break
            time.sleep(1.0)  # the pace of the calls of a long outage
        lost = pool.submit(_lose_worker, str(home / "marker"))
        after = pool.submit(operator.add, 1, 1)
        wait_for(lambda: pool._crew._is_away, lambda: _logs(home))  # it has asked for another worker, in vain
        assert not lost.done()
        assert not after.done()
        (home / "down").unlink()
        assert after.result(100) == 2, _logs(home)
        assert lost.result(100) > 0
    wait_for(lambda: [each.state for each in client.jobs(campaign=pool.campaign)] == ["COMPLETED", "FAILED"])
