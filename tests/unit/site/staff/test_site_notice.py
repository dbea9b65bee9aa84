"""Mail goes out by SMTP, and what cannot be sent is said and no more."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator

import msgspec
import pytest

from tidemill.config.outlets import ContactMail
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.site.staff.mail import can_mail, send, stop_text, why_no_mail

CONFIG = SiteConfig(name="centre", server="unix:/s", contact="operator@example.org")


class Mailbox(socketserver.ThreadingTCPServer):
    """A mail server (RFC 5321) for one client at a time; `received` has each message with its envelope."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.received: list[str] = []
        self.refuses = False


class Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Mailbox)
        self.say("220 here")
        message = ""
        while line := self.rfile.readline().decode().rstrip("\r\n"):
            verb = line[:4].upper()
            message += line + "\n"
            if verb == "RCPT" and self.server.refuses:
                self.say("550 nobody of that name")
            elif verb == "DATA":
                self.say("354 go on")
                while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    message += text + "\n"
                self.server.received.append(message)
                self.say("250 taken")
            elif verb == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 fine")

    def say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def with_server(mailbox: Mailbox) -> SiteConfig:
    host, port = mailbox.server_address[:2]
    return msgspec.structs.replace(CONFIG, mail=ContactMail(server=f"smtp+plain://{host!s}:{port}"))


def test_the_contact_is_told_why_the_site_was_stopped_and_what_to_do(mailbox: Mailbox) -> None:
    config = with_server(mailbox)
    assert can_mail(config)
    send(config, "the site was stopped", stop_text(config, "`/STOP` exists: call us", "2026-11-21T03:00:00Z"))
    (message,) = mailbox.received
    assert "rcpt to:<operator@example.org>" in message.lower()
    assert "Subject: [tidemill centre] the site was stopped" in message
    assert "`/STOP` exists: call us" in message
    assert "tidemill site resume --reason" in message


def test_a_subject_never_becomes_several_headers(mailbox: Mailbox) -> None:
    send(with_server(mailbox), "stopped\r\nBcc: everybody@example.org", "text")
    (message,) = mailbox.received
    assert "\nBcc:" not in message


def test_a_refused_mail_names_server_and_contact(mailbox: Mailbox) -> None:
    mailbox.refuses = True
    with pytest.raises(SiteError, match=r"operator@example\.org.*127\.0\.0\.1"):
        send(with_server(mailbox), "s", "t")


def test_a_server_that_is_not_there_is_an_error_and_none_is_no_mail() -> None:
    nowhere = msgspec.structs.replace(CONFIG, mail=ContactMail(server="smtp+plain://127.0.0.1:1"))
    with pytest.raises(SiteError, match=r"127\.0\.0\.1:1"):
        send(nowhere, "s", "t")
    assert not can_mail(CONFIG)


def test_a_server_without_encryption_gets_no_mail_unless_its_address_says_so(mailbox: Mailbox) -> None:
    host, port = mailbox.server_address[:2]
    bare = msgspec.structs.replace(CONFIG, mail=ContactMail(server=f"{host!s}:{port}"))
    with pytest.raises(SiteError, match="STARTTLS"):
        send(bare, "s", "t")
    assert "STARTTLS" in why_no_mail(bare)
    assert not why_no_mail(with_server(mailbox))
    assert not mailbox.received


def test_an_address_that_is_none_is_refused_with_the_forms() -> None:
    with pytest.raises(ValueError, match=r"smtps://HOST:PORT.*smtp\+plain"):
        ContactMail(server="http://relay.example.org")
    with pytest.raises(ValueError, match="names a user"):
        ContactMail(server="me:secret@relay.example.org")
