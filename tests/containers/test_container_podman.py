"""Payloads in rootless podman containers, for real: an image of a local tar file, in slots, as an ordinary user.

crun refuses the hybrid layout of control groups ("cgroups in hybrid mode not supported"), and a machine on which none
are mounted: there the pilot gets a mount namespace in which only the second version is seen, as on current systems.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.node.container_world import (
    NOBODY,
    contained,
    found,
    give_away,
    make_tree,
    open_directory,
    processes_with,
    users_fleet,
)
from tests.worlds.node.pilot_fleet import grants, job, output, program

from tidemill.model.application import Runtime
from tidemill.node.bundle import read_member
from tidemill.wire.node import Done, Failed

GROUPS = Path("/sys/fs/cgroup")
HYBRID = GROUPS / "unified"
#: one store for image and containers in the slot's own memory; no daemon, no journal, no control groups
GLOBAL = ["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none", "--log-level=error"]
CONFIGURED = {"_CONTAINERS_USERNS_CONFIGURED": "done", "_CONTAINERS_ROOTLESS_UID": str(NOBODY)}
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="tested as another user"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with open_directory() as top:
        yield make_tree(top / "image")


def before() -> str | None:
    if HYBRID.is_dir():
        return f"mount --bind {HYBRID} {GROUPS}"
    return None if (GROUPS / "cgroup.controllers").exists() else f"mount -t cgroup2 none {GROUPS}"


def test_a_directory_runs_as_a_container_and_its_status_comes_through(tree: Path) -> None:
    wrap, env = contained(Runtime.PODMAN, found("podman"), str(tree), before_verb=GLOBAL)
    with users_fleet() as it:
        good = job(1, 'cat /etc/inside >out; echo "$TIDEMILL_SEED $PWD $EXTRA" >>out', events=2)
        bad = job(2, "echo broken >&2; exit 7", events=1)
        wrap.insert(-2, "--env=EXTRA")
        it.fleet.write_work(
            programs=[
                program(
                    wrap=wrap,
                    env={**env, "EXTRA": "told"},
                    outputs=[output("out", "out")],
                    memory_mb=300,
                    scratch_mb=200,
                )
            ],
            jobs=[good, bad],
            grants=grants(good, bad),
        )
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1", before=before())) == 0, it.tails()
        assert str(it.done(1)) == "0-1", it.tails()
        first = it.of(Done)[0]
        assert read_member(it.fleet.bundle, first.outputs[0]).decode().split() == [
            "yes",
            "1",
            "/tmp/work",
            "told",
        ]
        [failed] = it.of(Failed)
        assert failed.exit_status == 7
        assert "broken" in failed.stderr_tail
    assert not processes_with("conmon")


def test_a_container_that_is_killed_leaves_neither_process_nor_monitor(tree: Path) -> None:
    wrap, env = contained(Runtime.PODMAN, found("podman"), str(tree), before_verb=GLOBAL)
    with users_fleet() as it:
        work = job(1, "sleep 76543 & sleep 76543", events=1)
        it.fleet.write_work(
            programs=[program(wrap=wrap, env=env, timeout_s=1.5, memory_mb=300, scratch_mb=200)],
            jobs=[work],
            grants=grants(work),
        )
        give_away(it)
        it.lead()
        pilot = it.pilot("--cores", "1", before=before())
        it.until(lambda: bool(processes_with("sleep 76543")), "the container runs")
        it.until(lambda: bool(it.of(Failed)), "the payload is killed")
        it.until(lambda: not processes_with("sleep 76543"), "nothing is left of it")
        assert it.ended(pilot) == 0, it.tails()
    assert not processes_with("conmon")


def test_an_image_of_the_store_runs_by_its_digest(tree: Path) -> None:
    """The store is made by the same user from a local tar file, and bound into the slot by its path."""
    with users_fleet() as it:
        store = it.fleet.directory.parent / "store"
        store.mkdir()
        tar = store / "image.tar"
        subprocess.run(["tar", "-C", str(tree), "-cf", str(tar), "."], check=True)
        give_away(it)
        options = [*GLOBAL, f"--root={store}/root", f"--runroot={store}/run", f"--tmpdir={store}/tmp"]
        user = [
            "setpriv",
            "--reuid",
            str(NOBODY),
            "--regid",
            str(NOBODY),
            "--clear-groups",
            "env",
            "-i",
            "PATH=/usr/bin:/bin",
        ]
        alone = ["unshare", "-pfm", "--mount-proc", "--kill-child"]
        made = [*alone, *user, f"HOME={store}", f"XDG_RUNTIME_DIR={store}", found("podman"), *options,
                "--storage-opt=vfs.ignore_chown_errors=true"]  # fmt: skip
        subprocess.run(
            [*made, "import", str(tar), "localhost/tm:1"], check=True, capture_output=True, timeout=60
        )
        told = subprocess.run(
            [*made, "images", "--digests", "--format={{.Digest}}"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        digest = told.stdout.split()[0]
        wrap, env = contained(
            Runtime.PODMAN,
            found("podman"),
            f"localhost/tm@{digest}",
            before_verb=[*options, "--storage-opt=vfs.ignore_chown_errors=true"],
        )
        work = job(1, "test -e /etc/inside && exit 3", events=1)
        it.fleet.write_work(
            programs=[program(wrap=wrap, env=env, memory_mb=300, scratch_mb=200)],
            jobs=[work],
            grants=grants(work),
        )
        give_away(it)
        it.lead()
        assert it.ended(it.pilot("--cores", "1", before=before())) == 0, it.tails()
        [failed] = it.of(Failed)
        assert failed.exit_status == 3, it.tails()
