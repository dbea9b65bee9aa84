"""A site alone with troubles of its own, for real: jobs wait, say why, and run once the trouble is over. None fails."""

from __future__ import annotations

import html
import json
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.worlds.home.troubles import https_server, write_proxy
from tests.worlds.home.world import World, world

from tidemill.model.job import Input, JobSpec, Resources
from tidemill.wire.api import JobDetail

FAST = Resources(event_s=0.05)


@pytest.fixture
def served() -> Iterator[tuple[str, Path, Path]]:
    """An HTTPS server: its URL, the directory behind it, the CA of its certificate."""
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as folder,
        https_server(Path(folder)) as it,
    ):
        yield it


def until(it: World, job: int, state: str) -> JobDetail:
    deadline = time.monotonic() + 60
    while (found := it.client.job(job)).row.state != state:
        assert found.row.state not in ("FAILED", "PARTIAL", "CANCELED"), found.row.reason
        assert time.monotonic() < deadline, (found.row, found.waits_for, found.waits_hint)
        time.sleep(0.1)
    return found


def told(it: World, job: int, *parts: str, options: Sequence[str] = ()) -> str:
    """What `job explain` says once it says all of this."""
    deadline = time.monotonic() + 60
    while True:
        text = it.run("job", "explain", str(job), *options).stdout
        if all(part in text for part in parts):
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.2)


def page(it: World, path: str) -> str:
    """A page of the server's, by its socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(it.home / "server" / "api.sock"))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            text = answer.read().decode()
    assert text.startswith("HTTP/1.1 200"), text[:2000]
    return html.unescape(text)


def test_jobs_of_a_lone_site_whose_proxy_expired_wait_until_it_is_renewed(
    served: tuple[str, Path, Path],
) -> None:
    url, data, ca = served
    pem = write_proxy(data.parent / "proxy.pem", ends=datetime(2026, 1, 1, tzinfo=UTC))
    endpoint = f'endpoints = [{{ url = "{url}/", ca = "{ca}", certificate = "{pem}" }}]'
    timing = {"transfer": {"TRIES_MAX": 2, "PAUSE_S": 0.1}}
    with world(nodes=1, cores=2, extra=endpoint, timing=timing) as it:
        specs = []
        for number in range(8):
            (data / f"in{number}").write_text("content\n")
            inputs = [Input(name="in", url=f"{url}/in{number}")]
            specs.append(JobSpec(command=["/bin/cat", "in"], inputs=inputs, resources=FAST))
        jobs = it.submit("remote", *specs)
        wanted = (f"certificate `{pem}` expired at 2026-01-01", f"renew `{pem}`")
        for job in (jobs[0], jobs[-1]):
            told(it, job, *wanted)
            told(it, job, "site_trouble", options=["--json"])
        (plain,) = it.submit("plain", JobSpec(command=["/bin/true"], resources=FAST))
        until(it, plain, "COMPLETED")  # what needs no proxy runs
        time.sleep(8)  # longer than a trial of the breaker, and three quick tries
        states = {it.client.job(job).row.state for job in jobs}
        assert states <= {"WAITING", "RUNNING"}
        status = it.run("site", "status").stdout
        assert "breaker" in status
        assert f"renew `{pem}`" in " ".join(status.split())
        for path in ("/sites/here", "/sites", f"/jobs/{jobs[0]}"):
            assert f"our certificate <code>{pem}</code> expired" in page(it, path), path
        shown = "Breaker open: it takes no more work that would meet this, for all owners. 8 jobs wait"
        it.wait_for(lambda: shown in page(it, "/sites/here"), "the site asked by itself: it is so for all")
        (row,) = it.client.sites()
        assert [each["is_open"] for each in row.capacity["troubles"]] == [True]
        (late,) = it.submit("remote", specs[0])
        # at once, or after it was the one job with which the site tries again
        found = json.loads(told(it, late, f"renew `{pem}`", options=["--json"]))
        assert f"renew `{pem}`" in found["hint"]
        write_proxy(pem, ends=datetime.now(UTC) + timedelta(days=1))
        for job in [*jobs, late]:
            until(it, job, "COMPLETED")
        assert list(it.client.failures(campaign="remote")) == []
        assert "Troubles of its own" not in page(it, "/sites/here")
        (bad,) = it.submit("bad", JobSpec(command=["/bin/false"], retries=0, resources=FAST))
        deadline = time.monotonic() + 60
        while it.client.job(bad).row.state != "FAILED":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for path in (f"/jobs/{bad}", "/campaigns/bad", "/failures"):
            assert f"tidemill job logs {bad} --event 0" in page(it, path), path
        (group,) = json.loads(it.run("errors", "--campaign", "bad", "--json").stdout)
        assert f"tidemill job logs {bad} --event 0" in group["next_step"]


def test_a_stage_area_that_is_full_makes_jobs_wait_not_fail() -> None:
    timing = {"site": {"STAGE_CACHE_BYTES_MAX": 0}}
    with world(nodes=1, cores=2, extra="stage_bytes_max = 150_000", timing=timing) as it:
        specs = []
        for number in range(6):
            path = it.home / "me" / f"in{number}"
            path.write_bytes(bytes([number]) * 100_000)
            command = ["/bin/sh", "-c", "wc -c < in; sleep 1"]
            specs.append(JobSpec(command=command, inputs=[Input(name="in", url=str(path))], resources=FAST))
        for job in it.submit("full", *specs):
            until(it, job, "COMPLETED")
        assert list(it.client.failures(campaign="full")) == []
