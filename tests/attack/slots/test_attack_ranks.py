"""Ranks that stay behind: nothing of a payload that spans nodes outlives it.

Such payloads have no isolation (docs/mpi.md): what they may do while they run is what the site's account may. Here all
emulated nodes are this machine; on other nodes the launcher and the batch system end what their ranks leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.mpi_world import mpi_world
from tests.worlds.home.processes import snapshot
from tests.worlds.home.world import World

from tidemill.model.job import JobSpec, Resources

SURVIVORS = {
    "in its own session": "setsid sleep {mark} &",
    "twice forked": "( ( setsid sleep {mark} & ) & );",
    "deaf to TERM": "setsid sh -c 'trap \"\" TERM HUP INT USR1 USR2; sleep {mark}; sleep {mark}' &",
    "named as Tidemill's program": "setsid sh -c 'exec -a tidemill-node sleep {mark}' &",
}
ENDS = {"done": "exit 0", "failed": "exit 3", "killed": "kill -9 $PPID; sleep 100"}


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with mpi_world("mpich", nodes=2) as running:
        yield running


def left(mark: str) -> list[tuple[str, ...]]:
    return [each.argv for each in snapshot().values() if any(mark in word for word in each.argv)]


@pytest.mark.parametrize("end", ENDS)
def test_no_process_of_a_rank_outlives_its_payload(it: World, tmp_path: Path, end: str) -> None:
    mark = f"7100{list(ENDS).index(end)}"
    # a launcher waits for whoever has its output, or its sockets, open
    lines = ['for each in $(seq 3 63); do eval "exec $each>&-"; done']
    lines += [f"{{ {each.format(mark=mark)} }} < /dev/null > /dev/null 2>&1" for each in SURVIVORS.values()]
    (script := tmp_path / "rank").write_text(
        "\n".join([*lines, f"touch {tmp_path}/began", "sleep 0.3", ENDS[end], ""])
    )
    resources = Resources(nodes=2, ranks=2, event_s=0.1)
    (job,) = it.submit(
        f"stay-{end}", JobSpec(command=["/bin/bash", str(script)], resources=resources, retries=0)
    )
    it.wait_campaign(f"stay-{end}")
    assert (tmp_path / "began").exists()
    assert it.client.job(job).row.state == ("COMPLETED" if end == "done" else "FAILED")
    it.wait_for(lambda: not left(mark), "nothing is left", timeout_s=30)
