"""What all tests share: hypothesis profiles, seeds of fault tests, short temporary folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.integration.slurm_cluster import slurm_cluster, slurm_session, start_slurm

__all__ = ["slurm_cluster", "slurm_session", "start_slurm"]

settings.register_profile("local", max_examples=100, deadline=None, print_blob=True)
settings.register_profile(
    "ci",
    max_examples=300,
    deadline=None,  # the machine is shared: a slow example is no failure
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fault-seeds N --fault-first S`: fault tests run with seeds S, S + 1, ..., S + N - 1."""
    parser.addoption("--fault-seeds", type=int, default=3, help="number of seeds of each fault test")
    parser.addoption(
        "--fault-first", type=int, default=1, help="first seed; to replay one: its number, with 1 seed"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `fault_seed` runs once per seed; the seed is part of its name, so a failure prints it."""
    if "fault_seed" in metafunc.fixturenames:
        first: int = metafunc.config.getoption("--fault-first")
        number: int = metafunc.config.getoption("--fault-seeds")
        metafunc.parametrize("fault_seed", range(first, first + number), ids=lambda seed: f"seed{seed}")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private temporary folder whose path is short enough for Unix sockets (107 bytes, unix(7))."""
    path = Path(tempfile.mkdtemp(prefix="tm-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
