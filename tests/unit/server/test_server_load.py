"""What one submitter may take: bodies counted while they come, the writer's memory, quotas, the pace of requests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import clock
from tidemill.config.quotas import Quotas
from tidemill.model.identity import LOCAL, Identity, Role, Via
from tidemill.model.job import JobSpec, Resources
from tidemill.server.api import pace
from tidemill.server.api.pace import Gate, PaceAccount
from tidemill.server.core import body_count, submission
from tidemill.server.core.body_count import BodyCount
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.database.store import Store
from tidemill.server.errors import FIXED, ConflictError, QuotaError, RequestError
from tidemill.server.identity.access import IDENTITY
from tidemill.wire.api import ActionRequest, SubmitRequest

FEW = {"OPEN_KINDS_MAX": 5, "CAMPAIGN_KINDS_MAX": 8, "STORED_BYTES_MAX": 1_000_000, "SITES_NAMED_MAX": 2}
pytestmark = pytest.mark.timing(server=FEW)

EVE = Identity(role=Role.SUBMITTER, name="eve", via=Via.CERTIFICATE)
QUOTAS = Quotas(open_jobs_max=50)
TEXTS = st.text(alphabet='ab"\\,[]{}\n', max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    store = Store(path=tmp_path / "t.db")
    store.init()
    made = Dispatcher(store, DispatchRules(quotas=QUOTAS))
    yield made
    made.close()


def request(key: str, *jobs: JobSpec, campaign: str = "c", repeat: list[int] | None = None) -> SubmitRequest:
    return SubmitRequest(key=key, campaign=campaign, jobs=list(jobs) or [JobSpec(app="sim")], repeat=repeat)


def kinds(first: int, count: int) -> list[JobSpec]:
    return [JobSpec(app="sim", resources=Resources(memory_mb=each)) for each in range(first, first + count)]


# ---- bodies -------------------------------------------------------------------------------------------------------


def counted(value: Any) -> int:
    """Values as the decoded one has them."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(0, len(inner) - 1) + sum(map(counted, inner))


@given(value=VALUES, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_bodies_are_counted_right_however_they_come_in_pieces(value: Any, sizes: list[int]) -> None:
    body, count, at = json.dumps({"a": value}).encode(), BodyCount(), 0
    while at < len(body):
        size = sizes[at % len(sizes)]
        count.feed(body[at : at + size])
        at += size
        _ = count.values if at % 3 else 0
    assert count.values == counted({"a": value})


def test_a_body_that_holds_too_much_is_refused_before_it_is_decoded() -> None:
    for body in (b'{"jobs":[' + b"1," * (body_count.VALUES_MAX + 1), b"[" * (body_count.VALUES_MAX + 1)):
        with pytest.raises(RequestError, match="more than 2000000 values"):
            BodyCount().feed(body)


def test_too_many_jobs_are_counted_before_they_are_decoded() -> None:
    body = b'{"key":"k","campaign":"c","jobs":[' + b",".join([b"17"] * 10_001) + b"]}"
    with pytest.raises(RequestError, match="10001 jobs in one request, at most 10000"):
        submission.decode(body)


def test_strings_count_as_one_value_whatever_they_hold() -> None:
    count = BodyCount()
    count.feed(b'{"a":"' + b'\\",[{' * 3_000_000)
    assert count.values == 1


def test_a_wrong_job_is_named_by_its_place() -> None:
    with pytest.raises(RequestError, match=r"at `\$\.jobs\[1\]\.events`"):
        submission.decode(b'{"key":"k","campaign":"c","jobs":[{"app":"a"},{"app":"a","events":"x"}]}')
    with pytest.raises(RequestError) as told:
        submission.decode(b'{"key":"k","campaign":"c","jobs":[{"app":"a","evnts":1}]}')
    assert told.value.hint == "did you mean `events`?"


@pytest.mark.parametrize("notify", [[], [{"target": "mailto:a@b.example"}]])
def test_the_digest_of_a_submission_is_that_of_its_whole_text(notify: list[Any]) -> None:
    """Keys of earlier versions stay good."""
    jobs = [
        JobSpec(app="a", name="x", priority=3),
        JobSpec(command=["/bin/true", '"jobs":[]']),
        JobSpec(app="a"),
    ]
    made = SubmitRequest(key='"jobs":[]', campaign="c", jobs=jobs, repeat=[1, 2, 3])
    text = msgspec.json.encode(made).replace(b',"notify":[]', b"", 1)
    assert submission.prepare(made).digest == hashlib.sha256(text).digest()


# ---- the writer's memory ------------------------------------------------------------------------------------------


def memory_of(dispatcher: Dispatcher) -> tuple[Any, ...]:
    memory = dispatcher.writer.memory
    sites = {number: msgspec.structs.astuple(site) for number, site in memory.sites.items()}
    counts = {kind: dict(each) for kind, each in memory.open.of_kind.items()}
    return (
        dict(memory.kinds), dict(memory.kind_ids), dict(memory.spec_ids), counts, dict(memory.open._sums), sites,
        dict(memory.site_ids), dict(memory.owners),
    )  # fmt: skip


def test_a_refused_request_leaves_the_writers_memory_as_it_was(dispatcher: Dispatcher) -> None:
    dispatcher.handle_submit(request("a", *kinds(1, 3)))
    before, memory = memory_of(dispatcher), dispatcher.writer.memory
    wrong = [*kinds(100, 5), JobSpec(app="sim", site="nowhere", after=[10**6])]
    with pytest.raises(RequestError, match="does not exist"):
        dispatcher.handle_submit(request("b", *wrong, campaign="new"))
    assert memory_of(dispatcher) == before
    assert dispatcher.writer.memory is memory  # nothing was read again
    dispatcher.handle_submit(request("c", *kinds(100, 2), campaign="new"))
    assert dispatcher.handle_submit(request("d", *kinds(1, 3))).count == 3


def test_kinds_without_open_jobs_are_forgotten_and_found_again(dispatcher: Dispatcher) -> None:
    dispatcher.handle_submit(request("a", *kinds(1, 300)))
    memory = dispatcher.writer.memory
    assert len(memory.kinds) == len(memory.open.of_kind) == 300
    assert dispatcher.handle_cancel(ActionRequest(campaign="c")).changed == 300
    assert (memory.kinds, memory.kind_ids, memory.open.of_kind) == ({}, {}, {})
    dispatcher.handle_submit(request("b", *kinds(1, 300)))
    assert len(memory.kinds) == 300
    (number,) = dispatcher.writer.write(lambda work: work.session.rows("kinds_in", campaign=1))[0]
    assert number == 300  # the same ones
    assert dispatcher.handle_cancel(ActionRequest(campaign="c")).changed == 300
    assert dispatcher.handle_retry(ActionRequest(jobs=[1, 2])).changed == 2
    assert len(memory.open.of_kind) == 2


def test_a_restarted_server_remembers_only_what_is_open(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "t.db")
    store.init()
    first = Dispatcher(store)
    first.handle_submit(request("a", *kinds(1, 40)))
    first.handle_submit(request("b", *kinds(1, 4), campaign="d"))
    first.handle_cancel(ActionRequest(campaign="c"))
    first.close()
    again = Dispatcher(store)
    again.writer.write(lambda work: None)
    assert len(again.writer.memory.kinds) == len(again.writer.memory.open.of_kind) == 4
    again.close()


# ---- quotas -------------------------------------------------------------------------------------------------------


def refusal(dispatcher: Dispatcher, asked: SubmitRequest) -> str:
    with pytest.raises(QuotaError) as told:
        dispatcher.handle_submit(asked, EVE)
    assert re.search(
        "operator|another campaign|sites that have joined|ask for the same", str(told.value.hint)
    )
    return told.value.message


def test_each_quota_names_itself_and_its_value(dispatcher: Dispatcher) -> None:
    assert "there may be 50 (`quotas.open_jobs_max`)" in refusal(dispatcher, request("a", repeat=[51]))
    assert f"there may be 5 ({FIXED})" in refusal(dispatcher, request("a", *kinds(1, 6)))
    named = [JobSpec(app="sim", site=f"s{each}") for each in range(3)]
    assert f"there may be 2 ({FIXED})" in refusal(dispatcher, request("a", *named))
    long = [JobSpec(app="sim", params={"a": str(each) + "x" * 30_000}) for each in range(40)]
    assert f"may store 1 MB ({FIXED})" in refusal(dispatcher, request("a", *long))
    assert dispatcher.handle_submit(request("a", repeat=[50]), EVE).count == 50


def test_what_has_ended_counts_no_more_but_the_kinds_of_a_campaign_do(dispatcher: Dispatcher) -> None:
    for key, first in (("a", 1), ("b", 11)):
        dispatcher.handle_submit(request(key, *kinds(first, 4)), EVE)
        assert "kinds of jobs of" in refusal(dispatcher, request(f"{key}2", *kinds(100, 2)))
        dispatcher.handle_cancel(ActionRequest(campaign="c"), EVE)
    assert f"there may be 8 ({FIXED})" in refusal(dispatcher, request("c", *kinds(50, 1)))
    dispatcher.handle_submit(request("d", *kinds(1, 4)), EVE)  # known ones


def test_campaigns_are_kinds_too(dispatcher: Dispatcher) -> None:
    for each in range(5):
        dispatcher.handle_submit(request(f"k{each}", campaign=f"c{each}"), EVE)
    assert "kinds of jobs of" in refusal(dispatcher, request("k5", campaign="c5"))


def test_the_servers_own_user_has_no_quotas(dispatcher: Dispatcher) -> None:
    assert dispatcher.handle_submit(request("a", *kinds(1, 100)), LOCAL).count == 100


def test_a_repeated_key_is_answered_even_when_the_quota_is_used_up(dispatcher: Dispatcher) -> None:
    asked = request("a", repeat=[50])
    first = dispatcher.handle_submit(asked, EVE)
    assert dispatcher.handle_submit(asked, EVE).first_job == first.first_job
    with pytest.raises(ConflictError):
        dispatcher.handle_submit(request("a", repeat=[49]), EVE)


def test_a_retry_counts_as_a_submission(dispatcher: Dispatcher) -> None:
    dispatcher.handle_submit(request("a", repeat=[50]), EVE)
    dispatcher.handle_cancel(ActionRequest(campaign="c"), EVE)
    dispatcher.handle_submit(request("b", repeat=[10]), EVE)
    with pytest.raises(QuotaError, match=r"^there would be 51 jobs .* may be 50 \(.quotas\.open_jobs_max"):
        dispatcher.handle_retry(ActionRequest(jobs=list(range(1, 42))), EVE)
    assert dispatcher.handle_retry(ActionRequest(jobs=list(range(1, 41))), EVE).changed == 40
    assert dispatcher.handle_retry(ActionRequest(campaign="c"), LOCAL).changed == 10


def test_a_retry_opens_no_more_kinds_than_a_submission_may(dispatcher: Dispatcher) -> None:
    dispatcher.handle_submit(request("a", *kinds(1, 4)), EVE)
    dispatcher.handle_cancel(ActionRequest(campaign="c"), EVE)
    dispatcher.handle_submit(request("b", *kinds(5, 4)), EVE)
    with pytest.raises(QuotaError, match="kinds of jobs of"):
        dispatcher.handle_retry(ActionRequest(jobs=[1, 2]), EVE)
    assert dispatcher.handle_retry(ActionRequest(jobs=[1]), EVE).changed == 1


# ---- pace ---------------------------------------------------------------------------------------------------------


@pytest.mark.timing(server={"TIME_SHARE": 0.25, "REQUESTS_PER_S": 100})
def test_time_that_was_spent_is_paid_back_by_waiting() -> None:
    account = PaceAccount()
    account.spend(1.0, 10.0)
    assert account.wait_s(10.0)[0] == 0
    account.spend(1.0, 10.0)
    assert account.wait_s(10.0) == (4.0, "time_share")
    assert account.wait_s(14.0)[0] == 0
    assert not account.is_idle(14.0)
    assert account.is_idle(100.0)  # without being asked anything in between


@pytest.mark.timing(server={"TIME_SHARE": 0.25, "REQUESTS_PER_S": 100})
def test_an_account_that_time_has_paid_is_idle_without_another_request() -> None:
    account = PaceAccount()
    account.ask(5.0)
    account.spend(2.0, 5.0)
    assert not account.is_idle(6.0)
    assert account.is_idle(60.0)


@pytest.mark.timing(server={"REQUESTS_PER_S": 10})
def test_more_requests_than_the_rate_have_to_wait() -> None:
    account = PaceAccount()
    for _ in range(120):
        account.ask(5.0)
    assert account.wait_s(5.0) == (2.0, "requests_per_s")
    assert account.wait_s(7.0)[0] == 0


class Asked:
    """An application that waits until it may end, behind the gate."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.release = asyncio.Event()
        self.gate = Gate(self._app, lambda scope: scope.get(IDENTITY), pause_s=0.0)
        self.statuses: list[int] = []

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.release.wait()
        self.inside -= 1
        scope[pace.COST_S] = 0.0
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ask(self, identity: Identity, path: str = "/v1/jobs", length: int = 10) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])

        headers = [(b"content-length", b"%d" % length)]
        await self.gate({"type": "http", "path": path, "headers": headers, IDENTITY: identity}, None, send)


@pytest.mark.timing(server={"REQUESTS_MAX": 10, "FEEDS_MAX": 2})
def test_one_submitter_has_few_requests_at_once_and_one_large_one() -> None:
    bob = msgspec.structs.replace(EVE, name="bob")

    async def scenario() -> Asked:
        asked = Asked()
        calls = [asyncio.create_task(asked.ask(EVE)) for _ in range(12)]
        await asyncio.sleep(0.05)
        assert (asked.inside, asked.statuses) == (pace.AT_ONCE, [429, 429])
        calls.append(asyncio.create_task(asked.ask(bob)))
        calls += [asyncio.create_task(asked.ask(EVE, "/v1/changes")) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert (asked.inside, asked.statuses) == (pace.AT_ONCE + 3, [429, 429, 429])
        asked.release.set()
        await asyncio.gather(*calls)
        asked.release.clear()
        asked.most = 0
        calls = [asyncio.create_task(asked.ask(EVE, length=pace.LARGE_BYTES + 1)) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert asked.inside == 1
        asked.release.set()
        await asyncio.gather(*calls)
        return asked

    asked = asyncio.run(scenario())
    assert asked.most == 1
    assert asked.statuses.count(200) == 16


@pytest.mark.timing(server={"TIME_SHARE": 0.01})
def test_who_asks_too_much_is_refused_with_a_time_to_wait() -> None:
    async def scenario() -> list[int]:
        asked = Asked()
        asked.release.set()
        await asked.ask(EVE)
        asked.gate._account("eve").spend(5.0, clock.monotonic_s())
        await asked.ask(EVE)
        await asked.ask(LOCAL)
        await asked.ask(msgspec.structs.replace(EVE, role=Role.SITE, name="s"))
        return asked.statuses

    assert asyncio.run(scenario()) == [200, 429, 200, 200]


def test_a_campaign_that_a_retry_opens_again_belongs_to_its_owner(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "t.db")
    store.init()
    made = Dispatcher(store, DispatchRules(quotas=QUOTAS))
    first = made.handle_submit(request("k1"), EVE).first_job
    made.handle_cancel(ActionRequest(jobs=[first], key="c1"), EVE)
    made.close()
    again = Dispatcher(store, DispatchRules(quotas=QUOTAS))  # the server was restarted while nothing was open
    again.handle_retry(ActionRequest(jobs=[first], key="r1"), EVE)
    assert again.handle_submit(request("k2"), EVE).count == 1
    with pytest.raises(QuotaError):
        again.handle_submit(request("k3", JobSpec(app="sim"), repeat=[49]), EVE)
    again.close()
