"""A server process with https, our own CA, and another CA by hash with CRLs; and who comes to it."""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.timing import timing
from tests.worlds.services.ports import free_port

from tidemill.client.authority import Authority, Wanted
from tidemill.wire.api import AllocationReport, AppOffer, Capacity, SyncRequest

if TYPE_CHECKING:
    from tests.worlds.services.token_issuer import Issuer

START = "import sys; from tidemill.server.run import entry; sys.exit(entry(__import__('json').loads(sys.argv[1])))"
DEADLINE_S = 60.0
ISSUER = "https://iam.example.org/"
AUDIENCE = "https://tidemill.example.org"
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def private(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)
    return path


class Certs:
    """Our CA, a stranger's of the same name, and a grid CA as a directory by hash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = Authority.create(folder / "own", name="Tidemill CA", days=10)
        self.stranger = Authority.create(folder / "stranger", name="Tidemill CA", days=10)
        self.server = self.of(self.own, "server", "127.0.0.1")
        for role, name in [
            ("submitter", "ada"),
            ("submitter", "bob"),
            ("submitter", "eve"),
            ("site", "lrz"),
            ("site", "nemo"),
            ("operator", "olga"),
        ]:
            self.of(self.own, role, name)
        self.grid = folder / "grid"
        self.grid_key = ec.generate_private_key(ec.SECP256R1())
        self.grid_ca = self.signed("GridCA", self.grid_key, None, self.grid_key)
        self.write_grid(gone=[])

    def of(self, authority: Authority, role: str, name: str, days: int = 5) -> tuple[Path, Path]:
        where = authority.certificate_path.parent
        made = authority.issue(Wanted(role=role, name=name, days=days), where)
        assert made.key is not None
        return made.certificate, made.key

    def pair(self, name: str) -> tuple[Path, Path]:
        where = self.own.certificate_path.parent
        return where / f"{name}.pem", where / f"{name}.key"

    def signed(
        self,
        name: str,
        key: Key,
        issuer: x509.Certificate | None,
        signer: Key,
        *,
        unit: str = "",
        ended: bool = False,
    ) -> x509.Certificate:
        """A certificate made by hand: of the grid CA, of a role that it makes up, or one that has expired."""
        now, oids = datetime.now(UTC), x509.oid.NameOID
        parts = [(oids.DOMAIN_COMPONENT, "org")]
        if unit:
            parts = [(oids.ORGANIZATION_NAME, "Tidemill"), (oids.ORGANIZATIONAL_UNIT_NAME, unit)]
        subject = x509.Name([x509.NameAttribute(*each) for each in [*parts, (oids.COMMON_NAME, name)]])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=3))
            .not_valid_after(now - timedelta(days=1) if ended else now + timedelta(days=3))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        return builder.sign(signer, hashes.SHA256())

    def store(self, folder: Path, name: str, certificate: x509.Certificate, key: Key) -> tuple[Path, Path]:
        folder.mkdir(exist_ok=True)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = folder / f"{name}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path, private(folder / f"{name}.key", text)

    def expired(self, role: str, name: str) -> tuple[Path, Path]:
        own = self.own.certificate_path.read_bytes()
        signer = serialization.load_pem_private_key(self.own.key_path.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        made = self.signed(name, key, x509.load_pem_x509_certificate(own), signer, unit=role, ended=True)
        return self.store(self.folder / "expired", name, made, key)

    def of_grid(self, name: str, unit: str = "") -> tuple[x509.Certificate, tuple[Path, Path]]:
        key = ec.generate_private_key(ec.SECP256R1())
        made = self.signed(name, key, self.grid_ca, self.grid_key, unit=unit)
        return made, self.store(self.folder / "people", name, made, key)

    def write_grid(self, gone: list[x509.Certificate]) -> None:
        """The directory of the grid CA: `HASH.0` and `HASH.r0`, as openssl names them."""
        self.grid.mkdir(exist_ok=True)
        pem = self.grid_ca.public_bytes(serialization.Encoding.PEM)
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.grid_ca.subject)
        builder = builder.last_update(now).next_update(now + timedelta(days=1))
        for each in gone:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.serial_number)
                .revocation_date(now)
                .build()
            )
        (self.grid / "ca.pem").write_bytes(pem)
        named = subprocess.run(
            ["openssl", "x509", "-hash", "-noout", "-in", self.grid / "ca.pem"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        (self.grid / "ca.pem").rename(self.grid / f"{named}.0")
        crl = builder.sign(self.grid_key, hashes.SHA256())
        (self.grid / f"{named}.r0").write_bytes(crl.public_bytes(serialization.Encoding.PEM))


class World:
    """The server, and calls to it as somebody. `issuer`: whose tokens it believes, by the extension `tokens`."""

    def __init__(self, folder: Path, certs: Certs, issuer: Issuer | None, **more: Any) -> None:
        self.folder, self.certs, self._issuer = folder, certs, issuer
        self.revoked = folder / "server" / "revoked.txt"  #: which is not there at the start
        self.port = free_port()
        certificate, key = certs.server
        members = {"/DC=org/CN=Grace Hopper": "submitter grace"}
        tokens: dict[str, Any] = {}
        if issuer is not None:
            members |= {"group:/tide/operators@iam": "operator oscar", "robot-cori@iam": "site cori"}
            believed = {"name": "iam", "issuer": ISSUER, "audience": [AUDIENCE], "jwks": str(issuer.jwks)}
            tokens = {"tokens": {"issuers": [believed]}}
        config = {
            "dir": str(folder / "server"),
            "listen": f"127.0.0.1:{self.port}",
            "tls": {
                "certificate": str(certificate), "key": str(key), "ca": str(certs.own.certificate_path),
                "other_ca": str(certs.grid), "crl": "leaf",
            },
            "roles": {"members": members},
            **tokens,
            **more,
        }  # fmt: skip
        self.address = f"https://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        with self.log.open("ab") as log, timing(server={"CERTIFICATES_RELOAD_S": 1}):
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(config)], stderr=log, stdout=log
            )
        until(self._works)

    @property
    def issuer(self) -> Issuer:
        """Who signs tokens that the server believes."""
        assert self._issuer is not None
        return self._issuer

    def revoke(self, text: str) -> None:
        """Write the list of revoked credentials, and wait until the server has read it, and has noted in the database
        that there was one, which it does once and some seconds later."""

        def looks() -> int:
            return len(self.events("revoked.read")) + len(self.events("revoked.unread"))

        before, whole = looks(), self.revoked.with_name("revoked.new")
        whole.write_text(text)
        whole.replace(self.revoked)
        until(lambda: looks() > before)
        if any(each["entries"] for each in self.events("revoked.read")):
            until(lambda: any("revoked_known" in row for row in self.content()["meta"]))

    def _works(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.call(None, "GET", "/v1/health")[0] == 200
        except OSError:
            return False

    def context(self, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.certs.own.certificate_path))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def call(
        self,
        who: str | tuple[Path, Path] | None,
        method: str,
        path: str,
        body: Any = None,
        **headers: str,
    ) -> tuple[int, Any]:
        """Status and answer. `who`: a name of our CA, `token:...`, or a pair of files; None: a stranger."""
        pair = None
        if isinstance(who, tuple):
            pair = who
        elif who is not None and who.startswith("token:"):
            headers["Authorization"] = "Bearer " + who.removeprefix("token:")
        elif who is not None:
            pair = self.certs.pair(who)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=DEADLINE_S, context=self.context(pair)
        )
        try:
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            if answer.getheader("Content-Type", "").startswith("text/event-stream"):
                return answer.status, answer.readline()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def events(self, name: str) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]  # the last line may be half written
        lines = [json.loads(line) for line in whole.split("\n") if line.startswith("{")]
        return [each for each in lines if each["event"] == name]

    def content(self) -> dict[str, list[Any]]:
        """Everything in the database but what moves by itself: how often somebody asked, what was told by mail."""
        with sqlite3.connect(f"file:{self.folder / 'server' / 'tidemill.db'}?mode=ro", uri=True) as database:
            tables = [
                row[0]
                for row in database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
                )
            ]
            return {
                table: sorted(
                    repr(row)
                    for row in database.execute(f'SELECT * FROM "{table}"')
                    if row[0] not in ("audit_lines", "notified")
                )
                for table in tables
                if not table.startswith("audit")
            }

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(DEADLINE_S)


def submission(campaign: str, key: str, **spec: Any) -> dict[str, Any]:
    return {"key": key, "campaign": campaign, "jobs": [{"app": "sim", "events": 10, **spec}]}


def running(name: str) -> AllocationReport:
    """A site's first report: an allocation of one node runs."""
    return AllocationReport(
        n=1, name=name, batch_id="1", state="ACTIVE", nodes=1, cores=8, at_us=1, reason="", busy_us=0, slot_us=0,
    )  # fmt: skip


def sync(site: str, **changes: Any) -> SyncRequest:
    capacity = Capacity(
        want_core_s=1e6, want_ranges_max=5000, slot_cores_max=1, slot_memory_mb_max=4000, devices={}, event_s={},
        nodes=1, busy_cores=0, adhoc=False,
    )  # fmt: skip
    offer = AppOffer(
        name="sim", version="1", digest="sha256:" + "5" * 64, mode="events", parameters={}, outputs=[], cores=1,
        memory_mb=100, event_s=1.0,
    )  # fmt: skip
    request = SyncRequest(
        site=site, epoch=1, host=os.uname().nodename, version="1", reports=[], have=0, offers=[offer],
        capacity=capacity,
    )  # fmt: skip
    return msgspec.structs.replace(request, **changes)
