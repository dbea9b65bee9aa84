"""Transports of extensions: what site, server, client do with an address of one, and what it may ask of a server."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tidemill import extensions
from tidemill.cli.site.endpoints import examine_transport
from tidemill.config import loads, tables
from tidemill.config.server import ServerConfig
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError
from tidemill.model.identity import Identity, Role, Via
from tidemill.server.core.body_count import VALUES_MAX
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.errors import ForbiddenError, RequestError
from tidemill.server.run import rules_of
from tidemill.server.transports import TransportHost
from tidemill.server.watch.health import Watched, health, problems
from tidemill.server.watch.metrics import ServerMetrics
from tidemill.site.link.transport import HttpTransport, open_transport
from tidemill.wire.api import REQUEST_BYTES_MAX
from tidemill.wire.server_connection import Connection
from tidemill.wire.transports import kind_of, scheme_of, wanted

MODULE = """
import msgspec
from tidemill.config.tables import SettingsTable
from tidemill.errors import ConfigError
from tidemill.wire.transports import TransportKind

def examine(config, credentials):
    if credentials.certificate is None:
        raise ConfigError("pigeons want a certificate", hint="set `certificate`")
    return "by pigeons"

KIND = TransportKind(
    open=lambda config, credentials, bounds: (config.name, bounds.timeout_s),
    examine=examine,
    is_wanted=lambda config: config.listen == "pigeons:1",
    serve=lambda config, host: host,
    hint="`tidemill pigeon` uses it",
)
OTHER = KIND._replace(hint="another")
NO_KIND = 7

class Loft(msgspec.Struct, frozen=True):
    place: str = ""

LOFT = SettingsTable("server.toml", Loft)
"""
ADA = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE, subject="ada")
SUBMISSION = b'{"key":"k","campaign":"c","jobs":[{"app":"sim"}]}'
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs an extension `odd` with these transports, as long as a test runs."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tidemill_odd.py").write_text(MODULE)

    def forget() -> None:
        extensions.forget_faults()
        for each in (extensions.installed, tables._added, tables._extended):
            each.cache_clear()

    def put(**named: str) -> None:
        about = tmp_path / f"tidemill_odd-{tidemill.__version__}.dist-info"
        about.mkdir()
        lines = [f"{name} = tidemill_odd:{attribute}" for name, attribute in named.items()]
        settings = [f"[{extensions.SETTINGS}]", "loft = tidemill_odd:LOFT"]
        (about / "entry_points.txt").write_text("\n".join([*settings, f"[{extensions.TRANSPORTS}]", *lines]))
        forget()

    yield put
    sys.modules.pop("tidemill_odd", None)
    forget()


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    store = Store(path=tmp_path / "t.db")
    store.init()
    made = Dispatcher(store)
    yield made
    made.close()


@pytest.fixture
def host(dispatcher: Dispatcher, tmp_path: Path) -> TransportHost:
    return TransportHost(Store(path=tmp_path / "t.db"), dispatcher, judge=lambda _identity: None)


def test_the_scheme_of_an_address_says_which_way_a_site_takes(install: Install) -> None:
    install(pigeon="KIND")
    opened: Any = open_transport(SiteConfig(name="lrz", server="pigeon://loft"))
    assert opened == ("lrz", 60.0)
    assert [scheme_of(each) for each in ("PIGEON://h", "https://h", "unix:/x", "h")] == ["pigeon", "", "", ""]
    assert isinstance(open_transport(SiteConfig(name="lrz", server="https://h")), HttpTransport)


def test_the_schemes_of_the_core_stay_the_cores(install: Install, tmp_path: Path) -> None:
    install(https="KIND", http="KIND", unix="KIND")
    for server in ("https://h", "http://127.0.0.1:1", f"unix:{tmp_path}/api.sock"):
        assert (scheme_of(server), kind_of(server)) == ("", None)
        assert isinstance(open_transport(SiteConfig(name="lrz", server=server)), HttpTransport)
    assert SiteConfig(name="lrz", server="https://a,https://b").server == "https://a,https://b"


def test_what_is_no_transport_is_refused_where_it_is_used(install: Install) -> None:
    install(odd="NO_KIND")
    with pytest.raises(ConfigError, match="no transport for a server at `odd:`"):
        open_transport(SiteConfig(name="lrz", server="odd://h"))
    (found,) = examine_transport(SiteConfig(name="lrz", server="ODD://h"))
    assert (found.state, found.found) == ("fail", "no transport for a server at `odd:`")


def test_site_check_says_what_the_transport_says(install: Install, tmp_path: Path) -> None:
    install(pigeon="KIND")
    (failed,) = examine_transport(SiteConfig(name="lrz", server="pigeon://loft"))
    assert (failed.state, failed.found, failed.hint) == (
        "fail",
        "pigeons want a certificate",
        "set `certificate`",
    )
    (found,) = examine_transport(SiteConfig(name="lrz", server="pigeon://loft", certificate=tmp_path))
    assert (found.state, found.found) == ("ok", "by pigeons")
    assert list(examine_transport(SiteConfig(name="lrz", server="https://h"))) == []


def test_a_client_by_http_says_what_uses_such_an_address(install: Install) -> None:
    install(pigeon="KIND")
    with pytest.raises(ConfigError, match="`pigeon://loft` answers no requests") as caught:
        Connection("pigeon://loft")
    assert caught.value.hint == "`tidemill pigeon` uses it"


def test_an_address_whose_extension_is_away_says_which_command_installs_it() -> None:
    for name, brings in extensions.KNOWN.items():
        for scheme in brings.transports:
            error = extensions.missing(extensions.TRANSPORTS, scheme)
            assert error is not None
            assert (error.exit_code, error.hint) == (2, f"install it: pip install 'tidemill[{name}]'")
            if name not in extensions.installed():  # where `make test-core` runs this
                with pytest.raises(
                    ConfigError, match=f"a server at `{scheme}:` needs the extension `{name}`"
                ):
                    kind_of(f"{scheme}://h/v")
                with pytest.raises(ConfigError, match=f"needs the extension `{name}`"):
                    open_transport(SiteConfig(name="lrz", server=f"{scheme}://h/v"))
                (found,) = examine_transport(SiteConfig(name="lrz", server=f"{scheme}://h/v"))
                assert (found.state, "pip install" in found.hint) == ("fail", True)


def test_a_server_serves_what_its_settings_ask_for(install: Install, tmp_path: Path) -> None:
    install(pigeon="KIND", pigeons="KIND", odd="NO_KIND")
    kind = wanted(ServerConfig(listen="pigeons:1"))
    assert kind is not None
    assert kind.hint == "`tidemill pigeon` uses it"
    assert extensions.faults() == {"odd": "no transport for a server at `odd:`"}
    assert wanted(ServerConfig()) is None
    rules = rules_of(ServerConfig(dir=tmp_path, listen="pigeons:1"))
    assert rules.addressees._messages
    assert not rules_of(ServerConfig(dir=tmp_path)).addressees._messages


def test_a_server_has_one_transport_beside_http_for_notices_go_by_one(install: Install) -> None:
    install(pigeon="KIND", smoke="OTHER")
    with pytest.raises(ConfigError, match="asks for `pigeon:` and `smoke:`: a server has one"):
        wanted(ServerConfig(listen="pigeons:1"))


@pytest.mark.parametrize(
    ("attribute", "why"),
    [
        ("GONE", "the extension `odd` has no `tidemill_odd:GONE`"),
        ("NO_KIND", "no transport for a server at `pigeon:`"),
    ],
)
def test_a_server_whose_settings_ask_for_a_transport_at_fault_does_not_start(
    install: Install, tmp_path: Path, attribute: str, why: str
) -> None:
    """Without the transport, jobs would wait at a broker, and nothing would say so."""
    install(pigeon=attribute)
    for unset in ("", "[loft]", 'loft.place = ""'):
        assert wanted(loads(unset, ServerConfig, source=tmp_path / "server.toml")) is None
    assert extensions.faults()["odd"].startswith(why)
    with pytest.raises(ConfigError, match=re.escape(why)):
        rules_of(loads('loft.place = "roof"', ServerConfig, source=tmp_path / "server.toml"))


@pytest.mark.parametrize("address", ["pigeon://b:1/v", "PIGEON://b:1/v"])
def test_an_address_of_a_transport_stands_alone(install: Install, tmp_path: Path, address: str) -> None:
    install(pigeon="KIND")
    text = f'name = "s"\nserver = ["https://b:2", "{address}"]'
    with pytest.raises(ConfigError, match="`pigeon:` is the only address"):
        loads(text, SiteConfig, source=tmp_path / "site.toml")


def test_a_transport_asks_for_what_http_may_ask_for(host: TransportHost) -> None:
    key, reply = host.submit(SUBMISSION, ADA)
    assert (key, reply.count, reply.repeated) == ("k", 1, False)
    assert host.submit(SUBMISSION, ADA)[1].repeated
    assert host.cancel(b'{"campaign":"c"}', ADA, key="m1").changed == 1
    assert host.cancel(b'{"campaign":"c"}', ADA, key="m1").repeated
    assert host.retry(b'{"campaign":"c"}', ADA, key="m2").changed == 1
    for wrong in (
        lambda: host.submit(b"{", ADA),
        lambda: host.retry(b"{", ADA, key=""),
        lambda: host.sync(b"{", ADA),
    ):
        with pytest.raises(RequestError) as caught:
            wrong()
        assert host.refusal(caught.value)[0] == 400
    status, refused = host.refusal(ForbiddenError("not yours", hint="ask"))
    assert (status, refused.error, refused.hint) == (403, "not yours", "ask")


def verbs(host: TransportHost, body: bytes) -> list[Callable[[], object]]:
    """What a transport may ask for, as Ada, with this body."""
    return [
        lambda: host.submit(body, ADA),
        lambda: host.cancel(body, ADA, key="k"),
        lambda: host.retry(body, ADA, key="k"),
        lambda: host.sync(body, ADA),
    ]


def test_who_is_revoked_is_refused_whatever_the_transport_asks_for() -> None:
    """It never reaches the dispatcher: there is none."""
    nothing: Any = None
    host = TransportHost(nothing, nothing, judge=lambda identity: f"name {identity.name}")
    for ask in verbs(host, b"{}"):
        with pytest.raises(ForbiddenError, match="the submitter `ada` is revoked: `name ada`"):
            ask()


def test_a_body_that_http_would_not_take_is_refused_before_it_is_read(host: TransportHost) -> None:
    long = b" " * (REQUEST_BYTES_MAX + 1)
    for ask in verbs(host, long):
        with pytest.raises(RequestError, match=f"request of {len(long)} bytes, at most"):
            ask()
    for ask in verbs(host, b'{"jobs":[%s0]}' % (b"0," * VALUES_MAX))[:3]:
        with pytest.raises(RequestError, match=r"more than \d+ values"):
            ask()


def test_followers_keep_their_positions_and_those_not_named_are_forgotten(
    host: TransportHost, dispatcher: Dispatcher
) -> None:
    woken: list[int] = []
    host.listen(wake := lambda: woken.append(1))
    assert host.positions("pigeon", ["ada", "bob"]) == {"ada": 0, "bob": 0}
    host.submit(SUBMISSION, ADA)
    host.cancel(b'{"campaign":"c"}', ADA, key="m")
    assert woken
    host.stop_listening(wake)
    changes = host.changes()
    try:
        (row, *_) = changes.rows_after(0, limit=9)
        assert [changes.owner(row.campaign), changes.owner(99)] == ["ada", None]
    finally:
        changes.close()
    host.save("pigeon", {"ada": row.last})
    host.save("other", {"ada": 5})
    assert host.positions("pigeon", ["ada", "eve"]) == {"ada": row.last, "eve": row.last}
    rows = dispatcher.writer.write(lambda work: work.session.rows("followers"))
    assert sorted(name for name, _ in rows) == [
        "follower/other/ada",
        "follower/pigeon/ada",
        "follower/pigeon/eve",
    ]


def test_health_and_metrics_say_that_a_transport_is_away(dispatcher: Dispatcher) -> None:
    session = dispatcher.writer.write(lambda work: work.session)
    metrics = ServerMetrics(Watched(dispatcher))
    assert "transport_away" not in problems(session, Watched(dispatcher))
    assert "gateway_connected" not in metrics.text(None, feed_readers=0)
    for is_up in (True, False):
        watched = Watched(dispatcher, transport_up=partial(bool, is_up))
        metrics = ServerMetrics(watched)
        assert ("transport_away" in problems(session, watched)) is not is_up
        assert f"tidemill_server_gateway_connected {int(is_up)}" in metrics.text(None, feed_readers=0)
    assert health(session, watched).status == "degraded"
