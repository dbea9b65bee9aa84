"""A node of its own for tests of images: private /tmp, /dev/shm and /dev/fuse, processes that end with it.

What is below the world's folder is seen at /mnt there: /mnt/sw is the software on the "shared file system".
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tidemill.node.binary import find_binary

USER = 65534
AREA = "/mnt/sw"
PIECE_BYTES = 5000  #: images are cut into such pieces

SET_UP = """
mount --make-rprivate /
mount --bind "$1" /mnt
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777,size=64m shm /dev/shm
mknod -m 666 /mnt/fuse c 10 229
touch /dev/fuse 2>/dev/null
mount --bind /mnt/fuse /dev/fuse
echo up
exec sleep infinity
"""

PROGRAM = """
#include <stdio.h>
int answer(void);
int main(void) { printf("%d\\n", answer()); return 0; }
"""


@dataclass(frozen=True)
class World:
    """`pid` is PID 1 of the world's namespaces, seen from outside; `mounts` were there before any run."""

    folder: Path
    pid: int
    mounts: frozenset[str] = frozenset()

    def start(
        self, words: list[str], *, uid: int = USER, directory: str = "/mnt", before: str = ""
    ) -> subprocess.Popen[str]:
        """Starts a command in the world as this user. `before`: shell commands that run as root first, in a mount
        namespace of their own."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-p", f"--wdns={directory}"]
        change = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        if before:
            change = ["unshare", "-m", "sh", "-ec", before + '\nexec "$@"', "x", *change]
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TOLD": f"{AREA}/lib:/usr/lib"}
        return subprocess.Popen(
            [*enter, *change, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def run(
        self, words: list[str], *, uid: int = USER, directory: str = "/mnt", before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the world to its end."""
        process = self.start(words, uid=uid, directory=directory, before=before)
        with process:
            out, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    def image_run(
        self, script: str, *options: str, recipe: str = "good", uid: int = USER, before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """`image run` of a shell script."""
        return self.run(image_words(script, *options, recipe=recipe), uid=uid, before=before)

    def processes(self) -> list[str]:
        """Command lines of everything that runs in the world but its first process, which waits for nobody."""
        found = []
        for line in self.in_world("ps -eo pid=,stat=,args=").splitlines():
            pid, state, command = line.split(maxsplit=2)
            if pid != "1" and state[0] != "Z" and "ps -eo" not in command:
                found.append(command)
        return found

    def in_world(self, script: str) -> str:
        """What a shell script, run as root, prints."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-p", "sh", "-c", script]
        return subprocess.run(enter, capture_output=True, text=True, timeout=30, check=True).stdout

    def left(self) -> list[str]:
        """Whatever a run should not leave: processes, mounts, files in memory and in /tmp."""
        mounts = [each for each in self.run_mounts() if each not in self.mounts]
        files = self.in_world("ls -A /tmp /dev/shm | grep -v : || true")
        return [*self.processes(), *mounts, *files.split()]

    def run_mounts(self) -> list[str]:
        """What looks like a run's mount; another test's that was killed can be among them."""
        return self.in_world("grep -E 'tidemill|squashfuse|overlay /mnt' /proc/self/mounts || true").splitlines()


def image_words(script: str, *options: str, recipe: str = "good") -> list[str]:
    """The command line of `image run` of a shell script, in the world."""
    words = ["/mnt/tidemill-node", "image", "run", "--recipe", f"/mnt/{recipe}.json", *options]
    return [*words, "--", "sh", "-c", script]


def wait_until(asked: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Asks until the answer is true; fails when it is not by then."""
    end = time.monotonic() + seconds
    while not asked():
        assert time.monotonic() < end, f"not in {seconds:g} s: {what}"
        time.sleep(0.02)


def write_recipe(path: Path, image: bytes, areas: list[str]) -> None:
    """A recipe with the image in small pieces of one pack, stored backwards so that their order counts."""
    pack, pieces = b"", []
    for at in reversed(range(0, len(image), PIECE_BYTES)):
        part = image[at : at + PIECE_BYTES]
        pieces.append({"path": f"{path.stem}.pack", "offset": len(pack), "length": len(part)})
        pack += part
    path.with_suffix(".pack").write_bytes(pack)
    file = {"sha256": hashlib.sha256(image).hexdigest(), "bytes": len(image), "pieces": pieces[::-1]}
    recipe = {"format": 1, "name": path.stem, "file": file, "areas": areas, "unpacked_bytes": 0}
    path.write_text(json.dumps(recipe))


def make_software(folder: Path) -> None:
    """/mnt/sw: a program with its library, data, and a file that nobody packs."""
    software = folder / "sw"
    for name in ("bin", "lib", "empty", "data"):
        (software / name).mkdir(parents=True)
    (folder / "answer.c").write_text("int answer(void) { return 42; }\n")
    (folder / "program.c").write_text(PROGRAM)
    compiler: list[str | Path] = ["gcc", "-O1", "-o"]
    library = software / "lib" / "libanswer.so"
    subprocess.run([*compiler, library, "-shared", "-fPIC", folder / "answer.c"], check=True)
    program: list[str | Path] = [*compiler, software / "bin" / "program", folder / "program.c"]
    subprocess.run([*program, f"-L{library.parent}", "-lanswer", f"-Wl,-rpath,{AREA}/lib"], check=True)
    (software / "data" / "file").write_text("real\n")
    os.link(software / "data" / "file", software / "data" / "hard")
    (software / "data" / "link").symlink_to("file")
    (software / "data" / "big").write_bytes(
        b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(200_000))
    )
    with (software / "data" / "sparse").open("wb") as sparse:
        sparse.truncate(3_000_000)
        sparse.seek(2_000_000)
        sparse.write(b"x")
    (software / "data" / "untraced").write_text("never traced\n")
    (software / "data" / "file").chmod(0o640)
    os.utime(software / "data" / "file", (1_500_000_000, 1_500_000_000))
    os.utime(software / "empty", (1_400_000_000, 1_400_000_000))
    software.chmod(0o755)


def make_image(folder: Path) -> bytes:
    """The software without `untraced`, which is a stub, and with `file` saying `packed`."""
    stage = folder / "stage"
    shutil.copytree(folder / "sw", stage / "mnt" / "sw", symlinks=True)
    data = stage / "mnt" / "sw" / "data"
    (data / "untraced").unlink()
    (data / "untraced").symlink_to(f"/tmp/.tidemill/real{AREA}/data/untraced")
    (data / "hard").unlink()
    (data / "file").write_text("packed\n")
    os.link(data / "file", data / "hard")
    os.utime(data / "file", (1_500_000_000, 1_500_000_000))
    os.utime(stage / "mnt" / "sw" / "empty", (1_400_000_000, 1_400_000_000))
    image = folder / "good.sqfs"
    squash: list[str | Path] = [
        "mksquashfs",
        stage,
        image,
        "-comp",
        "zstd",
        "-no-fragments",
        "-all-root",
        "-noappend",
    ]
    subprocess.run([*squash, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    return image.read_bytes()


def make_recipes(folder: Path) -> None:
    """good, and what can be wrong: truncated, changed, without the area, no squashfs."""
    image = make_image(folder)
    for name, areas in {
        "good": [AREA],
        "truncated": [AREA],
        "changed": [AREA],
        "lacking": ["/mnt/stage"],
    }.items():
        write_recipe(folder / f"{name}.json", image, areas)
    pack = folder / "truncated.pack"
    pack.write_bytes(pack.read_bytes()[:-100])
    pack = folder / "changed.pack"
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    write_recipe(folder / "nonsense.json", b"hsqs" + b"\xff" * 9000, [AREA])


def missing() -> str | None:
    """What lacks to make a world."""
    if os.geteuid() != 0:
        return "only root can make a device node and run as another user"
    for program in ("mksquashfs", "squashfuse_ll", "unshare", "nsenter", "setpriv", "gcc"):
        if shutil.which(program) is None:
            return f"there is no `{program}`"
    return None


@contextlib.contextmanager
def image_node(folder: Path) -> Iterator[World]:
    """A world with software, image and recipes."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(lacking)
    make_software(folder)
    make_recipes(folder)
    shutil.copy(find_binary(), folder / "tidemill-node")
    folder.chmod(0o755)
    (folder / "out").mkdir()
    (folder / "out").chmod(0o1777)
    unshare = ["unshare", "-mpf", "--kill-child", "--mount-proc", "sh", "-ec", SET_UP, "x", str(folder)]
    with subprocess.Popen(unshare, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            world = World(folder, int(children[0]))
            yield replace(world, mounts=frozenset(world.run_mounts()))
        finally:
            process.kill()
