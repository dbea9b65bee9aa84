"""Each command of "Set up a cache" in docs/caches.md, in the page's order, by an ordinary user on a real origin."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.services.cache_world import ROOT, CacheWorld, near, ordinary_user
from tests.worlds.services.ports import free_port

__all__ = ["near"]

PAGE = ROOT / "extensions" / "caches" / "docs" / "caches.md"
CONTENT = os.urandom(3_000_000)
LIMIT_S = 120.0


def commands() -> list[str]:
    """The indented or fenced commands of the section, one string for each, continued lines joined."""
    section = re.search(
        r"^## Set up a cache$(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert section is not None
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```$", section[1], re.MULTILINE | re.DOTALL)
    joined = "".join(blocks).replace("\\\n", " ")
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


class Reader:
    """Who follows the page: its names stand for this host's."""

    def __init__(self, world: CacheWorld) -> None:
        self.world = world
        self.program = Path(sys.executable).parent / "tidemill"
        world.port = free_port()
        world.directory = world.home / "cache"  # the unit has its name
        self.words = {
            "root://storage.example:1094//store/": f"{world.origin_url}store/",
            "cache.site.example:1094": f"127.0.0.1:{world.port}",
            "/scratch/cache": str(world.directory),
            "--size 2TB": f"--size 2GB --port {world.port}",
            "/tmp/f.root": str(world.home / "f.root"),
        }

    def says(self, command: str) -> str:
        """The command with the names of this host."""
        for theirs, ours in self.words.items():
            command = command.replace(theirs, ours)
        return command

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run it as the page has it."""
        return subprocess.run(
            [*ordinary_user(), "bash", "-c", self.says(command)],
            capture_output=True,
            text=True,
            env={**self.world.environ, "PATH": f"{self.program.parent}:{os.environ['PATH']}"},
            cwd=ROOT,
            check=False,
            timeout=LIMIT_S,
        )


@pytest.mark.timeout(300)
def test_each_command_of_the_how_to_does_what_the_page_says(near: CacheWorld) -> None:
    near.make("store/d/f.root", CONTENT)
    reader = Reader(near)
    known = {"tidemill cache init": 0, "tidemill cache run": 0, "xrdcp": 0, "systemctl": 0, "loginctl": 0}
    for command in commands():
        known |= {begin: count + 1 for begin, count in known.items() if command.startswith(begin)}
        if command.startswith("tidemill cache run"):  # in a terminal of its own, until it answers
            assert reader.says(command).split()[-1] == str(near.directory)
            near.start()
        elif command.startswith("xrdcp"):
            read_twice(reader, command)
        elif command.startswith("systemctl"):
            check_unit(reader, Path(reader.says(command).split()[-1]))
        elif not command.startswith("loginctl"):  # that one changes the host
            done = reader.run(command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert set(known.values()) == {1}, known


def read_twice(reader: Reader, command: str) -> None:
    """The second time nothing comes from the origin, as the page says."""
    target = Path(reader.words["/tmp/f.root"])
    sent = []
    for _ in range(2):
        before = reader.world.sent()["down"]
        done = reader.run(command)
        assert done.returncode == 0, done.stderr
        assert target.read_bytes() == CONTENT
        target.unlink()
        sent.append(reader.world.sent()["down"] - before)
    assert sent[0] > len(CONTENT) > 10_000 > sent[1], sent


def check_unit(reader: Reader, unit: Path) -> None:
    """The page names the unit that `init` wrote, systemd accepts it, and it starts what the page starts by hand."""
    text = unit.read_text()
    assert f"\nExecStart={reader.program} cache run {reader.world.directory}\n" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: install systemd")
    for name in ("run", "run/systemd"):
        (reader.world.folder / name).mkdir(mode=0o700)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env={
            **os.environ,
            "XDG_RUNTIME_DIR": str(reader.world.folder / "run"),
            "HOME": str(reader.world.home),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    said = [line for line in done.stderr.splitlines() if unit.name.partition(".")[0] in line]
    assert (done.returncode, said) == (0, []), done.stderr
