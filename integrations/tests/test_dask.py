"""A TidemillCluster: an array computation, a map over files as coffea makes it, and a worker that is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dask.array as da
import pytest
from dask.distributed import Client as DaskClient
from dask_tidemill import TidemillCluster
from distributed.security import Security

from tidemill import Client


def _histogram(path: str) -> Counter[int]:
    return Counter(int(line) % 10 for line in Path(path).read_text().split())


def _merged(parts: list[Counter[int]]) -> Counter[int]:
    return sum(parts, Counter())


def test_an_array_and_a_map_over_files(tmp_path: Path) -> None:
    for k in range(20):
        (tmp_path / f"{k}.txt").write_text("\n".join(str(k * n) for n in range(50)))
    with TidemillCluster(cores=1, memory="1GB") as cluster, DaskClient(cluster) as client:
        cluster.scale(2)
        client.wait_for_workers(2, timeout=100)
        x = da.random.default_rng(7).random((1000, 1000), chunks=(250, 250))
        assert abs(float((x + x.T).mean().compute()) - 1.0) < 0.01
        parts = client.map(_histogram, [str(tmp_path / f"{k}.txt") for k in range(20)])
        total = client.submit(_merged, parts).result(timeout=60)
        assert sum(total.values()) == 20 * 50
        jobs = Client().campaign(cluster.campaign)
        assert (jobs.jobs, set(jobs.states)) == (2, {"RUNNING"})
    assert set(Client().campaign(cluster.campaign).states) <= {"CANCELED", "COMPLETED", "RUNNING"}
    (*_,) = Client().wait(cluster.campaign, timeout_s=60)


def test_nobody_without_the_clusters_certificate_is_heard() -> None:
    with TidemillCluster() as cluster:
        assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match=r"imed out|refused|closed|expect|certificate"):
            DaskClient(cluster.scheduler_address.replace("tls://", "tcp://"), timeout=3)
        stranger = Security.temporary()
        with pytest.raises(OSError, match=r"imed out|refused|closed|expect|certificate"):
            DaskClient(cluster.scheduler_address, security=stranger, timeout=3)


def test_a_scheduler_that_anybody_can_use_is_refused() -> None:
    with pytest.raises(ValueError, match="does not require encryption"):
        TidemillCluster(security=Security())
