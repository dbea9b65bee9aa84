"""What people use at the broker: the example of the documentation, the verbs, and the set-up by the broker's staff."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.services.access_world import START
from tests.worlds.services.amqp_world import SCRIPT, TIMING, VHOST, BrokerWorld, Person, until
from tests.worlds.services.sync_ways import Server, broker_at

from tidemill.config.quotas import Quotas
from tidemill.errors import JobError, SiteError
from tidemill.model.job import JobSpec
from tidemill.server.core.limits.storage import Storage
from tidemill.wire.api import ActionRequest, Change
from tidemill.wire.server_connection import ConflictError
from tidemill_messages.messenger import Messenger
from tidemill_messages.names import STATES, Type
from tidemill_messages.server.gateway import Gateway
from tidemill_messages.server.setup import CONNECTIONS_MAX

pytestmark = pytest.mark.timing(messages=TIMING)

ROOT = Path(__file__).parents[4]
TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]


@pytest.fixture
def server(rabbitmq: BrokerWorld, tmp_path: Path) -> Iterator[Server]:
    """A server with its gateway at the broker."""
    rabbitmq.vhost()
    made = Server(tmp_path)
    gateway = Gateway(rabbitmq.amqp(VHOST), made.host())
    gateway.start()
    yield made
    gateway.close()
    made.close()


def printed(rabbitmq: BrokerWorld) -> list[str]:
    """The programs of the documentation, with the place of this broker in them."""
    texts = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "extensions" / "messages" / "docs" / "messages.md").read_text(),
        re.DOTALL,
    )
    assert [len(text.splitlines()) <= most for text, most in zip(texts, (10, 35), strict=True)] == [
        True,
        True,
    ]
    found = []
    for text in texts:
        for name in ("ca.pem", "cms.pem", "cms.key"):
            text = text.replace(f'"{name}"', f'"{rabbitmq.certificates / name}"')
        text = text.replace(
            '"broker.example.org", 5671, "tidemill"', f'"127.0.0.1", {rabbitmq.port}, "{VHOST}"'
        )
        found.append(text.replace('"broker.example.org"', '"localhost"'))
    return found


def test_the_job_manager_of_the_documentation_works_as_printed(
    rabbitmq: BrokerWorld, server: Server, tmp_path: Path
) -> None:
    submitting, managing = printed(rabbitmq)
    program, told = tmp_path / "manager.py", tmp_path / "told"
    program.write_text(submitting)
    subprocess.run([sys.executable, "-W", "error", str(program)], check=True, timeout=30)
    cms = Person(rabbitmq, "cms", VHOST)
    ((properties, reply),) = cms.get("tidemill.replies.cms")
    assert (properties.correlation_id, reply["first_job"], reply["repeated"]) == ("run17-part3", 1, False)
    program.write_text(managing)
    with (
        told.open("w") as out,
        subprocess.Popen([sys.executable, "-W", "error", str(program)], stdout=out) as manager,
    ):
        try:
            until(lambda: "run17-part3 is job 1\n" in told.read_text(), "the reply is printed")
            server.dispatcher.handle_cancel(ActionRequest(jobs=[1]))
            until(lambda: "job 1 CANCELED\n" in told.read_text(), "the state is printed")
            assert manager.poll() is None
        finally:
            manager.kill()
    assert cms.is_empty("tidemill.states.cms")
    cms.close()


def test_a_job_file_is_submitted_once_under_its_key_and_followed(
    rabbitmq: BrokerWorld, server: Server, tmp_path: Path
) -> None:
    place = rabbitmq.certificates
    (tmp_path / "jobs.toml").write_text(
        'campaign = "c"\n[[job]]\nname = "a"\napp = "sim"\nrepeat = 3\n[[job]]\napp = "reco"\nafter = ["a"]\n'
    )
    (tmp_path / "client.toml").write_text(
        f'server = "amqps://127.0.0.1:{rabbitmq.port}/{VHOST}"\ncertificate = "{place}/cms.pem"\n'
        f'key = "{place}/cms.key"\nca = "{place}/ca.pem"\n[message]\nname = "cms"\n'
    )

    def tidemill(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*TIDEMILL, *words, "--home", str(tmp_path)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=os.environ, cwd=ROOT
        )

    for _ in range(2):
        sent = tidemill("message", "submit", str(tmp_path / "jobs.toml"), "--key", "mine")
        assert sent.returncode == 0, sent.stderr
        assert sent.stdout.split() == ["1", "2", "3", "4"]
    server.dispatcher.handle_cancel(ActionRequest(campaign="c"))
    seen = tidemill("message", "follow", "--quiet-for", "2s", "--json")
    assert seen.returncode == 0, seen.stderr
    assert sorted((each["job"], each["state"]) for each in map(json.loads, seen.stdout.splitlines())) == [
        (job, "CANCELED") for job in (1, 2, 3, 4)
    ]
    (tmp_path / "jobs.toml").write_text('campaign = "c"\n[[job]]\napp = "sim"\n')
    other = tidemill("message", "submit", str(tmp_path / "jobs.toml"), "--key", "mine")
    assert (other.returncode, "was used for other content" in other.stderr) == (2, True), other.stderr


def test_a_messenger_tells_what_the_server_says_and_that_it_is_away(
    rabbitmq: BrokerWorld, server: Server
) -> None:
    messenger = Messenger(broker_at(rabbitmq, VHOST, user="cms"), "cms", retry_s=2)
    try:
        sent = messenger.submit([JobSpec(app="sim")], repeat=[12_000], campaign="c", key="k")
        assert (sent.jobs, sent.repeated) == (list(range(1, 12_001)), False)
        assert messenger.submit([JobSpec(app="sim")], repeat=[12_000], campaign="c", key="k").repeated
        with pytest.raises(ConflictError, match="was used for other content"):
            messenger.submit(JobSpec(app="reco"), campaign="c", key="k")
        with pytest.raises(JobError, match="not a valid name of an app"):
            messenger.submit(JobSpec(app="../../bin/sh"), campaign="c")
    finally:
        messenger.close()
    stranger = Messenger(broker_at(rabbitmq, VHOST, user="ghost"), "cms", retry_s=1)
    with pytest.raises(SiteError, match="at the broker amqps://"):
        stranger.submit(JobSpec(app="sim"))
    stranger.close()


def test_a_submission_for_which_there_is_no_room_is_sent_once(rabbitmq: BrokerWorld, server: Server) -> None:
    """Sent again and again, each refusal would be another dead letter of up to 32 MB."""
    quotas = Quotas(all_stored_bytes_max=1)
    server.dispatcher.rules = server.dispatcher.rules._replace(quotas=quotas)
    server.dispatcher.storage = Storage(server.store.path, quotas, free_bytes_min=None)
    messenger = Messenger(broker_at(rabbitmq, VHOST, user="cms"), "cms", retry_s=10)
    operator = Person(rabbitmq, "ops", VHOST)
    try:
        with pytest.raises(SiteError, match="all_stored_bytes_max") as caught:
            messenger.submit(JobSpec(app="sim"), campaign="c", key="k")
        assert (caught.value.transient, "cancel" in str(caught.value.hint)) == (False, True)
        ((properties, _),) = operator.get("tidemill.dead")
        assert (properties.message_id, properties.headers["status"]) == ("k", 507)
        assert operator.is_empty("tidemill.dead")
    finally:
        operator.close()
        messenger.close()


def test_a_server_notes_who_sent_a_message_and_refuses_who_is_revoked_meanwhile(
    rabbitmq: BrokerWorld, tmp_path: Path
) -> None:
    rabbitmq.vhost()
    place = tmp_path / "server"
    amqp = msgspec.to_builtins(rabbitmq.amqp(VHOST), enc_hook=str)
    told = {"dir": str(place), "amqp": amqp}
    command = [sys.executable, "-c", START, json.dumps(told)]
    cms = Person(rabbitmq, "cms", VHOST)
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log, cwd=ROOT) as server:
        try:
            cms.send({"key": "k", "campaign": "c", "jobs": [{"app": "sim", "events": 3}]})
            assert cms.get("tidemill.replies.cms")[0][1]["first_job"] == 1
            (place / "revoked.txt").write_text("name cms\n")
            until(
                lambda: '"entries":1' in (tmp_path / "log").read_text().replace(" ", ""), "the list is read"
            )
            cms.send({"jobs": [1]}, type="cancel")
            ((properties, reply),) = cms.get("tidemill.replies.cms")
            assert (properties.headers["status"], reply["error"]) == (
                403, "the submitter `cms` is revoked: `name cms`",
            )  # fmt: skip
            until(lambda: len(lines_of(place)) >= 2, "both stand in the audit log")
        finally:
            server.terminate()
        assert server.wait(20) == 0, (tmp_path / "log").read_text()
    cms.close()
    submitted, refused = lines_of(place)
    assert (submitted["role"], submitted["name"], submitted["via"], submitted["subject"]) == (
        "submitter", "cms", "certificate", "cms",
    )  # fmt: skip
    assert (submitted["act"], submitted["on"], submitted["facts"]["events"]) == (
        "submit",
        "campaign cms/c",
        3,
    )
    assert (refused["act"], refused["on"]) == ("refused", "cms")
    assert refused["facts"]["why"] == "message `cancel`: the submitter `cms` is revoked: `name cms`"


def lines_of(place: Path) -> list[dict[str, Any]]:
    """The audit log of a server."""
    files = sorted((place / "audit").glob("*.jsonl"))
    wholes = [file.read_text().rpartition("\n")[0] for file in files]  # the last line may be half written
    return [json.loads(line) for whole in wholes for line in whole.splitlines()]


@pytest.mark.timeout(120)
def test_broker_setup_can_be_applied_again_and_adds_what_is_new(
    rabbitmq: BrokerWorld, tmp_path: Path
) -> None:
    config = tmp_path / "server.toml"
    place = rabbitmq.certificates
    text = (
        f'[amqp]\nurl = "amqps://tm-server@127.0.0.1:{rabbitmq.port}/extra"\ncertificate = "{place}/tm-server.pem"\n'
        f'key = "{place}/tm-server.key"\n[amqp.users]\ncms = "submitter"\n'
    )
    config.write_text(text)
    apply = [
        *TIDEMILL, "server", "broker-setup", "--config", str(config), "--home", str(tmp_path), "--apply",
        "--queue-type", "quorum", "--rabbitmqctl", f"{SCRIPT} ctl {rabbitmq.folder / 'd'}",
    ]  # fmt: skip
    for more in ("", 'lrz = "site"\n'):
        config.write_text(text + more)
        done = subprocess.run(apply, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
    there = json.loads(rabbitmq.script("ctl", "export_definitions", "-q", "-"))
    queues = {each["name"]: each for each in there["queues"] if each["vhost"] == "extra"}
    for name in ("tidemill.submit.cms", "tidemill.states.cms", "tidemill.sync.lrz"):
        assert (queues[name]["durable"], queues[name]["arguments"]["x-queue-type"]) == (True, "quorum")
    rights = [(each["user"], each["write"]) for each in there["permissions"] if each["vhost"] == "extra"]
    assert ("lrz", r"^tidemill\.sync\.lrz$") in rights
    limits = {each["name"]: each["limits"] for each in there["users"]}
    assert limits["lrz"]["max-connections"] == limits["cms"]["max-connections"] == CONNECTIONS_MAX
    cms = Person(rabbitmq, "cms", "extra")
    cms.send({"key": "k"})  # confirmed by a queue
    cms.close()


def test_changes_that_a_server_tells_again_are_told_once(rabbitmq: BrokerWorld, server: Server) -> None:
    teller = Person(rabbitmq, "tm-server", VHOST)
    for number, state in [(57, "RUNNING"), (67, "COMPLETED"), (57, "RUNNING"), (67, "COMPLETED")]:
        change = Change(
            number=number, at_us=1, campaign="c", job=7, state=state, events_done=0, events_failed=0
        )
        teller.send(msgspec.to_builtins(change), exchange=STATES, key="cms", type=Type.CHANGE.value)
    reader = Messenger(broker_at(rabbitmq, VHOST, user="cms"), "cms")
    try:
        told = list(reader.changes(timeout_s=2))
    finally:
        reader.close()
        teller.close()
    assert [each.number for each in told if isinstance(each, Change)] == [57, 67]
