"""Replies of Rucio that no healthy server sends, written by hand and given by a server of one reply."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.timing import timing

from tidemill.model.far import CatalogueName
from tidemill.routing.copies import CatalogueError
from tidemill_replicas.rucio import RucioReplicas
from tidemill_replicas.settings import Rucio

NAME = CatalogueName("lab", "f")
SECRET = "agent-agent-unknown-0123456789abcdef"


def chunk(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-json-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def line(**more: object) -> str:
    return json.dumps({"scope": "lab", "name": "f", "bytes": 36864.0, "adler32": "21ebebfc", **more}) + "\n"


@contextmanager
def serving(*replies: bytes | Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that gives these replies, one a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                with connection, suppress(OSError):  # the client hangs up when it has heard enough
                    connection.recv(1 << 20)
                    if callable(reply):
                        reply(connection)
                    else:
                        connection.sendall(reply)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 20):  # a close with bytes unread would be a reset, not an end
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # replies for which no request came
        thread.join(10)


def ask(*replies: bytes | Callable[[socket.socket], None], silence_s: float = 5.0) -> RucioReplicas:
    with serving(*replies) as url, timing(replicas={"CATALOGUE_SILENCE_S": silence_s}):
        made = RucioReplicas(Rucio(url=url), keep_s=600)
        made.look_up([NAME])
        return made


def stream(*lines: str) -> bytes:
    return HEAD + b"".join(map(chunk, lines)) + b"0\r\n\r\n"


def error(status: int, kind: str = "") -> bytes:
    named = f"ExceptionClass: {kind}\r\n" if kind else ""
    body = f"SELECT * FROM tokens WHERE token = '{SECRET}'"
    return f"HTTP/1.1 {status} X\r\n{named}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def test_a_store_in_states_that_is_not_in_rses_means_ask_again_and_never_no_replica() -> None:
    lost = stream(line(pfns={}, rses={}, states={"NEAR": "AVAILABLE", "FAR": "AVAILABLE"}))
    entry = ask(lost, lost)._known[NAME][1]

    assert not entry.urls
    assert "lost its database" in entry.why
    assert entry.is_partial


def test_a_reply_that_has_some_stores_is_used_and_asked_for_again_soon() -> None:
    url = "root://near.example.org//f"
    some = stream(
        line(
            pfns={url: {"priority": 1}},
            rses={"NEAR": [url]},
            states={"NEAR": "AVAILABLE", "FAR": "AVAILABLE"},
        )
    )
    entry = ask(some)._known[NAME][1]

    assert list(entry.urls) == [url]
    assert entry.is_partial
    assert entry.size_bytes == 36864


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("9600001", "09600001"),
        ("21EBEBFC", "21ebebfc"),
        ("", ""),
        ("none", ""),
        ("123456789", ""),
        (None, ""),
    ],
)
def test_the_catalogues_adler32_counts_without_its_leading_zeros(told: str | None, kept: str) -> None:
    url = "root://near.example.org//f"
    found = stream(line(pfns={url: {"priority": 1}}, rses={"NEAR": [url]}, states={}, adler32=told))

    assert ask(found)._known[NAME][1].adler32 == kept


def test_a_list_that_is_cut_off_counts_for_nothing() -> None:
    with pytest.raises(CatalogueError, match="broke its list of replicas off") as found:
        ask(HEAD + chunk(line(pfns={}, rses={}, states={})))
    assert found.value.transient


def test_a_server_that_falls_silent_amid_the_list_is_given_up() -> None:
    def silent(connection: socket.socket) -> None:
        connection.sendall(HEAD + chunk(line()))
        connection.recv(1)

    with pytest.raises(CatalogueError) as found:
        ask(silent, silence_s=0.3)
    assert found.value.transient


@pytest.mark.parametrize("text", ["{", "[1]\n", '{"scope": 1}\n', "<html>busy</html>\n", "x" * (2 << 20)])
def test_a_malformed_list_is_the_servers_trouble(text: str) -> None:
    with pytest.raises(CatalogueError, match="malformed") as found:
        ask(stream(text))
    assert found.value.transient


@pytest.mark.parametrize(
    ("reply", "is_transient", "is_credential"),
    [
        (error(500, "DatabaseException"), True, False),
        (error(500), True, False),
        (error(503), True, False),
        (error(500, "InvalidRSEExpression"), False, False),
        (error(400, "InvalidObject"), False, False),
        (error(401, "AccessDenied"), False, True),
        (error(401, "CannotAuthenticate"), False, True),
    ],
)
def test_errors_are_told_apart_by_their_class_and_their_text_is_never_shown(
    reply: bytes, is_transient: bool, is_credential: bool
) -> None:
    with pytest.raises(CatalogueError) as found:
        ask(reply)

    shown = f"{found.value.message} {found.value.hint}"
    assert SECRET not in shown
    assert "SELECT" not in shown
    assert (found.value.transient, found.value.is_credential) == (is_transient, is_credential)


def test_lines_about_files_that_nobody_asked_for_are_passed_over() -> None:
    other = line().replace('"f"', '"other"')

    assert ask(stream(other))._known == {}
