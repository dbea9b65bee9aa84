"""A server with two submitters, two sites and an operator, as attacks on its API and pages find it."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.worlds.services.access_world import DEADLINE_S, Certs, World, running, submission, sync

from tidemill import extensions


class Attacked(World):
    """The server, and requests to it byte by byte."""

    _kept: dict[str | None, http.client.HTTPSConnection]

    def stop(self) -> int:
        """End it and all connections to it."""
        for each in self._kept.values():
            each.close()
        return super().stop()

    def busy(self, **changes: Any) -> dict[str, Any]:
        """What a site that wants nothing sends."""
        request = sync(changes.pop("site", "lrz"))
        capacity = msgspec.structs.replace(request.capacity, want_core_s=0.0)
        told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(request, capacity=capacity))
        return told | changes

    def job_of(self, campaign: str) -> int:
        """The newest job of a campaign."""
        _, page = self.call("olga", "GET", f"/v1/jobs?campaign={campaign}")
        return int(page["jobs"][0]["id"])

    def ask(
        self, who: str | None, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer that need not be JSON; each of them has one connection."""
        if who is not None and who.startswith("token:"):
            headers["Authorization"] = "Bearer " + who.removeprefix("token:")
            who = None
        try:
            return self._asked(self._connection(who), method, path, body, headers)
        except (ConnectionError, http.client.RemoteDisconnected):  # kept for too long
            self._kept.pop(who).close()
            return self._asked(self._connection(who), method, path, body, headers)

    def _connection(self, who: str | None) -> http.client.HTTPSConnection:
        if who not in self._kept:
            self._kept[who] = http.client.HTTPSConnection(
                "127.0.0.1",
                self.port,
                timeout=DEADLINE_S,
                context=self.context(self.certs.pair(who) if who else None),
            )
        return self._kept[who]

    def _asked(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Any,
    ) -> tuple[int, dict[str, str], bytes]:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        kept = {name.lower(): value for name, value in answer.getheaders()}
        if kept.get("content-type", "").startswith("text/event-stream"):
            line = answer.readline()
            answer.close()
            connection.close()  # the next request opens another
            return answer.status, kept, line
        return answer.status, kept, answer.read()

    def send(self, who: str | None, request: bytes) -> list[int]:
        """The statuses of all answers to these bytes, until the server hangs up or says nothing more for a second."""
        plain = socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)
        context = self.context(self.certs.pair(who) if who else None)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(request)
            answer = b""
            try:
                while piece := connection.recv(65536):  # the first one may take long on a busy machine
                    answer += piece
                    connection.settimeout(1.0)
            except (TimeoutError, ssl.SSLError, ConnectionError):
                pass
        return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """`ada` and `bob` have a campaign each, `ada-1` and `bob-1`; `lrz` and `nemo` are sites with an allocation
    each, `tm-lrz` and `tm-nemo`; nothing is leased. The server believes tokens where the extension for them is."""
    certs, issuer = Certs(tmp_path_factory.mktemp("certs")), None
    if "tokens" in extensions.installed():
        from tests.worlds.services.token_issuer import Issuer

        issuer = Issuer(tmp_path_factory.mktemp("issuer"))
    made = Attacked(tmp_path_factory.mktemp("world"), certs, issuer)
    made._kept = {}
    try:
        for site in ("lrz", "nemo"):
            told = made.busy(site=site, reports=[msgspec.to_builtins(running(f"tm-{site}"))])
            assert made.call(site, "POST", "/v1/sync", told)[0] == 200
        for name in ("ada", "bob"):
            assert made.call(name, "POST", "/v1/jobs", submission(f"{name}-1", f"k-{name}"))[0] == 200
        yield made
    finally:
        assert made.stop() == 0
