"""A hostile or careless catalogue of replicas: what it says leads to no other host, no file of the site and no endless
work, and its token goes to it alone."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from extensions.replicas.tests.unit.test_rucio import HEAD, NAME, ask, chunk, line, serving, stream

from tidemill.config import loads
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.routing.copies import CatalogueError
from tidemill.routing.links import RouteLinks
from tidemill.site.data.routing import InputRoutes, Opening, SoughtFile
from tidemill.transfer.file import FileTransfer, Roots
from tidemill_replicas.rucio import IDLE_LINES_MAX, URLS_MAX, RucioReplicas
from tidemill_replicas.settings import Rucio

GOOD = "root://store.example.org//lab/f"
OPENING = Opening(opens=("root", "http"))
SITE = """
name = "centre"
server = "unix:/s"
[replicas.rucio]
url = "{url}"
[[endpoints]]
url = "root://store.example.org/"
[[endpoints]]
url = "https://store.example.org/lab/"
[[caches]]
name = "near"
url = "root://cache.example.org:1094"
"""
EVIL = [
    "root://evil.example.org//lab/f", "root://store.example.org:1095//lab/f", "root://127.0.0.1//lab/f",
    "root://[::1]//lab/f", "root://ada@store.example.org//lab/f", "root://store.example.org.evil.org//lab/f",
    "root://store.example.org//root://evil.example.org//lab/f", "root://store.example.org//lab/f?xrd.wantprot=unix",
    "root://store.example.org//lab/../secret/f", "root://store.example.org//lab/%2e%2e/f", f"{GOOD}#x", f"{GOOD}\\x",
    f"{GOOD}\r\nX-Evil: 1", f"{GOOD} --evil", f"{GOOD}\0", "https://store.example.org/lab/f?u=https://evil.example.org/",
    "https://store.example.org/lab/f?authz=Bearer%20x", "https://store.example.org/lab/../etc",
    "https://169.254.169.254/lab/f",
    "http://store.example.org/lab/f",
    "gopher://store.example.org/", "unix:/run/x.sock", "-oProxyCommand=x", "", "root:",
    "root://\u0455tore.example.org//lab/f", "root://" + "a" * 3000,
]  # fmt: skip


def routes(url: str, folder: Path) -> InputRoutes:
    """The ways of a site that asks the catalogue at this URL; every server is near."""
    config = loads(SITE.format(url=url), SiteConfig, source=Path("site.toml"))
    return InputRoutes(config, RouteLinks(folder / "links.json", 3600.0, probe=lambda _: 0.001))


def chosen(folder: Path, *urls: str, **more: object) -> str:
    """What a payload opens where the catalogue lists these URLs, the first as the best."""
    listed = line(pfns={url: {"priority": rank} for rank, url in enumerate(urls)}, **more)
    with serving(stream(listed)) as address:
        sought = SoughtFile("rucio:lab/f", "input `data`", named="rucio:lab/f")
        return routes(address, folder).choose(sought, OPENING).route.url


@pytest.mark.parametrize("evil", EVIL)
def test_an_evil_replica_is_not_read_and_a_good_one_beside_it_is(evil: str, tmp_path: Path) -> None:
    assert chosen(tmp_path, evil, GOOD) == GOOD
    with pytest.raises(SiteError):
        chosen(tmp_path, evil)


@pytest.mark.parametrize(
    "evil", ["file:///etc/passwd", "/etc/passwd", "file://localhost/etc/passwd", "/proc/self/environ"]
)
def test_a_replica_on_this_machine_is_one_below_the_data_roots(evil: str, tmp_path: Path) -> None:
    found = chosen(tmp_path, evil)
    with pytest.raises(SiteError):
        FileTransfer(Roots([tmp_path]), size_max=1 << 20).stat(found)


@pytest.mark.parametrize("size", [-5, -1e308, 1e308, 1e19])
def test_a_size_that_no_file_has_is_not_believed(size: float) -> None:
    assert ask(stream(line(bytes=size)))._known[NAME][1].size_bytes is None


def test_of_many_replicas_some_are_kept_and_a_line_without_end_is_not_read() -> None:
    many = {f"root://store.example.org//lab/{number}": {"priority": number} for number in range(15_000)}
    assert len(ask(stream(line(pfns=many)))._known[NAME][1].urls) == URLS_MAX
    with pytest.raises(CatalogueError, match=r"malformed|broke"):
        ask(stream(line(pfns={f"{GOOD}{'x' * 100}{number}": {} for number in range(15_000)})))


def endless(text: str) -> Callable[[socket.socket], None]:
    """A reply that holds this again and again, until the client hangs up."""
    piece = chunk(text * 100)

    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        while True:
            connection.sendall(piece)

    return reply


@pytest.mark.parametrize("text", ["\n", line(), line(name="other"), line(pfns={GOOD: {}})])
def test_a_reply_without_end_is_broken_off(text: str) -> None:
    with pytest.raises(CatalogueError, match=r"does not end|dataset"):
        ask(endless(text))


def test_lines_that_say_nothing_are_borne_up_to_a_bound() -> None:
    assert ask(stream(*["\n"] * IDLE_LINES_MAX, line(pfns={GOOD: {}})))._known[NAME][1].urls == [GOOD]


@pytest.mark.timing(replicas={"CATALOGUE_SILENCE_S": 5.0})
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_takes_the_token_to_no_other_host(status: int, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("agent-agent-secret-0123456789\n")
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        there = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/replicas/list"
        moved = f"HTTP/1.1 {status} X\r\nLocation: {there}\r\nContent-Length: 1\r\n\r\nx".encode()
        with serving(moved) as url:
            replicas = RucioReplicas(Rucio(url=url, token_file=token), keep_s=600)
            with pytest.raises(CatalogueError) as refused:
                replicas.look_up([NAME])
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert "0123456789" not in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    "more",
    [
        {"scope": ["lab"]},
        {"pfns": []},
        {"states": {"A": [1]}},
        {"bytes": "1" * 5000},
        {"pfns": {GOOD: {"priority": {}}}},
    ],
)
def test_wrong_types_are_the_catalogues_trouble(more: dict[str, object]) -> None:
    with pytest.raises(CatalogueError, match="malformed"):
        ask(stream(line(**more)))


def test_deep_json_is_the_catalogues_trouble() -> None:
    deep: Sequence[str] = ["[" * 200_000 + "]" * 200_000]
    with pytest.raises(CatalogueError, match="malformed"):
        ask(stream(json.dumps({"scope": "lab", "name": "f"})[:-1] + f', "x": {deep[0]}}}\n'))
