"""What `site check` says of caches and container runtimes, and that it writes nothing."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemill.cli.main import main
from tidemill.cli.site.caches import examine_caches
from tidemill.cli.site.containers import examine_containers
from tidemill.config.caching import SiteCache
from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.site.setup.finding import Finding

GREETING = b"\0\0" + struct.pack(">HIII", 0, 8, 0x520, 1)
CACHE = """origins = ["root://far.example.org:1094//store/"]
[space]
max = "1GB"
"""


@contextmanager
def server(reply: bytes) -> Iterator[int]:
    """A port on which every message is answered like this."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(100)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def caches(*found: SiteCache, offline: bool = False) -> list[Finding]:
    return list(examine_caches(SiteConfig(name="s", server="unix:/x", caches=[*found]), offline=offline))


def containers(**found: list[str]) -> list[Finding]:
    runtimes = {name.replace("_", "-"): ContainerRuntime(command=words) for name, words in found.items()}
    return list(examine_containers(SiteConfig(name="s", server="unix:/x", containers=runtimes)))


def directory(path: Path, more: str = "") -> Path:
    path.mkdir()
    (path / "cache.toml").write_text(CACHE + more)
    return path


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_cache_is_asked_whether_it_answers() -> None:
    with server(GREETING) as port, server(b"SSH-2.0-OpenSSH_9.2\r\n") as other:
        well, wrong, gone = caches(
            SiteCache(name="well", url=f"root://127.0.0.1:{port}"),
            SiteCache(name="wrong", url=f"root://127.0.0.1:{other}"),
            SiteCache(name="gone", url=f"root://127.0.0.1:{closed_port()}"),
        )
        (offline,) = caches(SiteCache(name="wrong", url=f"root://127.0.0.1:{other}"), offline=True)
    assert (well.state, well.found) == ("ok", f"`well`: at root://127.0.0.1:{port}, which answers")
    assert (wrong.state, "is not an XRootD server" in wrong.found) == ("warn", True)
    assert (gone.state, "does not answer from this host" in gone.found, "`url`" in gone.hint) == (
        "warn",
        True,
        True,
    )
    assert (offline.state, "answers" in offline.found) == ("ok", False)


def test_a_cache_that_fetches_http_is_asked_by_http() -> None:
    with server(b"HTTP/1.0 200 OK\r\n\r\n") as port:
        (found,) = caches(SiteCache(name="squid", url=f"http://127.0.0.1:{port}//http:"))
    assert (found.state, found.found) == ("ok", f"`squid`: at http://127.0.0.1:{port}, which answers")


def test_a_directory_of_a_cache_needs_a_legal_cache_toml_and_its_credential(tmp_path: Path) -> None:
    url = "root://localhost:1094"
    (tmp_path / "empty").mkdir()
    key = tmp_path / "proxy.pem"
    named = directory(tmp_path / "named", f'[credential]\ncertificate = "{key}"\n')
    findings = [
        caches(SiteCache(name="c", url=url, directory=path))[0]
        for path in (
            tmp_path / "empty",
            named,
            directory(tmp_path / "good"),
            directory(tmp_path / "odd", "x = 1\n"),
        )
    ]
    assert [each.state for each in findings] == ["fail", "fail", "ok", "fail"]
    told = [each.found for each in findings]
    assert "is not a cache directory: it has no cache.toml" in told[0]
    assert f"`credential.certificate`: `{key}` does not exist" in told[1]
    assert f"{tmp_path / 'good' / 'cache.toml'} is legal, it shows origins no credential" in told[2]
    assert "unknown key `space.x`" in told[3]
    key.write_text("")
    key.chmod(0o600)
    assert caches(SiteCache(name="c", url=url, directory=named))[0].state == "ok"


def test_a_cache_in_node_memory_is_read_as_pilots_get_it(tmp_path: Path) -> None:
    place = directory(tmp_path / "c")
    small, large = caches(
        SiteCache(name="small", memory=1 << 30, directory=place),
        SiteCache(name="large", memory=4 << 30, directory=place),
    )
    assert (small.state, "a cache in node memory needs" in small.found) == ("fail", True)
    assert (large.state, "each node runs it, in 4096 MB of memory" in large.found) == ("ok", True)


def test_a_container_runtime_is_asked_for_its_version(tmp_path: Path) -> None:
    scripts = {"well": "echo podman version 4.3.1", "sad": "echo no configuration >&2; exit 3"}
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "plain").write_text("")
    well, sad, plain, absent, odd = containers(
        podman=[str(tmp_path / "well"), "--storage-driver=vfs"],
        shifter=[str(tmp_path / "sad")],
        apptainer=[str(tmp_path / "plain")],
        podman_hpc=["/opt/only-on-nodes/podman-hpc"],
        docker=["/bin/true"],
    )
    assert (well.state, well.found) == ("ok", f"`podman`: {tmp_path / 'well'}: podman version 4.3.1")
    assert (sad.state, "exit status 3, no configuration" in sad.found) == ("warn", True)
    assert (plain.state, "is not a program that you may run" in plain.found) == ("fail", True)
    assert (absent.state, "only compute nodes have it" in absent.hint) == ("warn", True)
    assert (odd.state, "`containers.docker` is not a known runtime" in odd.found) == ("fail", True)


def fake_slurm(path: Path) -> None:
    """Commands of a cluster that answers nothing."""
    path.mkdir()
    for name in ("sbatch", "squeue", "sinfo", "scontrol", "sacctmgr", "sacct", "scancel"):
        (path / name).write_text("#!/bin/sh\necho Unable to contact slurm controller >&2\nexit 1\n")
        (path / name).chmod(0o755)


def test_a_check_writes_nothing_into_the_site_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    site = tmp_path / "site"
    (site / "apps").mkdir(parents=True, mode=0o700)
    site.chmod(0o700)
    (site / "site.toml").write_text(
        'name = "s"\nserver = "https://tide.example.org"\nbatch = "slurm"\n'
        '[containers.podman]\ncommand = ["/opt/only-on-nodes/podman"]\n'
        '[[caches]]\nname = "c"\nurl = "root://localhost:1094"\n'
    )
    assert main(["site", "check", str(site), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert {each["check"] for each in found} >= {"batch system", "cache", "container"}
    assert sorted(each.name for each in site.rglob("*")) == ["apps", "site.toml"]
