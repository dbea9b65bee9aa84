"""Pure parts of the engine: URLs, windows of clients, limits, findings; and directories that are unfit for a cache."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidemill.errors import ConfigError, ProtocolError, SiteError
from tidemill.routing.contact import greet, parse_greeting
from tidemill.routing.refusals import explained
from tidemill_caches import constants
from tidemill_caches.engine import directory as places
from tidemill_caches.engine import limits
from tidemill_caches.engine.health import Readings, findings
from tidemill_caches.engine.origins import allowing, parse_file, parse_origin, through
from tidemill_caches.engine.state import CacheState, OriginState, read_state, write_state
from tidemill_caches.engine.supervisor import PAUSE_MAX_S, check_port, pause_s
from tidemill_caches.engine.windows import client_environment, server_environment
from tidemill_caches.settings import CacheConfig, CacheCredential, CacheSpace

CONFIG = CacheConfig(origins=["root://a.example:1094//store/"], space=CacheSpace(max=10**9))
STATE = CacheState(host="h", port=1094, phase="running", at_us=1, supervisor_pid=1, supervisor_started_us=1)
NFS = "20 1 0:30 / / rw - ext4 /dev/vda rw\n21 20 0:31 / {} rw - nfs4 server:/x rw\n"


def test_a_file_belongs_to_the_origin_with_its_host_port_and_directory() -> None:
    listed = [parse_origin("root://a.example//store/"), parse_origin("roots://b.example:2000//data/")]

    assert allowing(listed, parse_file("root://a.example:1094//store/d/f")) == listed[0]
    assert allowing(listed, parse_file("roots://b.example:2000//data//f")) == listed[1]
    assert allowing(listed, parse_file("root://a.example//storehouse/f")) is None
    assert allowing(listed, parse_file("root://b.example:2000//data/f")) is None
    assert allowing(listed, parse_file("root://A.example//store/f")) is None


def test_the_url_through_a_cache_names_the_port() -> None:
    assert through("root://c.site:1095", parse_file("root://a.example//store/f")) == (
        "root://c.site:1095//root://a.example:1094//store/f"
    )


@pytest.mark.parametrize(
    "url",
    [
        "root://a//x/",
        "root://a",
        "a/b",
        "root://u:p@a//f",
        "root://a//f?x=1",
        "root://a//../f",
        "root://a//f\n",
        "",
    ],
)
def test_a_url_that_is_not_of_one_plain_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_file(url)


def test_the_windows_of_clients_last_for_a_restart_in_short_tries() -> None:
    made = client_environment()

    assert int(made["XRD_CONNECTIONWINDOW"]) * int(made["XRD_CONNECTIONRETRY"]) >= constants.RESTART_S
    assert int(made["XRD_CONNECTIONWINDOW"]) <= 10
    assert all(name.startswith("XRD_") and value.isdecimal() for name, value in made.items())


def test_only_the_cache_gets_the_credential_and_follows_no_redirect() -> None:
    config = CacheConfig(
        origins=CONFIG.origins, space=CONFIG.space, credential=CacheCredential(certificate=Path("/proxy"))
    )

    assert server_environment(config)["X509_USER_PROXY"] == "/proxy"
    assert server_environment(config)["XRD_REDIRECTLIMIT"] == "0"
    assert not any(name.startswith(("X509", "BEARER")) for name in client_environment())


def test_a_federation_follows_as_many_redirects_as_xrootds_client() -> None:
    config = CacheConfig(origins=CONFIG.origins, space=CONFIG.space, federation=True)
    redirector = OriginState(url="root://b:1094//", answers=True, since_us=0, redirects=True)

    assert server_environment(config)["XRD_REDIRECTLIMIT"] == "16"
    assert findings(config, Readings(running=True, answers=True, origins=[redirector])) == []


def test_limits_are_those_that_a_process_really_has() -> None:
    text = "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024                 4096    files\n"

    assert limits.parse_limits(text) == 1024
    assert limits.parse_limits("Max open files  unlimited  unlimited  files") == 1 << 30
    assert limits.parse_limits("nothing") is None
    assert limits.limit_of(os.getpid()) is not None
    assert limits.used_by(os.getpid())
    assert limits.used_by(1 << 30) is None


@pytest.mark.parametrize("files", [10, 1000, 80_000])
def test_as_many_files_fit_as_descriptors_are_asked_for(files: int) -> None:
    assert limits.files_possible(limits.needed(files)) == files


def test_a_cache_takes_the_descriptors_that_there_are_and_is_refused_below_those_of_ten_files() -> None:
    """In a process of its own, whose limit this is."""
    code = "import resource as r, sys; from tidemill_caches.engine import limits; hard = int(sys.argv[1])\n"
    code += "r.setrlimit(r.RLIMIT_NOFILE, (100, hard)); print(limits.raise_limit(10_000))"

    few, too_few = (
        subprocess.run([sys.executable, "-c", code, hard], capture_output=True, text=True, check=False)
        for hard in ("240", "229")
    )

    assert few.stdout == "240\n", few.stderr
    assert "a cache needs 230 descriptors at least, and this system allows 229" in too_few.stderr


def named(**read: object) -> dict[str, str]:
    made = Readings(**{"running": True, "answers": True, **read})  # type: ignore[arg-type]
    return {each.check: each.found for each in findings(CONFIG, made)}


def test_a_cache_that_is_well_has_no_findings() -> None:
    origin = OriginState(url="root://a//", answers=True, since_us=0)
    assert named(descriptors=100, descriptors_max=4000, disk_free_bytes=10**12, origins=[origin]) == {}


def test_each_trouble_is_named() -> None:
    silent = OriginState(url="root://a:1094//", answers=False, since_us=0, why="Connection refused")
    redirector = OriginState(url="root://b:1094//", answers=True, since_us=0, redirects=True)

    assert "it was killed by SIGKILL" in named(running=False, last_end="it was killed by SIGKILL")["process"]
    assert "does not answer" in named(answers=False)["process"]
    assert "restarted 5 times" in named(restarts=5)["process"]
    assert "3199 of 3200" in named(descriptors=3199, descriptors_max=3200)["descriptors"]
    assert "without being cached" in named(descriptors=3199, descriptors_max=3200)["descriptors"]
    assert "left" in named(disk_free_bytes=5)["disk"]
    assert named(origins=[silent])["origin"].endswith("1970-01-01T00:00:00Z: Connection refused")
    assert "is a redirector" in named(origins=[redirector])["origin"]


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        (
            "[ERROR] Server responded with an error: [3005] Unable to open /x; too many levels of symbolic links",
            "sent the",
        ),
        (
            "[ERROR] Server responded with an error: [3010] Opening path '/root:/a' is disallowed.",
            "not on the list",
        ),
        ("[ERROR] Server responded with an error: [3011] No such file or directory", "no such file"),
        (
            "[ERROR] Server responded with an error: [3012] Unable to open /x; connection refused",
            "origin does not answer",
        ),
        (
            "Run: [ERROR] Server responded with an error: [3012] socket operation on non-socket",
            "origin does not answer",
        ),
    ],
)
def test_what_a_client_prints_is_explained(errors: str, cause: str) -> None:
    assert cause in (explained(errors) or "")


def test_what_is_not_known_is_not_explained() -> None:
    assert explained("something else") is None


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_disk_that_is_not_mounted_is_not_taken_for_an_empty_cache(tmp_path: Path, is_removed: bool) -> None:
    directory, disk = tmp_path / "c", tmp_path / "disk"
    directory.mkdir()
    config = CacheConfig(origins=CONFIG.origins, space=CONFIG.space, data=disk)
    places.make_data(directory, config)
    places.make_data(directory, config)  # the next start
    disk.rename(tmp_path / "unmounted")
    if not is_removed:
        disk.mkdir()  # the mount point

    with pytest.raises(SiteError, match="its disk may not be mounted") as raised:
        places.make_data(directory, config)

    assert raised.value.hint is not None
    assert "data.json" in raised.value.hint
    assert disk.exists() is not is_removed  # nothing was made in its place
    elsewhere = CacheConfig(origins=CONFIG.origins, space=CONFIG.space, data=tmp_path / "other")
    assert places.make_data(directory, elsewhere) == tmp_path / "other"
    (directory / "data.json").unlink()
    assert places.make_data(directory, config) == disk


def test_pauses_between_starts_grow_to_a_bound() -> None:
    assert [pause_s(deaths) for deaths in (0, 1, 2, 3)] == [0.0, 0.5, 1.0, 2.0]
    assert pause_s(10**9) == PAUSE_MAX_S


def test_a_handshake_tells_servers_from_redirectors_and_others() -> None:
    server = struct.pack(">2sHIII", b"\0\0", 0, 8, 0x511, 1)
    assert parse_greeting(server).answers
    assert not parse_greeting(server).redirects
    assert parse_greeting(struct.pack(">2sHIII", b"\0\0", 0, 8, 0x511, 0)).redirects
    assert "ends connections" in parse_greeting(b"").why
    assert "not an XRootD server" in parse_greeting(b"HTTP/1.1 400 Bad").why
    assert "not an XRootD server" in parse_greeting(b"\0\0\0").why


def test_a_server_that_accepts_and_says_nothing_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert greet("127.0.0.1", server.getsockname()[1], 0.1).why


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SiteError, match=f"port {port} is taken"):
            check_port(port)
    check_port(port)


def test_a_state_that_is_no_state_is_refused_and_none_is_none(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert read_state(tmp_path) is None

    write_state(tmp_path, STATE, durable=True)
    assert read_state(tmp_path) == STATE

    (tmp_path / "run" / "state.json").write_text('{"host": 1}')
    with pytest.raises(ProtocolError, match=r"state\.json"):
        read_state(tmp_path)


def test_one_supervisor_has_a_directory(tmp_path: Path) -> None:
    places.make_parts(tmp_path / "c")

    with places.locked(tmp_path / "c"):
        assert places.is_locked(tmp_path / "c")
        with pytest.raises(ConfigError, match="runs in"), places.locked(tmp_path / "c"):
            pass

    assert not places.is_locked(tmp_path / "c")


def test_data_on_a_network_file_system_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    mounted = NFS.format(tmp_path)
    with pytest.raises(ConfigError, match="network file system: `nfs4`"):
        places.make_data(tmp_path, CONFIG, mountinfo=mounted)
    assert not data.exists()


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)

    with pytest.raises(ConfigError, match="may be written by others"):
        places.make_data(tmp_path, CONFIG)


@pytest.mark.skipif(os.getuid() != 0, reason="giving a directory away needs root")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.chown(tmp_path / "data", 1, 1)

    with pytest.raises(ConfigError, match="belongs to another user"):
        places.make_data(tmp_path, CONFIG)


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")

    with pytest.raises(ConfigError, match="is not a directory"):
        places.make_data(tmp_path, CONFIG)


def test_a_cache_larger_than_its_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than the whole disk"):
        places.make_data(tmp_path, CacheConfig(origins=CONFIG.origins, space=CacheSpace(max=10**18)))


def test_a_full_disk_is_named_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"the disk of `.*` is full: 50 MB of 10 GB are free"):
        places._check_room(tmp_path, 50_000_000, 10**10, space_max=10**9)


def test_a_credential_that_is_not_there_is_named_with_its_key_and_a_next_step(tmp_path: Path) -> None:
    missing = CacheCredential(certificate=tmp_path / "proxy")
    with pytest.raises(ConfigError, match=r"`credential.certificate`: `.*/proxy` does not exist") as caught:
        places.check_credentials(CacheConfig(origins=CONFIG.origins, space=CONFIG.space, credential=missing))
    assert "voms-proxy-init" in str(caught.value.hint)


def test_a_refused_cache_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new" / "c"
    (old / "log").mkdir(parents=True)
    (old / "log" / "mine").write_text("x")
    too_large = CacheConfig(origins=CONFIG.origins, space=CacheSpace(max=10**18))

    def make(directory: Path) -> None:
        with places.removed_if_refused(directory, too_large):
            places.make_parts(directory)
            places.make_data(directory, too_large)

    for directory in (old, new):
        with pytest.raises(ConfigError, match="whole disk"):
            make(directory)
    assert sorted(tmp_path.rglob("*")) == [old, old / "log", old / "log" / "mine"]


def test_a_refused_cache_leaves_the_one_that_another_has_made_meanwhile(tmp_path: Path) -> None:
    directory = tmp_path / "c"

    def make() -> None:
        with places.removed_if_refused(directory, CONFIG):
            places.make_parts(directory)
            places.make_data(directory, CONFIG)
            (directory / places.CONFIG).write_text("another's")
            raise ConfigError("it exists already")

    with pytest.raises(ConfigError, match="exists already"):
        make()
    assert (directory / "data" / places.DATA_MARK).exists()


def test_a_credential_that_others_may_read_is_refused(tmp_path: Path) -> None:
    proxy = tmp_path / "proxy"
    proxy.write_text("x")
    proxy.chmod(0o644)

    with pytest.raises(ConfigError, match="open to others"):
        places.check_credentials(
            CacheConfig(
                origins=CONFIG.origins, space=CONFIG.space, credential=CacheCredential(certificate=proxy)
            )
        )


def test_a_directory_without_a_configuration_is_not_a_cache(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a cache directory"):
        places.read_cache(tmp_path)


def test_many_greetings_at_a_time_do_not_disturb_each_other() -> None:
    answer = struct.pack(">2sHIII", b"\0\0", 0, 8, 0x511, 1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(5):
                connection, _ = server.accept()
                connection.recv(20)
                connection.sendall(answer)
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert all(greet("127.0.0.1", server.getsockname()[1], 5).answers for _ in range(5))
        thread.join()


def test_those_who_ask_whether_a_cache_runs_keep_none_from_starting(tmp_path: Path) -> None:
    """They hold the lock for a moment, as an agent does each few seconds."""
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        timer = threading.Timer(0.1, lambda: fcntl.flock(asking, fcntl.LOCK_UN))
        timer.start()
        with places.locked(tmp_path):
            assert places.is_locked(tmp_path)
        timer.join()
