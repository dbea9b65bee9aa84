"""The lead's protocol against other users: with a guessed secret, and with a stolen one.

Garbage, wrong proofs and records of others are in `crates/lead/tests/{hostile,pilots}.rs`, a second user with a
guessed secret in `tests/e2e/test_second_user.py`. With the secret of a fleet one may record what one likes of that
fleet's jobs: here the agent and everything else go on all the same.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRWPair
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds.home.world import World, world

from tidemill.errors import UNDECODABLE
from tidemill.model.job import JobSpec
from tidemill.node.framed import frame
from tidemill.node.journal import AMOUNT_MAX, JournalTail, _decode_record
from tidemill.site.state import site_state
from tidemill.site.state.log import _encoder
from tidemill.site.state.pool import WorkPool
from tidemill.wire import api, node

THIEF = "tm-here-e1-999"
CROWDS, CROWD = 9, 500
"""Threads, and connections of each that say nothing: together more than a lead has at a time."""

NUMBERS = st.one_of(
    st.integers(0, 12), st.integers(-(2**70), 2**70), st.sampled_from([2**31, 2**53, 2**60, 2**62, 2**63, 2**64, -1])
)  # fmt: skip
TEXTS = st.one_of(st.sampled_from(["a.r0.i1", "../x", "a.tar", "", "\0", "x" * 100_000]), st.text(max_size=5))
OUTPUTS = st.lists(
    st.fixed_dictionaries({"name": TEXTS, "bundle": TEXTS, "offset": NUMBERS, "length": NUMBERS, "sha256": TEXTS}),
    max_size=2,
)  # fmt: skip
OF_TYPE = {
    "int": NUMBERS, "str": TEXTS, "int | None": st.one_of(st.none(), NUMBERS), "list[OutputRef]": OUTPUTS,
    "dict[str, int]": st.dictionaries(TEXTS, NUMBERS, max_size=2),
}  # fmt: skip
KINDS = (node.Started, node.Done, node.Failed, node.Returned, node.Ended, node.Noted)

DONE: dict[str, Any] = {
    "k": "done", "grant": 1, "job": 1, "first": 0, "count": 1, "payloads": 1, "slot": 0, "started_us": 0, "ended_us": 0,
    "wall_us": 1, "setup_us": 0, "user_us": 0, "system_us": 0, "rss_kb": 0, "read_bytes": None, "write_bytes": None,
    "outputs": [],
}  # fmt: skip
PLACE = {"name": "o", "bundle": "../../../site.toml", "offset": 2**63, "length": 2**63, "sha256": "x"}
HOSTILE = [
    {"k": "evil"}, {**DONE, "outputs": [PLACE]}, {**DONE, "wall_us": 2**64 - 1}, {**DONE, "wall_us": AMOUNT_MAX - 1},
    {**DONE, "count": 2**63, "job": 2**63}, {**DONE, "rss_kb": -1}, {**DONE, "payloads": "x" * 200_000},
    {**DONE, "job": 10**6, "count": AMOUNT_MAX - 1},
]  # fmt: skip


def fields(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    hints: dict[str, str] = kind.__annotations__
    some = {name: OF_TYPE[hint] for name, hint in hints.items()}
    some["s"] = st.integers(1, 100)
    some["job"] = some["grant"] = st.one_of(st.just(1), NUMBERS)
    return st.fixed_dictionaries({"k": st.just(kind.__struct_config__.tag), **some})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of([fields(kind) for kind in KINDS]), max_size=6))
def test_whatever_a_thief_records_the_sites_log_takes_it_and_is_read_again(
    told: list[dict[str, Any]],
) -> None:
    records: list[node.Record] = []
    for each in told:
        try:
            records.append(_decode_record(json.dumps(each).encode()))
        except UNDECODABLE:
            continue
    pool = leased()
    entry = site_state.Read(fleet="e1-1", offsets={}, records=records)
    msgspec.json.decode(_encoder.encode(entry), type=site_state.Entry, dec_hook=site_state.decode_hook)
    pool.apply(entry)

    again = msgspec.json.decode(
        _encoder.encode(pool.state), type=site_state.SiteState, dec_hook=site_state.decode_hook
    )
    assert again.have == 1
    for report in pool.state.reports:
        assert len(msgspec.json.encode(report)) < 1_000_000
        if isinstance(report, api.DoneReport):
            assert 0 <= report.usage.wall_us < 2**63


def test_a_record_of_work_that_the_fleet_was_not_given_changes_no_estimate() -> None:
    pool = leased()
    slow = {**DONE, "p": "a.r0.i1", "wall_us": AMOUNT_MAX - 1}
    honest = {**DONE, "p": "b.r0.i1", "first": 1, "wall_us": 1_000_000}
    for number, (told, fleet) in enumerate(
        [({**slow, "grant": 7}, "e1-1"), (slow, "e1-2"), (honest, "e1-1")], 1
    ):
        record = _decode_record(json.dumps({**told, "s": number}).encode())
        pool.apply(site_state.Read(fleet=fleet, offsets={}, records=[record]))
    assert pool.state.rates["a"] == site_state.Rate(wall_s=1.0, events=1.0)


def leased() -> WorkPool:
    """A site with a job of ten events, granted to the first of two fleets."""
    pool = WorkPool(site_state.SiteState(site="here"))
    spec = JobSpec(app="a", events=10)
    lease = api.LeaseOrder(n=1, lease=1, job=1, first=0, count=10, campaign="c", seed_base=0, spec=spec)
    pool.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
    pool.apply(site_state.Replied(acked=0, orders=[lease], at_us=0, passed=1))
    for fleet in ("e1-1", "e1-2"):
        pool.apply(site_state.FleetOpened(fleet=fleet, at_us=0))
    grant = node.Grant(grant=1, job=1, first=0, count=10, chunk_max=None)
    pool.apply(site_state.Granted(fleet="e1-1", grants=[grant], cancels=[], ended=[], close=False))
    return pool


def test_a_line_that_is_not_a_record_takes_no_other_with_it(tmp_path: Path) -> None:
    honest = node.Ended(p="a.r0.i1", s=2, reason="idle", message="", busy_us=1, slot_us=1, at_us=1)
    bad = [b'{"k":"evil","p":"a.r0.i1","s":1}', b"[" * 100_000, b"null", b'{"k":"ended"}', b"9" * 5000]
    path = tmp_path / "lead-1.log"
    path.write_bytes(b"".join(map(frame, [*bad, msgspec.json.encode(honest), *bad])))

    tail = JournalTail(path)

    assert tail.read() == [honest]
    assert tail.offset == path.stat().st_size


# ---- a real lead --------------------------------------------------------------------------------------------------


def lead_of(it: World) -> tuple[str, int, Path]:
    it.submit("first", JobSpec(app="pi", events=20, params={"darts": 60_000}))
    it.wait_for(lambda: list(it.home.glob("site/fleets/*/lead.json")), "a lead listens")
    (path,) = it.home.glob("site/fleets/*/lead.json")
    address = json.loads(path.read_bytes())
    return address["host"], address["port"], path.parent


def proof(secret: bytes, challenge: str, pilot: str) -> str:
    return hmac.new(secret, f"pilot:{challenge}:{'1' * 32}:{pilot}".encode(), hashlib.sha256).hexdigest()


def hello(pilot: str, shown: str) -> bytes:
    told = {
        "m": "hello", "pilot": pilot, "allocation": THIEF, "rank": 0, "node": "n", "version": "0.1.0",
        "nonce": "1" * 32, "proof": shown, "held": [], "serves": None,
    }  # fmt: skip
    return json.dumps(told).encode() + b"\n"


@contextmanager
def joined(
    host: str, port: int, fleet: Path, pilot: str, *, timeout_s: float = 20
) -> Iterator[BufferedRWPair]:
    """A connection that the lead takes for a pilot's."""
    secret = (fleet / "secret").read_text().strip().encode()
    with socket.create_connection((host, port), timeout_s) as connection, connection.makefile("rwb") as lines:
        challenge = json.loads(lines.readline())["nonce"]
        lines.write(hello(pilot, proof(secret, challenge, pilot)))
        lines.flush()
        assert json.loads(lines.readline())["m"] == "welcome"
        yield lines


def test_records_of_a_thief_end_neither_the_agent_nor_the_campaigns_of_others() -> None:
    with world(nodes=1) as it:
        host, port, fleet = lead_of(it)
        (agent,) = it.processes("agent")
        for number, record in enumerate(HOSTILE, 1):  # the lead ends the connection at some of them
            pilot = f"{THIEF}.r0.i{number}"
            with suppress(ConnectionError), joined(host, port, fleet, pilot) as lines:
                lines.write(frame(json.dumps({**record, "p": pilot, "s": 1}).encode()))
                lines.flush()
                lines.readline()
        it.wait_for(lambda: (it.home / "site.log").read_text().count("record.refused") >= 3, "they are read")
        it.submit("second", JobSpec(app="pi", events=20, params={"darts": 1000}))
        assert it.wait_campaign("second").states == {"COMPLETED": 1}
        assert it.processes("agent") == [agent]


def test_a_proof_serves_once_and_for_one_pilot_only() -> None:
    with world(nodes=1) as it:
        host, port, fleet = lead_of(it)
        secret = (fleet / "secret").read_text().strip().encode()
        with socket.create_connection((host, port), 20) as one, one.makefile("rb") as lines:
            heard = json.loads(lines.readline())["nonce"]
            seen = hello("a.r0.i1", proof(secret, heard, "a.r0.i1"))
            for words in (
                seen,
                seen.replace(b"a.r0.i1", b"a.r9.i1"),
                b"x" * 70_000,
                b'{"m":"hello"' + b" " * 8_000_000,
            ):
                assert answered(host, port, words) == 1, words[:100]


def answered(host: str, port: int, words: bytes) -> int:
    """Lines that a lead says to somebody who sends this: the challenge, and what follows a welcome."""
    count = 0
    with socket.create_connection((host, port), 20) as connection, connection.makefile("rb") as lines:
        with suppress(ConnectionError):
            connection.sendall(words)
        with suppress(ConnectionError):
            while lines.readline():
                count += 1
    return max(count, 1)


def test_a_crowd_that_says_nothing_keeps_no_pilot_out_and_fills_no_log() -> None:
    with world(nodes=1) as it:
        host, port, fleet = lead_of(it)
        it.submit("busy", JobSpec(command=["sleep", "300"]))  # a lead without work would leave
        (lead,) = it.processes("lead")
        crowd = [Crowd((host, port)) for _ in range(CROWDS)]
        try:
            it.wait_for(
                lambda: sum(1 for _ in Path(f"/proc/{lead.pid}/fd").iterdir()) > 4096, "the lead is full"
            )
            failed = 0
            for number in range(20):
                try:
                    with joined(host, port, fleet, f"{THIEF}.r0.i{number}", timeout_s=1.0):
                        pass
                except OSError:
                    failed += 1
            assert failed <= 1
        finally:
            for each in crowd:
                each.stop()
        it.wait_for(lambda: "pilot.disconnected" in (fleet / "lead.log").read_text(), "they are gone")
        assert (fleet / "lead.log").stat().st_size < 50_000


class Crowd(threading.Thread):
    """Opens connections and says nothing; opens another one for each that is closed."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.held: list[socket.socket] = []
        self._address = address
        self._is_over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._is_over.is_set():
            if len(self.held) < CROWD:
                self.held.append(self._opened())
            elif self._is_over.wait(0.01):
                break
            else:
                self.held.pop(0).close()
        for each in self.held:
            each.close()

    def _opened(self) -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        made.connect_ex(self._address)
        return made

    def stop(self) -> None:
        self._is_over.set()
        self.join()
