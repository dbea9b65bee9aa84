"""The number of requests to a real server for one campaign of thousands of jobs: none is per job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.services.server_process import Server
from tests.worlds.services.working_site import CountingClient, WorkingSite

from tidemill.cli.jobs.attach import attach
from tidemill.cli.jobs.outcome import Telling
from tidemill.wire.api import SyncReply

JOBS = 2_100


@pytest.fixture
def client(short_path: Path, tmp_path: Path) -> Iterator[CountingClient]:
    """A server with two ended campaigns; each job has delivered a file."""
    folder = short_path / "server"
    folder.mkdir(mode=0o700)
    server = Server(folder).ready()
    made = CountingClient(f"unix:{folder}/api.sock")
    (tmp_path / "out.txt").write_text("out")
    site = WorkingSite(
        lambda body: made.connection.call("POST", "/v1/sync", SyncReply, body=body), tmp_path / "out.txt"
    )
    spec = {"app": "sim", "outputs": [{"name": "out", "path": "o"}]}
    for name in ("other", "c"):
        body = {"key": name, "campaign": name, "jobs": [spec], "repeat": [JOBS]}
        assert server.call("POST", "/v1/jobs", body)[0] == 200
    assert site.work(until=2 * JOBS) == 2 * JOBS
    made.asked = 0
    yield made
    made.connection.close()
    server.stop()


def test_results_rows_and_the_end_of_a_campaign_take_a_request_per_thousand_jobs(
    client: CountingClient, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = list(range(JOBS + 1, 2 * JOBS + 1))
    assert [each.job for each in client.results("c")] == jobs
    assert client.asked == 3
    client.asked = 0
    assert [each.job for each in client.results(jobs)] == jobs
    assert client.asked <= 4
    client.asked = 0
    assert sorted(row.id for row in client.as_completed(jobs)) == jobs
    assert client.asked == 3
    client.asked = 0
    assert attach(client, "c", [], Telling()) == 0
    assert client.asked <= 3
    assert "following all jobs of campaign `c`" in capsys.readouterr().err


def test_attach_prints_the_rows_of_all_jobs_as_one_object(
    client: CountingClient, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    assert attach(client, "c", [], Telling(as_json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["campaign"]["name"], len(told["jobs"])) == ("c", JOBS)
    assert {each["state"] for each in told["jobs"]} == {"COMPLETED"}
