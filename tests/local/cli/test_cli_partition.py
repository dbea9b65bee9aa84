"""A partition that the batch system does not have is refused at once, as a wrong key is. Slurm's commands are fakes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.slurm.fake import install
from tests.worlds.home.homes import WAIT_S, Home, wait_for

from tidemill.client import Client
from tidemill.client.home import read_up, up_runs
from tidemill.model.job import JobSpec

REFUSED = "error: the batch system has no partition `batsch`\nhint: did you mean `batch`?"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home whose site is on a Slurm of 4 nodes, by its commands."""
    made = Home(tmp_path)
    install(tmp_path / "bin", {"crowd": {"running": 0, "waiting": 0, "nodes": 4}})
    made.env["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "site").mkdir(mode=0o700)
    yield made
    made.run("up", "--stop")
    shutil.rmtree(tmp_path / "site", ignore_errors=True)


def configure(home: Home, partition: str) -> None:
    (home.path / "site" / "site.toml").write_text(
        f'name = "here"\nserver = "unix:{home.path}/server/api.sock"\nallow_adhoc = true\nbatch = "slurm"\n'
        f'mode = "run"\n[cluster]\npartition = "{partition}"\n'
    )


def test_a_job_does_not_wait_for_its_share_where_the_only_site_has_not_been_heard(home: Home) -> None:
    configure(home, "batch")
    assert home.run("up", "--detach").returncode == 0
    assert home.run("up", "--stop").returncode == 0
    address = f"unix:{home.path}/server/api.sock"
    with home.running("server", "run", "--home", str(home.path)) as server:
        wait_for((home.path / "server" / "api.sock").exists, home.logs)
        client = Client(address)
        sent = client.submit(JobSpec(command=["true"]), campaign="c")
        assert client.job(sent.jobs[0]).waits_for == "site_silent"
        server.terminate()
        server.wait(WAIT_S)


def test_up_and_run_refuse_a_partition_that_there_is_not(home: Home) -> None:
    configure(home, "batch")
    up = home.run("up", "--detach")  # the server knows the site from now on
    assert up.returncode == 0, up.stderr + home.logs()
    assert home.run("up", "--stop").returncode == 0

    configure(home, "batsch")
    for words in (("up",), ("up", "--detach"), ("run", "--", "true")):
        refused = home.run(*words)
        assert refused.returncode == 2, refused.stderr + home.logs()
        assert REFUSED in refused.stderr
        assert not up_runs(home.path)


def test_status_tells_how_often_a_partition_that_there_is_not_ended_the_agent(home: Home) -> None:
    configure(home, "batsch")
    for _ in range(3):
        refused = home.run("site", "run", str(home.path / "site"))
        assert (refused.returncode, REFUSED in refused.stderr) == (2, True), refused.stderr
    told = home.run("site", "status").stdout
    assert "agent ended  3 times with an error since " in told
    assert "the batch system has no partition `batsch` (did you mean `batch`?)" in " ".join(told.split())
    assert "(has ended)" in " ".join(told.split())

    configure(home, "batch")
    assert home.run("up", "--detach").returncode == 0
    assert home.run("up", "--stop").returncode == 0
    assert read_up(home.path) is None
    assert "agent ended" not in home.run("site", "status").stdout
