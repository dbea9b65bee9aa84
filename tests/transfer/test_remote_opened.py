"""Inputs that programs open by themselves, on real servers: directly, through a cache, as a copy after a failure."""

from __future__ import annotations

import getpass
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.contract.transfer_world import Server
from tests.transfer.opened_world import READ, endpoint, run
from tests.transfer.xcache_world import XCache

from tidemill import clock
from tidemill.model.job import JobSpec
from tidemill.model.quantities import duration_text
from tidemill.routing.learned import SAMPLES_MIN, AppReads, ReadSample, way_key
from tidemill.routing.links import LinksRecord, place_of_url
from tidemill.site.data.way_learning import learner


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture(scope="module")
def origin(folder: Path) -> Iterator[Server]:
    (folder / "origin").mkdir(mode=0o711)
    server = Server("root", folder / "origin")
    yield server
    server.stop()


@pytest.fixture
def cache(folder: Path) -> Iterator[XCache]:
    made = XCache(folder / "cache")
    yield made
    made.stop()


@pytest.mark.timeout(300)
def test_a_near_file_is_opened_where_it_is_and_its_client_gives_up_in_time(
    origin: Server, short_path: Path
) -> None:
    url = origin.make("near.dat", b"bytes of the origin\n")
    ran = run(short_path, endpoint(origin), inputs=[{"name": "data", "url": url, "read": "url"}], events=1)

    (output,) = ran.outputs
    assert "bytes of the origin\n" in output
    assert f"url {url}\n" in output
    assert f"TIDEMILL_INPUT_DATA={url}\n" in output
    assert "XRD_CONNECTIONWINDOW=5\n" in output
    assert "input data is read directly from root://127.0.0.1" in ran.explained
    assert "it is near" in ran.explained


@pytest.mark.timeout(300)
def test_each_event_opens_the_url_of_its_line(origin: Server, short_path: Path) -> None:
    urls = [origin.make(f"each/{n}", b"event %d\n" % n) for n in range(4)]
    lines = origin.make("lines", "".join(f"{url}\n" for url in urls).encode())
    ran = run(
        short_path,
        endpoint(origin),
        command=["/bin/sh", "-c", READ + 'test "$1" = "$2"\n', "read", "{input.data}", "{line}"],
        inputs=[{"name": "data", "url": lines, "kind": "each", "read": "url"}],
        events=4,
    )

    (output,) = ran.outputs
    for number, url in enumerate(urls):
        assert f"event {number}\nurl {url}\nTIDEMILL_INPUT_DATA={url}\n" in output


@pytest.mark.timeout(300)
def test_a_file_that_only_the_site_may_read_is_opened_through_the_cache(
    origin: Server, cache: XCache, short_path: Path
) -> None:
    url = origin.make("secret.dat", b"through the cache\n")
    config = endpoint(origin, token_file="discover") + f'\n[[caches]]\nname = "dtn"\nurl = "{cache.url}"\n'
    ran = run(short_path, config, inputs=[{"name": "data", "url": url, "read": "url"}], events=1)

    (output,) = ran.outputs
    assert "through the cache\n" in output
    assert f"url {cache.url}//{url}\n" in output
    assert "through cache `dtn`" in ran.explained


@pytest.mark.timeout(300)
def test_a_way_that_fails_is_named_in_the_evidence_and_the_retry_takes_another(
    origin: Server, folder: Path, short_path: Path
) -> None:
    """The cache's address belongs to an XRootD server without a proxy: it answers, and has no files."""
    (folder / "broken").mkdir(mode=0o711, exist_ok=True)
    broken = Server("root", folder / "broken")
    try:
        url = origin.make("again.dat", b"after all\n")
        cache = broken.base.rstrip("/")
        config = endpoint(origin, token_file="discover") + f'\n[[caches]]\nname = "bad"\nurl = "{cache}"\n'
        ran = run(short_path, config, inputs=[{"name": "data", "url": url, "read": "url"}], events=1)
    finally:
        broken.stop()

    (output,) = ran.outputs
    assert "after all\n" in output
    assert "url root" not in output, "the retry reads a copy"
    (failure,) = ran.detail["failures"]
    assert "input `data` was read through cache `bad`" in failure["evidence"]["message"]


@pytest.mark.timeout(300)
def test_a_site_that_learned_before_its_restart_takes_the_quicker_way_says_so_and_learns_on(
    origin: Server, cache: XCache, short_path: Path
) -> None:
    """Nothing is near here, so a direct read would be chosen by the model: both servers are on this host."""
    url = origin.make("learned.dat", b"learned\n")
    command = ["/bin/sh", "-c", READ + "sleep 0.3", "read", "{input.data}"]
    name = learner(JobSpec(command=command, events=1))
    direct, cached = way_key("", place_of_url(url)), way_key("dtn", place_of_url(url))
    slow = [ReadSample(clock.now_us(), 100.0, owner=getpass.getuser())] * SAMPLES_MIN
    before = LinksRecord(apps={name: AppReads(waits={direct: slow})})
    (short_path / "links.json").write_bytes(msgspec.json.encode(before))
    config = endpoint(origin) + f'\n[[caches]]\nname = "dtn"\nurl = "{cache.url}"\n'
    inputs = [{"name": "data", "url": url, "read": "url"}]
    ran = run(short_path, config, near_s=0, inputs=inputs, events=SAMPLES_MIN, command=command)

    assert all(f"url {cache.url}//{url}\n" in each for each in ran.outputs)
    assert "through cache `dtn`" in ran.explained
    reads = re.search(r"for (\d+) reads, directly (.*)", ran.explained)
    assert reads is not None
    assert reads[2] == duration_text(100.0 * int(reads[1])), (
        "the median that was learned before, for all reads"
    )
    after = msgspec.json.decode((short_path / "h/site/links.json").read_bytes(), type=LinksRecord)
    waits = [each.value for each in after.apps[name].waits[cached]]
    assert len(waits) == SAMPLES_MIN
    assert all(0.2 < each < 60 for each in waits)
    assert len(after.apps[name].waits[direct]) == SAMPLES_MIN
