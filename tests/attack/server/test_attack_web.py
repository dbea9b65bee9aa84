"""Requests that two readers might read differently, two credentials at once, and scripts in every text of every page.

Forms, origins, cookies and redirections are tried in tests/browser/test_web_deeds.py, with Chromium where it matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.worlds.services.attack_world import Attacked, attacked
from tests.worlds.services.pages_world import EVIL, PagesWorld
from tests.worlds.services.server_process import Server

from tidemill.server.web.pages import added
from tidemill.server.web.routes import PAGES

__all__ = ["attacked"]
POST = b"POST /v1/cancel HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n"
INNER = GET + b"\r\n"  #: what would be smuggled past a proxy
AMBIGUOUS = {
    "CL and TE": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "TE and CL": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + INNER,
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n{}   " + INNER,
    "two lengths in one": POST + b"Content-Length: 4, 5\r\n\r\n{}   " + INNER,
    "unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    "coding after chunked": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + INNER,
    "space before colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + INNER,
    "negative length": POST + b"Content-Length: -1\r\n\r\n" + INNER,
    "signed length": POST + b"Content-Length: +4\r\n\r\n{}  " + INNER,
    "negative chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n" + INNER,
    "two hosts": b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" + INNER,
    "no host": b"GET /v1/jobs HTTP/1.1\r\n\r\n" + INNER,
    "NUL": GET + b"X: a\x00b\r\n\r\n" + INNER,
    "CR alone": GET + b"X: a\rAuthorization: Bearer x\r\n\r\n" + INNER,
    "HTTP/0.9": b"GET /v1/jobs\r\n\r\n" + INNER,
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_request_is_refused_and_what_follows_it_is_not_read(
    attacked: Attacked, name: str
) -> None:
    before = attacked.content()
    for who in ("ada", None):
        assert attacked.send(who, AMBIGUOUS[name]) == [400], who
    assert attacked.content() == before


def test_two_credentials_in_one_request_are_none(attacked: Attacked) -> None:
    good = f"Authorization: Bearer {attacked.issuer.token()}\r\n".encode()
    other = b"Authorization: Bearer x\r\n"
    assert attacked.send(None, GET + good + b"\r\n") == [200]
    for lines in (good + other, other + good, good + good):
        statuses = attacked.send(None, GET + lines + b"\r\n")
        assert statuses == [401], lines
    # a token beside a certificate adds no rights to it
    asked = b"GET /v1/campaigns/bob-1 HTTP/1.1\r\nHost: x\r\n"
    assert attacked.send("ada", asked + good + b"\r\n") == [404]  # what is another's does not exist


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, int]]:
    """A server on its own socket whose sites, submitters and payloads write scripts, and the job of one."""
    server = Server(Path(tmp_path_factory.mktemp("w")) / "s")
    try:
        world = PagesWorld(server.ready())
        world.fill()
        yield server, world.be_hostile()
    finally:
        server.stop()


def test_no_page_writes_a_text_as_markup(hostile: tuple[Server, int]) -> None:
    server, job = hostile
    shown = 0
    for page in (*PAGES, *added()):
        name = quote(EVIL, safe="")
        for filled in ("hostile", name):
            path = page.path.replace("{job:int}", str(job)).replace("{number:int}", "1")
            path = path.replace("{name:str}", "evil" if "applications" in path and filled != name else filled)
            for query in (
                "",
                f"?q={name}&state={name}&app={name}&site={name}&after={name}&next={name}&said={name}",
            ):
                connection = server.connect()
                connection.request("GET", path + query, headers={"Host": "localhost"})
                answer = connection.getresponse()
                text = answer.read().decode()
                connection.close()
                assert answer.status in (200, 303, 400, 404), path
                assert EVIL not in text, path
                assert "<img" not in text, path
                assert text.count("<script") <= 1, path  # our own file
                shown += "taken" in text
    assert shown >= len(PAGES) // 2  # they do show it, escaped
