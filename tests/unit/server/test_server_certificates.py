"""Changed certificates and CAs are read again beside the event loop, also while nobody connects."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path

import pytest

from tidemill.client.authority import Authority, Wanted, describe
from tidemill.config.tls import Tls
from tidemill.errors import ConfigError
from tidemill.server.identity.certificates import Certificates


def renewed(authority: Authority, place: Path) -> None:
    authority.issue(Wanted(role="server", name="127.0.0.1", days=1, renew=True), place)


@pytest.mark.timing(server={"CERTIFICATES_RELOAD_S": 1})
def test_what_changes_is_read_by_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=2)
    grid = tmp_path / "grid"
    grid.mkdir()
    renewed(authority, tmp_path)
    readers: set[int] = set()
    iterdir = Path.iterdir

    def told(path: Path) -> object:
        if path == grid:
            readers.add(threading.get_ident())
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", told)
    certificates = Certificates(
        Tls(
            certificate=tmp_path / "127.0.0.1.pem", key=tmp_path / "127.0.0.1.key",
            ca=authority.certificate_path, other_ca=grid,
        ),
        [],
    )  # fmt: skip
    readers.clear()

    def chosen() -> ssl.SSLContext:
        """What a connection gets, by a handshake's first step."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = ssl.create_default_context(cafile=str(authority.certificate_path))
        hello, answer = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = client.wrap_bio(answer, hello, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            caller.do_handshake()
        incoming.write(hello.read())
        server = certificates.context.wrap_bio(incoming, outgoing, server_side=True)
        with pytest.raises(ssl.SSLWantReadError):
            server.do_handshake()
        found: ssl.SSLContext = server.context
        return found

    async def run() -> None:
        watching = asyncio.create_task(certificates.watch())
        before = chosen()
        renewed(authority, tmp_path)
        async with asyncio.timeout(30):
            while chosen() is before:
                await asyncio.sleep(0.05)
        watching.cancel()

    asyncio.run(run())
    assert readers
    assert threading.get_ident() not in readers


def test_a_key_may_be_in_the_file_of_its_certificate_and_not_without_one(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=9)
    made = authority.issue(Wanted(role="server", name="localhost", days=9), tmp_path)
    both = tmp_path / "both.pem"
    both.touch(0o600)
    assert made.key is not None
    both.write_bytes(made.certificate.read_bytes() + made.key.read_bytes())

    assert Certificates(Tls(certificate=both), []).context is not None
    with pytest.raises(ConfigError, match=r"`tls\.certificate` is not"):
        Certificates(Tls(key=made.key), [])
    with pytest.raises(ConfigError, match=r"^server\.toml: `tls\.certificate`: .*(mode|private)"):
        Certificates(Tls(certificate=made.certificate), [])  # it may be read by all, and a key may not


def test_an_error_names_the_key_of_the_file_that_is_wrong(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=9)
    made = authority.issue(Wanted(role="server", name="localhost", days=9), tmp_path)
    empty, own = tmp_path / "empty", authority.certificate_path
    empty.touch()
    for ca, other, key in [(empty, None, "ca"), (own, empty, "other_ca"), (own, tmp_path / "no", "other_ca")]:
        tls = Tls(certificate=made.certificate, key=made.key, ca=ca, other_ca=other)
        with pytest.raises(ConfigError, match=rf"^server\.toml: `tls\.{key}`: "):
            Certificates(tls, [])


def test_a_file_without_a_certificate_is_told_in_plain_words(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(ConfigError) as caught:
        describe(empty)
    assert caught.value.message == f"`{empty}` holds no certificate in PEM"
