"""What a payload leaves, and what it is started with: no link, pipe or device becomes an output, no secret an input.

As an ordinary user: as root the tests start the world as `nobody`.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.world import Options, World

ODD = (Path(__file__).parents[2] / "payloads" / "odd_outputs.py").resolve()
NOBODY = 65534 if os.geteuid() == 0 else None
SECRET = "a private key\n"
TOKEN = "a-token-of-the-agent-0123456789"


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    environment = {"BEARER_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": TOKEN, "PGPASSWORD": TOKEN}
    options = Options(nodes=1, cores=2, user=NOBODY, parent=Path("/var/tmp"), environment=environment)
    home = Path(tempfile.mkdtemp(prefix="tm-", dir="/var/tmp"))
    made = World(home, options)
    shutil.copy(ODD, home / "me" / "odd.py")
    kept = home / "me" / "kept" / "secret"
    kept.parent.mkdir(mode=0o700)
    kept.write_text(SECRET)
    kept.chmod(0o600)
    (home / "me" / "odd.py").chmod(0o644)
    if NOBODY is not None:
        for path in (kept.parent, kept):
            os.chown(path, NOBODY, NOBODY)
    try:
        before = os.umask(0)  # the worst that a person may have: nothing is private by itself
        try:
            made.start()
        finally:
            os.umask(before)
        yield made
    finally:
        made.stop()
        shutil.rmtree(home, ignore_errors=True)


def run(it: World, name: str, how: str, *, output: str = "o") -> str:
    """What `tidemill run` says of such an output."""
    words = ["run", "--name", name, "--output", output, "--dir", str(it.home / "me" / "out"), "--"]
    secret = str(it.home / "me" / "kept" / "secret")
    done = it.run(*words, sys.executable, str(it.home / "me" / "odd.py"), how, secret)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def delivered(it: World, name: str) -> dict[str, bytes]:
    """Every file that was delivered of a campaign, members of archives too; links and pipes are none."""
    found: dict[str, bytes] = {}
    for path in (it.home / "me" / "out" / name).rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISDIR(mode) or stat.S_ISREG(mode), path
        if stat.S_ISREG(mode):
            found[path.name] = path.read_bytes()
            if path.suffix == ".tar":
                with tarfile.open(path) as tar:
                    for each in tar:
                        assert each.isreg(), each
                        found[each.name] = tar.extractfile(each).read()  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize(
    ("how", "output"),
    [
        ("symlink", "o"), ("link to a directory", "d/secret"), ("fifo", "o"), ("socket", "o"), ("directory", "o"),
        ("hard link", "o"), ("device", "o"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_the_payload_is_no_output(it: World, how: str, output: str) -> None:
    name = how.replace(" ", "-")
    said = run(it, name, how, output=output)
    assert said.startswith("1 "), said + it.tails()
    could_not = (
        "[Errno 1]",
        "[Errno 2]",
        "[Errno 13]",
        "[Errno 18]",
    )  # what makes it is refused to the payload
    assert "output" in said or any(each in said for each in could_not), said
    assert not any(SECRET.encode() in content for content in delivered(it, name).values())


def test_an_output_that_is_swapped_for_a_link_is_the_file_or_nothing(it: World) -> None:
    for turn in range(5):
        run(it, f"swapped-{turn}", "swapped")
        assert not any(SECRET.encode() in content for content in delivered(it, f"swapped-{turn}").values())


@pytest.mark.parametrize("path", ["../o", "/etc/passwd", "a/../../o", ".."])
def test_an_output_outside_the_work_directory_is_refused_before_anything_runs(it: World, path: str) -> None:
    assert run(it, "outside", "symlink", output=path).startswith("2 ")
    assert not (it.home / "me" / "out" / "outside").exists()


SHOW = (
    "import os; print(sorted(os.environ.items())); "
    "print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2 "
    "and os.path.lexists(f'/proc/self/fd/{n}')]); print(oct(os.umask(0)))"
)


def test_a_payload_inherits_no_descriptor_and_no_secret_of_the_agents_environment(it: World) -> None:
    done = it.run("run", "--name", "shown", "--", sys.executable, "-c", SHOW)
    assert done.returncode == 0, done.stderr
    environment, descriptors, _ = done.stdout.splitlines()
    assert TOKEN not in environment
    assert "X509_USER_PROXY" not in environment
    assert str(it.home / "server") not in environment
    assert descriptors == "[]", descriptors


def test_nothing_of_the_home_is_open_to_others_although_the_umask_is_0(it: World) -> None:
    assert run(it, "open", "hard link")
    opened = [
        path
        for top in ("server", "site")
        for path in (it.home / top, *(it.home / top).rglob("*"))
        if not path.is_symlink() and stat.S_IMODE(path.lstat().st_mode) & 0o022 and not path.is_socket()
    ]
    assert opened == []
    for private in ("server", "site"):
        assert stat.S_IMODE((it.home / private).stat().st_mode) & 0o077 == 0
