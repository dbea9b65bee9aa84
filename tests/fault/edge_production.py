"""A production at the edge: server and site with all that is around them, and what must be true afterwards."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fault.edge_services import Services
from tests.timing import Values, merged
from tests.worlds.home.world import Options, World
from tests.worlds.services.broker_service import Broker
from tests.worlds.services.ports import free_port
from tests.worlds.services.relay import Relay

from tidemill.client import Client
from tidemill.client.client import Wishes
from tidemill.config.addressee import Occasion
from tidemill.config.server import read_config
from tidemill.errors import TidemillError
from tidemill.model.job import Input, JobSpec, Output, OutputKind, Resources
from tidemill.model.notification import Subscription
from tidemill.wire.api import Change
from tidemill.wire.credentials import Credentials
from tidemill_messages.broker import broker_of
from tidemill_messages.messenger import Messenger
from tidemill_messages.server.setup import definitions
from tidemill_messages.settings import amqp_of

JOBS, EVENTS = 16, 40
CAMPAIGN = "run17"
SERVER = """database = "{database}"
listen = "127.0.0.1:{port}"
[tls]
certificate = "{ca}/127.0.0.1.pem"
key = "{ca}/127.0.0.1.key"
ca = "{ca}/ca.pem"
[mail]
server = "localhost:{mail}"
sender = "tidemill@example.org"
ca = "{folder}/localhost.pem"
[notify]
allowed = ["mail:*@example.org"]
"""
SITE = """server = "{address}"
certificate = "{ca}/here.pem"
key = "{ca}/here.key"
ca = "{ca}/ca.pem"
"""
AMQP = """
[amqp]
url = "{broker}"
certificate = "{ca}/127.0.0.1.pem"
key = "{ca}/127.0.0.1.key"
ca = "{ca}/ca.pem"
users = {{ cms = "submitter", here = "site" }}
"""
TIMING: Values = {
    "server": {
        "GATHER_S": 0.2, "DIGEST_S": 0.5, "NOTICES_PER_HOUR_MAX": 3600, "NOTICES_LOOK_S": 0.1, "NOTICES_RETRY_S": 0.2,
        "NOTICES_RETRY_MAX_S": 1,
    },
    "site": {"SYNC_INTERVAL_S": 0.2, "SYNC_TIMEOUT_S": 5},
    "messages": {"HEARTBEAT_S": 2, "RECONNECT_MAX_S": 1},
}  # fmt: skip
"""Besides that of all worlds."""
ENDPOINT = """
[[endpoints]]
url = "{url}"
access = "both"
ca = "{certs}/trust"
certificate = "{certs}/user.pem"
key = "{certs}/user.key"
"""
PROGRAM = 'sleep 0.2; echo "event $0 seed $1 $( (cat grid; echo $1) | sha256sum)" >line'


@dataclass(frozen=True)
class Shape:
    """`relayed`: the site reaches the server, or the broker, by a relay that can be cut."""

    relayed: bool = False
    site_lost_s: float = 600.0


class Production(World):
    """A home whose site works by what is around it: https, or the broker if there is one, and GridFTP.

    Jobs are submitted by https, and with a broker every other one by message.
    """

    def __init__(self, home: Path, around: Services, shape: Shape) -> None:
        values = merged(TIMING, {"server": {"SITE_LOST_S": shape.site_lost_s}})
        super().__init__(home, Options(nodes=2, cores=2, timing=values))
        self.around, self.port = around, free_port()
        at = self.port if around.broker is None else around.broker.port
        self.relay = Relay(at) if shape.relayed else None
        site_port = at if self.relay is None else self.relay.port
        by_broker = around.broker is not None
        told = {
            "database": around.database.url, "port": self.port, "ca": around.authority, "mail": around.mail.port,
            "folder": around.folder, "url": around.gridftp.url, "certs": around.gridftp.folder / "certs",
            "broker": f"amqps://127.0.0.1@localhost:{at}/tidemill",
            "address": f"amqps://localhost:{site_port}/tidemill" if by_broker else f"https://127.0.0.1:{site_port}",
        }  # fmt: skip
        text = (SERVER + (AMQP if by_broker else "")).format(**told)
        (home / "server" / "server.toml").write_text(text)
        if around.broker is not None:
            amqp = amqp_of(read_config(home / "server" / "server.toml"))
            around.broker.load(json.dumps(definitions(amqp, "tidemill")))
        toml = home / "site" / "site.toml"
        ours = SITE.format(**told)
        site = toml.read_text().replace(f'server = "unix:{home}/server/api.sock"\n', ours)
        assert ours in site
        toml.write_text(site + ENDPOINT.format(**told))
        self._prepare()

    def _prepare(self) -> None:
        around, home = self.around, self.home
        self.out = around.gridftp.data / f"out-{home.name}"
        self.out.mkdir()
        shutil.chown(self.out, "nobody")
        self.grids = {number: random.Random(number).randbytes(200_000) for number in range(JOBS)}
        self.urls = {
            number: around.gridftp.make(f"in-{home.name}/grid-{number}", grid)
            for number, grid in self.grids.items()
        }
        self._clients: list[Client] = []
        self._messenger = None if around.broker is None else self._messenger_at(around.broker)
        self.cms = self.seen_by("cms")
        self.changes: list[Change] = []
        self._is_over = threading.Event()
        self._following = threading.Thread(target=self._follow, daemon=True)
        self._following.start()

    def seen_by(self, name: str, *, retry_s: float = 120) -> Client:
        """The server, as the owner of a key pair sees it."""
        keys = self.around.authority
        shown = Credentials(certificate=keys / f"{name}.pem", key=keys / f"{name}.key", ca=keys / "ca.pem")
        address = f"https://127.0.0.1:{self.port}"
        self._clients.append(Client(address, credentials=shown, home=self.home, retry_s=retry_s))
        return self._clients[-1]

    def submit_one(self, number: int) -> None:
        """A job whose input comes by GridFTP, and whose output goes there."""
        spec = JobSpec(
            name=f"part-{number}", command=["/bin/sh", "-c", PROGRAM, "{event}", "{seed}"], events=EVENTS, retries=50,
            inputs=[Input(name="grid", url=self.urls[number])], resources=Resources(event_s=0.2, memory_mb=50),
            outputs=[
                Output(
                    name="lines", path="line", kind=OutputKind.CONCAT,
                    url=self.around.gridftp.address(f"{self.out.name}/part-{number}"),
                )
            ],
        )  # fmt: skip
        told = Subscription(to="mail:cms@example.org", when=[Occasion.JOB, Occasion.CAMPAIGN])
        by_message = self._messenger is not None and number % 2 == 0
        submit = self._messenger.submit if by_message and self._messenger is not None else self.cms.submit
        submit(spec, campaign=CAMPAIGN, key=f"part-{number}", wishes=Wishes(notify=[told]))

    def _messenger_at(self, broker: Broker) -> Messenger:
        keys = self.around.authority
        shown = Credentials(certificate=keys / "cms.pem", key=keys / "cms.key", ca=keys / "ca.pem")
        place = broker_of(f"amqps://localhost:{broker.port}/tidemill", shown, user="cms", heartbeat_s=2.0)
        return Messenger(place, "cms", retry_s=120)

    def _follow(self) -> None:
        """Note the feed of changes until the end; whoever is away meanwhile, it is opened again where it broke."""
        client = self.seen_by("cms", retry_s=1)
        while not self._is_over.is_set():
            with suppress(TidemillError):
                for change in client.changes(after=max((each.number for each in self.changes), default=0)):
                    self.changes.append(change)
        client.connection.close()

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        self.stop()
        self._following.join(30)
        if self._messenger is not None:
            self._messenger.close()
        for client in [*self._clients, self.client]:
            client.connection.close()
        if self.relay is not None:
            self.relay.close()

    # ---- afterwards ------------------------------------------------------------------------------------------

    def check(self, jobs: int, said: str, *, given_up: bool = False) -> None:
        """Nothing is lost, nothing is doubled: outputs, accounting, state messages, mails. `given_up`: the server may
        have taken work away from the site."""
        said = f"{said}\n{self.tails()}"
        row = self.cms.campaign(CAMPAIGN)
        assert row.states == {"COMPLETED": jobs}, said
        assert (row.events, row.events_done, row.events_failed) == (jobs * EVENTS, jobs * EVENTS, 0), said
        ids = self._check_outputs(jobs, said)
        self._check_changes(ids, said, given_up)
        self._check_mails(ids, said)
        assert row.usage.payloads >= jobs * EVENTS, said

    def _check_outputs(self, jobs: int, said: str) -> list[int]:
        assert sorted(path.name for path in self.out.iterdir()) == sorted(f"part-{k}" for k in range(jobs)), (
            said
        )
        ids = []
        for row in self.cms.jobs(campaign=CAMPAIGN):
            number = int(row.name.removeprefix("part-"))
            detail = self.cms.job(row.id)
            data = (self.out / row.name).read_bytes()
            assert data == expected(self.grids[number], detail.seed_base), f"{row.name}: {said}"
            (told,) = detail.outputs
            assert (told.size_bytes, told.sha256.removeprefix("sha256:")) == (
                len(data), hashlib.sha256(data).hexdigest(),
            ), said  # fmt: skip
            ids.append(row.id)
        return ids

    def _check_changes(self, ids: list[int], said: str, given_up: bool) -> None:
        numbers = [change.number for change in self.changes]
        assert numbers == sorted(set(numbers)), said
        legal = "(RUNNING WAITING )*RUNNING COMPLETED" if given_up else "RUNNING COMPLETED"
        ways = ways_of(self.changes)
        assert set(ways) == set(ids), said
        assert all(re.fullmatch(legal, way) for way in ways.values()), f"{ways}: {said}"
        if self._messenger is not None:
            assert ways_of(self._messages(len(ids), said)) == ways, said

    def _messages(self, jobs: int, said: str) -> list[Change]:
        """The changes that have come by message, all numbers ascending for each job."""
        assert self._messenger is not None
        found: list[Change] = []
        for change in self._messenger.changes(timeout_s=20):
            assert isinstance(change, Change), f"{change}: {said}"
            found.append(change)
            if sum(each.state == "COMPLETED" for each in found) == jobs:
                break
        for job in {each.job for each in found}:
            numbers = [each.number for each in found if each.job == job]
            assert numbers == sorted(set(numbers)), said
        return found

    def _check_mails(self, ids: list[int], said: str) -> None:
        """A mail that was just being handed over when its server died may have come twice, as one message."""

        def told() -> list[int]:
            texts = {mail["Message-ID"]: mail.get_content() for mail in self.around.mail.mails()}
            return [
                int(each)
                for text in texts.values()
                for each in re.findall(r"^ +(\d+)  COMPLETED", text, re.MULTILINE)
            ]

        self.wait_for(lambda: len(told()) >= len(ids), "all mails come")
        assert sorted(told()) == sorted(ids), said


def ways_of(changes: list[Change]) -> dict[int, str]:
    """The states of each job, one after the other; a change may also tell how many events are done."""
    states: dict[int, list[str]] = defaultdict(list)
    for change in list(changes):
        if states[change.job][-1:] != [change.state]:
            states[change.job].append(change.state)
    return {job: " ".join(found) for job, found in states.items()}


def expected(grid: bytes, seed_base: int) -> bytes:
    """What `PROGRAM` leaves of a job's events, computed without it."""
    lines = []
    for event in range(EVENTS):
        seed = 1 + seed_base + event
        digest = hashlib.sha256(grid + f"{seed}\n".encode()).hexdigest()
        lines.append(f"event {event} seed {seed} {digest}  -\n")
    return "".join(lines).encode()


@contextmanager
def production(around: Services, shape: Shape) -> Iterator[Production]:
    """A running server and site."""
    home = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    it = Production(home, around, shape)
    try:
        done = it.run("server", "upgrade", "--config", str(home / "server" / "server.toml"))
        assert done.returncode == 0, done.stderr
        it.start()
        yield it
    finally:
        it.close()
        shutil.rmtree(home, ignore_errors=True)
