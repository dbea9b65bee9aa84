"""Container images made of this machine's own files, a fleet of an ordinary user, and what stays behind of payloads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.worlds.node.pilot_fleet import Field, field

from tidemill.config.site import ContainerRuntime
from tidemill.model.application import Application, Container, Mode, Runtime
from tidemill.site.applications.containers import environment_of, wrap_words

NOBODY = 65534
PROGRAMS = ("sh", "sleep", "cat", "env", "id", "ls", "mkdir", "rm")
DIRECTORIES = ("dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp", "bin")


def found(name: str) -> str:
    """Path of a program. Skips the test where there is none."""
    path = shutil.which(name)
    if path is None:
        why = f"no `{name}`: see scripts/debian-packages.txt"
        pytest.skip(why)
    return path


def make_tree(at: Path) -> Path:
    """A directory with a shell, some programs and their libraries, as `ch-convert` or `podman export` would leave."""
    for each in DIRECTORIES:
        (at / each).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group", "hosts", "resolv.conf", "hostname"):
        (at / "etc" / name).touch()
    (at / "run" / ".containerenv").touch()  # podman writes it, and may not in a directory of another user
    (at / "etc" / "mtab").symlink_to("/proc/mounts")
    (at / "etc" / "inside").write_text("yes\n")
    for name in PROGRAMS:
        program = found(name)
        shutil.copy(program, at / "bin" / name)
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+)", listed):
            target = at / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(library, target)
    for folder in (at, *at.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o755)
    return at


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's."""
    top = Path(tempfile.mkdtemp(prefix="tm-open-", dir="/var/tmp"))
    try:
        top.chmod(0o755)
        yield top
    finally:
        shutil.rmtree(top)


@contextmanager
def users_fleet(isolation: str = "required") -> Iterator[Field]:
    """A fleet whose lead and pilots run as an ordinary user, where the tests themselves run as root."""
    with open_directory() as top, field(top, isolation=isolation) as it:
        if os.geteuid() == 0:
            shutil.copy(it.node, top / "tidemill-node")
            it.node = top / "tidemill-node"
            it.prefix = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        yield it


def give_away(it: Field) -> None:
    """The fleet's files belong to the user: call after the last one was written."""
    if os.geteuid() == 0:
        top = it.fleet.directory.parent
        for each in (top, *top.rglob("*")):
            os.chown(each, NOBODY, NOBODY, follow_symlinks=False)


@contextmanager
def as_their_owner() -> Iterator[None]:
    """Write as the user to whom the fleet's files were given, so that a lead that runs can read each at once."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def contained(
    runtime: Runtime, path: Path | str, image: str, *, before_verb: Sequence[str] = (), **more: object
) -> tuple[list[str], dict[str, str]]:
    """`wrap` and `env` of a program in a container, as the agent makes them."""
    site = ContainerRuntime(command=[str(path), *before_verb])
    mode = Mode.RANGE if more.pop("range_mode", False) else Mode.COMMAND
    container = Container(image=image, runtime=runtime, **more)  # type: ignore[arg-type]
    app = Application(name="a", executable="/bin/sh", container=container, mode=mode)
    return wrap_words(app, site), environment_of(
        container, lambda: "nobody", NOBODY if os.geteuid() == 0 else os.geteuid()
    )


def processes_with(text: str) -> list[str]:
    """Command lines on this machine that hold the text."""
    lines = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            lines.append(line)
    return lines
