"""The cache that pilots run in the memory of their node: a real agent and real pilots of an ordinary user, payloads
that read an origin 250 ms away. No event has a retry: a failure that counted would be seen."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.processes import snapshot
from tests.worlds.home.world import Options, World
from tests.worlds.services.cache_world import CacheWorld, far, until

__all__ = ["far"]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        os.getuid() != 0, reason="XRootD does not run as root: the site needs a user of its own"
    ),
]

MEGABYTE = 1_000_000
USER = 65534
LIMIT_S = 120.0
#: the least that a cache can have: 1 GiB for blocks under way, 100 MiB for files
MEMORY_MB = 1124
FILES_BYTES = 100 << 20
SITE = """network = "open"
{isolation}
[[endpoints]]
url = "{origin}"
[[caches]]
name = "node"
memory = "{memory}MiB"
directory = "{directory}"
"""
SETTINGS = """origins = ["{origin}"]
[space]
max = "10GB"
"""
READ = 'set -e; xrdcp --silent --nopbar "$1" got; {then} sha256sum <got >out.txt; rm got'
JOB = """campaign = "{name}"
[[job]]
command = ["/bin/sh", "-c", '''{script}''', "read", "{{input.data}}"]
events = {events}
retries = 0
inputs = [{{ name = "data", url = "{url}", {more}read = "url" }}]
outputs = [{{ name = "result", path = "out.txt", kind = "concat" }}]
"""


class NodeWorld:
    """A site of one node whose pilots run a cache, and its user's commands."""

    def __init__(self, it: World, cache: CacheWorld) -> None:
        self.it, self.cache = it, cache

    def submit(self, name: str, url: str, *, events: int = 1, then: str = "", more: str = "") -> int:
        """A job whose events read the URL; its number."""
        text = JOB.format(name=name, script=READ.format(then=then), events=events, url=url, more=more)
        path = self.it.home / "me" / f"{name}.toml"
        path.write_text(text)
        done = self.it.run("submit", str(path), "--json")
        assert done.returncode == 0, done.stderr
        (job,) = json.loads(done.stdout)["jobs"]
        return int(job)

    def show(self, job: int) -> dict[str, Any]:
        """Everything about a job."""
        found: dict[str, Any] = json.loads(self.it.run("job", "show", str(job), "--json").stdout)
        return found

    def finish(self, job: int, contents: list[bytes]) -> None:
        """Until it has ended: every event is done, and every byte that a payload read was right."""
        self.it.wait_for(
            lambda: self.show(job)["row"]["state"] in ("COMPLETED", "FAILED"), "its end", LIMIT_S
        )
        detail = self.show(job)
        assert detail["row"]["state"] == "COMPLETED", f"{detail}\n{self.it.tails()}"
        out = [
            path
            for path in (self.it.home / "me" / "tidemill-out").rglob("*")
            if path.is_file() and not path.name.startswith("manifest-")
        ]
        read = [
            line.split()[0]
            for path in out
            if detail["row"]["campaign"] in path.parts
            for line in path.read_text().splitlines()
        ]
        assert sorted(read) == sorted(hashlib.sha256(each).hexdigest() for each in contents)

    def wait_shown(self, job: int, text: str) -> None:
        """Until the job's explanation says this of a way."""
        self.it.wait_for(
            lambda: any(text in each["why"] for each in self.show(job)["routes"]),
            f"routes show {text!r}",
            LIMIT_S,
        )

    def servers(self) -> set[int]:
        """The living xrootd processes of this world's node."""
        found = snapshot()
        (first,) = self.it._firsts()

        def is_inside(pid: int) -> bool:
            while pid in found and pid != first.pid:
                pid = found[pid].parent
            return pid == first.pid

        return {
            pid
            for pid, each in found.items()
            if each.argv[:3] == ("xrootd", "-n", "cache") and is_inside(pid)
        }


@contextmanager
def node_world(far: CacheWorld, *, program: str = "", isolation: str = "") -> Iterator[NodeWorld]:
    """`program`: where the link `xrootd` in the cache's directory leads to; empty = there is none."""
    directory = Path(tempfile.mkdtemp(prefix="node-", dir=far.home))
    (directory / "cache.toml").write_text(SETTINGS.format(origin=far.origin_url))
    if program:
        (directory / "xrootd").symlink_to(program)
    for each in (directory, directory / "cache.toml"):
        shutil.chown(each, "nobody")
    extra = SITE.format(isolation=isolation, origin=far.origin_url, memory=MEMORY_MB, directory=directory)
    home = Path(tempfile.mkdtemp(prefix="tm-", dir="/var/tmp"))
    it = World(
        home, Options(nodes=1, cores=2, extra=extra, timing={"site": {"WAY_STAGE_BYTES_MAX": 0}}, user=USER)
    )
    try:
        it.start()
        yield NodeWorld(it, far)
    finally:
        it.stop()
        shutil.rmtree(home, ignore_errors=True)


def test_two_slots_of_a_node_that_read_one_cold_file_make_the_origin_send_it_once(far: CacheWorld) -> None:
    content = os.urandom(8 * MEGABYTE)
    far.make("d/f", content)
    with node_world(far) as node:
        job = node.submit("cold", far.direct("d/f"), events=2)
        node.finish(job, [content] * 2)
        assert far.sent()["down"] < 1.1 * len(content)
        node.wait_shown(job, "through cache `node`")


def test_a_killed_cache_is_started_again_and_fails_no_event(far: CacheWorld) -> None:
    contents = [os.urandom(4 * MEGABYTE) for _ in range(8)]
    for number, each in enumerate(contents):
        far.make(f"d/f{number}", each)
    with node_world(far) as node:
        lines = node.it.home / "me" / "lines"
        lines.write_text("".join(f"{far.direct(f'd/f{number}')}\n" for number in range(8)))
        job = node.submit("killed", str(lines), events=8, more='kind = "each", ')
        node.it.wait_for(lambda: node.show(job)["row"]["events_done"] >= 2, "two events", LIMIT_S)
        (first,) = node.servers()
        os.kill(first, signal.SIGKILL)
        node.it.wait_for(lambda: bool(node.servers() - {first}), "another xrootd", LIMIT_S)
        node.finish(job, contents)
        assert node.show(job)["row"]["events_failed"] == 0


def test_a_cache_keeps_its_bound_of_node_memory(far: CacheWorld) -> None:
    """It has no room for all that is read."""
    contents = [os.urandom(28 * MEGABYTE) for _ in range(5)]
    for number, each in enumerate(contents):
        far.make(f"d/f{number}", each)
    with node_world(far) as node:
        lines = node.it.home / "me" / "lines"
        lines.write_text("".join(f"{far.direct(f'd/f{number}')}\n" for number in range(5)))
        job = node.submit("bound", str(lines), events=5, more='kind = "each", ')
        node.it.wait_for(lambda: bool(node.servers()), "xrootd", LIMIT_S)
        (server,) = node.servers()
        disk = [line.split() for line in Path(f"/proc/{server}/mountinfo").read_text().splitlines()]
        node.finish(job, contents)
        held = shutil.disk_usage(f"/proc/{server}/cwd")
        assert held.total <= FILES_BYTES, disk
        assert held.used <= FILES_BYTES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("isolation", ["", 'isolation = "off"'])
def test_nothing_of_a_cache_is_left_when_its_pilot_ends(
    far: CacheWorld, number: signal.Signals, isolation: str
) -> None:
    far.make("d/f", b"content")
    with node_world(far, isolation=isolation) as node:
        job = node.submit("left", far.direct("d/f"), then="sleep 600;")
        node.it.wait_for(lambda: bool(node.servers()), "xrootd", LIMIT_S)
        made = shared_memory_of(node.servers())
        assert bool(made) == bool(isolation)
        pilots = {each.pid: each for each in node.it.processes("pilot")}
        (pilot,) = (
            each for each in pilots.values() if each.parent not in pilots
        )  # the others are its children
        node.it.run("job", "cancel", str(job))
        os.kill(pilot.pid, number)
        until(lambda: not node.servers(), "xrootd outlives its pilot")
        if (
            isolation and number == signal.SIGKILL
        ):  # the batch system's kill may take all of them: the next pilot clears up
            again = node.submit("again", far.direct("d/f"))
            node.finish(again, [b"content"])
            until(lambda: not any(each.exists() for each in made), "the next pilot does not clear up")
        else:
            until(lambda: not any(each.exists() for each in made), "it is left in memory")


def shared_memory_of(servers: set[int]) -> set[Path]:
    """The directories of /dev/shm in which these work. Others there belong to the tests beside this one."""
    shared = Path("/dev/shm")
    works = [Path(f"/proc/{each}/cwd") for each in servers]
    places = [each.readlink() for each in works if each.stat().st_dev == shared.stat().st_dev]
    return {shared / each.relative_to(shared).parts[0] for each in places}


def test_where_xrootd_is_missing_payloads_read_the_next_way_and_are_shown_why(far: CacheWorld) -> None:
    content = os.urandom(MEGABYTE)
    far.make("d/f", content)
    with node_world(far, program="/no/such/xrootd") as node:
        job = node.submit("without", far.direct("d/f"))
        node.finish(job, [content])
        node.wait_shown(job, "/xrootd` is not there")
        done = node.it.run("job", "explain", str(job))
        assert "/xrootd` is not there" in done.stdout, done.stdout
