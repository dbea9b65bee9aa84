"""A real Rucio server on loopback, started by our own script, with a few files at three stores."""

from __future__ import annotations

import http.client
import json
import subprocess
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

SCRIPT = Path(__file__).parents[4] / "scripts" / "rucio.sh"
STORES = {"LAB-FAR": "FAR", "LAB-DOWN": "FAR", "LAB-NEAR": "NEAR"}
"""Stores and the sites of theirs. The far one has the first name: the order of names must not help the near one."""

FILES = 250


class RucioWorld:
    """A running server; account `root` with `password`."""

    def url_of(self, account: str) -> str:
        """Its URL for a login to this account."""
        return self.url.replace("://", f"://{account}@")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        done = self.call("start")
        if done.returncode:
            pytest.skip(f"rucio does not start: {done.stderr.strip()[-300:]}")
        self.url, self.password = done.stdout.split()
        self._token = ""
        self.hosts = {store: f"{store.lower()}.example.org" for store in STORES}

    @property
    def token(self) -> str:
        return self._token

    def call(self, verb: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPT), verb, str(self.folder)], capture_output=True, text=True, timeout=300, check=False
        )

    def ask(self, method: str, path: str, body: object = None) -> str:
        """One call as root; fails the test where Rucio refuses it."""
        headers = {"X-Rucio-Auth-Token": self._token} if self._token else {}
        if not self._token:
            headers = {
                "X-Rucio-Account": "root", "X-Rucio-Username": "root", "X-Rucio-Password": self.password,
            }  # fmt: skip
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        text = reply.read().decode()
        assert reply.status < 300, f"{method} {path}: {reply.status} {text[:300]}"
        self._token = self._token or reply.headers["X-Rucio-Auth-Token"]
        connection.close()
        return text

    def seed(self) -> None:
        """Stores with protocols of two kinds, and files: `file.0000` ... at the near and the far one, `only.far`,
        `only.down`, `broken` (not available)."""
        self.ask("GET", "/auth/userpass")
        self.ask("POST", "/scopes/root/lab")
        for store, site in STORES.items():
            self._store(store, site)
            self._doors(store)
        usual = [f"file.{n:04}" for n in range(FILES)]
        self.put("LAB-NEAR", usual)
        self.put("LAB-FAR", [*usual, "only.far"])
        self.put("LAB-DOWN", ["only.down"])
        self.put("LAB-FAR", ["broken"], state="U")
        self.ask("PUT", "/rses/LAB-DOWN", {"availability_read": False})

    def add_server(self, store: str, port: int, *, site: str) -> None:
        """A store with a real server on this host."""
        self.hosts[store] = "127.0.0.1"
        self._store(store, site)
        self._door(store, "root", port, (1, 1))

    def _store(self, store: str, site: str) -> None:
        rights = {"rse_type": "DISK", "deterministic": True}
        rights |= {f"availability_{what}": True for what in ("read", "write", "delete")}
        self.ask("POST", f"/rses/{store}", rights)
        self.ask("POST", f"/rses/{store}/attr/site", {"value": site})

    def put(self, store: str, names: list[str], **more: object) -> None:
        files = [
            {
                "scope": "lab", "name": name, "bytes": len(self.content(name)),
                "adler32": f"{zlib.adler32(self.content(name)):08x}", **more,
            }
            for name in names
        ]  # fmt: skip
        self.ask("POST", "/replicas/", {"rse": store, "files": files})

    @staticmethod
    def content(name: str) -> bytes:
        return f"the bytes of {name}\n".encode()

    def _doors(self, store: str) -> None:
        """`root` is the first choice within the site (lan), `https` from elsewhere (wan)."""
        for scheme, port, lan, wan in (("root", 1094, 1, 2), ("https", 443, 2, 1)):
            self._door(store, scheme, port, (lan, wan))

    def _door(self, store: str, scheme: str, port: int, ranks: tuple[int, int]) -> None:
        kind = {"root": "xrootd", "https": "webdav"}[scheme]
        lans = {what: ranks[0] for what in ("read", "write", "delete")}
        wans = {what: ranks[1] for what in ("read", "write", "delete", "third_party_copy_read")}
        self.ask(
            "POST",
            f"/rses/{store}/protocols/{scheme}",
            {
                "hostname": self.hosts[store],
                "port": port,
                "prefix": "//store/" if scheme == "root" else "/store/",
                "impl": f"rucio.rse.protocols.{kind}.Default",
                "domains": {"lan": lans, "wan": {**wans, "third_party_copy_write": ranks[1]}},
            },
        )
