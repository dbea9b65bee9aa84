"""A site and a server that speak different protocols: each refuses the other, and says which side to upgrade."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from tests.golden.messages import recorded

from tidemill import __version__
from tidemill.config.site import SiteConfig
from tidemill.server.core import sync
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.errors import RequestError
from tidemill.site.link.sync import Sync
from tidemill.wire.api import SyncReply, SyncRequest
from tidemill.wire.protocol import PROTOCOL, mismatch

REQUEST = msgspec.json.decode(recorded(__version__, "sync")["SyncRequest"], type=SyncRequest)
REPLY = SyncReply(acked=0, orders=[], more=False, now_us=0)


class AnsweringTransport:
    """A server that gives the same answer to each sync."""

    def __init__(self, reply: SyncReply) -> None:
        self.reply = reply

    def sync(self, request: SyncRequest) -> SyncReply:
        return self.reply

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("site", "older"), [(PROTOCOL + 1, "server"), (PROTOCOL - 1, "site")])
def test_a_server_refuses_a_site_of_another_protocol_before_anything_else(
    site: int, older: str, tmp_path: Path
) -> None:
    store = Store(path=tmp_path / "t.db")
    store.init()
    dispatcher = Dispatcher(store)
    with pytest.raises(
        RequestError, match=f"the site speaks protocol {site}, the server protocol {PROTOCOL}"
    ) as found:
        dispatcher.handle_sync(msgspec.structs.replace(REQUEST, protocol=site))
    assert f"upgrade the {older}" in (found.value.hint or "")
    reader = store.reader()
    assert reader.rows("sites") == [], "nothing is known of a site that was refused"
    reader.close()
    dispatcher.close()


def test_a_request_that_cannot_be_read_is_refused_for_its_protocol_if_that_is_another_one() -> None:
    with pytest.raises(RequestError, match="speaks protocol 99") as found:
        sync.decode(b'{"protocol": 99, "site": {"name": "s"}}')
    assert "upgrade the server" in (found.value.hint or "")
    with pytest.raises(RequestError, match="SyncRequest cannot be read"):
        sync.decode(b'{"site": {"name": "s"}}')
    with pytest.raises(RequestError, match="SyncRequest cannot be read"):
        sync.decode(b"no JSON")


def answer_of(reply: SyncReply) -> tuple[SyncReply | None, str | None]:
    """What a site takes of an answer, and what it reports to have been told."""
    site = Sync(SiteConfig(name="s", server="http://127.0.0.1:1"))
    site._transport = AnsweringTransport(reply)
    site.start(REQUEST)
    ends_s = time.monotonic() + 10
    taken = None
    while taken is None and not site.failures and time.monotonic() < ends_s:
        taken = site.poll_reply()
    site.close()
    return taken, site.last_error


def test_a_site_takes_nothing_of_an_answer_of_another_protocol() -> None:
    assert answer_of(REPLY) == (REPLY, None)
    newer = msgspec.structs.replace(REPLY, protocol=PROTOCOL + 1)
    text, _ = mismatch(PROTOCOL, PROTOCOL + 1) or ("", "")
    assert answer_of(newer) == (None, text)
