"""The port of `tidemill web`: nothing reaches the server's socket without a login that a one-time URL gave."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidemill.server.web.visits.loopback import ENTRY, LoopbackPort, is_of_another_user


class Upstream:
    """A server on a Unix socket that notes what comes, and answers with it."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        length = next(
            (int(row[15:]) for row in head.lower().split(b"\r\n") if row.startswith(b"content-length:")), 0
        )
        body = await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nSEEN " + body)
        await writer.drain()
        writer.close()


class Browser:
    """Requests to a port, one connection each."""

    def __init__(self, port: LoopbackPort, upstream: Upstream) -> None:
        self.port, self.upstream = port, upstream

    async def ask(
        self, path: str, *, method: str = "GET", cookie: str = "", host: str = "localhost", body: str = ""
    ) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.decode()

    async def enter(self) -> str:
        """The cookie of a login."""
        answer = await self.ask(ENTRY + self.port.url().partition(ENTRY)[2])
        return answer.partition("Set-Cookie: ")[2].partition(";")[0]


def with_browser(folder: Path, check: Callable[[Browser], Awaitable[None]], *, token_s: float = 60.0) -> None:
    async def run() -> None:
        upstream, path = Upstream(), folder / "s"
        port = LoopbackPort(path, token_s=token_s)
        async with await asyncio.start_unix_server(upstream.serve, os.fspath(path)), await port.start(0):
            await check(Browser(port, upstream))

    asyncio.run(run())


def test_nothing_is_passed_on_before_a_login(tmp_path: Path) -> None:
    async def check(browser: Browser) -> None:
        name = f"tidemill-web-{browser.port.port}"
        for path in ("/", "/v1/health", "/v1/jobs", "/enter/", "/enter/guess", "//enter/x", "//[", "/login"):
            for cookie in ("", "tidemill=x", f"{name}=", f"{name}=guess"):
                assert (await browser.ask(path, cookie=cookie)).startswith("HTTP/1.1 403 "), path
        assert browser.upstream.heads == []

    with_browser(tmp_path, check)


def test_a_url_lets_in_one_browser_once(tmp_path: Path) -> None:
    async def check(browser: Browser) -> None:
        path = ENTRY + browser.port.url().partition(ENTRY)[2]
        first, second = await browser.ask(path), await browser.ask(path)
        assert first.startswith("HTTP/1.1 200 ")
        assert "HttpOnly; SameSite=Strict" in first
        assert second.startswith("HTTP/1.1 403 ")
        assert "Set-Cookie" not in second
        assert path not in first

    with_browser(tmp_path, check)


def test_a_url_that_is_too_old_lets_nobody_in(tmp_path: Path) -> None:
    async def check(browser: Browser) -> None:
        assert await browser.enter() == ""

    with_browser(tmp_path, check, token_s=0.0)


def test_who_is_logged_in_reaches_the_server_with_bodies_and_one_request_for_each_connection(
    tmp_path: Path,
) -> None:
    async def check(browser: Browser) -> None:
        cookie = await browser.enter()
        assert "SEEN hello" in await browser.ask("/v1/jobs", method="POST", cookie=cookie, body="hello")
        (head,) = browser.upstream.heads
        assert head.startswith(b"POST /v1/jobs HTTP/1.1\r\n")
        assert b"connection: close" in head

    with_browser(tmp_path, check)


def test_a_name_that_leads_here_is_refused_also_with_the_cookie(tmp_path: Path) -> None:
    async def check(browser: Browser) -> None:
        cookie = await browser.enter()
        assert (await browser.ask("/", cookie=cookie, host="evil.example")).startswith("HTTP/1.1 403 ")
        assert "SEEN" in await browser.ask("/", cookie=cookie, host="127.0.0.1:9999")

    with_browser(tmp_path, check)


def test_logging_out_makes_the_cookie_worthless(tmp_path: Path) -> None:
    async def check(browser: Browser) -> None:
        cookie, other = await browser.enter(), await browser.enter()
        assert "logged out" in await browser.ask("/logout", method="POST", cookie=cookie)
        assert (await browser.ask("/", cookie=cookie)).startswith("HTTP/1.1 403 ")
        assert "SEEN" in await browser.ask("/", cookie=other)

    with_browser(tmp_path, check)


def test_a_server_that_is_away_is_named(tmp_path: Path) -> None:
    async def check(browser: Browser) -> None:
        cookie = await browser.enter()
        (tmp_path / "s").unlink()
        assert (await browser.ask("/", cookie=cookie)).startswith("HTTP/1.1 502 ")

    with_browser(tmp_path, check)


def test_a_page_that_is_open_when_the_command_ends_is_closed_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        asked = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            try:
                await reader.read()
            except asyncio.CancelledError:
                pass
            finally:
                writer.close()

        port = LoopbackPort(tmp_path / "s")
        upstream, server = (
            await asyncio.start_unix_server(hold, os.fspath(tmp_path / "s")),
            await port.start(0),
        )
        cookie = await Browser(port, Upstream()).enter()
        _, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(f"GET /live HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        await asked.wait()
        for each in (upstream, server, writer):
            each.close()

    asyncio.run(run())
    assert [each for each in caplog.records if each.name == "asyncio" and each.levelname == "ERROR"] == []


def test_the_user_at_the_other_end_is_known_to_the_kernel() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert not is_of_another_user(accepted)


def test_another_connection_of_the_same_port_does_not_count(tmp_path: Path) -> None:
    """As /proc/net/tcp lists one that has just ended: without an owner, so with user 0."""
    strange, table = os.getuid() + 1, tmp_path / "tcp"
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as own, listener.accept()[0] as accepted:
        near, far = (f"0100007F:{each.getsockname()[1]:04X}" for each in (own, accepted))
        for other, expected in ((f"0100007F:{1:04X}", False), (far, True)):
            row = f"   0: {near} {other} 06 00000000:00000000 03:00000000 00000000 {strange} 0 0 3"
            table.write_text(f"  sl  local_address rem_address ...\n{row}\n")
            assert is_of_another_user(accepted, {socket.AF_INET: table}) is expected
