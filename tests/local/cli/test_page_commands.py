"""Commands of pages outside of `sh` blocks: each is run here, by another test, or stands in a list with the reason.

`test_pages.py` runs the `sh` blocks. The pages here show commands on files and names of a site; RUN says what stands
for them on this machine. One server and site serve all pages, in one PID namespace.
"""

from __future__ import annotations

import gzip
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from tests.worlds.home.page_commands import commands
from tests.worlds.home.pages import DOCS, EXTENSIONS, TITLE
from tests.worlds.home.pages import FENCE as BLOCK
from tests.worlds.home.world import namespace_command

from tidemill.examples import HERE
from tidemill_stress import plan

ROOT = DOCS.parent
GENERATED = {"cli"}  #: its examples come from the parsers, which the tests of the command line read
NODES = 64
BEGIN_S = 1_792_800_000
LIMIT_S = 500.0


@dataclass(frozen=True)
class Recipe:
    """How a page's commands run here: shell lines before them, and what its names stand for."""

    before: str = ""
    names: dict[str, str] = field(default_factory=dict)


PBS = {"/var/spool/pbs/server_priv/accounting": "$LOGS/pbs"}
SMALL = {
    "--nodes 512": f"--nodes {NODES}",
    "--seeds 8": "",
    "tidemill simulate": "tidemill simulate --seeds 1 --replicas 1",
}
SITE = "$TIDEMILL_HOME/site"
CAMPAIGN = "tidemill run --events 2 --name {} -- true"
STEER = """
printf 'import json\\nprint("100 steps")\\n' >steer.py
printf 'export PYTHONPATH=/nowhere/python:$PWD\\n' >setup.sh
tidemill trace -o two.json -- python3 steer.py
"""
RUN = {
    "accounting": Recipe(
        "cp $LOGS/october.txt sacct.txt", {"~/tidemill/site": SITE, "--site lrz": "--site local"}
    ),
    "guests-manners": Recipe("cp $LOGS/sacct.txt .", {**PBS, "--dir SITE": f"--dir {SITE}", **SMALL}),
    "messages": Recipe(),
    "nodes": Recipe("cp $LOGS/program needs-a-licence", {"--events 1000": "--events 8"}),
    "operations": Recipe(
        names={
            "~/.local/state/tidemill/log": "$TIDEMILL_HOME",
            " server.log agent.log": " $TIDEMILL_HOME/server.log $TIDEMILL_HOME/site.log",
        }
    ),
    "opportunity": Recipe("cp $LOGS/sacct.txt $LOGS/machine.swf.gz .", {**PBS, **SMALL}),
    "range-protocol": Recipe(f"cp {HERE}/shell/payload.sh payload && chmod +x payload"),
    "reports": Recipe(
        f"mkdir archive A B; {CAMPAIGN.format('fit-2026')}; {CAMPAIGN.format('io-week')}",
        {"/data/tidemill/archive": "archive", "/site/harvest": f"{SITE}/harvest"},
    ),
    "security": Recipe(
        "row=$(tidemill audit --batch-id tm-local-e1-1 --json)\n"
        "during=$(date -u +%FT%TZ -d @$(echo $row | jq '.[0].started_us / 1e6 | ceil'))",
        {
            "--batch-id 4711": "--batch-id tm-local-e1-1",
            "nid0042": "node0000",
            "2026-11-20T12:00Z": "$during",
            "/srv/tidemill": "$TIDEMILL_HOME/server",
        },
    ),
    "security-in-depth": Recipe(),
    "simulate": Recipe(
        "cp $LOGS/sacct.txt $LOGS/machine.swf.gz $LOGS/free.csv .",
        {**PBS, **SMALL, ".venv/bin/python bench/": f"{sys.executable} {ROOT}/bench/"},
    ),
    "site-operators": Recipe("cp $LOGS/program simulate"),
    "trace": Recipe(STEER),
    "README": Recipe(
        "cp $LOGS/program prog", {".venv/bin/tidemill": "tidemill", "--events 1000": "--events 8"}
    ),
}
ELSEWHERE = {
    "caches": "extensions/caches/tests/xcache/test_cache_howto.py",
    "hospital": "tests/local/server/test_hospital_howto.py",
    "first-campaign-slurm": "tests/slurm/test_first_use_slurm.py",
}
"""Pages of which another test runs all commands."""

SLURM = "Slurm with its accounting: `make test-slurmdbd` runs sacct"
GPUS = "nodes with GPUs"
OFFLINE = (
    "the offline file, which takes 13 minutes to build: tests/unit/scripts/test_offline_*.py run its script"
)
CHECKOUT = "a checkout of the sources: CI runs `make test-all`, and `make dist` checks the wheels"
INSTALLED = "the home of who installed it"
INDEX = "another computer or a package manager"
SYSTEMD = "systemd with a session of the user: tests/local/cli/test_deploy_files.py reads the units"
CLUSTER = "a Slurm cluster: tests/slurm/test_site_init_slurm.py and test_first_use_slurm.py"
IMAGES = (
    "a release below /srv/sw and a runtime of containers: `make test-squashfs` builds, runs and verifies some"
)
CACHE = "XRootD: `make test-xcache` runs the same verbs on a cache"
MPI = "a launcher: tests/local/node/test_launch_mpi.py, tests/local/site/test_wide_local.py"
CONTAINERS = "an image of a container: tests/containers; conda: an environment by that name"
HOURS = "`simulation`, ten minutes a level, Prometheus: extensions/stress/tests/site/test_stress_levels.py"
MAIL = "a server of mail: tests/local/server/test_notify_mail.py submits with --notify"
NOT_HERE: dict[str, dict[str, str]] = {
    "README": {"make quickstart": CHECKOUT, "sh tidemill": OFFLINE, "tidemill site init --enable": CLUSTER},
    "accounting": {"tidemill report accounting --month 2026-10 --site lrz --user tide": SLURM},
    "cache-study": {"pip install": INDEX, "tidemill cache study": "far XRootD: `make test-xcache` runs it"},
    "caches-contents": {"tidemill cache": CACHE},
    "cheat-sheet": {
        "sh tidemill": OFFLINE, "export PATH": OFFLINE, "tidemill site init --enable": CLUSTER,
        "tidemill job": "a job of more events: tests of canceled events",
        **dict.fromkeys(("rm -r", "readlink"), INSTALLED),
    },
    "core-hours": {"sacct": SLURM},
    "gpus": {"tidemill run": GPUS},
    "guests-manners": {"sacct": SLURM},
    "images": dict.fromkeys(("export", "tidemill", "cat", "apptainer"), IMAGES),
    "images-on-nodes": {"tidemill-node": IMAGES},
    "install": {
        "sh tidemill": OFFLINE, "python3 -m pip --python": OFFLINE, "export PATH": OFFLINE, "tidemill doctor": OFFLINE,
        "make": CHECKOUT, "tidemill up --stop": "test_pages.py stops it", "python3 -m venv": CHECKOUT, ". ~/": CHECKOUT,
        **dict.fromkeys(("git", "scp", "ssh", "pip", "uv", "conda", "python3 -m pip download"), INDEX),
        **dict.fromkeys(("rm -r", "readlink", "ls"), INSTALLED),
    },
    "mpi": {"tidemill": MPI},
    "notifications": {"tidemill submit": MAIL},
    "python-notebooks": dict.fromkeys(("file=", "mkdir", ". ~/", "python -m pip", "python -c"), OFFLINE),
    "operations": dict.fromkeys(("install", "systemctl", "loginctl", "journalctl"), SYSTEMD),
    "opportunity": {"sacct": SLURM, "tidemill report opportunity --since": SLURM},
    "routing": {"curl": "a server of Rucio: make test-rucio"},
    "simulate": {".venv/bin/python bench/harm.py": "logs of a year, an hour of computing"},
    "site-operators": {
        "sh tidemill": OFFLINE, "$EDITOR": "a person",
        **dict.fromkeys((f"tidemill site {verb}" for verb in ("init", "check", "run", "enable")), CLUSTER),
    },
    "software-environments": dict.fromkeys(("conda", "tidemill"), CONTAINERS),
    "stress": {"tidemill stress": HOURS},
    "transfers": {"tidemill site run --only": "a data-transfer node: tests/transfer starts agents with --only"},
    "web": {"tidemill web": "a browser: tests/browser opens its pages"},
}  # fmt: skip


def pages() -> list[Path]:
    found = [*DOCS.glob("*.md"), *DOCS.glob("dev/*.md"), *DOCS.glob("decisions/evidence/*.md"), *EXTENSIONS]
    return [*sorted(path for path in found if path.stem not in GENERATED), ROOT / "README.md"]


def to_run(page: Path) -> list[str]:
    """The page's commands that are neither excused nor run by another test."""
    excused = NOT_HERE.get(page.stem, {})
    return [each for each in commands(page) if not any(each.startswith(start) for start in excused)]


def test_every_command_of_a_page_is_run_or_excused_with_a_reason() -> None:
    run = {page.stem for page in pages() if to_run(page)}
    assert run - {*RUN, *ELSEWHERE} == set(), [
        each for page in pages() if page.stem in run - {*RUN} for each in to_run(page)
    ]
    assert {*RUN, *ELSEWHERE} - run == set()
    found = {page.stem: commands(page) for page in pages()}
    for stem, excused in NOT_HERE.items():
        for start in excused:
            assert any(each.startswith(start) for each in found[stem]), (
                f"{stem}: no command begins with `{start}`"
            )
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).exists()] == []


def test_the_stress_tests_of_the_page_are_legal() -> None:
    """`laptop.toml` runs in test_pages.py; the others need a cluster, and are read here."""
    files = {
        title[1]: content
        for _, words, content in BLOCK.findall(
            (ROOT / "extensions/stress/docs/stress.md").read_text(encoding="utf-8")
        )
        if (title := TITLE.match(words))
    }
    assert sorted(files) == ["laptop.toml", "levels.toml", "slots.toml"]
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.write_text(content)
            test = plan.load(path)
            assert len(plan.scan_steps(test) if test.scan else plan.steps(test)) > 2


def logs(place: Path) -> None:
    """What accounting and logs of a machine would be: the same 20 jobs in each form."""
    chance = Random(16)

    def at(seconds: int) -> str:
        return datetime.fromtimestamp(BEGIN_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    swf = ["; Version: 2.2", f"; MaxNodes: {NODES}", f"; MaxProcs: {NODES}", f"; UnixStartTime: {BEGIN_S}"]
    sacct = ["JobID|User|Partition|Submit|Start|End|NNodes|NCPUS|TimelimitRaw|State"]
    pbs, now = [], 0
    for number in range(1, 21):
        now += 1 + int(chance.expovariate(1 / 1100))
        width, run = 2 ** chance.randint(0, 4), int(chance.uniform(600, 4000))
        limit = run // 40 + 1
        swf.append(f"{number} {now} 0 {run} {width} -1 -1 {width} {limit * 60} -1 1 1 1 1 1 1 -1 -1")
        sacct.append(
            f"{number}|u|batch|{at(now)}|{at(now)}|{at(now + run)}|{width}|{width * 8}|{limit}|COMPLETED"
        )
        asked = f"Resource_List.nodect={width} Resource_List.ncpus={width * 8} Resource_List.walltime={limit * 60}"
        times = f"qtime={BEGIN_S + now} start={BEGIN_S + now} end={BEGIN_S + now + run}"
        pbs.append(f"10/24/2026 00:00:00;E;{number}.pbs;user=u queue=q {times} {asked} Exit_status=0")
    (place / "machine.swf.gz").write_bytes(gzip.compress("\n".join(swf).encode()))
    (place / "sacct.txt").write_text("\n".join(sacct) + "\n")
    (place / "pbs").mkdir()
    (place / "pbs" / "20261024").write_text(
        "\n".join(sorted(pbs, key=lambda each: each.split("end=")[1])) + "\n"
    )
    free = "".join(f"{3600 * hour},{chance.randint(0, NODES)}\n" for hour in range(48))
    (place / "free.csv").write_text(free)
    head = "JobID|User|Account|Submit|Start|End|ElapsedRaw|NNodes|NCPUS|State|TotalCPU|JobName"
    row = "7|bob|x|2026-10-02T00:00:00|2026-10-02T00:00:00|2026-10-02T01:00:00|3600|1|8|COMPLETED|00:50:00|other"
    (place / "october.txt").write_text(f"{head}\n{row}\n")
    program = place / "program"
    program.write_text("#!/bin/sh\necho event $1\n")
    program.chmod(0o755)


def script(place: Path) -> str:
    """One shell script for all pages: a page that fails is named in `failed`, and the others go on."""
    lines = [
        "set -u",
        "tidemill up --detach --cores 2 >up.out 2>&1",
        "tidemill run --name first -- sleep 2 >first.out 2>&1",
    ]
    for page in pages():
        if page.stem not in RUN:
            continue
        recipe = RUN[page.stem]
        rows = ["set -eu -o pipefail", recipe.before]
        for command in to_run(page):
            for theirs, ours in recipe.names.items():
                command = command.replace(theirs, ours)
            rows += [f"echo + {shlex.quote(command)}", f"{command} </dev/null"]
        folder = place / "pages" / page.stem
        folder.mkdir(parents=True)
        (folder / "page.sh").write_text("\n".join(rows) + "\n")
        lines.append(f"(cd {folder} && bash page.sh >page.out 2>&1) || echo {page.stem} >>failed")
    return "\n".join([*lines, "tidemill up --stop", ""])


@pytest.mark.timeout(560)
def test_the_commands_of_pages_run_on_a_site_of_this_machine() -> None:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        place = Path(name)
        (place / "logs").mkdir()
        logs(place / "logs")
        (place / "all.sh").write_text(script(place))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = {"TIDEMILL_HOME": str(place / "h"), "LOGS": str(place / "logs"), "COLUMNS": "200"}
        done = subprocess.run(
            [*namespace_command(), "/bin/bash", "all.sh"],
            cwd=place, env={**os.environ, "PATH": path, **home}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        failed = place / "failed"
        told = {
            stem: (place / "pages" / stem / "page.out").read_text()[-3000:]
            for stem in (failed.read_text().split() if failed.exists() else [])
        }
        assert told == {}, "\n".join(f"=== {stem}\n{text}" for stem, text in told.items())
