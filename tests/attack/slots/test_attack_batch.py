"""A real Slurm from inside of a slot: a payload that brings its own client gets no credential and submits nothing.

Slurm of Debian 12 (22.05) knows munge and no SACK: a `sack.socket`, and sockets elsewhere, are tried with stand-ins in
`crates/slot/tests/slots`. The names of batch commands, `PATH` and the environment: `tests/e2e/test_hostile_payload.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.batch.slurm_cluster import REACH, SlurmCluster
from tests.worlds.batch.slurm_world import slurm_world
from tests.worlds.home.oracle import output_bytes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root")

CLIENTS = ("munge", "sbatch", "squeue", "scontrol", "scancel")
SCRIPT = """#!/bin/sh
export SLURM_CONF={conf}
tell() {{ name=$1; shift; out=$("$@" 2>&1) && echo "$name OPEN $out" || echo "$name refused"; }}
tell credential {bin}/munge.mine --no-input --socket={munge}
tell submit {bin}/sbatch.mine --parsable --wrap=true
tell queue {bin}/squeue.mine -h
tell update {bin}/scontrol.mine update JobId=$SLURM_JOB_ID TimeLimit=+10
tell cancel {bin}/scancel.mine --user=nobody --state=PENDING
tell socket python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("{munge}")'
tell key cat {munge_key}
echo "environment $(env | grep -c -e ^SLURM_JWT -e ^MUNGE -e ^SLURM_SACK)"
"""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    """A cluster whose folder slots see, as they see `/run` and `/etc` of a node."""
    made = SlurmCluster("--nodes", "1", "--cores", "2", *REACH, parent=Path("/var/tmp"))
    yield made
    made.stop()


def test_a_payload_with_clients_of_its_own_gets_no_credential_of_munge_and_submits_nothing(
    cluster: SlurmCluster,
) -> None:
    folder = cluster.make_space("clients")
    for client in CLIENTS:
        real = shutil.which(client)
        assert real is not None
        shutil.copy(real, folder / f"{client}.mine")
    munge, key = cluster.conf.parent.parent / "run/munge/sock", cluster.conf.parent.parent / "munge/key"
    assert munge.is_socket()
    assert key.is_file()
    words = {"conf": cluster.conf, "bin": folder, "munge": munge, "munge_key": key}
    (script := folder / "attack.sh").write_text(SCRIPT.format(**words))
    script.chmod(0o755)
    before = cluster.run_as_user(str(script))
    assert before.count(" OPEN") >= 4, f"outside of a slot its clients work: {before}"
    cluster.cancel_all()

    with slurm_world(cluster) as it:
        it.submit_file(job(script))
        (detail,) = it.wait_jobs("c", 60.0)
        assert detail.outputs, detail
        said = output_bytes(detail).decode()

    assert "OPEN" not in said
    assert said.count("refused") == 7, said
    assert "environment 0" in said


def job(script: Path) -> str:
    return (
        f'campaign = "c"\n[[job]]\ncommand = ["sh", "-c", "{script} > seen"]\n'
        'outputs = [{name = "seen", path = "seen"}]\nresources = {cores = 1, memory_mb = 200, event_s = 1.0}\n'
    )
