"""The filled server over TLS, with certificates and tokens, and windows of Chromium that look at it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.timing import timing
from tests.worlds.services.browser import DESK, Watched, chromium
from tests.worlds.services.pages_world import DOWNTIMES, PagesWorld, hospital
from tests.worlds.services.ports import free_port
from tests.worlds.services.server_process import Server

from tidemill.model.job import JobSpec

SECRET = secrets.token_hex(24)


class World(PagesWorld):
    """The filled server, over TLS for browsers, on its own socket for sites."""

    base = ""
    ca = Path()
    revoked = Path()
    issuer: Any = None


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    pytest.importorskip("cryptography")
    pytest.importorskip("playwright")
    from tests.worlds.services.access_world import AUDIENCE, ISSUER
    from tests.worlds.services.token_issuer import Issuer

    from tidemill.client.authority import Authority, Wanted

    folder = Path(tmp_path_factory.mktemp("w"))
    authority = Authority.create(folder / "ca", name="Test CA", days=2)
    for role, name in (
        ("server", "localhost"),
        ("submitter", "ada"),
        ("submitter", "ann"),
        ("submitter", "eve"),
        ("site", "titan"),
        ("operator", "olga"),
    ):
        authority.issue(Wanted(role=role, name=name, days=2), folder / "ca")
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    port = free_port()
    ca = folder / "ca"
    tls = {"certificate": f"{ca}/localhost.pem", "key": f"{ca}/localhost.key", "ca": f"{ca}/ca.pem"}
    issuer, revoked = Issuer(folder), folder / "s" / "revoked.txt"
    believed = {"name": "iam", "issuer": ISSUER, "audience": [AUDIENCE], "jwks": str(issuer.jwks)}
    with timing(server={"DOWNTIMES_EVERY_S": 1}, tokens={"CLOCK_LEEWAY_S": 0}):
        server = Server(
            folder / "s", listen=f"127.0.0.1:{port}", secret_file=str(secret), tls=tls,
            tokens={"issuers": [believed]}, **hospital(folder),
        )  # fmt: skip
    try:
        made = World(server.ready())
        made.base, made.ca = f"https://localhost:{port}", ca
        made.issuer, made.revoked, made.downtimes = issuer, revoked, folder / DOWNTIMES
        made.fill()
        yield made
    finally:
        server.stop()


@pytest.fixture(scope="module")  # not longer: while it runs, no test of this thread can call `asyncio.run`
def web_browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


Opens = Callable[..., Watched]


@pytest.fixture
def opens(web: World, web_browser: Any) -> Iterator[Opens]:
    """Opens pages as somebody: with a certificate (a name), or with nothing (None)."""
    made: list[Watched] = []

    def opened(name: str | None, **options: Any) -> Watched:
        files = {"certPath": f"{web.ca}/{name}.pem", "keyPath": f"{web.ca}/{name}.key"}
        context = web_browser.new_context(
            ignore_https_errors=True, viewport=options.pop("viewport", DESK), reduced_motion="reduce",
            client_certificates=[{"origin": web.base, **files}] if name else [], **options,
        )  # fmt: skip
        made.append(Watched(context, web.base))
        return made[-1]

    yield opened
    for each in made:
        each.context.close()


def log_in(watched: Watched, token: str = SECRET) -> None:
    watched.go("/login")
    watched.page.fill("#token", token)
    watched.follow("button.do")


def a_job() -> JobSpec:
    """One that waits for ever."""
    return JobSpec(app="simulate", site="nowhere", name="mine")


def state(world: World, number: int) -> str:
    _, reply = world.server.call("GET", f"/v1/jobs/{number}")
    return str(reply["row"]["state"])
