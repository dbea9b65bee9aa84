"""`tidemill-node doctor` on this very kernel, with and without what it looks for, as an ordinary user too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.worlds.node.pilot_fleet import ROOT, binary

from tidemill.site.setup.capabilities import Abilities, parse_abilities

NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a namespace with other settings, as root")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The binary where every user may run it."""
    directory = tmp_path_factory.mktemp("node")
    for each in (directory, *directory.parents[:3]):
        if each.owner() == Path.home().owner() and each != Path("/tmp"):
            each.chmod(0o755)
    shutil.copy(binary(), directory / "tidemill-node")
    return directory / "tidemill-node"


def ask(node: Path, *before: str, script: str = "") -> Abilities:
    """What the doctor says, run by these words; after a shell script in a mount namespace of its own."""
    command = [*before, str(node), "doctor", "--json"]
    if script:
        command = ["unshare", "-m", "sh", "-ec", script + '\nexec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return parse_abilities(done.stdout)


def test_every_probe_has_an_answer_and_every_lack_a_reason(node: Path) -> None:
    found = ask(node)
    names = {"ptrace", "seccomp", "trace", "user_namespace", "mount_namespace", "tmpfs", "overlay", "fuse_device",
             "fuse", "proc", "nested", "tcp"}  # fmt: skip
    assert set(found.tried) == names
    assert all(tried.ok or tried.why for tried in found.tried.values())
    assert found.kernel == os.uname().release
    assert found.memory.total > 0


def test_nothing_on_the_node_changes(node: Path, tmp_path: Path) -> None:
    # as root in a mount namespace of its own: other tests mount and unmount meanwhile
    own = ["unshare", "-m"] if os.geteuid() == 0 else []
    script = 'cat /proc/self/mounts; "$@" > "$0/told"; cat /proc/self/mounts'
    told = tmp_path / "told"
    seen = subprocess.run(
        [*own, "sh", "-ec", script, str(tmp_path), "env", f"TMPDIR={node.parent}", str(node), "doctor", "--json"],
        capture_output=True, text=True, timeout=30, check=True, cwd="/",
    ).stdout.splitlines()  # fmt: skip
    found = parse_abilities(told.read_text())
    half = len(seen) // 2
    assert half > 0
    assert seen[:half] == seen[half:]
    assert [each.name for each in node.parent.iterdir()] == ["tidemill-node"]
    assert any(place.path == str(node.parent) for place in found.places)


@as_root
def test_an_ordinary_user_gets_the_ways_whose_means_were_tried(node: Path) -> None:
    found = ask(node, *NOBODY)
    assert found.uid == 65534
    assert found.can("user_namespace") == (found.ways.isolation.way == "namespaces")
    assert found.can("trace") == (found.ways.tracing.way == "ptrace")


@as_root
def test_a_fuse_device_that_users_may_open_makes_images_fuse(node: Path, tmp_path: Path) -> None:
    device = f"mknod -m 666 {tmp_path}/fuse c 10 229; mount --bind {tmp_path}/fuse /dev/fuse"
    shut = f"mknod -m 600 {tmp_path}/shut c 10 229; mount --bind {tmp_path}/shut /dev/fuse"
    if not Path("/dev/fuse").exists() or not ask(node, *NOBODY).can("overlay"):
        pytest.skip("this kernel has no FUSE, or no overlay for users")
    opened = ask(node, *NOBODY, script=device)
    assert opened.can("fuse")
    assert opened.ways.images.way == ("fuse" if "squashfuse" in opened.programs else "unpack")
    closed = ask(node, *NOBODY, script=shut)
    assert closed.ways.images.way == "unpack"
    assert "/dev/fuse" in closed.ways.images.why
    assert closed.tried["fuse"].why == "needs fuse_device"


@as_root
def test_without_user_namespaces_the_setting_is_named_and_images_are_relocated(node: Path) -> None:
    # in a user namespace of its own, so that this machine's setting stays
    script = "echo 0 > /proc/sys/user/max_user_namespaces"
    command = ["unshare", "-Ur", "sh", "-ec", script + '\nexec "$@"', "sh", str(node), "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        pytest.skip(f"no user namespace here: {done.stderr.strip()}")
    found = parse_abilities(done.stdout)
    assert found.ways.images.way == "relocate"
    assert found.ways.isolation.way == "subreaper"
    assert "user.max_user_namespaces" in found.ways.isolation.why
    assert found.tried["overlay"].why == "needs user_namespace"


def test_the_documentation_shows_the_table_of_ways(node: Path) -> None:
    table = subprocess.run(
        [str(node), "doctor", "--table"], capture_output=True, text=True, check=True
    ).stdout
    assert table in (ROOT / "docs" / "nodes.md").read_text()
