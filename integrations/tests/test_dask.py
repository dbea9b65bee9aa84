"""A TidemillCluster: an array computation, a map over files, strangers, and workers that are lost with their site."""

from __future__ import annotations

import functools
import operator
import secrets
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import awkward as ak
import dask.array as da
import hist
import numpy
import pytest
import uproot
from dask.distributed import Client as DaskClient
from dask_tidemill import TidemillCluster
from distributed.comm.core import CommClosedError, FatalCommClosedError
from distributed.security import Security

from tidemill import Client


def _histogram(path: str) -> Counter[int]:
    return Counter(int(line) % 10 for line in Path(path).read_text().split())


def _token() -> str:
    return secrets.token_hex()


def _merged(parts: list[Counter[int]]) -> Counter[int]:
    return sum(parts, Counter())


def test_an_array_and_a_map_over_files(tmp_path: Path) -> None:
    for k in range(20):
        (tmp_path / f"{k}.txt").write_text("\n".join(str(k * n) for n in range(50)))
    with TidemillCluster(cores=1, memory="1GB") as cluster, DaskClient(cluster) as client:
        cluster.scale(2)
        client.wait_for_workers(2, timeout=300)
        x = da.random.default_rng(7).random((1000, 1000), chunks=(250, 250))
        assert abs(float((x + x.T).mean().compute()) - 1.0) < 0.01
        parts = client.map(_histogram, [str(tmp_path / f"{k}.txt") for k in range(20)])
        total = client.submit(_merged, parts).result(timeout=300)
        assert total == Counter(k * n % 10 for k in range(20) for n in range(50))
        jobs = Client().campaign(cluster.campaign)
        assert (jobs.jobs, set(jobs.states)) == (2, {"RUNNING"})
    ended = {each.state for each in Client().wait(cluster.campaign, timeout_s=300)}
    assert ended <= {"CANCELED", "COMPLETED"}  # a worker may leave before its cancel arrives


def _events(path: Path, seed: int) -> None:
    """A ROOT file with some muons in each event."""
    rng = numpy.random.default_rng(seed)
    counts = rng.poisson(2.0, 500)
    size = int(counts.sum())
    columns = {
        "pt": rng.exponential(30.0, size), "eta": rng.normal(0.0, 1.5, size),
        "phi": rng.uniform(-numpy.pi, numpy.pi, size), "charge": rng.choice([-1, 1], size),
    }  # fmt: skip
    with uproot.recreate(path) as file:
        muons = ak.zip({name: ak.unflatten(each, counts) for name, each in columns.items()})
        file.mktree("Events", {"Muon": muons.type}).extend({"Muon": muons})


def _masses(path: str) -> hist.Hist:
    """What an analysis does with a file: read columns, select, combine, fill."""
    with uproot.open(path) as file:
        read = file["Events"].arrays(["Muon_pt", "Muon_eta", "Muon_phi", "Muon_charge"])
    muons = ak.zip({name: read[f"Muon_{name}"] for name in ("pt", "eta", "phi", "charge")})
    one, two = ak.unzip(ak.combinations(muons[muons.pt > 5.0], 2))
    opposite = one.charge != two.charge
    one, two = one[opposite], two[opposite]
    mass = numpy.sqrt(2 * one.pt * two.pt * (numpy.cosh(one.eta - two.eta) - numpy.cos(one.phi - two.phi)))
    return hist.Hist.new.Reg(60, 0, 300, name="mass").Weight().fill(mass=ak.flatten(mass))


def test_a_map_over_root_files_and_a_tree_of_sums(tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.root" for k in range(20)]
    for k, path in enumerate(files):
        _events(path, k)
    expected = functools.reduce(operator.add, [_masses(str(path)) for path in files])
    with TidemillCluster(cores=1, memory="1GB") as cluster, DaskClient(cluster) as client:
        cluster.scale(2)
        parts = client.map(_masses, [str(path) for path in files])
        while len(parts) > 1:
            pairs = [client.submit(operator.add, *parts[k : k + 2]) for k in range(0, len(parts) - 1, 2)]
            parts = pairs + parts[len(pairs) * 2 :]
        total = parts[0].result(timeout=300)
    assert total.sum().value == expected.sum().value > 5_000
    assert numpy.array_equal(total.view(flow=True), expected.view(flow=True))


def test_nobody_without_the_clusters_certificate_is_heard(tmp_path: Path) -> None:
    with TidemillCluster() as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(CommClosedError):
            DaskClient(address.replace("tls://", "tcp://"), timeout=30)
        with pytest.raises(FatalCommClosedError, match="certificate"):
            DaskClient(address, security=Security.temporary(), timeout=30)
        for context in (_careless(), _careless(Security.temporary(), tmp_path)):
            with pytest.raises(ssl.SSLError):
                _greeting(address, context)
        assert _greeting(address, _careless(cluster.security, tmp_path))
        with DaskClient(address, security=cluster.security, timeout=300) as client:
            assert client.id in cluster.scheduler.clients


def _careless(own: Security | None = None, directory: Path | None = None) -> ssl.SSLContext:
    """Of a client that talks to any server, with `own` as its certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if own is not None and directory is not None:
        file = directory / "own.pem"
        held = own.get_tls_config_for_role("client")
        file.write_text(held["cert"] + held["key"])
        context.load_cert_chain(file)
    return context


def _greeting(address: str, context: ssl.SSLContext) -> bytes:
    """The first byte that the scheduler sends."""
    host, port = address.removeprefix("tls://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=300) as plain,
        context.wrap_socket(plain) as sock,
    ):
        return sock.recv(1)


def test_a_scheduler_that_anybody_can_use_is_refused() -> None:
    with pytest.raises(ValueError, match="does not require encryption"):
        TidemillCluster(security=Security())


def test_workers_start_again_after_a_restart_of_server_and_site(restart: Callable[[], None]) -> None:
    with TidemillCluster(n_workers=1) as cluster, DaskClient(cluster) as client:
        before = client.submit(_token, pure=False)
        first = before.result(timeout=300)
        restart()
        assert client.submit(str, before).result(timeout=300) != first
        assert Client().campaign(cluster.campaign).states == {"RUNNING": 1}
