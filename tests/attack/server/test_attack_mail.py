"""Hostile mail servers, and whoever answers in their place before TLS begins, against both senders of mail."""

from __future__ import annotations

import itertools
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.timing import timing

from tidemill.config.notify import Mail
from tidemill.config.outlets import ContactMail
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify.mail import Mailer
from tidemill.site.staff import mail as contact_mail
from tidemill.wire.notification import Digest, TrialNews

PASSWORD = "correct horse battery staple"
TIMEOUT_S = 1.0
MEMORY_BYTES = 64 << 20
Say = Iterator[bytes]


def endless(line: bytes) -> Say:
    return itertools.repeat(line * 1000)


def dripping() -> Say:
    """A byte at a time, each sooner than the time limit."""
    pause = threading.Event()
    while not pause.wait(TIMEOUT_S / 4):
        yield b"2"


class Hostile(threading.Thread):
    """A server that answers its script, a step for each line that it gets, and keeps what it is sent."""

    def __init__(self, script: list[Callable[[], Say]]) -> None:
        super().__init__(daemon=True)
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard: list[bytes] = []

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                try:
                    for step in self._script:
                        for piece in step():
                            client.sendall(piece)
                        self.heard.append(client.recv(4096))
                except OSError:
                    pass  # the client has gone

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(20)


def said(text: str) -> Callable[[], Say]:
    return lambda: iter([text.encode()])


HELLO = said("220 here\r\n")
OFFER = said("250-here\r\n250-STARTTLS\r\n250 AUTH PLAIN LOGIN\r\n")
FINE = said("250 fine\r\n")
SCRIPTS: dict[str, tuple[str, list[Callable[[], Say]], str]] = {
    "endless banner": ("starttls", [lambda: endless(b"220-here\r\n")], "more than 65536 bytes"),
    "endless line": ("starttls", [lambda: endless(b"2")], "unreachable|too long"),
    "banner byte by byte": ("starttls", [dripping], "timed out|does not end in time"),
    "endless offers": ("starttls", [HELLO, lambda: endless(b"250-AUTH PLAIN\r\n")], "more than 65536 bytes"),
    "no STARTTLS": ("starttls", [HELLO, said("250-here\r\n250 AUTH PLAIN\r\n"), FINE], "STARTTLS"),
    "STARTTLS refused": ("starttls", [HELLO, OFFER, said("454 not now\r\n"), FINE], "unreachable|454"),
    "answers ahead of TLS": (
        "starttls",
        [HELLO, OFFER, said("220 go\r\n250-AUTH PLAIN\r\n250 fine\r\n235 in\r\n"), FINE],
        "SSL",
    ),
    "plain instead of TLS": ("tls", [said("220 here\r\n"), OFFER, FINE], "SSL"),
    "endless refusal": (
        "none",
        [HELLO, FINE, FINE, lambda: endless(b"550-no\r\n")],
        "more than 65536 bytes",
    ),
    "endless answer to a mail": (
        "none",
        [HELLO, FINE, FINE, FINE, said("354 go on\r\n"), lambda: endless(b"250-kept\r\n")],
        "more than 65536 bytes",
    ),
}
SCHEMES = {"starttls": "smtp", "tls": "smtps", "none": "smtp+plain"}


def login(folder: Path) -> Path:
    """A file with user and password."""
    path = folder / "login"
    path.touch(0o600)
    path.write_text(f"tidemill\n{PASSWORD}\n")
    return path


def by_server(address: str, folder: Path) -> None:
    """Send a notice, with a login where there is TLS."""
    secret = None if address.startswith("smtp+plain") else login(folder)
    mailer = Mailer(Mail(server=address, sender="t@example.org", secret_file=secret))
    news = TrialNews(first_us=1, last_us=1)
    with timing(server={"MAIL_TIMEOUT_S": TIMEOUT_S}):
        mailer.send(Parcel("ada@example.org", Digest(id="x", server="h", made_us=1, items=[news])))


def by_site(address: str, folder: Path) -> None:
    """Send the contact a mail."""
    place = ContactMail(server=address)
    config = SiteConfig(name="centre", server="unix:/s", contact="op@example.org", mail=place)
    contact_mail.send(config, "stopped", PASSWORD)


@pytest.mark.parametrize(
    ("attack", "send"),
    [
        *((attack, by_server) for attack in SCRIPTS),
        # the time limit of sites is no setting, and is as long as the test
        *((attack, by_site) for attack in SCRIPTS if attack != "banner byte by byte"),
    ],
)
def test_a_hostile_mail_server_gets_no_password_no_mail_and_no_memory(
    attack: str, send: Callable[[str, Path], None], tmp_path: Path
) -> None:
    security, script, why = SCRIPTS[attack]
    hostile = Hostile(script)
    hostile.start()
    tracemalloc.start()
    try:
        with pytest.raises(SiteError, match=why):
            send(f"{SCHEMES[security]}://127.0.0.1:{hostile.port}", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()
        hostile.close()
    sent = b"".join(hostile.heard)
    assert b"AUTH" not in sent
    if security != "none":
        assert b"MAIL" not in sent.upper()
        assert PASSWORD.encode() not in sent
