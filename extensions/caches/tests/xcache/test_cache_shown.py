"""From a payload's read to people: a campaign reads through a real cache; page, report and metrics show it exactly."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.worlds.home.metrics_text import OF_CACHES
from tests.worlds.home.world import World, world
from tests.worlds.services.cache_world import CacheWorld, far

from tidemill.model.job import Input, JobSpec, Output, OutputKind, ReadAs, Resources
from tidemill.model.quantities import bytes_text
from tidemill.wire.far import CacheView
from tidemill_stress.series.site_sums import CacheSource

__all__ = ["far"]

ROOT = Path(__file__).parents[4]
READER = ROOT / "tests" / "payloads" / "xroot_reader.py"
BLOCK = 256 << 10
SIZE = 10 * BLOCK
#: 4 of 10 blocks, one of them twice
RANGES = [(0, 1000), (BLOCK + 5000, 70_000), (1000, 24), (3 * BLOCK - 5, 10)]
DATA_BYTES, FETCHED_BYTES = sum(length for _, length in RANGES), 4 * BLOCK
EVENTS = 6
APPLICATION = """
name = "ranges"
version = "1"
executable = "{python}"
arguments = ["-c", '''
import subprocess, sys
_, _, place, path = sys.argv[1].split("/", 3)
with open("got.txt", "w") as got:
    command = [sys.executable, "{reader}", *place.split(":"), path]
    subprocess.run(command, input="{ranges}", text=True, stdout=got, check=True)
''', "{{input.data}}"]
opens = ["root"]
network = true
trace_every = 1
"""
SITE = """network = "open"
[[endpoints]]
url = "{origin}"
[[caches]]
name = "dtn"
url = "root://127.0.0.1:{port}"
directory = "{directory}"
"""


@pytest.fixture
def site(far: CacheWorld) -> Iterator[World]:
    """A site with the cache in front of an origin 100 ms away."""
    far.init()
    far.set(f"block_bytes = {BLOCK}\nprefetch_blocks = 0")
    far.make("ds/a/f", os.urandom(SIZE))
    far.start()
    settings = SITE.format(origin=far.direct("ds/"), port=far.port, directory=far.directory)
    with world(nodes=1, cores=1, extra=settings, timing={"site": {"WAY_STAGE_BYTES_MAX": 0}}) as it:
        ranges = "".join(f"{offset} {length}\\n" for offset, length in RANGES)
        (it.home / "site" / "apps" / "ranges.toml").write_text(
            APPLICATION.format(ranges=ranges, python=sys.executable, reader=READER)
        )
        yield it


@pytest.mark.timeout(400)
def test_what_payloads_read_through_a_cache_is_on_the_page_in_the_report_and_in_metrics(
    site: World, far: CacheWorld
) -> None:
    site.wait_for(
        lambda: any(each.app.name == "ranges" for each in site.client.applications()), "it is offered"
    )
    site.wait_for(lambda: shown(site).state == "running", "the server knows the cache")
    source, began_s = CacheSource(), time.time()
    source.observe(site.client.sites())
    spec = JobSpec(
        app="ranges",
        inputs=[Input(name="data", url=far.direct("ds/a/f"), read=ReadAs.URL)],
        outputs=[Output(name="got", path="got.txt", kind=OutputKind.CONCAT)],
        events=EVENTS,
        resources=Resources(event_s=0.5),
    )
    (job,) = site.submit("reads", spec)
    assert site.wait_campaign("reads", 150).events_done == EVENTS
    detail = site.client.job(job)
    site.wait_for(lambda: [each.way for each in site.client.job(job).routes] == ["cache"], "the route")
    got = [
        json.loads(line)
        for line in Path(unquote(urlsplit(detail.outputs[0].url).path)).read_text().splitlines()
    ]
    assert [each["data"] for each in got] == [DATA_BYTES] * EVENTS
    received = sum(each["received"] for each in got)

    # the cache's side, at the server: each byte to clients, each block from the origin
    site.wait_for(  # opens that overlap are one to XCache
        lambda: shown(site).total.served >= EVENTS * DATA_BYTES and shown(site).wire_origin >= FETCHED_BYTES,
        "the server has the sums",
        150,  # XCache closes files once a minute
    )
    view = shown(site)
    assert (view.state, view.believe, view.lost) == ("running", "", 0)
    assert (view.total.served, view.total.fetched) == (EVENTS * DATA_BYTES, FETCHED_BYTES)
    assert FETCHED_BYTES <= view.wire_origin <= far.sent()["down"]

    # what a stress test shows of it: rates whose integral is the same
    site.wait_for(
        lambda: looked(source, site, began_s) == pytest.approx(EVENTS * DATA_BYTES, rel=0.01),
        "a stress test has its rates",
    )

    # the payloads' side, on the page: what they received, to the byte
    site.wait_for(lambda: f">{job}</a>" in page(site, "/caches"), "the page has the reads")
    text = page(site, "/caches")
    row = cells(text, f'/jobs/{job}"')
    assert row[1:6] == ["ranges", "here", "cache", "dtn", str(EVENTS)]
    assert row[7] == bytes_text(received)
    assert bytes_text(EVENTS * DATA_BYTES) in text
    assert "The figures agree" in text

    done = site.run("report", "--html", str(site.home / "report.html"))
    assert done.returncode == 0, done.stderr
    report = (site.home / "report.html").read_text()
    assert "<h2>Caches" in report
    assert cells(report, ">dtn<")[:6] == [
        "dtn", "here", "running", str(view.total.opens), bytes_text(view.total.served), bytes_text(FETCHED_BYTES),
    ]  # fmt: skip

    metrics = (site.home / "site" / "metrics.prom").read_text()
    assert (
        f'tidemill_cache_bytes_total{{site="here",cache="dtn",kind="served"}} {EVENTS * DATA_BYTES}'
        in metrics
    )
    for name in dashboard_metrics() | OF_CACHES:
        assert f'\n{name}{{site="here",cache="dtn"' in metrics, name


def looked(source: CacheSource, site: World, since_s: float) -> float:
    """Bytes to clients by the series of a stress test, that are rates between its polls."""
    source.observe(site.client.sites())
    now_s = time.time()
    found = [each for each in source.series("here", since_s, now_s) if each.title == "bytes to clients"]
    assert all(each.source == "cache dtn of here" for each in found)
    # a point lies in the middle of its interval
    total, at_s = 0.0, since_s
    for middle_s, rate in found[0].points if found else []:
        half_s = middle_s - at_s
        total, at_s = total + rate * 2 * half_s, middle_s + half_s
    return total


def shown(site: World) -> CacheView:
    """The cache as the server's API has it."""
    (row,) = site.client.sites()
    return row.caches[0] if row.caches else CacheView(name="dtn")


def page(site: World, path: str) -> str:
    """A page of the server, by its Unix socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(30)
    connection.sock.connect(f"{site.home}/server/api.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    assert answer.status == 200, (answer.status, content[:300])
    return content


def cells(text: str, mark: str) -> list[str]:
    """The texts of the table's row with this mark."""
    (row,) = [each for each in re.findall(r"<tr\b.*?</tr>", text, re.DOTALL) if mark in each]
    found = re.findall(r"<td\b[^>]*>(.*?)</td>", row, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", each)).strip() for each in found]


def dashboard_metrics() -> set[str]:
    """What Grafana's row *Caches* asks for."""
    text = (ROOT / "deploy" / "grafana-dashboard.json").read_text()
    found = set(re.findall(r"tidemill_cache_\w+", text))
    assert len(found) >= 5
    return found
