"""What `site check` says of caches and container runtimes, and that it writes nothing."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tidemill import clock
from tidemill.cli.main import main
from tidemill.cli.site.caches import examine_caches
from tidemill.cli.site.check import effective, examine_site
from tidemill.cli.site.containers import VERSION_S, examine_containers
from tidemill.cli.site.directory import read_site
from tidemill.config.caching import SiteCache
from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.routing.contact import greet
from tidemill.site.applications.catalogue import Applications
from tidemill.site.setup.finding import Finding

GREETING = b"\0\0" + struct.pack(">HIII", 0, 8, 0x520, 1)


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


def containers(version_s: float = VERSION_S, **found: list[str]) -> list[Finding]:
    runtimes = {name.replace("_", "-"): ContainerRuntime(command=words) for name, words in found.items()}
    return list(
        examine_containers(SiteConfig(name="s", server="unix:/x", containers=runtimes), version_s=version_s)
    )


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


def test_a_cache_that_answers_byte_by_byte_counts_as_silent() -> None:
    """Each byte comes before a reader's patience for one byte ends: the handshake as a whole has a limit."""
    ends = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                while not ends.wait(0.2):
                    connection.sendall(b"\0")

        thread = threading.Thread(target=drip)
        thread.start()
        found = greet("127.0.0.1", listener.getsockname()[1], 0.5)
        ends.set()
        thread.join()
    assert found.why == "no whole answer within 0.5 s" or "timed out" in found.why


def test_a_path_that_cannot_be_looked_up_is_a_finding(tmp_path: Path) -> None:
    """As in a directory that is closed to the caller: `Path.exists` raises, of this path for root, too."""
    closed = tmp_path / ("x" * 300)
    (runtime,) = containers(podman=[str(closed / "podman")])
    assert (runtime.state, "cannot be seen from here: " in runtime.found) == ("warn", True)
    read = SiteConfig(
        name="s", server="unix:/x", batch="slurm", show=[closed], secret_file=closed / "secret",
        certificate=closed / "c.pem", output_dir=closed, stop_file=closed / "STOP",
        endpoints=[Endpoint(url="s3://bucket/", credentials_file=closed / "keys")],
    )  # fmt: skip
    (tmp_path / "site.toml").write_text('name = "s"\nserver = "unix:/x"\n')
    found = [
        each
        for each in examine_site(tmp_path, read, offline=True)
        if "cannot be seen from here" in each.found
    ]
    assert [each.check for each in found] == [
        "show", "output_dir", "secret_file", "certificate", "endpoint", "stop_file",
    ]  # fmt: skip


def test_contact_and_stop_file_are_shown_once_they_are_set(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('name = "s"\nserver = "unix:/x"\n')
    stop = tmp_path / "staff" / "STOP"
    stop.parent.mkdir()
    read = SiteConfig(name="s", server="unix:/x", batch="slurm", contact="me@x.org", stop_file=stop)
    found = {each.check: each for each in examine_site(tmp_path, read, offline=True)}
    assert (found["contact"].state, "me@x.org" in found["contact"].found) == ("ok", True)
    assert (found["stop_file"].state, str(stop) in found["stop_file"].found) == ("ok", True)
    stop.touch()
    found = {each.check: each for each in examine_site(tmp_path, read, offline=True)}
    assert (found["stop_file"].state, "exists" in found["stop_file"].found) == ("warn", True)


def test_an_application_that_shows_a_path_that_cannot_be_looked_up_is_read(tmp_path: Path) -> None:
    apps = tmp_path / "apps"
    apps.mkdir(mode=0o700)
    closed = tmp_path / ("x" * 300) / "data"
    (apps / "a.toml").write_text(f'name = "a"\nexecutable = "/bin/true"\nshow = ["{closed}"]\n')
    (apps / "b.toml").write_text(
        f'name = "b"\nexecutable = "/bin/true"\ncontainer = {{ runtime = "podman", image = "{closed}" }}\n'
    )
    applications = Applications(apps, site=SiteConfig(name="s", server="unix:/x"))
    applications.refresh()
    assert (list(applications.by_name), list(applications.problems)) == (["a"], ["b.toml"])


def test_a_runtime_gets_no_secrets_and_has_to_answer_briefly_and_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEARER_TOKEN", "abc")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abc")
    child = tmp_path / "child"
    scripts = {
        "env": 'echo "${BEARER_TOKEN-none} ${AWS_SECRET_ACCESS_KEY-none} ${HOME:+home}"',
        "endless": "exec yes",
        "slow": f"sleep 600 & echo $! >{child}",  # it ends, and its child holds the pipe
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    told, endless, slow = containers(
        2,
        podman=[str(tmp_path / "env")],
        shifter=[str(tmp_path / "endless")],
        apptainer=[str(tmp_path / "slow")],
    )
    assert (told.state, told.found) == ("ok", f"`podman`: {tmp_path / 'env'}: none none home")
    assert (endless.state, "printed more than" in endless.found) == ("warn", True)
    assert (slow.state, "did not answer within 2 s" in slow.found) == ("warn", True)
    deadline_s = clock.monotonic_s() + 20
    while Path(f"/proc/{child.read_text().strip()}").exists() and clock.monotonic_s() < deadline_s:
        clock.sleep_s(0.01)
    assert not Path(f"/proc/{child.read_text().strip()}").exists(), "the child was ended, too"


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


@pytest.mark.parametrize(("batch", "policy"), [("local", "demand"), ("slurm", "yield")])
def test_values_that_follow_from_the_batch_system_are_shown_as_they_are_used(
    tmp_path: Path, batch: str, policy: str
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'name = "here"\nserver = "unix:/s"\nbatch = "{batch}"\n')
    read = read_site(tmp_path)

    rows = {key: value for key, value, _ in effective(path, read)}

    assert rows["harvest.policy"] == policy
