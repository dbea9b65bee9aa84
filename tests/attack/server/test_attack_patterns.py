"""A site's pattern and a submitter's text may hold up nobody: not the server, not the client, not the site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.services.access_world import Certs, World, sync
from tests.worlds.services.token_issuer import Issuer

from tidemill.client import Client
from tidemill.confidential import cut
from tidemill.errors import ConfigError, JobError
from tidemill.model.application import Parameter
from tidemill.model.job import JobSpec
from tidemill.model.parameter import PATTERN_LENGTH_MAX, check_value
from tidemill.site.applications.catalogue import load_application
from tidemill.site.setup.advice import advise
from tidemill.site.state import failures
from tidemill.wire.credentials import Credentials

SLOW = ["(a|a)*b", "(a+)+b", "(?:a?){40}a{40}b", "(.*)*b", "(?:[ab]*a[ab]{900})+", "(a*)*(a*)*b"]
BACKTRACKING = {
    "look-ahead": r"(?=a)[a-z]+",
    "look-behind": r"[a-z]+(?<!x)",
    "backreference": r"(a+)\1",
    "named backreference": r"(?P<x>a+)(?P=x)",
}
LETTERS = "a" * 40
pytestmark = pytest.mark.timeout(60)  #: what this closes took for ever, or minutes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(
        tmp_path_factory.mktemp("world"),
        Certs(tmp_path_factory.mktemp("certs")),
        Issuer(tmp_path_factory.mktemp("issuer")),
    )
    yield made
    made.stop()


def offer(world: World, *patterns: str) -> None:
    """Site `lrz` says that its application takes parameters with these patterns, as a hostile site may."""
    request = sync("lrz")
    assert request.offers is not None
    parameters = {f"p{n}": Parameter(pattern=each, default="") for n, each in enumerate(patterns)}
    offers = [msgspec.structs.replace(request.offers[0], parameters=parameters)]
    capacity = msgspec.structs.replace(request.capacity, want_core_s=0.0)
    status, answer = world.call("lrz", "POST", "/v1/sync", sync("lrz", offers=offers, capacity=capacity))
    assert status == 200, answer


def submit(world: World, key: str, **params: str) -> tuple[int, Any]:
    job = {"app": "sim", "params": params}
    return world.call("ada", "POST", "/v1/jobs", {"key": key, "campaign": "ada-1", "jobs": [job]})


@pytest.mark.parametrize("pattern", SLOW)
def test_a_text_that_backtracks_for_ever_is_refused_at_once_and_the_server_lives(
    world: World, pattern: str
) -> None:
    offer(world, pattern)
    for number, text in enumerate((LETTERS, "ab" * 500, "a" * 32_768)):
        status, answer = submit(world, f"{pattern}-{number}", p0=text)
        assert status in (200, 400), answer
        assert world.call(None, "GET", "/v1/health")[0] == 200
    assert status == 400 or not pattern.endswith("b")


def test_many_long_texts_for_a_slow_pattern_hold_the_writer_up_for_a_moment_only(world: World) -> None:
    offer(world, "(?:[ab]*a[ab]{900})+")
    jobs = [
        {"app": "sim", "params": {"p0": "ab" * 4_000 + f"{n:b}".replace("0", "a").replace("1", "b")}}
        for n in range(1_000)
    ]
    status, answer = world.call("ada", "POST", "/v1/jobs", {"key": "many", "campaign": "ada-1", "jobs": jobs})
    assert status in (200, 400), answer


@pytest.mark.parametrize(
    "pattern", [*BACKTRACKING.values(), "a{2000}", "(", "[z-a]", "x" * 5_000, r"(?:\pL{1000}){1,1}\pL{1000}"]
)
def test_a_pattern_that_an_old_site_sends_breaks_nothing_and_is_said_on_its_page(
    world: World, pattern: str
) -> None:
    """Such a site checks the value itself, as it always did."""
    offer(world, pattern, "[a-z]+")
    assert submit(world, f"old-{pattern[:40]}", p0=LETTERS)[0] == 200
    assert submit(world, f"wrong-{pattern[:40]}", p0=LETTERS, p1="A")[0] == 400
    rows = world.call("ada", "GET", "/v1/sites")[1]
    (remark,) = next(each["remarks"] for each in rows if each["name"] == "lrz")
    assert "application `sim`: the pattern of parameter `p0` is not used: " in remark
    offer(world, "[a-z]+")
    rows = world.call("ada", "GET", "/v1/sites")[1]
    assert next(each["remarks"] for each in rows if each["name"] == "lrz") == []


def test_a_server_cannot_hold_up_its_clients_by_a_pattern(world: World, tmp_path: Path) -> None:
    offer(world, "(a|a)*b")
    certificate, key = world.certs.pair("ada")
    credentials = Credentials(certificate=certificate, key=key, ca=world.certs.own.certificate_path)
    client = Client(world.address, credentials=credentials, home=tmp_path)
    from tidemill.client.offers import check_offered

    with pytest.raises(ConfigError, match="does not match"):
        check_offered(JobSpec(app="sim", params={"p0": LETTERS}), client.applications())


@pytest.mark.parametrize("pattern", SLOW)
def test_a_submitter_cannot_hold_up_a_site(pattern: str) -> None:
    for text in (LETTERS, "a" * PATTERN_LENGTH_MAX):
        with suppress(JobError):
            check_value("p", Parameter(pattern=pattern), text)


@pytest.mark.parametrize("what", BACKTRACKING)
def test_a_site_refuses_such_a_pattern_in_its_own_files_and_says_what_to_write(
    what: str, tmp_path: Path
) -> None:
    path = tmp_path / "apps" / "sim.toml"
    path.parent.mkdir()
    path.write_text(
        f'name = "sim"\nexecutable = "/bin/true"\n[parameters.card]\npattern = \'{BACKTRACKING[what]}\'\n'
    )
    with pytest.raises(ConfigError) as refused:
        load_application(path)
    for part in (str(path), "`parameters.card.pattern`", f"`{BACKTRACKING[what]}`"):
        assert part in refused.value.message
    assert "the whole value is matched: say what is legal" in str(refused.value.hint)


# ---- our own expressions, on what others wrote ----------------------------------------------------------------------

PUMPED = [
    "a.", "eyJaaaaaaaaa-", "eyJaaaaaaaaa.", "a://b", "a://", "://a:b", "bearer ", "token  ", "secret = ", "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----", "RANK 1 PID 1 RUNNING AT ", "RANK 1 PID 1 RUNNING AT a\nKILLE", "HYDU_sock_a ",
    "unable to reach ", "DUE TO NODE ", "srun: error: a: tasks 1,", "process rank 1 with PID 1 on ", "partition ",
    "controller", "project ", "queue ", "env: ", " ", "a", "1", "\n",
]  # fmt: skip


@pytest.mark.parametrize("piece", PUMPED)
def test_no_text_of_another_makes_our_own_expressions_slow(piece: str) -> None:
    """Before, one line of the log with a path of 16 kB took 2.4 s."""
    for head in ("", "RANK 1 PID 1 RUNNING AT ", "bearer", "token", "a://a:"):
        text = head + piece * (60_000 // len(piece))
        cut(text)
        advise(text)
        for expression in (*failures._RANKS, failures._NODE, failures._LAUNCHER):
            expression.search(text)


def test_a_request_with_a_long_path_does_not_hold_up_the_server(world: World) -> None:
    assert world.call("lrz", "GET", "/v1/campaigns/" + "a." * 15_000)[0] == 403
    assert world.call(None, "GET", "/v1/health")[0] == 200
