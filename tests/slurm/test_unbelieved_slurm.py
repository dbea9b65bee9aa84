"""Replies of a real Slurm that hide Tidemill's jobs: the site submits nothing, loses nothing, and gives the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.slurm.test_site_harvest_slurm import campaign, wait_done
from tests.worlds.batch.site_slurm import Site, site_on
from tests.worlds.batch.slurm_cluster import OTHER_USER, SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FILTER = """#!/bin/sh
[ -e {flag} ] || exec {real} "$@"
{real} "$@" | awk 'BEGIN {{ RS = ORS = "\036" }} !/tm-centre-/'
"""
EVENTS = 800


def hiding(cluster: SlurmCluster) -> tuple[Path, Path]:
    """A folder with a `squeue` that hides Tidemill's jobs while a file exists, and that file."""
    folder, flag = cluster.make_space("hiding"), cluster.directory / "hide"
    program = folder / "squeue"
    program.write_text(FILTER.format(flag=flag, real=cluster.commands / "squeue"))
    program.chmod(0o755)
    return folder, flag


def site_status(it: Site) -> str:
    done = it.world.run("site", "status", str(it.directory))
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def plans(it: Site) -> float:
    return it.metric("tidemill_plans_total")


def test_a_squeue_that_hides_our_jobs_is_not_believed_until_it_shows_them(
    slurm_cluster: SlurmCluster,
) -> None:
    commands, flag = hiding(slurm_cluster)
    regular = slurm_cluster.run_as_user(
        "sbatch", "--parsable", "-N2", "-t10", "-D/", "-o/dev/null", "--wrap", "sleep 600", user=OTHER_USER
    ).strip()
    slurm_cluster.wait(lambda: "R" in slurm_cluster.run("squeue", "-h", "-o", "%t"), "the regular job runs")
    with site_on(slurm_cluster, first_on_path=str(commands)) as it:
        ran, slow = slurm_cluster.space / "ran", slurm_cluster.space / "slow"
        slow.touch()  # work is left for the idle nodes, however long the machine takes until then
        script = f"echo {{event}} >> {ran}; if [ -e {slow} ]; then sleep 1; fi"
        number = campaign(it, "/bin/sh", "-c", script, events=EVENTS)
        it.wait(lambda: len(it.ours("R")) == 2, "we hold two nodes")
        # Until then they wait, as far as the site knows: it would cancel them, as no node is idle for what waits
        it.wait(lambda: it.metric("tidemill_pilots_started_total") == 2, "the site has heard both pilots")
        flag.touch()
        try:
            it.wait(
                lambda: "replies of the batch system are not believed" in site_status(it), "people are told"
            )
            told = site_status(it)
            assert re.search(
                r"`squeue --me -t all` does not show \d jobs? of Tidemill that `scontrol show job \d", told
            )
            it.wait(lambda: it.metric("tidemill_batch_doubted") == 1, "the metric says so")
            slurm_cluster.run("scancel", regular)
            slurm_cluster.wait(
                lambda: "IDLE" in slurm_cluster.run("sinfo", "-h", "-o", "%T").upper(), "nodes are idle"
            )
            made = plans(it)
            it.wait(lambda: plans(it) >= made + 4, "plans are made")
            assert len(it.ours("R")) == len(it.ours()) == 2, "nothing is submitted, and nothing is canceled"
        finally:
            flag.unlink()
        it.wait(lambda: len(it.ours("R")) > 2, "we are on the idle nodes")
        slow.unlink()
        row = wait_done(it, number, 120)
        assert (row["state"], row["events_done"]) == ("COMPLETED", EVENTS)
        it.wait(lambda: it.metric("tidemill_batch_doubted") == 0, "the metric says so")
        assert sorted(map(int, ran.read_text().split())) == list(range(EVENTS)), "each event ran once"
        log = it.log()
        assert "reply.doubted" in log
        assert "reply.believed" in log
        assert "allocation.lost" not in log
