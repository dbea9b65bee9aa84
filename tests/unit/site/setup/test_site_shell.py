"""Settings of the shell for batch jobs: copied into site.toml, or reported as without effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill import config
from tidemill.batch.contract import Facts, PartitionFacts
from tidemill.config.site import SiteConfig
from tidemill.site.setup.shell import (
    missing_findings,
    remarks,
    shell_settings,
    taken_findings,
    usable,
    without_key,
)

SHELL = {
    "SBATCH_ACCOUNT": "phys", "SBATCH_QOS": "long", "SALLOC_QOS": "short", "SBATCH_RESERVATION": "school",
    "SLURM_PARTITION": "batch", "SBATCH_WCKEY": "atlas", "SBATCH_CONSTRAINT": "amd&hdr", "SBATCH_GRES": "gpu:1",
    "SQUEUE_USERS": "ada", "SLURM_CLUSTERS": "wice", "SLURM_JOB_ID": "7",
}  # fmt: skip
SITE = 'name = "here"\nserver = "unix:/h/api.sock"\nbatch = "slurm"\n'


def site(more: str = "") -> SiteConfig:
    return config.loads(SITE + more, SiteConfig, source=Path("site.toml"))


def test_each_wish_has_a_key_of_site_toml() -> None:
    found = {each.key: (each.source, each.toml) for each in shell_settings("slurm", SHELL)}
    assert found == {
        "accounts": ("SBATCH_ACCOUNT", '"phys"'),
        "cluster.partition": ("SLURM_PARTITION", '"batch"'),
        "cluster.qos": ("SBATCH_QOS", '"long"'),
        "cluster.reservation": ("SBATCH_RESERVATION", '"school"'),
        "cluster.features": ("SBATCH_CONSTRAINT", '["amd", "hdr"]'),
        "cluster.directives": ("SBATCH_WCKEY", '["--wckey=atlas"]'),
    }


@pytest.mark.parametrize("constraint", ["amd|intel", "[rack1*2]", "amd*4", ""])
def test_a_constraint_that_is_not_a_list_of_features_is_not_taken(constraint: str) -> None:
    assert shell_settings("slurm", {"SBATCH_CONSTRAINT": constraint}) == []


def test_pbs_has_a_server_and_other_systems_variables_are_not_its() -> None:
    (server,) = shell_settings("pbs", {"PBS_DEFAULT": "pbs2", "PBS_SERVER": "pbs3", "SBATCH_QOS": "long"})
    assert (server.key, server.value) == ("cluster.server", "pbs2")
    assert shell_settings("local", SHELL) == []


def test_a_partition_or_account_that_there_is_not_is_not_taken() -> None:
    facts = Facts(system="Slurm", partitions=[PartitionFacts(name="other")], accounts=["phys", "astro"])
    assert [each.key for each in usable(shell_settings("slurm", SHELL), facts)][:2] == [
        "accounts",
        "cluster.qos",
    ]


def test_site_init_says_what_it_took_and_what_has_no_effect() -> None:
    taken = [each for each in shell_settings("slurm", SHELL) if each.key in ("accounts", "cluster.qos")]
    said, clusters, rest = taken_findings(taken, SHELL, kind="slurm")
    assert said.found == (
        "taken into site.toml: `SBATCH_ACCOUNT=phys` as `accounts`, `SBATCH_QOS=long` as `cluster.qos`"
    )
    assert (clusters.state, clusters.found.split(":")[0]) == ("warn", "`SLURM_CLUSTERS=wice` has no effect")
    assert rest.found.startswith("no effect on Tidemill: SALLOC_QOS, SBATCH_CONSTRAINT, SBATCH_GRES, ")
    assert "SLURM_JOB_ID" not in rest.found
    assert "SQUEUE_USERS" in rest.found


def test_a_site_that_says_nothing_is_told_of_the_key_and_one_that_says_something_is_not() -> None:
    told = list(missing_findings(site(), {"SBATCH_QOS": "long"}))
    assert [(each.state, each.hint) for each in told] == [
        ("warn", "if Tidemill's jobs are to use it, set `cluster.qos` in site.toml")
    ]
    assert remarks(site(), {"SBATCH_QOS": "long"}) == [
        "`SBATCH_QOS=long` has no effect on Tidemill; set `cluster.qos` in site.toml instead"
    ]
    said = site(
        '[cluster]\npartition = "x"\nqos = "x"\nreservation = "x"\nfeatures = ["x"]\ndirectives = ["--wckey=x"]\n'
        '[[accounts]]\nname = "x"\nnode_hours = 1\n'
    )
    assert without_key(said, SHELL) == []
    assert remarks(said, SHELL) == []


def test_a_token_of_slurm_is_named_for_it_expires() -> None:
    for told in (
        taken_findings([], {"SLURM_JWT": "a.b.c"}, kind="slurm"),
        missing_findings(site(), {"SLURM_JWT": "a.b.c"}),
    ):
        (finding,) = told
        assert (finding.state, finding.found.split(":")[0]) == ("warn", "SLURM_JWT is set")
        assert "a.b.c" not in str(finding)
