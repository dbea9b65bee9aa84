"""The ways of a `sync`, each with a server's end that loses, repeats and delays; a site that keeps to the contract."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from tests.worlds.services.amqp_world import BrokerWorld

from tidemill.errors import SiteError
from tidemill.model.job import JobSpec
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Session, Store
from tidemill.server.transports import TransportHost
from tidemill.site.link.transport import HttpTransport
from tidemill.wire.api import (
    AppOffer,
    Capacity,
    DoneReport,
    LeaseOrder,
    PayloadUsage,
    Report,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)
from tidemill.wire.credentials import Credentials
from tidemill.wire.server_connection import Connection
from tidemill.wire.transports import Transport
from tidemill_messages.broker import broker_of
from tidemill_messages.transport import AmqpTransport

FAULTS = (
    "well",
    "lost request",
    "lost reply",
    "doubled request",
    "doubled reply",
    "late reply",
    "old request",
)
TIMEOUT_S = 0.7


class Server:
    """A store and its dispatcher, which counts."""

    def __init__(self, folder: Path) -> None:
        store = Store(path=folder / "t.db")
        store.init()
        self.store = store
        self.dispatcher = Dispatcher(store)
        self.dispatcher.start()
        self.reader: Session = store.reader()

    def submit(self, jobs: int, events: int, *, key: str = "k", owner: str = "") -> None:
        request = SubmitRequest(
            key=key, campaign="c", jobs=[JobSpec(app="sim", events=events)], repeat=[jobs], owner=owner
        )
        self.dispatcher.handle_submit(request)

    def host(self, on_refused: Callable[[str, str], None] = lambda _who, _why: None) -> TransportHost:
        """The server as transports see it; no one is revoked."""
        return TransportHost(self.store, self.dispatcher, judge=lambda _identity: None, on_refused=on_refused)

    @property
    def done(self) -> int:
        """Events that were counted."""
        totals: dict[str, int] = dict(self.reader.rows("totals"))
        return int(totals.get("events_done", 0))

    def states(self) -> set[int]:
        totals: dict[str, int] = dict(self.reader.rows("totals"))
        return {state for state in range(6) if totals.get(f"state/{state}")}

    def close(self) -> None:
        self.reader.close()
        self.dispatcher.close()


class Site:
    """An agent as the contract wants it: what it has done is durable, messages are not."""

    def __init__(self, transport: Transport, name: str = "lrz") -> None:
        self.transport, self.name = transport, name
        self.have = self.numbered = self.failures = 0
        self.reports: list[Report] = []
        self.orders: list[int] = []

    def request(self) -> SyncRequest:
        offer = AppOffer(
            name="sim", version="1", digest="", mode="command", parameters={}, outputs=[], cores=1, memory_mb=100,
            event_s=1.0,
        )  # fmt: skip
        capacity = Capacity(
            want_core_s=7.0, want_ranges_max=3, slot_cores_max=1, slot_memory_mb_max=4000, devices={}, event_s={},
            nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        return SyncRequest(
            site=self.name, epoch=1, host="h", version="1", reports=list(self.reports), have=self.have, offers=[offer],
            capacity=capacity,
        )  # fmt: skip

    def step(self) -> bool:
        """One exchange; whether it was answered."""
        try:
            reply = self.transport.sync(self.request())
        except SiteError:
            self.failures += 1
            return False
        self.reports = [report for report in self.reports if report.n > reply.acked]
        for order in reply.orders:
            if order.n <= self.have:
                continue
            self.have = order.n
            self.orders.append(order.n)
            if isinstance(order, LeaseOrder):
                self.numbered += 1
                self.reports.append(
                    DoneReport(
                        n=self.numbered, lease=order.lease, job=order.job, first=order.first, count=order.count,
                        outputs=False, usage=PayloadUsage(payloads=1, wall_us=1),
                    )
                )  # fmt: skip
        return True


class Office:
    """The server's end of a way: answers requests, with the faults of a plan."""

    def __init__(self, server: Server) -> None:
        self._handle = server.dispatcher.handle_sync
        self.plan: Iterator[str] = iter(())
        self._old: SyncRequest | None = None
        self._lock = threading.Lock()
        self.met: list[str] = []

    def answer(self, request: SyncRequest) -> tuple[str, SyncReply | None]:
        """The fault of this exchange, and the reply if the request was handled."""
        with self._lock:
            fault = next(self.plan, "well")
            self.met.append(fault)
            if fault == "lost request":
                return fault, None
            if fault == "old request" and self._old is not None:
                self._handle(msgspec.convert(msgspec.to_builtins(self._old), SyncRequest))
            self._old = msgspec.convert(msgspec.to_builtins(request), SyncRequest)
            reply = self._handle(request)
            if fault == "doubled request":
                reply = self._handle(msgspec.convert(msgspec.to_builtins(self._old), SyncRequest))
            return fault, reply


class DirectTransport:
    """A call in this process: a server and a site that share one."""

    def __init__(self, handle: Callable[[SyncRequest], SyncReply]) -> None:
        self._handle = handle

    def sync(self, request: SyncRequest) -> SyncReply:
        """Call it."""
        return self._handle(request)

    def close(self) -> None:
        """Nothing is open."""


@contextlib.contextmanager
def direct(office: Office, broker: BrokerWorld | None) -> Iterator[Transport]:
    """A call. A reply that is late is one that nobody waits for any more."""

    def handle(request: SyncRequest) -> SyncReply:
        fault, reply = office.answer(request)
        if reply is None or fault in ("lost reply", "late reply"):
            raise SiteError("no answer")
        return reply

    yield DirectTransport(handle)


@contextlib.contextmanager
def http(office: Office, broker: BrokerWorld | None) -> Iterator[Transport]:
    """HTTP, with a server that sometimes hangs up."""
    late = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fault, reply = office.answer(msgspec.json.decode(body, type=SyncRequest))
            if reply is None or fault == "lost reply":
                self.close_connection = True
                return
            if fault == "late reply":
                late.wait(TIMEOUT_S + 0.3)
            content = msgspec.json.encode(reply)
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    transport = HttpTransport(Connection(f"http://127.0.0.1:{server.server_port}", timeout_s=TIMEOUT_S))
    try:
        yield transport
    finally:
        transport.close()
        late.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def amqp(office: Office, broker: BrokerWorld | None) -> Iterator[Transport]:
    """A real broker, and a server that treats its replies badly."""
    assert broker is not None
    vhost = broker.vhost()
    ending = threading.Event()
    answering = threading.Thread(
        target=_answer_by_amqp, args=(office, broker.connect("tm-server", vhost), ending)
    )
    answering.start()
    transport = AmqpTransport(broker_at(broker, vhost), timeout_s=TIMEOUT_S)
    try:
        yield transport
    finally:
        transport.close()
        ending.set()
        answering.join()


def broker_at(broker: BrokerWorld, vhost: str, *, port: int | None = None, user: str = "lrz") -> Any:
    """Where a site finds the broker."""
    place = broker.certificates
    shown = Credentials(certificate=place / f"{user}.pem", key=place / f"{user}.key", ca=place / "ca.pem")
    address = f"amqps://127.0.0.1:{port or broker.port}/{vhost}"
    return broker_of(address, shown, user=user, heartbeat_s=2.0, reconnect_max_s=1.0)


def _answer_by_amqp(office: Office, connection: Any, ending: threading.Event) -> None:
    import pika

    channel = connection.channel()
    held: list[Callable[[], None]] = []
    for method, asked, body in channel.consume("tidemill.sync.lrz", inactivity_timeout=0.05):
        if ending.is_set():
            break
        if method is None:
            continue
        fault, reply = office.answer(msgspec.json.decode(body, type=SyncRequest))
        channel.basic_ack(method.delivery_tag)
        properties = pika.BasicProperties(type="synced", correlation_id=asked.correlation_id)

        def send(
            to: str = asked.reply_to, reply: SyncReply | None = reply, properties: Any = properties
        ) -> None:
            channel.basic_publish("", to, msgspec.json.encode(reply), properties)

        for each in held:  # those of earlier exchanges first
            each()
        held.clear()
        if fault == "late reply":
            held.append(send)
        elif reply is not None and fault != "lost reply":
            for _ in range(2 if fault == "doubled reply" else 1):
                send()
    connection.close()


WAYS: dict[str, Callable[[Office, BrokerWorld | None], contextlib.AbstractContextManager[Transport]]] = {
    "direct": direct,
    "http": http,
    "amqp": amqp,
}
