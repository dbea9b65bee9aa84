"""The agent with a real server, batch daemon, lead, pilots and slots: what a user and an operator see."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.worlds.home.processes import send
from tests.worlds.home.world import World, world
from tests.worlds.services.server_process import UnixConnection

from tidemill.errors import JobError
from tidemill.model.job import Input, JobSpec, Output, OutputKind, Resources
from tidemill.site.staff.drain import drained, request_resume
from tidemill.wire.api import JobDetail

FAST = Resources(event_s=0.05)


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with world(nodes=1, cores=2) as running:
        yield running


def ended(it: World, campaign: str, spec: JobSpec) -> JobDetail:
    (job,) = it.submit(campaign, spec)
    it.wait_campaign(campaign)
    return it.client.job(job)


def test_outputs_are_joined_in_event_order(it: World) -> None:
    command = ["/bin/sh", "-c", "cat card; echo {first_event}"]
    (it.home / "card").write_text("card\n")
    spec = JobSpec(
        command=[*command[:2], command[2] + " > /dev/null; echo $TIDEMILL_FIRST > out"],
        events=20,
        outputs=[Output(name="o", path="out", kind=OutputKind.CONCAT)],
        inputs=[Input(name="card", url=str(it.home / "card"))],
        resources=FAST,
    )
    detail = ended(it, "joined", spec)
    assert detail.row.state == "COMPLETED"
    path = Path(detail.outputs[0].url.removeprefix("file://"))
    assert path.read_text().split() == [str(event) for event in range(20)]


def test_missing_input_fails_the_job_with_its_path(it: World) -> None:
    spec = JobSpec(command=["/bin/true"], inputs=[Input(name="card", url=str(it.home / "absent"))])
    detail = ended(it, "missing", spec)
    assert detail.row.state == "FAILED"
    assert f"{it.home}/absent" in detail.row.reason
    assert detail.failures[0].evidence.failure == "stage_in"


def test_a_wrong_parameter_is_refused_with_its_name(it: World) -> None:
    with pytest.raises(JobError, match="`darts` is -5, at least 1"):
        it.submit("wrong", JobSpec(app="pi", params={"darts": -5}))


def test_foreign_file_in_the_way_fails_the_delivery_and_stays(it: World) -> None:
    (it.home / "mine").mkdir()
    (it.home / "mine" / "o.txt").write_text("mine")
    output = Output(name="o", path="out", kind=OutputKind.CONCAT, url=str(it.home / "mine" / "o.txt"))
    detail = ended(it, "foreign", JobSpec(command=["/bin/sh", "-c", "echo x > out"], outputs=[output]))
    assert detail.row.state == "FAILED"
    assert "o.txt` exists already" in detail.row.reason
    assert (it.home / "mine" / "o.txt").read_text() == "mine"


def test_log_of_a_failed_event_can_be_fetched(it: World) -> None:
    spec = JobSpec(command=["/bin/sh", "-c", "echo out {event}; echo err {event} >&2; exit 3"], retries=0)
    detail = ended(it, "logged", spec)
    log = it.client.log(detail.row.id, event=0)
    assert (log.stdout, log.stderr) == ("out 0\n", "err 0\n")


def test_a_person_alone_sees_nodes_and_output_on_pages_of_the_private_socket(it: World) -> None:
    spec = JobSpec(command=["/bin/sh", "-c", "echo '<b>' {event}; exit 3"], retries=0, resources=FAST)
    number = ended(it, "paged", spec).row.id
    cookie = ""

    def page(path: str, form: dict[str, str] | None = None) -> tuple[str, str]:
        nonlocal cookie
        connection = UnixConnection(it.home / "server" / "api.sock")
        headers = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
        method, body = ("GET", None) if form is None else ("POST", urlencode(form))
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        cookie = (reply.headers["set-cookie"] or cookie).partition(";")[0]
        text = reply.read().decode()
        connection.close()
        return text, reply.headers["location"] or ""

    it.wait_for(lambda: '<path class="layer ' in page("/sites")[0], "the site tells its tide")
    token = re.search('name="form" value="([^"]+)"', page(f"/jobs/{number}")[0])
    assert token is not None
    where = page(f"/jobs/{number}/log", {"form": token[1], "event": "0"})[1]
    it.wait_for(lambda: "&lt;b&gt; 0" in page(where)[0], "the output comes")


def test_stop_file_drains_the_site_until_somebody_resumes_it(it: World) -> None:
    site = it.home / "site"
    (site / "STOP").write_text("maintenance\n")
    it.wait_for(lambda: not it.processes("pilot"), "the pilots leave")
    it.wait_for(lambda: (site / "drained.json").exists(), "the stop is noted")
    (job,) = it.submit("stopped", JobSpec(command=["/bin/true"], resources=FAST))
    (site / "STOP").unlink()
    it.restart("agent")
    assert "maintenance" in (drained(site) or "")
    request_resume(site, "it is over")
    it.wait_campaign("stopped")
    assert drained(site) is None
    assert it.client.job(job).row.state == "COMPLETED"


def test_terminated_agent_leaves_cleanly_and_the_next_goes_on(it: World) -> None:
    spec = JobSpec(command=["/bin/sleep", "0.05"], events=60, resources=FAST)
    (job,) = it.submit("handed", spec)
    it.wait_for(lambda: it.client.job(job).row.events_done > 5, "the job runs")
    (agent,) = it.processes("agent")
    assert send(agent, signal.SIGTERM)
    row = it.wait_campaign("handed")
    assert row.events_done == 60
    assert row.usage.payloads >= 60
    # it may have reported the last events before it ends
    it.wait_for(lambda: list((it.home / "site" / "epoch").glob("*.ended")), "it has left cleanly")


def test_lost_outputs_are_made_again_before_delivery() -> None:
    with (
        world(nodes=1, cores=1) as it,
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tm-") as outside,  # /tmp is the payload's own
    ):
        gate = Path(outside) / "gate"
        until_open = f"until [ -e {gate} ]; do sleep 0.05; done"  # the job ends when the disk has lied
        spec = JobSpec(
            command=["/bin/sh", "-c", f"echo $TIDEMILL_FIRST > out; [ {{event}} != 9 ] || {until_open}"],
            events=10,
            outputs=[Output(name="o", path="out", kind=OutputKind.CONCAT)],
            resources=FAST,
        )
        (job,) = it.submit("lost", spec)
        it.wait_for(lambda: it.client.job(job).row.events_done >= 9, "nine events are kept")
        for bundle in (it.home / "site" / "fleets").glob("*/bundle/*.tar"):
            with bundle.open("r+b") as file:  # a disk that lies
                file.seek(file.read().index(b"3\n\0"))
                file.write(b"4")
        gate.touch()
        it.wait_campaign("lost")
        detail = it.client.job(job)
        assert detail.row.state == "COMPLETED", detail.row.reason
        text = Path(detail.outputs[0].url.removeprefix("file://")).read_text()
        assert text.split() == [str(event) for event in range(10)]
        assert "output.lost" in (it.home / "site.log").read_text()


def test_a_site_of_the_local_batch_system_may_harvest_too() -> None:
    with world(nodes=2, cores=1, extra='harvest = { policy = "yield" }') as it:
        spec = JobSpec(command=["/bin/true"], events=4, resources=FAST)
        (job,) = it.submit("tide", spec)
        it.wait_campaign("tide")
        assert it.client.job(job).row.state == "COMPLETED"
