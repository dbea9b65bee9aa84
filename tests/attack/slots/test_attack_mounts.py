"""A job's arguments and environment name paths below /tmp: nothing of them is shown to it, and no application's either.

Sockets of agents and sessions do what is asked of them for everybody of their user; tickets and proxies are keys.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.worlds.home.prey import PROBE, PYTHON, Prey, answers, attack, opened, prey
from tests.worlds.home.world import Options, World, world

from tidemill.client.outputs import members
from tidemill.model.job import JobSpec

NOBODY = 65534
APP = """name = "{name}"
executable = "{python}"
script = "{script}"
script_digest = "sha256:{digest}"
arguments = [
  "{{verb}}", "{{path}}", "read", "{shown}/data", "make", "{shown}", "make", "{written}", "connect", "{socket}",
]
show = ["{shown}"]
write = ["{written}"]
[parameters.verb]
[parameters.path]
"""


@contextmanager
def started(*, shared: bool, user: int | None = None) -> Iterator[tuple[World, Prey]]:
    extra = "shared = true" if shared else ""
    with world(options=Options(nodes=1, extra=extra, user=user)) as it, prey(it.home / "me", user) as hidden:
        yield it, hidden


@pytest.fixture(scope="module", params=["personal", "shared"])
def attacked(request: pytest.FixtureRequest) -> Iterator[tuple[World, Prey]]:
    with started(shared=request.param == "shared") as it:
        yield it


def wanted(hidden: Prey) -> list[tuple[str, Path | str]]:
    return [
        *(("read", path) for path in hidden.tickets),
        ("connect", hidden.agent),
        ("connect", hidden.session),
        ("list", hidden.agent.parent),
    ]


def test_a_command_reaches_no_agent_and_no_ticket_that_its_arguments_name(
    attacked: tuple[World, Prey],
) -> None:
    it, hidden = attacked
    assert opened(attack(it, wanted(hidden))) == {}
    assert hidden.met == []


def test_as_an_ordinary_user_it_is_the_same() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user; the other tests run as the user there is")
    with started(shared=True, user=NOBODY) as (it, hidden):
        assert opened(attack(it, wanted(hidden))) == {}
        assert hidden.met == []


def test_nor_does_an_application_whose_parameters_name_them(attacked: tuple[World, Prey]) -> None:
    """What the application's own file names is there, read-only but for `write`, and without its sockets."""
    it, hidden = attacked
    shared = "shared = true" in (it.home / "site" / "site.toml").read_text()
    name = "probe-shared" if shared else "probe-personal"
    written, script = hidden.own / "results", hidden.own / "probe.py"
    written.mkdir()
    script.write_text(PROBE)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    text = APP.format(
        name=name, python=PYTHON, script=script, digest=digest, shown=hidden.own, written=written,
        socket=hidden.session,
    )  # fmt: skip
    (it.home / "site" / "apps" / f"{name}.toml").write_text(text)
    found: dict[tuple[str, str], str] = {}
    for verb, path in wanted(hidden):
        params: dict[str, str | int | float | bool] = {"verb": verb, "path": str(path)}
        (job,) = it.submit(f"{name}-{path.name}-{verb}", JobSpec(app=name, params=params, keep_stdout=True))  # type: ignore[union-attr]
        it.wait_campaign(f"{name}-{path.name}-{verb}")  # type: ignore[union-attr]
        detail = it.client.job(job)
        assert detail.row.state == "COMPLETED", it.tails()
        (output,) = it.client.outputs(job=job)
        (member,) = members(output.job, output.output)
        found |= answers(member.data.decode())
    left = opened(found)
    assert left.pop(("read", f"{hidden.own}/data")) == "data"
    assert left.pop(("make", str(written))) == "made"
    # on a person's own site what is theirs is writable, named or not
    assert left.pop(("make", str(hidden.own)), "refused") == ("refused" if shared else "made")
    assert left == {}
    assert hidden.met == []
