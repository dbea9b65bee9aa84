"""A cache with TLS for clients with certificates, in front of an origin that asks for one as well."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.services.cache_world import SCRIPTS, CacheWorld, Origin, cache_world

CONTENT = os.urandom(200_000)
EXTENSIONS = (
    "keyUsage=critical,digitalSignature,keyEncipherment\nproxyCertInfo=critical,language:id-ppl-inheritAll\n"
)


def proxy_of(certs: Path, name: str) -> Path:
    """A proxy certificate (RFC 3820) of a user of the origin's certification authority, for the cache's user."""
    subprocess.run(
        ["sh", "-c", '. "$1"/service.sh; make_ca "$2" "$3"', "sh", SCRIPTS, certs, name], check=True
    )
    (certs / "proxy.ext").write_text(EXTENSIONS)
    key, request, made = certs / f"{name}-p.key", certs / f"{name}-p.csr", certs / f"{name}-p.pem"
    subject = f"/O=tidemill-tests/CN={name}/CN=4711"
    for command in (
        ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", subject],
        ["x509", "-req", "-in", request, "-CA", certs / f"{name}.pem", "-CAkey", certs / f"{name}.key", "-out", made,
         "-set_serial", "4711", "-days", "1", "-extfile", certs / "proxy.ext"],
    ):  # fmt: skip
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    proxy = certs.parent.parent / f"{name}-proxy"
    proxy.write_bytes(made.read_bytes() + key.read_bytes() + (certs / f"{name}.pem").read_bytes())
    proxy.chmod(0o600)
    return proxy


@pytest.fixture(scope="module")
def world() -> Iterator[CacheWorld]:
    """An origin that asks for a certificate, a cache that has a proxy and asks for one too."""
    with cache_world() as made:
        certs = made.origin.folder / "certs"
        made.origin.stop()
        made.host = "localhost"  # as its certificate says
        options = (
            f"xrootd.seclib libXrdSec.so\nsec.protocol gsi -certdir:{certs}/trust -crldir:{certs}/trust -crl:try "
            f"-cert:{certs}/host.pem -key:{certs}/host.key -gmapopt:nomap"
        )
        made.origin = Origin(made.folder / "o", {"XROOTD_OPTIONS": options})
        made.make("f", CONTENT)
        proxy_of(certs, "person")
        own = made.home / "own-proxy"
        shutil.copy(proxy_of(certs, "cache"), own)
        for name in ("host.pem", "host.key"):
            shutil.copy(certs / name, made.home / name)
        shutil.copytree(certs / "trust", made.home / "trust")
        for path in (own, made.home / "host.pem", made.home / "host.key"):
            path.chmod(0o600)
            if os.getuid() == 0:
                shutil.chown(path, "nobody", "nogroup")
        made.init("--certificate", str(own))
        made.set_table(
            "tls", certificate=made.home / "host.pem", key=made.home / "host.key", ca=made.home / "trust"
        )
        made.set_table("credential", certificate=own, ca=made.home / "trust")
        made.start()
        yield made


def copied(world: CacheWorld, proxy: str, scheme: str = "roots") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["xrdcp", "--silent", f"{scheme}://localhost:{world.port}//{world.direct('f')}", "-"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=100,
        env={
            **world.client_environ,
            "HOME": str(world.folder / "nobody"),
            "X509_CERT_DIR": str(world.home / "trust"),
            "X509_USER_PROXY": proxy,
        },
    )


def test_a_client_with_a_certificate_reads_by_tls_what_the_caches_own_certificate_may_read(
    world: CacheWorld,
) -> None:
    done = copied(world, str(world.folder / "person-proxy"))

    assert done.stdout == CONTENT, done.stderr


@pytest.mark.parametrize("scheme", ["root", "roots"])
def test_a_client_without_a_certificate_reads_nothing(world: CacheWorld, scheme: str) -> None:
    copied(world, str(world.folder / "person-proxy"))

    done = copied(world, str(world.folder / "none"), scheme)

    assert done.returncode != 0
    assert done.stdout == b""


def test_the_origin_itself_refuses_a_client_that_shows_nothing(world: CacheWorld) -> None:
    environ = {**world.client_environ, "X509_USER_PROXY": str(world.folder / "none"), "HOME": "/nonexistent"}
    done = subprocess.run(
        ["xrdcp", "--silent", world.direct("f"), "-"],
        capture_output=True,
        env=environ,
        check=False,
        timeout=100,
    )

    assert done.returncode != 0
    assert done.stdout == b""


def test_a_credential_that_others_may_read_stops_the_start_with_the_reason(world: CacheWorld) -> None:
    own = world.home / "own-proxy"
    own.chmod(0o644)
    try:
        world.stop()
        done = world.tidemill("cache", "run", str(world.directory))
    finally:
        own.chmod(0o600)
        world.start()

    assert done.returncode == 2
    assert "is open to others: mode 0644" in done.stderr
