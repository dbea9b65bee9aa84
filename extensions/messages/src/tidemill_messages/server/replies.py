"""Direct replies: answers to the queue that an asker reads on its own channel, each asker's by a connection of its own.

The address is the asker's word, and RabbitMQ 3.10 ends the connection of who writes to one that it did not make (541
INTERNAL_ERROR, from `rabbit_direct_reply_to`). Which those are cannot be seen from outside. So one who sends such
addresses loses the answers to itself, and no others.
"""

from __future__ import annotations

import threading
from collections import deque

from tidemill_messages.broker import Broker
from tidemill_messages.link import Link, Message
from tidemill_messages.names import DIRECT_REPLY

WAITING_MAX = 20
"""Answers to one asker while its connection is being opened; of more, the oldest go: who waits for one asks again."""


def is_direct(reply_to: str) -> bool:
    """Whether this may be a name that the broker made for a channel. To any other, we would write with our rights, not
    the sender's.

    The broker does not count it as a queue: it returns a mandatory message as unroutable although the message arrives
    (https://www.rabbitmq.com/docs/direct-reply-to).
    """
    return reply_to.startswith(f"{DIRECT_REPLY}.")


class DirectReplies:
    """Sends them; a connection is opened with the first answer to an asker. Thread-safe."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._ways: dict[str, _Way] = {}
        self._is_closed = False

    def send(self, asker: str, message: Message) -> None:
        """Send an answer. Nothing is confirmed: who does not get it asks again. `asker`: a known user of the broker."""
        with self._lock:
            if self._is_closed:
                return
            way = self._ways.get(asker)
            if way is None:
                way = self._ways[asker] = _Way(self._broker, asker)
        way.send(message)

    def retire(self) -> list[Link]:
        """Send nothing more; the connections, which the caller closes."""
        with self._lock:
            self._is_closed = True
            return [way.link for way in self._ways.values()]


class _Way:
    """The connection for the answers to one asker."""

    def __init__(self, broker: Broker, asker: str) -> None:
        self._waiting: deque[Message] = deque(maxlen=WAITING_MAX)
        self.link = Link(broker, [], name=f"reply-{asker}", on_up=self._flush)
        self.link.start()

    def send(self, message: Message) -> None:
        self._waiting.append(message)
        if self.link.is_up:
            self._flush()

    def _flush(self) -> None:
        """By any thread, also by two at once."""
        while self._waiting:
            try:
                message = self._waiting.popleft()
            except IndexError:  # the other one took it
                return
            self.link.publish(message)
