"""Campaigns that read through a cache while it, its disk or the origin fails: right bytes, every event done, and the
job's evidence names what happened. No event has a retry: a failure that counted would be seen."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.home.world import Options, World, world
from tests.worlds.services.cache_world import ROOT, CacheWorld, far, sums_once, until

from tidemill.image.profile import Profile, RemoteReads, read_profile
from tidemill.model.job import JobSpec
from tidemill.routing.contact import HANDSHAKE
from tidemill.wire.api import JobDetail
from tidemill_caches.figures.ledger import believe

__all__ = ["far"]

MEGABYTE = 1_000_000
READER = ROOT / "tests" / "payloads" / "xroot_reader.py"
LIMIT_S = 240.0
AWAY_S = 5.0
#: XCache 5.5.3 sometimes never answers a read whose origin is lost: the client's patience ends it, not this test's
READ = """set -e
export XRD_REQUESTTIMEOUT=20
xrdcp --silent --nopbar "$1" got
sha256sum <got >out.txt
"""
SITE = """network = "open"
"""
TABLES = """
[[endpoints]]
url = "root://127.0.0.1:{origin}/"
[[caches]]
name = "dtn"
url = "root://127.0.0.1:{cache}"
directory = "{directory}"
"""


class FarCampaign:
    """A site whose payloads read the files of a cache's origin, each event its own."""

    def __init__(self, it: World, cache: CacheWorld, contents: list[bytes]) -> None:
        self.it, self.cache, self.contents = it, cache, contents
        self.job = 0

    def submit(self, **more: Any) -> None:
        """Submit a job with an event for each file."""
        lines = self.it.home / "lines"
        lines.write_text("".join(f"{self.cache.direct(f'd/f{n}')}\n" for n in range(len(self.contents))))
        spec = {
            "command": ["/bin/sh", "-c", READ, "read", "{input.data}"],
            "events": len(self.contents),
            "retries": 0,
            "inputs": [{"name": "data", "url": str(lines), "kind": "each", "read": "url"}],
            "outputs": [{"name": "result", "path": "out.txt", "kind": "concat"}],
            **more,
        }
        (self.job,) = self.it.submit("far", msgspec.convert(spec, JobSpec))

    def wait_done(self, count: int) -> None:
        """Until this number of events is done."""
        self.it.wait_for(lambda: self.detail().row.events_done >= count, f"{count} events", LIMIT_S)

    def detail(self) -> JobDetail:
        return self.it.client.job(self.job)

    def finish(self) -> JobDetail:
        """The job once it has ended: every event is done, and every byte that a payload read was right."""
        self.it.wait_campaign("far", LIMIT_S)
        detail = self.detail()
        assert detail.row.state == "COMPLETED", f"{detail}\n{self.it.tails()}"
        assert detail.failed == ""
        read = [line.split()[0] for path in self.outputs() for line in path.read_text().splitlines()]
        assert sorted(read) == sorted(hashlib.sha256(each).hexdigest() for each in self.contents)
        return detail

    def outputs(self) -> list[Path]:
        found = (path for path in (self.it.home / "site" / "out").rglob("*") if path.is_file())
        return [path for path in found if not path.name.startswith("manifest-")]

    def evidence(self) -> str:
        """The messages of all failures."""
        return "\n".join(each.evidence.message for each in self.detail().failures)

    def wait_shown(self, text: str) -> None:
        """Until the job's explanation says this of a way."""
        self.it.wait_for(
            lambda: any(text in each.why for each in self.detail().routes), f"routes show {text!r}", LIMIT_S
        )


def campaign(it: CacheWorld, *, files: int, size: int) -> tuple[list[bytes], Options]:
    """Files of the origin, and a site in front of whose cache they are."""
    contents = [os.urandom(size) for _ in range(files)]
    for number, content in enumerate(contents):
        it.make(f"d/f{number}", content)
    tables = TABLES.format(origin=it.line.port, cache=it.port, directory=it.directory)
    return contents, Options(nodes=1, cores=3, extra=SITE + tables, timing={"site": {"PROBE_S": 8}})


def corrupted(cache: CacheWorld, name: str) -> None:
    """Flip a byte of a cached file on the cache's disk, once it is there."""
    (path,) = [each for each in (cache.directory / "data").rglob(Path(name).name) if each.is_file()]
    until(lambda: path.stat().st_blocks * 512 >= path.stat().st_size, "it is not written")
    with path.open("r+b") as file:
        file.seek(1000)
        (byte,) = file.read(1)
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


@pytest.mark.timeout(600)
@pytest.mark.timing(caches={"ORIGIN_WAIT_S": 3, "ORIGIN_STALL_S": 10})
def test_a_cache_that_is_killed_and_an_origin_that_goes_away_fail_no_event_and_are_named(
    far: CacheWorld,
) -> None:
    far.init()
    contents, options = campaign(far, files=16, size=6 * MEGABYTE)
    far.start()
    with world(options=options) as it:
        job = FarCampaign(it, far, contents)
        job.submit()
        job.wait_done(2)
        pid = far.kill_xrootd()
        far.wait_answers(after_pid=pid)

        job.wait_done(5)
        far.origin.crash()
        far.line.tell("refuse")
        far.line.tell("cut")
        it.wait_for(lambda: "does not answer" in job.evidence(), "the origin is named", LIMIT_S)
        time.sleep(AWAY_S)  # nothing fails meanwhile
        assert job.detail().row.events_failed == 0, [each for each in job.detail().failures if each.final]
        far.origin.start()
        far.line.tell("accept")

        detail = job.finish()
        assert far.state().restarts == 1
        named = job.evidence()
        assert "input `data` was read through cache `dtn` from root://127.0.0.1" in named
        assert all(each.evidence.fault == "site" for each in detail.failures), named
        job.wait_shown("through cache `dtn`")
        job.wait_shown("xrootd ended: it was killed by SIGKILL")


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_a_full_disk_and_used_up_descriptors_of_a_cache_fail_no_event_and_are_named(far: CacheWorld) -> None:
    data = far.home / "data"
    data.mkdir(mode=0o700)
    os.chown(data, 65534, 65534)
    far.init("--data", str(data), size="150MB")
    contents, options = campaign(far, files=12, size=4 * MEGABYTE)
    far.start(descriptors=240, mounted=(data, 150 << 20))
    seen = Path(f"/proc/{far.state().pid}/root") / data.relative_to("/")
    with world(options=options) as it:
        job = FarCampaign(it, far, contents)
        job.submit()
        job.wait_done(2)
        with suppress(OSError), (seen / "of another user").open("wb") as file:  # the cache may be the first
            file.write(b"x" * (shutil.disk_usage(seen).free - 2 * MEGABYTE))
        job.wait_done(5)
        held = [socket.create_connection(("127.0.0.1", far.port)) for _ in range(215)]
        try:
            for each in held:
                each.sendall(HANDSHAKE)
            until(lambda: any(each.check == "descriptors" for each in far.state().past), "not noted")
        finally:
            for each in held:
                each.close()

        job.finish()
        job.wait_shown("of 240 descriptors open")
        job.wait_shown("the disk has")


@pytest.mark.timeout(600)
def test_a_corrupt_block_of_a_cache_reaches_no_input_whose_sha256_is_given(far: CacheWorld) -> None:
    """It would reach a program that reads through the cache: 5.5.3 compares nothing (docs/caches.md says so)."""
    far.init()
    contents, options = campaign(far, files=1, size=3 * MEGABYTE)
    far.start()
    assert far.read("d/f0") == contents[0]
    corrupted(far, "d/f0")
    assert far.read("d/f0") != contents[0], "the cache finds it by itself: say so in docs/caches.md"
    with world(options=options) as it:
        job = FarCampaign(it, far, contents)
        job.submit(
            inputs=[
                {
                    "name": "data",
                    "url": far.direct("d/f0"),
                    "read": "url",
                    "sha256": hashlib.sha256(contents[0]).hexdigest(),
                }
            ]
        )
        job.finish()
        job.wait_shown("its `sha256` is given, and only a copy can be compared whole")


PATTERN = """name = "pattern"
executable = "/bin/sh"
version = "1"
arguments = ["{input.script}", "{input.data}", "{input.reader}"]
opens = ["root"]
network = true
trace_every = 1

[[outputs]]
name = "result"
path = "out.txt"
kind = "concat"
"""
READ_RANGES = """set -e; u=${{1#root://}}; address=${{u%%/*}}
printf "{ranges}" | {python} "$2" ${{address%:*}} ${{address#*:}} "${{u#*/}}" >out.txt
"""
BLOCK = 256 << 10
SIZE = 10 * BLOCK + BLOCK // 2
#: 5 of 11 blocks: the first twice, two by one read, the short last one
RANGES = [(0, 1000), (BLOCK + 5000, 10), (1000, 24), (3 * BLOCK - 5, 10), (10 * BLOCK + 7, 100)]
FETCHED = 5 * BLOCK
OVERHEAD_MAX = 16 << 10
"""Of the cache's requests for a file to the origin: log-in, open, a header for each block."""


@pytest.mark.timeout(600)
def test_all_who_count_agree_on_a_campaign_with_a_scripted_pattern(far: CacheWorld, tmp_path: Path) -> None:
    """Two files, each read twice by the same ranges: the client, the tracer, XCache's records, the kernel, the line and
    the server."""
    far.init()
    far.set(f"block_bytes = {BLOCK}\nprefetch_blocks = 0")
    contents, options = campaign(far, files=2, size=SIZE)
    options = replace(options, cores=1)  # one payload at a time: a pilot traces no two at once
    far.start()
    before = far.sent()["down"]
    with world(options=options) as it:
        script = READ_RANGES.format(
            python=sys.executable, ranges="".join(f"{offset} {length}\\n" for offset, length in RANGES)
        )
        (it.home / "site" / "apps" / "pattern.toml").write_text(PATTERN)
        (it.home / "script").write_text(script)
        it.wait_for(
            lambda: any("pattern" in each.applications for each in it.client.sites()),
            "the application",
            LIMIT_S,
        )
        job = FarCampaign(it, far, contents * 2)
        lines = it.home / "pattern-lines"
        lines.write_text("".join(f"{far.direct(f'd/f{n % 2}')}\n" for n in range(4)))
        inputs = [
            {"name": "data", "url": str(lines), "kind": "each", "read": "url"},
            {"name": "reader", "url": str(READER)},
            {"name": "script", "url": str(it.home / "script")},
        ]
        job.submit(app="pattern", command=None, events=4, inputs=inputs, outputs=None)
        it.wait_campaign("far", LIMIT_S)
        assert job.detail().row.state == "COMPLETED", it.tails()
        told = [json.loads(line) for path in job.outputs() for line in path.read_text().splitlines()]

        parts = [b"".join(each[offset : offset + length] for offset, length in RANGES) for each in contents]
        expected = [hashlib.sha256(each).hexdigest() for each in parts * 2]
        assert sorted(each["sha256"] for each in told) == sorted(expected)
        served = 4 * sum(length for _, length in RANGES)
        assert sum(each["data"] for each in told) == served
        sent = 2 * (FETCHED - BLOCK // 2)  # the last block is short
        sums = sums_once(far, served, origin_bytes=sent)
        assert (sums.total.served_bytes, sums.total.fetched_bytes) == (served, 2 * FETCHED)
        assert (sums.lost, sums.malformed, sums.total.unsure) == (0, 0, 0)
        on_line = far.sent()["down"] - before
        assert sent <= sums.wire_origin_bytes <= on_line <= sent + 2 * OVERHEAD_MAX
        assert believe(sums) == ""

        (found,) = _reads_of(it, far.port, payloads=4)
        assert found.bytes == sum(each["received"] for each in told)

        def shown() -> tuple[int, int]:
            (site,) = it.client.sites()
            return site.caches[0].total.served, site.caches[0].total.fetched

        it.wait_for(lambda: shown() == (served, 2 * FETCHED), "the server shows the same", LIMIT_S)
        (site,) = it.client.sites()
        assert sent <= site.caches[0].wire_origin <= on_line
        assert site.caches[0].believe == ""


def _reads_of(it: World, port: int, *, payloads: int) -> list[RemoteReads]:
    """What the traced payloads read from the cache, once all of them are known."""
    path = it.home / "site" / "profiles" / "pattern@1.json"

    def profile() -> Profile | None:
        return read_profile(path) if path.exists() else None

    it.wait_for(lambda: (known := profile()) is not None and known.runs == payloads, "the traces", LIMIT_S)
    known = profile()
    assert known is not None
    return [each for each in known.reads if each.port == port]
