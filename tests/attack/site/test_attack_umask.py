"""Every program that writes, under a umask of 000 and of 002: what it makes is writable for its user alone.

Under 002 a project's group would be able to change it, under 000 every user of the machine. Delivered outputs are what
the submitter's umask makes of them, and stand apart.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from bundle import write_bundle
from tests.strangers import UMASKS, opened, under
from tests.unit.scripts.test_offline_bundle import PROGRAM, wheel
from tests.worlds.home.bundles import pip_wheel
from tests.worlds.home.homes import TIDEMILL, WAIT_S, Home


class Place(NamedTuple):
    """A new directory, and a shell with a umask in it."""

    path: Path
    umask: int

    def run(self, *words: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            list(map(str, words)), cwd=self.path, umask=self.umask, capture_output=True, text=True, check=False,
            timeout=WAIT_S, stdin=subprocess.DEVNULL,
            env={**os.environ, "TIDEMILL_HOME": str(self.path / "deep" / "home")},
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def tidemill(self, *words: str | Path, code: int = 0) -> str:
        return self.run(*TIDEMILL, *words, code=code)

    def python(self, program: str) -> str:
        return self.run(sys.executable, "-c", program)


def certs(it: Place) -> None:
    it.tidemill("certs", "init", "--dir", "a/b/ca")
    it.tidemill("certs", "issue", "submitter", "ada", "--dir", "a/b/ca", "--out", "c/d")
    it.tidemill("certs", "issue", "server", "localhost", "--dir", "a/b/ca")
    it.tidemill("certs", "revoke", "c/d/ada.pem", "--dir", "a/b/ca", "--list", "a/revoked.txt")


def server_init(it: Place) -> None:
    it.tidemill("server", "init", "--config", "a/b/server.toml")
    it.tidemill("server", "init")


def site_init(it: Place) -> None:
    words = ("--batch", "local", "--no-probe", "--yes", "--server", "https://localhost:1")
    it.tidemill("site", "init", "a/b/site", *words)
    it.tidemill("site", "drain", "a/b/site", "--reason", "x")
    it.tidemill("site", "resume", "a/b/site", "--reason", "x")
    it.tidemill("site", "deny", "ada", "a/b/site", "--reason", "x")


def support(it: Place) -> None:
    it.tidemill("support", "-o", "bundle.tar.gz")


def man(it: Place) -> None:
    it.tidemill("man", "--to", "a/b/man")


def local_batch(it: Place) -> None:
    it.python(
        "from pathlib import Path; from tidemill.batch.submissions import Records;"
        "from tidemill.batch.open import site_key;"
        "site_key(Path('a/site')); it = Records(Path('b/c/batch')); it.prepare('x', 'text', 'text')"
    )


def slurm_scripts(it: Place) -> None:
    it.python(
        "from pathlib import Path; from tidemill.batch.slurm.system import SlurmBatchSystem;"
        "from tidemill.config.site import Cluster;"
        "SlurmBatchSystem(Path('a/b/batch'), Cluster(), key='0' * 32)"
    )


def offline_installer(it: Place) -> None:
    wheels = it.path / "wheels"
    with under(0o022):
        wheels.mkdir()
        packed = [pip_wheel(wheels)]
        for name in ("tidemill", "tidemill-node"):
            packed.append(wheel(wheels, name.replace("-", "_"), {name: PROGRAM}))
    with under(it.umask):
        write_bundle(packed, it.path / "offline.sh", version="9.9.9", extras=["tokens"])
    it.run("sh", "offline.sh", "--dir", "a/b/programs", "--python", sys.executable)


PROGRAMS: tuple[Callable[[Place], None], ...] = (
    certs, server_init, site_init, support, man, local_batch, slurm_scripts,
    offline_installer,
)  # fmt: skip


@pytest.mark.parametrize("umask", UMASKS, ids=lambda umask: f"{umask:03o}")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_a_program_writes_is_writable_for_its_user_alone(
    program: Callable[[Place], None], umask: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="tm-") as name:  # the path of a socket is short
        place = Path(name)
        program(Place(place, umask))

        assert any(place.iterdir())
        assert opened(place) == []


@pytest.fixture(scope="module", params=UMASKS, ids=lambda umask: f"{umask:03o}")
def used(request: pytest.FixtureRequest) -> Iterator[Home]:
    """A home in which server, agent, pilots and slots have worked, and people have asked for results."""
    with under(request.param):
        home = Home(Path(tempfile.mkdtemp(prefix="tm-")))
        try:
            home.start()
            use(home)
            yield home
        finally:
            home.end()


def use(home: Home) -> None:
    def done(*words: str) -> None:
        ran = home.run(*words)
        assert ran.returncode == 0, f"{words}: {ran.stderr}\n{home.logs()}"

    (home.work / "in.txt").write_text("x\n")
    words = (
        "--events",
        "3",
        "--input",
        f"in={home.work}/in.txt",
        "--output",
        "o",
        "--",
        "sh",
        "-c",
        "echo x > o",
    )
    done("run", "--name", "first", *words)
    job = str(home.jobs("first")[0].id)
    done("outputs", "get", job, "--to", "deep/got")
    done("support", "-o", "bundle.tar.gz")
    done("job", "logs", job)
    home.stop()


def test_nothing_of_a_home_that_was_used_is_writable_for_others(used: Home) -> None:
    outputs = (used.work / "tidemill-out", used.work / "deep", used.work / "in.txt")

    assert (used.path / "server" / "tidemill.db").exists()
    assert opened(used.path, without=(used.work, used.path / "up.log")) == []  # that log is this test's
    assert opened(used.work, without=outputs) == []


def test_outputs_are_what_the_submitters_umask_makes_of_them(
    used: Home, request: pytest.FixtureRequest
) -> None:
    umask = request.node.callspec.params["used"]

    found = [*used.work.glob("tidemill-out/first/o*"), *used.work.glob("deep/got/**/o*")]
    assert len(found) >= 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o666 & ~umask}


def test_what_all_users_need_is_readable_for_them_under_a_umask_of_077(tmp_path: Path) -> None:
    offline_installer(Place(tmp_path, 0o077))

    installed = tmp_path / "a" / "b" / "programs"
    for path in (installed, *installed.rglob("*")):
        if not path.is_symlink():
            needed = 0o555 if path.is_dir() else 0o444
            assert path.stat().st_mode & needed == needed, path
