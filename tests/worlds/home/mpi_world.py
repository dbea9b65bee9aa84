"""A Tidemill whose emulated nodes are joined by a real MPI: the example program compiled, its launcher on PATH."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.world import Options, World, world

from tidemill import examples
from tidemill.model.job import JobSpec, Resources
from tidemill.wire.api import JobDetail

KINDS = ("mpich", "openmpi")
SOURCE = Path(examples.__file__).parent / "mpi" / "darts.c"


def compiled(folder: Path, kind: str) -> Path:
    """The example program, made by this MPI's compiler. Skips the test where there is none."""
    compiler = f"mpicc.{kind}"
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no `{compiler}`")
    program = folder / f"darts-{kind}"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program, SOURCE], check=True)
    return program


@contextlib.contextmanager
def mpi_world(kind: str, *, nodes: int = 4, cores: int = 2, extra: str = "") -> Iterator[World]:
    """A world whose `mpiexec` is of this kind."""
    with tempfile.TemporaryDirectory(prefix="tm-mpi-", dir="/tmp") as made:
        folder = Path(made)
        program = compiled(folder, kind)
        (folder / "bin").mkdir()
        launcher = shutil.which("mpiexec.hydra" if kind == "mpich" else f"mpiexec.{kind}")
        assert launcher is not None
        wrapper = folder / "bin" / "mpiexec"  # Hydra looks for its own parts beside itself: no link will do
        wrapper.write_text(f'#!/bin/sh\nexec {launcher} "$@"\n')
        wrapper.chmod(0o755)
        environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        options = Options(nodes=nodes, cores=cores, extra=extra, environment=environment)
        with world(options=options) as it:
            examples.install_mpi(it.home / "site" / "apps", program)
            it.wait_for(
                lambda: any(each.app.name == "mpi-darts" for each in it.client.applications()), "the example"
            )
            yield it


def darts(*, nodes: int, ranks: int, events: int = 1, event_s: float = 0.1, **params: int) -> JobSpec:
    """A job of the example program."""
    return JobSpec(
        app="mpi-darts",
        events=events,
        params=dict(params),
        resources=Resources(nodes=nodes, ranks=ranks, event_s=event_s),
        retries=1,
    )


def lines_of(detail: JobDetail) -> list[tuple[int, int, str]]:
    """Event, rank and node of each line of the job's output."""
    (output,) = detail.outputs
    text = Path(output.url.removeprefix("file://")).read_text()
    return [
        (int(event), int(rank), node)
        for event, rank, node, _ in (line.split(" ") for line in text.splitlines())
    ]
