"""Arguments that a shell, an option parser or a path would take as more than text end at the server's API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.worlds.services.access_world import Certs, World, submission, sync
from tests.worlds.services.token_issuer import Issuer

from tidemill.model.application import Parameter, ParameterType
from tidemill.wire.api import Capacity

WORDS = [
    "; touch evil", "$(touch evil)", "`id`", "a\nb", "../../etc/passwd", "--help", "a\0b", "x" * 1_000_000,
]  # fmt: skip


def idle() -> Capacity:
    return msgspec.structs.replace(sync("x").capacity, want_core_s=0.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    certs, issuer = Certs(tmp_path_factory.mktemp("certs")), Issuer(tmp_path_factory.mktemp("issuer"))
    made = World(tmp_path_factory.mktemp("world"), certs, issuer)
    yield made
    assert made.stop() == 0


def test_what_no_application_takes_as_an_argument_is_refused_logged_and_changes_nothing(
    world: World,
) -> None:
    parameters = {
        "word": Parameter(default="x"),
        "number": Parameter(type=ParameterType.INT, default=1, min=0, max=9),
        "kind": Parameter(type=ParameterType.CHOICE, choices=["a"], default="a"),
    }
    offer = msgspec.structs.replace(sync("lrz").offers[0], name="typed", parameters=parameters)  # type: ignore[index]
    told = sync("lrz", capacity=idle(), offers=[*(sync("lrz").offers or []), offer])
    assert world.call("lrz", "POST", "/v1/sync", told)[0] == 200
    good = submission("ada-1", "k-typed", app="typed", params={"word": "fine"})
    assert world.call("ada", "POST", "/v1/jobs", good)[0] == 200
    before, refusals = world.content(), len(world.events("request.refused"))
    tries: list[dict[str, Any]] = []
    for word in WORDS:
        tries += [{"app": "typed", "params": {name: word}} for name in (*parameters, word)]
        tries += [
            {"app": "typed", "name": word},
            {"app": "typed", "inputs": [{"name": word, "url": "/data/x"}]},
            {"app": "typed", "outputs": [{"name": word, "path": "o"}]},
        ]
    tries += [{"app": None, "command": ["/bin/echo", word]} for word in ("a\0b", "x" * 1_000_000)]
    tries += [{"env": {"A=B": "x"}}, {"env": {"A": "a\0"}}]
    for spec in tries:
        status, answer = world.call("ada", "POST", "/v1/jobs", submission("ada-1", "k-evil", **spec))
        assert status == 400, (spec, answer)
        assert len(answer["error"]) < 1000
    assert len(world.events("request.refused")) == refusals + len(tries)
    assert world.content() == before
    assert world.log.stat().st_size < 1_000_000


def test_a_request_that_another_web_site_made_is_refused(world: World) -> None:
    first = world.call("ada", "POST", "/v1/jobs", submission("ada-2", "k-two"))[1]["first_job"]
    body = {"jobs": [first]}
    before = world.content()
    status, answer = world.call("ada", "POST", "/v1/retry", body, Origin="https://evil.example")
    assert (status, answer["error"]) == (403, "a page of another host sent this request")
    assert world.events("request.forged")
    assert world.content() == before
    assert world.call("ada", "POST", "/v1/retry", body, Origin=world.address)[0] == 200
