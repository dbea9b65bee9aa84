"""How a site begins on one machine: the probe through the local batch system, check, enable, a home in two parts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.homes import NAMESPACE, TIDEMILL

from tidemill.client.home import read_up

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can bind a table of mounts")


class Person:
    """Somebody at a terminal of 80 columns with a home; every command in a PID namespace of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.site = home / "site"
        self.env = {**os.environ, "TIDEMILL_HOME": str(home), "COLUMNS": "80"}

    def run(self, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command; `path`: the only directory that it finds programs in."""
        found = [] if path is None else ["/usr/bin/env", f"PATH={path}"]
        return subprocess.run(
            [*NAMESPACE, *found, *TIDEMILL, *words],
            env=self.env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def done(self, *words: str) -> str:
        answer = self.run(*words)
        assert answer.returncode == 0, answer.stderr + answer.stdout
        return answer.stdout

    def data(self, *words: str) -> Any:
        return json.loads(self.done(*words, "--json"))


@pytest.fixture
def person(short_path: Path) -> Person:
    return Person(short_path / "h")


def test_a_probe_tells_what_a_node_is_like(person: Person) -> None:
    person.done("site", "init", "--batch", "local", "--nodes", "2")
    findings = {each["check"]: each for each in person.data("doctor", "--compute")}
    for check in ("compute node", "binary there", "site there", "network", "home there", "node memory"):
        assert findings[check]["state"] == "ok", findings[check]
    assert "reach this host at 127.0.0.1" in findings["network"]["found"]
    assert f"{os.cpu_count()} cores" in findings["compute node"]["found"]
    assert not list((person.site / "batch" / "output").iterdir()), "the probe's output is removed"


def test_init_keeps_what_is_there_and_says_where_more_is_told(person: Person) -> None:
    person.done("site", "init", "--batch", "local")
    answer = person.run("site", "init", "--batch", "local")
    assert answer.returncode == 2
    assert "exists already" in answer.stderr
    assert "`tidemill site check`" in answer.stderr


def test_without_a_cluster_it_says_so_and_the_site_runs_your_own_commands(
    person: Person, tmp_path: Path
) -> None:
    answer = person.run("site", "init", "--enable", path=tmp_path)
    assert answer.returncode == 0, answer.stderr
    told = " ".join(answer.stderr.split())
    assert "no cluster was found: this site emulates 1 node on this machine" in told
    assert "`tidemill run -- hostname`" in told
    assert "\nallow_adhoc = true\n" in (person.site / "site.toml").read_text()


def test_a_batch_system_that_was_named_must_have_its_commands(person: Person, tmp_path: Path) -> None:
    for kind, missing in (
        ("slurm", "sbatch, squeue"),
        ("pbs", "qsub, pbsnodes"),
        ("gridengine", "qsub, qconf"),
    ):
        answer = person.run("site", "init", "--batch", kind, path=tmp_path)
        assert answer.returncode == 3, answer
        assert f"not on PATH: {missing}" in answer.stderr
        assert "hint: log in to a login node" in answer.stderr
    assert not (person.site / "site.toml").exists()


def test_without_batch_commands_it_is_a_local_site(person: Person, tmp_path: Path) -> None:
    assert person.run("site", "init", path=tmp_path).returncode == 0
    assert 'batch = "local"' in (person.site / "site.toml").read_text()


def test_check_tells_what_is_missing_and_where_values_come_from(person: Person) -> None:
    person.done("site", "init", "--batch", "local")
    rows = {row["key"]: row for row in person.data("site", "check", "--effective")}
    assert rows["nodes_max"] == {"key": "nodes_max", "value": 100, "origin": "default"}
    assert rows["containers"]["origin"] == "default"
    line = int(re.fullmatch(r"site\.toml:(\d+)", rows["name"]["origin"])[1])  # type: ignore[index]
    path = person.site / "site.toml"
    lines = path.read_text().splitlines()
    assert lines[line - 1] == 'name = "local"'
    path.write_text("\n".join([*lines, "[containers.podman]", 'command = ["/usr/bin/podman"]', ""]))
    rows = {row["key"]: row for row in person.data("site", "check", "--effective")}
    assert rows["containers"]["origin"] == f"site.toml:{len(lines) + 2}"
    path.write_text(path.read_text().replace('data_roots = ["/"]', 'data_roots = ["/no/such/place"]'))
    answer = person.run("site", "check")
    assert answer.returncode == 2
    assert "`/no/such/place` does not exist" in answer.stdout
    path.write_text('ca = "no.pem"\n' + path.read_text())
    assert "copy it from the server's operator" in person.run("site", "check").stdout
    path.write_text(path.read_text().replace("data_roots", "data_rots"))
    answer = person.run("site", "check")
    assert answer.returncode == 2
    assert "did you mean `data_roots`?" in answer.stderr


def test_check_says_what_payloads_see_and_which_path_of_an_application_they_never_will(
    person: Person, tmp_path: Path
) -> None:
    person.done("site", "init", "--batch", "local")
    key = tmp_path / "site.key"
    key.write_text("a key")
    key.chmod(0o600)
    clouds = tmp_path / ".aws"
    clouds.mkdir()
    path = person.site / "site.toml"
    path.write_text(f'mask = ["{key}"]\nshow = ["{clouds}"]\n' + path.read_text())
    (person.site / "apps" / "own.toml").write_text(
        f'name = "own"\nexecutable = "/bin/true"\narguments = []\nshow = ["{key}", "{tmp_path}/data"]\n'
    )
    answer = " ".join(person.run("site", "check").stdout.split())
    assert f"see no credentials but `{clouds}`" in answer
    assert f"own names `{key}`, which payloads never see" in answer
    assert f"own names `{tmp_path}/data`" not in answer


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("shared = true", "jobs of others: no home directory"),
        ('shared = true\nisolation = "off"', 'jobs of others: `isolation = "off"`: payloads see each other'),
        ('shared = true\nisolation = "optional"', "where the kernel gives no namespaces"),
        ('isolation = "optional"', "jobs of yours"),
        ('isolation = "off"', '`isolation = "off"`: payloads see each other'),
    ],
)
def test_check_warns_of_payloads_without_namespaces(person: Person, keys: str, told: str) -> None:
    person.done("site", "init", "--batch", "local")
    path = person.site / "site.toml"
    path.write_text(f"{keys}\n" + path.read_text())
    (finding,) = [each for each in person.data("site", "check") if each["check"] == "payloads"]
    assert told in finding["found"]
    assert (finding["state"] == "warn") == ("isolation" in finding["found"])


def test_enable_edits_the_file_and_keeps_its_comments(person: Person) -> None:
    person.done("site", "init", "--batch", "local")
    path = person.site / "site.toml"
    path.write_text('mode = "observe"  # until Ann agrees\n' + path.read_text())
    answer = person.run("run", "--", "true")
    assert (answer.returncode, "`tidemill site enable`" in answer.stderr) == (2, True), answer.stderr
    assert person.done("site", "enable", "--nodes", "7", "--node-hours", "1500").splitlines() == [
        'mode = "run"',
        "nodes_max = 7",
        "harvest.node_hours_max = 1500",
    ]
    text = path.read_text()
    assert 'mode = "run"   # until Ann agrees' in text
    rows = {row["key"]: row["value"] for row in person.data("site", "check", "--effective")}
    assert (rows["nodes_max"], rows["harvest.node_hours_max"]) == (7, 1500)


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        ("yield", "nodes that other users' jobs need are released"),
        ("windows", "keeps them until its jobs end"),
    ],
)
def test_enable_promises_what_the_policy_keeps(person: Person, policy: str, promise: str) -> None:
    person.done("site", "init", "--batch", "local")
    path = person.site / "site.toml"
    text = path.read_text().replace('# batch = "local"', 'batch = "pbs"')
    path.write_text(f'{text}\n[harvest]\npolicy = "{policy}"\n')
    said = " ".join(person.run("site", "enable", "--nodes", "7").stderr.split())
    assert promise in said
    assert ("are released" in said) is (policy == "yield")


def test_status_of_a_stopped_site_says_why_until_it_is_resumed(person: Person) -> None:
    person.done("site", "init", "--batch", "local")
    person.done("site", "drain", "--reason", "the staff asked us to")
    assert person.data("site", "status")["drained"] == "the staff asked us to"
    assert "already stopped" in person.run("site", "drain", "--reason", "again").stderr
    person.done("site", "resume", "--reason", "they said go on")
    assert person.data("site", "status")["drained"] is None
    assert json.loads((person.site / "resumed.log").read_text())["resumed"] == "they said go on"


def test_no_line_is_wider_than_the_terminal(person: Person) -> None:
    answers = [
        person.run("site", "init", "--batch", "local"),
        person.run("doctor", "--compute"),
        person.run("site", "check"),
        person.run("site", "status"),
        person.run("site", "enable", "--nodes", "3"),
    ]
    wide = [
        line
        for answer in answers
        for line in (answer.stdout + answer.stderr).splitlines()
        if len(line) > 80 and "/" not in line
    ]
    assert not wide


# ---- a home on a network file system -----------------------------------------------------------------------------

MOUNTS = """21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
571 21 0:52 / {home} rw,relatime shared:303 - nfs4 filer:/home rw,vers=4.2,hard,proto=tcp
"""
RUN = """
tidemill() { "$PYTHON" -m tidemill.cli.main "$@"; }
set -e
tidemill site init --batch local
sed -i 's/^# allow_adhoc.*/allow_adhoc = true/; s,^data_roots = .*,data_roots = ["/"],' "$TIDEMILL_HOME/site/site.toml"
tidemill up &
until [ -e "$TIDEMILL_HOME/up.json" ]; do sleep 0.05; done
tidemill run -- echo first
tidemill up --stop
"""


@as_root
@pytest.mark.timeout(90)
def test_a_home_on_a_network_file_system_keeps_its_server_on_a_local_disk(short_path: Path) -> None:
    """Every process sees a recorded table of mounts: Python is started by a shell that binds it over its own."""
    home, table = short_path / "h", short_path / "table"
    table.write_text(MOUNTS.format(home=home))
    python = short_path / "python"
    python.write_text(f'#!/bin/sh\nmount --bind {table} /proc/$$/mountinfo && exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    try:
        done = subprocess.run(
            [*NAMESPACE, "/bin/bash", "-c", RUN],
            env={**os.environ, "PYTHON": str(python), "TIDEMILL_HOME": str(home)},
            cwd=short_path,
            capture_output=True,
            text=True,
            timeout=80,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert done.stdout.splitlines()[-1] == "first"
        assert "works in `/var/tmp/tidemill-" in " ".join(done.stderr.split())
        local = (home / "server").readlink().parent
        assert local.stat().st_mode & 0o777 == 0o700
        assert (local / "server" / "tidemill.db").exists()
        assert read_up(home) is None
    finally:
        if (home / "server").is_symlink():
            shutil.rmtree((home / "server").readlink().parent)


def test_a_home_whose_server_is_on_another_host_says_where(person: Person) -> None:
    person.home.mkdir(mode=0o700)
    for name in ("server", "up.lock"):
        (person.home / name).symlink_to(Path("/var/tmp/tidemill-login2-abc") / name)
    answer = person.run("up")
    assert answer.returncode == 2
    assert "your server is on login2" in answer.stderr
    assert "hint: log in to login2" in answer.stderr


def test_windows_says_that_commands_without_a_cluster_are_no_batch_system(
    person: Person, tmp_path: Path
) -> None:
    for name in ("squeue", "sinfo", "sdiag", "scontrol"):
        command = tmp_path / name
        command.write_text(
            '#!/bin/sh\necho "${0##*/}: fatal: Could not establish a configuration source" >&2\nexit 1\n'
        )
        command.chmod(0o755)
    answer = person.run("windows", path=tmp_path)
    assert answer.returncode == 3
    assert "the commands of slurm are on PATH, and no cluster answers: `" in answer.stderr
    assert "log in to a login node" in answer.stderr


def test_a_check_names_a_refused_application_and_logs_nothing(person: Person) -> None:
    person.done("site", "init", "--batch", "local", "--nodes", "1")
    (person.site / "apps").mkdir(exist_ok=True)
    (person.site / "apps" / "odd.toml").write_text("nosuch = 1\n")
    answer = person.run("site", "check")
    assert "odd.toml" in answer.stdout
    assert "application.refused" not in answer.stdout + answer.stderr
