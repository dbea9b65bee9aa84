"""site/watch/exporter.py on real sockets."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from tidemill.site.watch.exporter import READERS_MAX, Listener


def asked_names(*_: object) -> str:
    raise AssertionError("a name service was asked")


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(socket, "getfqdn", asked_names)
    made = Listener("127.0.0.1", 0, "s3cret")
    made.text = b"tidemill_info 1\n"
    yield made
    made.close()


def scrape(port: int, bearer: str = "s3cret") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {bearer}"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_it_starts_without_a_name_service_and_serves_who_knows_the_secret(listener: Listener) -> None:
    assert scrape(listener.port) == (200, b"tidemill_info 1\n")
    assert scrape(listener.port, "other")[0] == 401


def test_places_come_back_also_where_no_thread_was_to_be_had(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start {thread.name}")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2 * READERS_MAX):
            with pytest.raises((OSError, http.client.HTTPException)):
                scrape(listener.port)
    assert scrape(listener.port)[0] == 200
