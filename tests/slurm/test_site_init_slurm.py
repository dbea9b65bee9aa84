"""How a site begins on a real Slurm, by an ordinary user: what is found, what goes wrong and how it is said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.batch.person import SlurmPerson
from tests.worlds.batch.slurm_cluster import CORES, NODES, UID, SlurmCluster

from tidemill import config
from tidemill.config.site import SiteConfig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user")

_numbers = iter(range(1000))


@pytest.fixture
def person(slurm_cluster: SlurmCluster) -> SlurmPerson:
    return SlurmPerson(slurm_cluster, f"p{next(_numbers)}")


def read(person: SlurmPerson) -> SiteConfig:
    return config.load(person.site / "site.toml", SiteConfig)


def by_check(findings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["check"]: each for each in findings}


def our_jobs(person: SlurmPerson, *states: str) -> set[str]:
    """The jobs that Tidemill submitted, each as `ID NAME`. With `all`, the controller forgets ended ones in time."""
    told = person.cluster.run("squeue", "-h", "-a", "-t", ",".join(states) or "PD,R,CG,S", "-o", "%A %j")
    return {line for line in told.splitlines() if line.split()[1].startswith("tm-")}


def test_init_writes_what_it_found_and_where_from(person: SlurmPerson) -> None:
    told = person.data("site", "init", "--contact", "me@example.org")
    assert (told["batch"], told["mode"], told["partition"], told["tcp"]) == (
        "slurm",
        "observe",
        "batch",
        "open",
    )
    site = read(person)
    assert (site.nodes_max, site.harvest.node_hours_max, site.contact) == (4, 100, "me@example.org")
    assert site.lead_listen == "127.0.0.1:0"  # the emulated nodes are this host
    text = (person.site / "site.toml").read_text()
    assert "-> `sbatch` is on PATH: Slurm" in text
    assert "reached this host there" in text
    findings = by_check(told["findings"])
    assert findings["partition"]["found"].startswith(f"batch: {NODES} nodes of {CORES} cores")
    for check in ("compute node", "binary there", "site there", "network", "home there", "node memory"):
        assert findings[check]["state"] == "ok", findings[check]
    # it was canceled when it had reported: Slurm shows it as completing for a moment
    person.cluster.wait(lambda: not our_jobs(person), "the probe has ended")
    assert person.run("site", "check").returncode == 0


def test_a_probe_says_who_it_is(person: SlurmPerson) -> None:
    person.done("site", "init", "--contact", "me@example.org")
    key = (person.site / "key").read_text().strip()
    comments = person.cluster.run("squeue", "-h", "-a", "-t", "all", "-o", "%u %k").splitlines()
    assert f"nobody tidemill {key} site={read(person).name} contact=me@example.org" in comments


def test_an_observing_site_refuses_to_run_and_says_what_to_do(person: SlurmPerson) -> None:
    before = our_jobs(person, "all")
    person.done("site", "init", "--no-probe")
    answer = person.run("run", "--", "hostname")
    assert answer.returncode == 2
    assert "your site only observes" in answer.stderr
    assert "`tidemill site enable`" in answer.stderr
    assert our_jobs(person, "all") <= before


def test_without_a_probe_work_travels_by_files(person: SlurmPerson) -> None:
    before = our_jobs(person, "all")
    answer = person.run("site", "init", "--no-probe")
    assert answer.returncode == 0
    assert read(person).harvest.tcp == "nodes"
    assert our_jobs(person, "all") <= before
    assert "`tidemill doctor --compute`" in answer.stderr


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--partition", "btch"), "has no partition `btch`", "did you mean `batch`?"),
        (("--batch", "gridengine"), "", "belong to no cluster"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_written(
    person: SlurmPerson, words: tuple[str, ...], message: str, hint: str
) -> None:
    answer = person.run("site", "init", *words)
    assert answer.returncode in (2, 3)
    assert message in answer.stderr
    assert hint in answer.stderr
    assert not (person.site / "site.toml").exists()


def test_a_controller_that_does_not_answer_is_told(person: SlurmPerson) -> None:
    conf = person.cluster.conf.read_text().splitlines()
    away = person.space / "slurm.conf"
    away.write_text(
        "\n".join("SlurmctldPort=1" if line.startswith("SlurmctldPort=") else line for line in conf) + "\n"
    )
    answer = person.run("site", "init", SLURM_CONF=str(away))
    assert answer.returncode == 3
    assert "controller does not answer" in " ".join(answer.stderr.split())
    assert not (person.site / "site.toml").exists()


@contextmanager
def changed_partition(cluster: SlurmCluster, change: str, back: str) -> Iterator[None]:
    cluster.run("scontrol", "update", "PartitionName=shared", change)
    try:
        yield
    finally:
        cluster.run("scontrol", "update", "PartitionName=shared", back)


@pytest.mark.parametrize(
    ("change", "back", "check", "words", "advice"),
    [
        ("State=DOWN", "State=UP", "partition", "not up", "the partition is closed"),
        (
            "AllowGroups=root",
            "AllowGroups=ALL",
            "probe",
            "not permitted",
            "ask the centre's staff for access",
        ),
    ],
)
def test_a_partition_that_cannot_be_used_says_why(
    person: SlurmPerson, change: str, back: str, check: str, words: str, advice: str
) -> None:
    with changed_partition(person.cluster, change, back):
        told = person.data("site", "init", "--partition", "shared", "--probe-wait", "5s")
    finding = by_check(told["findings"])[check]
    assert finding["state"] == "fail"
    assert words in finding["found"]
    assert advice in finding["hint"]


def test_ctrl_c_cancels_the_probe_and_leaves_a_site_that_works(person: SlurmPerson) -> None:
    person.cluster.run("sbatch", "-N", str(NODES), "-t", "10", "-o", "/dev/null", "--wrap", "sleep 600")
    code, said = person.interrupted("site", "init", until="the probe waits for")
    assert "the site works without it" in " ".join(said.split()), said
    assert code == 0
    assert read(person).harvest.tcp == "nodes"
    person.cluster.wait(lambda: not our_jobs(person), "the probe is gone")


def test_a_probe_that_does_not_start_says_why_and_is_cancelled(person: SlurmPerson) -> None:
    person.cluster.run("sbatch", "-N", str(NODES), "-t", "10", "-o", "/dev/null", "--wrap", "sleep 600")
    told = person.data("site", "init", "--probe-wait", "3s")
    finding = by_check(told["findings"])["probe"]
    assert finding["state"] == "fail"
    assert "no compute node within 3 s: " in finding["found"]
    person.cluster.wait(lambda: not our_jobs(person), "the probe is gone")


def test_a_site_that_compute_nodes_do_not_see_is_told(person: SlurmPerson) -> None:
    """The login node has a disk of its own there: a file system mounted where only this user's commands see it."""
    hidden = person.space / "here"
    hidden.mkdir()
    command = person.words("site", "init", str(hidden), "--json")
    mounted = f'mount -t tmpfs -o uid={UID},mode=0700 tm-test {hidden} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "/bin/sh", "-c", mounted, "sh", *command],
        cwd=person.space, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "file system that compute nodes see" in done.stdout


def test_hidden_jobs_and_missing_arrays_are_told(start_slurm: Callable[..., SlurmCluster]) -> None:
    cluster = start_slurm("--nodes", "1", "--line", "PrivateData=jobs", "--line", "MaxArraySize=0")
    person = SlurmPerson(cluster, "p")
    told = person.data("site", "init", "--no-probe")
    findings = by_check(told["findings"])
    assert "policy `windows`" in findings["regular jobs"]["found"]
    assert "MaxArraySize 0" in findings["arrays"]["found"]
    assert read(person).harvest.policy == "windows"


def test_a_full_disk_is_an_error_in_words(person: SlurmPerson) -> None:
    small = person.space / "small"
    small.mkdir()
    Path(small).chmod(0o777)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,mode=0777", "tm-test", str(small)], check=True)
    (small / "other").write_bytes(b"x" * 8192)  # what takes all of it
    try:
        answer = person.run("site", "init", str(small / "site"), "--no-probe")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert answer.returncode in (2, 3)
    assert "No space left on device" in answer.stderr
    assert "bug" not in answer.stderr
