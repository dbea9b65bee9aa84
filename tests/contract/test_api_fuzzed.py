"""The API keeps to its OpenAPI document, whatever is sent, by whom, in which order, on both databases: schemathesis.

Every documented route of a real server process is called over https with cases made from the document, legal and not,
each by somebody drawn from all roles; then chains of calls that use each other's answers. An answer of 500 or more,
one of a status, type or shape that the document does not tell, and a server that has logged a bug are failures.
`make schemathesis` does the same for longer.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.worlds.services.access_world import Certs, World, submission, sync

from tidemill import extensions
from tidemill.server.api import openapi
from tidemill.server.api.app import Api, make_app
from tidemill.server.api.routes import served
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.web.pages import Page, added
from tidemill.server.web.routes import PAGES

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FEED = "/v1/changes"  #: it has no end: its head and first line are looked at, not its whole
STEPS = 8  #: calls of one chain
WAIT_S = 60
SECRET = "2f" * 20
AnyCase = schemathesis.Case[Any]


def signed_tokens(folder: Path) -> tuple[Any, list[str]]:
    """An issuer, and tokens of it; none where the extension is missing that believes them."""
    if "tokens" not in extensions.installed():
        return None, []
    from tests.worlds.services.token_issuer import Issuer

    issuer = Issuer(folder)
    return issuer, [issuer.token(), issuer.token(scope="compute.read")]


class Fuzzed:
    """A server that has some jobs and sites, and everybody who may come to it."""

    def __init__(self, folder: Path, database: str | None) -> None:
        if database is not None:
            Store(url=database).init()
        certs = Certs(folder / "certs")
        issuer, tokens = signed_tokens(folder)
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(SECRET)
        more = {"secret_file": str(secret)} | ({} if database is None else {"database": database})
        self.world = World(folder, certs, issuer, **more)
        self.reached: Counter[tuple[str, str]] = Counter()
        ca = str(certs.own.certificate_path)
        self.people: list[requests.Session] = []
        for name in ("ada", "bob", "lrz", "nemo", "olga"):
            session = requests.Session()
            session.cert = tuple(map(str, certs.pair(name)))  # type: ignore[assignment]
            self.people.append(session)
        for bearer in (SECRET, *tokens, "none.of.ours"):
            session = requests.Session()
            session.headers["Authorization"] = f"Bearer {bearer}"
            self.people.append(session)
        self.people.append(requests.Session())
        for session in self.people:
            session.verify = ca
            session.trust_env = False
            # a connection for each call: the server ends an idle one just when a slow machine sends on it
            session.headers["Connection"] = "close"
        self.world.call("ada", "POST", "/v1/jobs", submission("a", "k1"))
        self.world.call("bob", "POST", "/v1/jobs", submission("b", "k2", after=["a"]))
        assert self.world.call("lrz", "POST", "/v1/sync", sync("lrz"))[0] == 200
        assert self.world.call("nemo", "POST", "/v1/sync", sync("nemo"))[0] == 200

    def schema(self, *, with_feed: bool = False) -> BaseSchema:
        """The document as the server hands it out, which is the one that the table of routes makes."""
        status, document = self.world.call("olga", "GET", "/schema/openapi.json")
        assert (status, document) == (200, openapi.document())
        made = schemathesis.openapi.from_dict(document)
        made.config.update(base_url=self.world.address)
        return made if with_feed else made.exclude(path=FEED)

    def send(self, case: AnyCase, who: int) -> None:
        """One call, and what must hold of its answer."""
        self.reached[(case.method.upper(), case.operation.path)] += 1
        session = self.people[who]
        answer = case.call(session=session, verify=session.verify, timeout=WAIT_S)
        case.validate_response(answer, checks=CHECKS)

    def bugs(self) -> list[Any]:
        """What the server itself calls a bug."""
        return self.world.events("request.failed")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    made = Fuzzed(tmp_path_factory.mktemp("f"), url)
    yield made
    for session in made.people:
        session.close()
    assert made.world.stop() == 0


@pytest.fixture
def api_seed(request: pytest.FixtureRequest) -> int:
    """The same number makes the same calls."""
    number: int = request.config.getoption("--api-seed")
    return number


@pytest.fixture
def bounds(request: pytest.FixtureRequest) -> settings:
    """How much is tried of each route."""
    return settings(
        max_examples=request.config.getoption("--api-examples"), deadline=None, database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
        stateful_step_count=STEPS,
    )  # fmt: skip


@pytest.mark.timeout(0)
def test_every_documented_route_answers_as_the_document_says(
    fuzzed: Fuzzed, bounds: settings, api_seed: int
) -> None:
    schema = fuzzed.schema()
    whoever = st.integers(0, len(fuzzed.people) - 1)
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        modes = list(schemathesis.GenerationMode)
        cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

        @seed(api_seed)
        @bounds
        @given(case=cases, who=whoever)
        def answers(case: AnyCase, who: int) -> None:
            fuzzed.send(case, who)

        answers()
    documented = {(each.method, openapi.template(each.path)) for each in served() if each.path != FEED}
    assert {each for each, count in fuzzed.reached.items() if count} >= documented
    assert fuzzed.bugs() == []


@pytest.mark.timeout(0)
def test_chains_of_calls_that_use_each_others_answers_end_well(
    fuzzed: Fuzzed, bounds: settings, api_seed: int
) -> None:
    machine = fuzzed.schema().as_state_machine()

    class Chain(machine):  # type: ignore[misc, valid-type]
        """A chain is somebody's: the secret's, who may do everything, so that it gets anywhere."""

        def get_call_kwargs(self, case: AnyCase) -> dict[str, Any]:
            fuzzed.reached[(case.method.upper(), case.operation.path)] += 1
            whose = fuzzed.people[5]
            return {"session": whose, "verify": whose.verify, "timeout": WAIT_S}

        def validate_response(self, response: Any, case: AnyCase, **_: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        seed(api_seed)(Chain)
        Chain.run(settings=bounds)
    assert fuzzed.bugs() == []


@pytest.mark.timeout(0)
def test_the_feed_begins_or_refuses_as_the_document_says(
    fuzzed: Fuzzed, bounds: settings, api_seed: int
) -> None:
    operation = fuzzed.schema(with_feed=True)[FEED]["GET"]
    modes = list(schemathesis.GenerationMode)

    @seed(api_seed)
    @bounds
    @given(
        case=st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes]),
        who=st.integers(0, len(fuzzed.people) - 1),
    )
    def begins(case: AnyCase, who: int) -> None:
        told = case.as_transport_kwargs(base_url=fuzzed.world.address)
        with fuzzed.people[who].request(**told, stream=True, timeout=WAIT_S) as answer:
            assert str(answer.status_code) in operation.definition.raw["responses"], answer.text
            assert answer.status_code < 500
            if answer.status_code == 200:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                assert next(answer.iter_lines()) == b": changes"

    begins()
    assert fuzzed.bugs() == []


KEYS = (
    "q", "state", "app", "site", "campaign", "name", "owner", "sort", "after", "before", "size", "page", "n", "said",
    "hours",
)  # fmt: skip
ODD = ("a", "lrz", "sim", "1", "2", "0", "-1", str(2**63), "9" * 400, "%", "..", "\0", "\u00b2")
NAMES = st.sampled_from(ODD) | st.text(min_size=1, max_size=30)


@pytest.mark.timeout(0)
def test_pages_are_shown_whatever_stands_in_their_addresses(
    fuzzed: Fuzzed, bounds: settings, api_seed: int
) -> None:
    whoever = st.sampled_from([0, 4])  # a submitter and the operator come with their certificates

    @seed(api_seed)
    @settings(bounds, max_examples=bounds.max_examples * 4)
    @given(
        page=st.sampled_from([*PAGES, *added()]), parts=st.lists(NAMES, min_size=2, max_size=2), who=whoever,
        query=st.dictionaries(st.sampled_from(KEYS), NAMES, max_size=4),
    )  # fmt: skip
    def shown(page: Page, parts: list[str], who: int, query: dict[str, str]) -> None:
        rest = iter(parts)
        path = re.sub(r"\{\w+:\w+\}", lambda _: quote(next(rest), safe=""), page.path)
        answer = fuzzed.people[who].get(fuzzed.world.address + path, params=query, timeout=WAIT_S)
        assert answer.status_code < 500, answer.text

    shown()
    assert fuzzed.bugs() == []


def test_what_the_document_leaves_out_is_named(tmp_path: Path) -> None:
    """`/health` and `/metrics` are for probes and Prometheus (docs/metrics.md); the third is the document itself."""
    store = Store(path=tmp_path / "t.db")
    store.init()
    dispatcher = Dispatcher(store)
    api = Api(store, dispatcher)
    answered = {(each.method, each.template) for each in make_app(api).handlers}
    api.close()
    dispatcher.close()
    documented = {(each.method, openapi.template(each.path)) for each in served()}
    assert documented <= answered
    assert answered - documented == {
        ("GET", path) for path in ("/health", "/metrics", "/schema/openapi.json")
    }
