"""What servers refuse, and where they send us: by class, with a hint; nothing is shown to those it is not for."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.contract.transfer_world import SETTINGS, Server

from tidemill.client.authority import Authority
from tidemill.config.keys import DISCOVER
from tidemill.config.transfer import Endpoint
from tidemill.model.failure import FailureClass
from tidemill.transfer.contract import TransferError
from tidemill.transfer.mover import Mover

CONTENT = os.urandom(2_000_000)
ONCE = msgspec.structs.replace(SETTINGS, tries_max=1)
SLOW_BYTES_PER_S = 200_000  #: below `slow/`: scripts/webdav.sh


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as text:
        Path(text).chmod(0o711)
        yield Path(text)


def server_of(scheme: str, folder: Path) -> Iterator[Server]:
    (folder / scheme).mkdir(mode=0o711)
    made = Server(scheme, folder / scheme)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def https(folder: Path) -> Iterator[Server]:
    yield from server_of("https", folder)


@pytest.fixture(scope="module")
def root(folder: Path) -> Iterator[Server]:
    yield from server_of("root", folder)


@pytest.fixture(scope="module")
def gsiftp(folder: Path) -> Iterator[Server]:
    yield from server_of("gsiftp", folder)


@pytest.fixture(scope="module")
def s3(folder: Path) -> Iterator[Server]:
    pytest.importorskip("boto3")
    yield from server_of("s3", folder)


def get(mover: Mover, url: str, target: Path) -> bytes:
    mover.get(url, target, mover.watch())
    return target.read_bytes()


def refusal(mover: Mover, url: str, tmp_path: Path, *, out: bool = False) -> TransferError:
    (tmp_path / "out").write_bytes(b"x")
    with pytest.raises(TransferError) as error:
        mover.put(tmp_path / "out", url, mover.watch()) if out else get(mover, url, tmp_path / "in")
    assert not (tmp_path / "in").exists()
    return error.value


def is_credential(error: TransferError) -> bool:
    return error.failure is FailureClass.CREDENTIAL and not error.transient and bool(error.hint)


def serve(server: Server, place: str) -> str:
    """A file in another part of the WebDAV server; its URL."""
    path = server.folder / "data" / place / "f"
    path.write_bytes(CONTENT)
    return f"{server.base}{place}/f"


def test_a_token_opens_what_is_closed_without(https: Server, tmp_path: Path) -> None:
    url = serve(https, "token")
    assert is_credential(refusal(https.mover(), url, tmp_path))
    token = tmp_path / "token"
    token.write_text("sesame\n")
    token.chmod(0o644)
    readable = refusal(https.mover(token_file=token), url, tmp_path)
    assert is_credential(readable)
    assert "0644" in readable.message
    token.chmod(0o600)
    assert get(https.mover(token_file=token), url, tmp_path / "in") == CONTENT
    (tmp_path / "in").unlink()
    token.write_text("another")
    assert is_credential(refusal(https.mover(token_file=token), url, tmp_path))


def test_a_token_is_found_in_the_order_of_the_wlcg(
    https: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(https, "token")
    monkeypatch.delenv("BEARER_TOKEN", raising=False)
    monkeypatch.delenv("BEARER_TOKEN_FILE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    usual = tmp_path / f"bt_u{os.geteuid()}"
    for name, text in (("file", "sesame"), (usual.name, "wrong")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    mover = https.mover(token_file=DISCOVER)
    assert is_credential(refusal(mover, url, tmp_path))
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "file"))
    assert get(mover, url, tmp_path / "a") == CONTENT
    monkeypatch.setenv("BEARER_TOKEN", "wrong")
    assert is_credential(refusal(mover, url, tmp_path))


def test_a_token_file_that_is_missing_or_open_to_others_is_no_refusal_of_the_server(
    https: Server, tmp_path: Path
) -> None:
    url = serve(https, "token")
    absent = refusal(https.mover(token_file=tmp_path / "none"), url, tmp_path)
    assert is_credential(absent)
    assert str(absent.hint).startswith("make it: ")
    (tmp_path / "open").write_text("sesame")
    (tmp_path / "open").chmod(0o644)
    error = refusal(https.mover(token_file=tmp_path / "open"), url, tmp_path)
    assert is_credential(error)
    assert "has mode 0644" in error.message
    assert "refuses us" not in error.message
    assert error.hint == f"chmod 0600 {tmp_path / 'open'}"


def test_a_token_never_travels_without_encryption(https: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame")
    token.chmod(0o600)
    plain = Endpoint(url=https.started[1], token_file=token)
    error = refusal(Mover([plain], ONCE, size_max=10**9), https.started[1] + "token/f", tmp_path)
    assert "without encryption" in error.message


def test_a_certificate_opens_what_is_closed_without(https: Server, tmp_path: Path) -> None:
    url, certs = serve(https, "cert"), https.folder / "certs"
    assert is_credential(refusal(https.mover(), url, tmp_path))
    mover = https.mover(certificate=certs / "user.pem", key=certs / "user.key")
    assert get(mover, url, tmp_path / "in") == CONTENT


def test_an_unknown_authority_or_a_missing_key_file_is_a_matter_of_credentials(
    https: Server, tmp_path: Path
) -> None:
    url = https.make("in", CONTENT)
    error = refusal(https.mover(ca=None), url, tmp_path)
    assert is_credential(error)
    assert "not trusted" in error.message
    assert is_credential(refusal(https.mover(certificate=tmp_path / "none.pem"), url, tmp_path))


def test_an_authority_that_is_replaced_counts_from_the_next_request_on(https: Server, tmp_path: Path) -> None:
    url, ca, right = https.make("in", CONTENT), tmp_path / "ca.pem", Path(str(https.endpoint.ca)).read_bytes()
    wrong = Authority.create(tmp_path / "other", name="Other", days=2).certificate_path.read_bytes()
    mover = https.mover(ONCE, ca=ca)
    for number, content in enumerate((right, wrong, right)):
        ca.write_bytes(content)
        if content is right:
            assert get(mover, url, tmp_path / f"in{number}") == CONTENT
        else:
            assert is_credential(refusal(mover, url, tmp_path))


def test_an_expired_certificate_is_named_before_it_is_shown(https: Server, tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    day = datetime(2020, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, day, day + timedelta(days=1))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = tmp_path / "old.pem"
    pem.write_bytes(
        builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, *plain)
    )
    error = refusal(https.mover(certificate=pem), https.make("in", CONTENT), tmp_path)
    assert is_credential(error)
    assert "expired at" in error.message


def test_what_nobody_may_read_or_write_is_a_matter_of_credentials(
    https: Server, root: Server, tmp_path: Path
) -> None:
    serve(https, "denied")
    for server, url in ((https, f"{https.base}denied/f"), (root, root.address("denied/f"))):
        assert is_credential(refusal(server.mover(), url, tmp_path))
        assert is_credential(refusal(server.mover(), url, tmp_path, out=True))


def test_gridftp_knows_its_users_and_its_directories(gsiftp: Server, tmp_path: Path) -> None:
    url, certs = gsiftp.make("in", CONTENT), gsiftp.folder / "certs"
    stranger = gsiftp.mover(certificate=certs / "stranger.pem", key=certs / "stranger.key")
    assert is_credential(refusal(stranger, url, tmp_path))
    nobody = gsiftp.mover(certificate=None, key=None)
    assert is_credential(refusal(nobody, url, tmp_path))
    outside = Endpoint(
        **{**msgspec.structs.asdict(gsiftp.endpoint), "url": gsiftp.base.split("/tmp", 1)[0] + "/"}
    )
    error = refusal(Mover([outside], ONCE, size_max=10**9), outside.url + "etc/passwd", tmp_path)
    assert error.failure in (FailureClass.CREDENTIAL, FailureClass.STAGE_IN)
    assert not error.transient


def test_s3_refuses_a_wrong_key_and_a_missing_bucket(s3: Server, tmp_path: Path) -> None:
    url = s3.make("in", CONTENT)
    assert is_credential(refusal(s3.mover(credentials_file=s3.folder / "wrong"), url, tmp_path))
    assert is_credential(refusal(s3.mover(credentials_file=tmp_path / "none"), url, tmp_path))
    assert refusal(s3.mover(url="s3://elsewhere/"), "s3://elsewhere/in", tmp_path).failure is not None


@pytest.mark.parametrize("scheme", ["https", "root", "gsiftp", "s3"])
def test_a_full_disk_of_the_server_leaves_nothing_under_the_outputs_name(
    request: pytest.FixtureRequest, tmp_path: Path, scheme: str
) -> None:
    server: Server = request.getfixturevalue(scheme)
    full = server.data / "full"
    full.mkdir(exist_ok=True)
    options = "size=1m,mode=0777"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(full)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be made: {mounted.stderr.strip()}")
    (tmp_path / "out").write_bytes(CONTENT)
    try:
        with pytest.raises(TransferError) as error:
            server.mover(ONCE).put(tmp_path / "out", server.address("full/out"), server.mover().watch())
        assert error.value.failure is FailureClass.STAGE_OUT
        assert not (full / "out").exists()
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)


def test_a_redirection_is_followed_where_it_is_permitted_and_nowhere_else(
    https: Server, tmp_path: Path
) -> None:
    https.make("moved", CONTENT)
    assert get(https.mover(), f"{https.base}near/moved", tmp_path / "in") == CONTENT
    (tmp_path / "in").unlink()
    for out in (False, True):
        error = refusal(https.mover(), f"{https.base}far/moved", tmp_path, out=out)
        assert "https://127.0.0.2" in error.message
        assert "redirects" in (error.hint or "")
        assert not error.transient
    assert "redirections" in refusal(https.mover(), f"{https.base}round/moved", tmp_path).message


def test_an_xrootd_manager_that_sends_us_to_another_server_is_not_followed(
    folder: Path, root: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.make("in", CONTENT)
    port = root.started[0].rstrip("/").rsplit(":", 1)[1]
    monkeypatch.setenv("XROOTD_OPTIONS", f"xrootd.redirect 127.0.0.2:{port} all")
    (folder / "manager").mkdir(mode=0o711)
    manager = Server("root", folder / "manager")
    try:
        error = refusal(manager.mover(ONCE), manager.address("in"), tmp_path)
        assert "sends us on" in error.message
        assert "redirects" in (error.hint or "")
        assert not error.transient
    finally:
        manager.stop()


def test_a_redirection_of_xrootd_is_followed_whatever_the_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XRootD 5.5.3 does not encode names in `Location`."""
    (folder / "holder").mkdir(mode=0o711)
    holder = Server("davs", folder / "holder")
    port = holder.base.rstrip("/").rsplit(":", 1)[1]
    monkeypatch.setenv("XROOTD_OPTIONS", f"xrootd.redirect localhost:{port} all\nhttp.desthttps yes")
    (folder / "sender").mkdir(mode=0o711)
    sender = Server("davs", folder / "sender")
    try:
        for name in ("plain", "sp ace.root", "uni-\N{LATIN SMALL LETTER U WITH DIAERESIS}.root", "pl+us"):
            holder.make(name, name.encode())
            other = Endpoint(url=f"https://localhost:{port}/", ca=holder.endpoint.ca)
            mover = Mover([sender.endpoint, other], ONCE, size_max=10**9)
            assert get(mover, sender.address(name), tmp_path / "in") == name.encode()
            (tmp_path / "in").unlink()
    finally:
        sender.stop()
        holder.stop()


def test_a_slow_server_is_waited_for_as_long_as_it_sends(https: Server, tmp_path: Path) -> None:
    stall_s, size = 3.0, 800_000
    assert size / SLOW_BYTES_PER_S > stall_s
    (https.data / "slow").write_bytes(CONTENT[:size])
    mover = https.mover(msgspec.structs.replace(ONCE, stall_s=stall_s))
    told: list[int] = []
    watch = mover.watch()
    watch.on_progress = told.append
    mover.get(f"{https.base}slow/slow", tmp_path / "in", watch)
    assert (tmp_path / "in").read_bytes() == CONTENT[:size]
    assert told[-1] == size


def test_what_was_written_of_a_file_that_then_changes_goes(https: Server, tmp_path: Path) -> None:
    source, changed = https.data / "slow", CONTENT[800_000:1_600_000]
    source.write_bytes(CONTENT[:800_000])
    mover = https.mover(msgspec.structs.replace(SETTINGS, tries_max=5, pause_s=0.3))
    watch, begun = mover.watch(), threading.Event()
    watch.on_progress = lambda moved: begun.set()

    def change() -> None:
        begun.wait(30)
        https.crash()
        source.write_bytes(changed)
        os.utime(source, (1, 1))
        https.start()

    changing = threading.Thread(target=change)
    changing.start()
    moved = mover.get(f"{https.base}slow/slow", tmp_path / "in", watch)
    changing.join()
    assert moved.tries > 1
    assert (tmp_path / "in").read_bytes() == changed
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
