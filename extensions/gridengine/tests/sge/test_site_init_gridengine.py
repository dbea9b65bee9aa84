"""How a site begins on a real Grid Engine whose nodes have networks of their own, to the first result."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.worlds.home.homes import NAMESPACE, TIDEMILL

from tidemill import config
from tidemill.config.site import SiteConfig
from tidemill.config.tables import tables_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Grid Engine")
FLOW = """set -e
. "$1"; shift
"$@" site init --enable --contact me@example.org --json >init.json
"$@" run -- hostname >out
"$@" up --stop
for _ in $(seq 250); do
  [ -z "$(qstat)" ] && exit 0
  sleep 0.2
done
echo "nodes were not released: $(qstat)" >&2
exit 1
"""


@pytest.mark.timeout(120)
def test_from_init_to_a_result_of_a_node_with_a_network_of_its_own(gridengine: Path) -> None:
    place = gridengine.parent
    environment = {key: value for key, value in os.environ.items() if key != "SLURM_CONF"}
    done = subprocess.run(
        [*NAMESPACE, "/bin/sh", "-c", FLOW, "sh", str(gridengine / "env.sh"), *TIDEMILL],
        env={**environment, "TIDEMILL_HOME": str(place / "h")},
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    logs = "\n".join(path.read_text()[-3000:] for path in (place / "h").glob("*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}\n{logs}"
    told = json.loads((place / "init.json").read_text())
    findings = {each["check"]: each for each in told["findings"]}
    assert (told["batch"], told["name"], told["tcp"]) == ("gridengine", "gridengine", "open")
    assert findings["compute node"]["found"].startswith(("n1: ", "n2: "))
    site = config.load(place / "h" / "site" / "site.toml", SiteConfig)
    assert not site.lead_listen.startswith("127."), "nodes of another network reach no loopback"
    assert tables_of(site)["gridengine"].parallel_environment == "node"
    assert (place / "out").read_text().strip() in ("n1", "n2")
