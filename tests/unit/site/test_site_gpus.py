"""How many GPUs a node of a site has for us."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.config.site import LocalBatch, NodeUse, SiteConfig
from tidemill.node.gpus import count_gpus, stuck
from tidemill.site.applications.gpus import gpus_of_node, slot_devices

UNDEAD = Path(__file__).parents[2] / "fakes" / "undead.py"


def local(nodes: int = 1, gpus: int | None = None) -> SiteConfig:
    return SiteConfig(name="here", server="unix:/x", local=LocalBatch(nodes=nodes), node=NodeUse(gpus=gpus))


def slurm(gpus: int | None = None) -> SiteConfig:
    return SiteConfig(name="here", server="unix:/x", batch="slurm", node=NodeUse(gpus=gpus))


def fake_node(directory: Path, script: str) -> Path:
    program = directory / "tidemill-node"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_emulated_nodes_share_no_gpus_unless_the_site_says_so() -> None:
    assert gpus_of_node(local()) is None
    assert gpus_of_node(local(nodes=2)) == 0
    assert gpus_of_node(local(nodes=2, gpus=1)) == 1
    assert gpus_of_node(slurm()) is None


def test_one_local_node_has_the_gpus_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = '[{"vendor": "nvidia", "name": "GPU-a", "domain": 3}, {"vendor": "nvidia", "name": "1", "domain": null}]'
    monkeypatch.setenv("TIDEMILL_NODE_BINARY", str(fake_node(tmp_path, f"echo '{listed}'")))
    assert slot_devices(local(), {}) == {"gpu": 2, "gpu_percent": 100}
    assert slot_devices(local(gpus=0), {}) == {}


def test_a_cluster_has_what_its_nodes_have_or_what_the_site_asks_for() -> None:
    found = {"gpu": 4, "shard": 8}
    assert slot_devices(slurm(), found) == {"gpu": 4, "shard": 8, "gpu_percent": 100}
    assert slot_devices(slurm(2), found) == {"gpu": 2, "shard": 8, "gpu_percent": 100}
    assert slot_devices(slurm(0), found) == {"shard": 8}


def test_a_binary_that_cannot_count_finds_none(tmp_path: Path) -> None:
    assert count_gpus(tmp_path / "none") == 0
    assert count_gpus(fake_node(tmp_path, "echo nonsense")) == 0
    assert count_gpus(fake_node(tmp_path, "exit 2")) == 0


@pytest.fixture
def tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the number of the process is that keeps `undead.py` from ending; it is killed afterwards."""
    path = tmp_path / "tracer"
    monkeypatch.setenv("UNDEAD_TRACER", str(path))
    yield path
    os.kill(int(path.read_text()), signal.SIGKILL)
    for process in stuck:
        process.wait(10)
    stuck.clear()


@pytest.mark.timeout(20)
def test_a_count_that_hangs_in_a_driver_and_cannot_be_killed_holds_up_nobody(
    tracer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert count_gpus(UNDEAD, timeout_s=2.0) == 0
    assert tracer.exists()
    (said,) = caplog.records
    assert said.msg == "gpus.unknown"
    caplog.clear()
    assert count_gpus(UNDEAD, timeout_s=2.0) == 0  # one that hangs is not followed by more
    assert len(stuck) == 1
    (said,) = caplog.records
    assert "still hangs" in str(said.__dict__)
