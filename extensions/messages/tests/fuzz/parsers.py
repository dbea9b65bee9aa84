"""The parsers of messages: what submitters and sites send, and what a server answers to a site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
from tests.fuzz.of_server import _dispatcher
from tests.fuzz.parser import Parser

from tidemill.errors import ConfigError, JobError, ProtocolError, SiteError
from tidemill.server.transports import TransportHost
from tidemill_messages.link import Delivery
from tidemill_messages.names import CONTENT_TYPE
from tidemill_messages.server.intake import IncomingMessage, SubmitterIntake, SyncIntake
from tidemill_messages.transport import _reply_of

CORPUS = Path(__file__).parent / "corpus"


def _host() -> TransportHost:
    store: Any = None  # nothing is followed
    return TransportHost(store, _dispatcher(), judge=lambda _identity: None)


def _message(content: bytes) -> object:
    """A submitter's message: its type, its id, a blank line, its body."""
    head, _, body = content.partition(b"\n\n")
    kind, _, number = head.decode(errors="replace").partition("\n")
    answer = SubmitterIntake(_host(), {"CN=ada": "ada"}).handle(
        IncomingMessage("CN=ada", kind, CONTENT_TYPE, body, number)
    )
    assert answer.status < 500, answer.refused
    return answer.body


def _sync_message(content: bytes) -> object:
    letter = IncomingMessage("CN=s", "sync", CONTENT_TYPE, content)
    answer = SyncIntake(_host(), {"CN=s": "s"}).handle(letter)
    assert answer.status < 500, answer.refused
    return answer.body


def _sync_answer(content: bytes) -> object:
    """The answer to a sync by message: its type, a blank line, its body."""
    kind, _, body = content.partition(b"\n\n")
    link: Any = None  # answers are read without it
    properties = pika.BasicProperties(type=kind.decode(errors="replace"), content_type=CONTENT_TYPE)
    delivery = Delivery(link, None, (pika.spec.Basic.Deliver(delivery_tag=1), properties, body))
    return _reply_of(delivery).orders


PARSERS = [
    Parser("amqp-submitter", _message, corpus=CORPUS),
    Parser("amqp-site", _sync_message, corpus=CORPUS),
    Parser("amqp-answer", _sync_answer, (SiteError, ProtocolError, ConfigError, JobError), corpus=CORPUS),
]
