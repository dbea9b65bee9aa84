"""`tidemill-node image`: software from an image in memory, at its original paths, as an ordinary user and as root."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from tests.worlds.home.processes import said_of, tree
from tests.worlds.node.image_node import AREA, USER, World, image_node, image_words, wait_until

USERS = pytest.mark.parametrize("uid", [USER, 0], ids=["user", "root"])
WAYS = pytest.mark.parametrize("way", ["fuse", "unpack"])
NO_FUSE = "umount /dev/fuse; touch /mnt/nofuse; chmod 600 /mnt/nofuse; mount --bind /mnt/nofuse /dev/fuse"
#: to squashfuse, as the command sees it
SIGNAL = "for p in /proc/[0-9]*; do grep -q ^/usr/bin/squashfuse $p/cmdline && kill -{} ${{p#/proc/}}; done"
NO_SQUASHFUSE = "for p in /usr/bin/squashfuse /usr/bin/squashfuse_ll; do mount --bind /dev/null $p; done"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with image_node(tmp_path_factory.mktemp("image")) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(world: World) -> Iterator[None]:
    yield
    wait_until(lambda: not world.left(), "everything of a run is gone")
    assert world.left() == []


@USERS
@WAYS
def test_software_comes_from_the_image_at_its_original_path(world: World, way: str, uid: int) -> None:
    script = f"cd {AREA}/data; pwd; cat file link hard; cat untraced; {AREA}/bin/program; id -u; id -g"
    done = world.image_run(script, "--mode", way, uid=uid)
    assert done.stdout.split("\n")[:-1] == [
        *[f"{AREA}/data", "packed", "packed", "packed"],
        *["never traced", "42", str(uid), str(uid)],
    ]
    assert (done.returncode, done.stderr) == (0, "")


@USERS
@WAYS
def test_files_are_as_they_were(world: World, way: str, uid: int) -> None:
    script = f"cd {AREA}; stat -c '%a %Y %h %u' data/file empty; stat -c %s data/sparse; sha256sum data/*"
    done = world.image_run(script, "--mode", way, uid=uid)
    lines = done.stdout.splitlines()
    assert lines[0] == f"640 1500000000 2 {uid}"
    assert lines[1].startswith("755 1400000000")
    assert lines[2] == "3000000"
    data = world.folder / "stage" / "mnt" / "sw" / "data"
    expected = {
        name: hashlib.sha256((data / name).read_bytes()).hexdigest() for name in ("big", "file", "sparse")
    }
    found = {line.split("data/")[1]: line.split()[0] for line in lines[3:]}
    assert {name: found[name] for name in expected} == expected


@USERS
@WAYS
def test_what_is_written_to_an_area_stays_in_memory(world: World, way: str, uid: int) -> None:
    script = (
        f"cd {AREA}/data; echo more >> file; echo new > new; rm hard; mkdir -p a/b; cat file; ls; cat none"
    )
    done = world.image_run(script, "--mode", way, uid=uid)
    assert done.stdout.split() == ["packed", "more", "a", "big", "file", "link", "new", "sparse", "untraced"]
    assert "none: No such file or directory" in done.stderr
    assert (world.folder / "sw" / "data" / "file").read_text() == "real\n"
    assert not (world.folder / "sw" / "data" / "new").exists()


@USERS
def test_a_name_that_is_not_there_asks_nothing_of_the_real_tree(world: World, uid: int) -> None:
    (world.folder / "sw" / "data" / "later").write_text("after the image was built")
    try:
        done = world.image_run(f"cat {AREA}/data/later", "--mode", "fuse", uid=uid)
    finally:
        (world.folder / "sw" / "data" / "later").unlink()
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr


def test_auto_takes_squashfuse_for_what_is_large_for_the_memory(world: World) -> None:
    done = world.image_run("grep -c 'fuse ro' /proc/self/mounts", "--memory-mb", "24")
    assert (done.stdout, done.stderr) == ("1\n", "")
    done = world.image_run("grep -c 'fuse ro' /proc/self/mounts", "--memory-mb", "240")
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("before", "reason"),
    [(NO_FUSE, "failed to open `/dev/fuse`"), (NO_SQUASHFUSE, "no squashfuse_ll or squashfuse in")],
    ids=["no-fuse", "no-squashfuse"],
)
def test_without_fuse_the_image_is_unpacked_and_that_is_said(world: World, before: str, reason: str) -> None:
    done = world.image_run(f"cat {AREA}/data/file", "--memory-mb", "24", before=before)
    assert (done.stdout, done.returncode) == ("packed\n", 0)
    assert "image `good` shown by unpack: " in done.stderr
    assert reason in done.stderr
    asked = world.image_run(f"cat {AREA}/data/file", "--mode", "fuse", before=before)
    assert (asked.stdout, asked.returncode) == ("", 3)
    assert "failed (class `image`)" in asked.stderr


def without_namespaces(words: list[str]) -> list[str]:
    """A user namespace in which no further ones may be made."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    return ["unshare", "-U", "--map-current-user", "--keep-caps", "sh", "-c", script, "x", *words]


def test_without_user_namespaces_paths_are_rewritten_and_that_is_said(world: World) -> None:
    script = f"{AREA}/bin/program; cat {AREA}/data/file {AREA}/data/untraced; echo $TOLD; cd {AREA}/empty; pwd; exit 4"
    done = world.run(without_namespaces(image_words(script)))
    lines = done.stdout.splitlines()
    assert lines[:3] == ["42", "packed", "never traced"]
    place, rest = lines[3].split(":")
    assert place.startswith(f"/dev/shm/tidemill-image-{USER}-")
    assert (rest, lines[4]) == ("/usr/lib", place.removesuffix("lib") + "empty")
    assert "relocated (no namespaces: " in done.stderr
    assert done.returncode == 4
    refused = world.run(without_namespaces(image_words("true", "--mode", "fuse")))
    assert refused.returncode == 3
    assert "no namespaces" in refused.stderr


@USERS
def test_the_command_is_killed_and_the_failure_named_when_squashfuse_ends(world: World, uid: int) -> None:
    done = world.image_run(f"{SIGNAL.format(9)}; sleep 60; echo survived", "--mode", "fuse", uid=uid)
    assert (done.stdout, done.returncode) == ("", 3)
    assert "failed (class `image`): squashfuse ended with signal 9" in done.stderr


def test_signals_of_the_batch_system_to_all_processes_do_not_end_squashfuse(world: World) -> None:
    told = "; ".join(SIGNAL.format(number) for number in (1, 10, 15))
    done = world.image_run(f"{told}; sleep 0.5; echo survived", "--mode", "fuse")
    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr


@pytest.mark.parametrize("recipe", ["truncated", "changed"])
@pytest.mark.parametrize("options", [["--mode", "auto"], ["--mode", "relocate"]], ids=["auto", "relocate"])
def test_an_image_with_another_digest_is_refused(world: World, recipe: str, options: list[str]) -> None:
    done = world.image_run("echo started", *options, recipe=recipe)
    expected = json.loads((world.folder / f"{recipe}.json").read_text())["file"]["sha256"]
    assert (done.stdout, done.returncode) == ("", 3)
    assert f"image `{recipe}` has sha256 " in done.stderr
    assert f"its recipe says {expected}" in done.stderr


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        ("good", ["--memory-mb", "2"], "MB of memory to be held, 2 MB are left"),
        ("good", ["--mode", "unpack", "--memory-mb", "10"], "MB of memory to be unpacked"),
        ("good", ["--mode", "relocate", "--memory-mb", "10"], "MB of memory to be unpacked"),
        ("lacking", [], "image has no directory"),
        ("nonsense", [], "cannot be read here: squashfs 65535.65535"),
        ("nonsense", ["--mode", "fuse"], "squashfuse ended with status"),
        ("none", [], "failed to find recipe"),
    ],
)
def test_what_is_wrong_is_named_before_the_command_starts(
    world: World, recipe: str, options: list[str], said: str
) -> None:
    done = world.image_run("echo started", *options, recipe=recipe)
    assert (done.stdout, done.returncode) == ("", 3)
    assert said in done.stderr


def test_a_full_memory_is_an_error_of_the_command(world: World) -> None:
    script = f"head -c 40000000 /dev/zero > {AREA}/data/new"
    done = world.image_run(script, "--memory-mb", "24")
    assert done.returncode != 0
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("way", ["fuse", "relocate"])
@pytest.mark.parametrize("victim", ["outside", "inside"])
def test_nothing_is_left_when_a_watcher_is_killed(world: World, way: str, victim: str) -> None:
    words = image_words("(setsid sleep 70 &); echo ready; sleep 71", "--mode", way)
    process = world.start(words)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        runners = watchers(process.pid)
        os.kill(runners[0 if victim == "outside" else 1], signal.SIGKILL)
        wait_until(lambda: not world.left(), "everything is gone")
        process.communicate(timeout=20)


def watchers(pid: int) -> list[int]:
    """The process outside and the one inside, below what `start` started."""
    return [each for each in tree(pid) if said_of(each, "cmdline").startswith("/mnt/tidemill-node\0")]


@WAYS
def test_signals_reach_the_command_and_its_end_is_passed_on(world: World, way: str) -> None:
    script = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    process = world.start(image_words(script, "--mode", way))
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(watchers(process.pid)[0], signal.SIGTERM)
        assert process.communicate(timeout=20) == ("told\n", "")
        assert process.returncode == 9


def test_a_command_that_dies_of_a_signal_takes_the_runner_with_it(world: World) -> None:
    done = world.run(["sh", "-c", '"$@"; echo $?', "x", *image_words("kill -KILL $$")])
    assert done.stdout == "137\n"


@pytest.mark.parametrize(("program", "status"), [("/mnt/none", 127), ("/mnt/good.json", 126)])
def test_a_command_that_cannot_be_started_is_named(world: World, program: str, status: int) -> None:
    done = world.run([*image_words("")[:5], "--", program])
    assert done.returncode == status
    assert program in done.stderr


def test_a_run_that_ends_takes_nothing_from_another_one(world: World) -> None:
    words = image_words(f"echo ready; read -r line < /mnt/out/go; cat {AREA}/data/untraced")
    os.mkfifo(world.folder / "out" / "go")
    (world.folder / "out" / "go").chmod(0o666)
    process = world.start(words)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert world.image_run(f"cat {AREA}/data/untraced").stdout == "never traced\n"
        (world.folder / "out" / "go").write_text("go\n")
        assert process.communicate(timeout=20) == ("never traced\n", "")
    (world.folder / "out" / "go").unlink()


def test_unpack_writes_the_tree_and_check_says_what_it_holds(world: World) -> None:
    unpacked = world.run(
        ["/mnt/tidemill-node", "image", "unpack", "--recipe", "/mnt/good.json", "--to", "/tmp/tree"]
    )
    assert unpacked.returncode == 0, unpacked.stderr
    differences = world.in_world("diff -r --no-dereference /mnt/stage /tmp/tree; rm -r /tmp/tree")
    assert differences == ""
    checked = world.run(["/mnt/tidemill-node", "image", "check", "/mnt/good.sqfs"])
    assert json.loads(checked.stdout) == json.loads(unpacked.stdout)
    again = world.run(["/mnt/tidemill-node", "image", "check", "--recipe", "/mnt/changed.json"])
    assert again.returncode == 3
    assert "image `changed` has sha256" in again.stderr


def test_a_wrong_command_line_exits_2(world: World) -> None:
    for words in (
        ["image"],
        ["image", "run", "--", "true"],
        ["image", "check"],
        ["image", "run", "--mode", "best"],
    ):
        done: subprocess.CompletedProcess[str] = world.run(["/mnt/tidemill-node", *words])
        assert (done.returncode, done.stdout) == (2, "")
        assert "hint: tidemill-node image --help" in done.stderr
