"""A payload tries the ways out of its slot that are no files, and takes what no limit seems to count.

Real pilots of an ordinary user, on a node with stand-ins of a batch system's sockets in its own /run. As root the
pilots run as another user; without root in a user namespace, which has all that these tests need.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.node.pilot_fleet import Field, field, grants, job, program

from tidemill.wire.node import Done, Failed, NamedPaths, Program, Started, View

NOBODY = 65534
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else str(Path(sys.executable).resolve())
KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(platform.machine(), (0, 0))

SOCKETS = ["/run/slurm/sack.socket", "/run/slurm-two/sack.socket", "/run/slurmctld/sack.socket",
           "/run/munge/munge.socket.2", "/run/dbus/system_bus_socket", "/run/docker.sock"]  # fmt: skip
"""Before the pilot starts: a /run with sockets that answer, and one that is nobody's business to hide."""
NODE = f"""
import os, socket, subprocess
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "run", "/run"], check=True)
listeners = []
for path in {[*SOCKETS, "/run/other/socket"]!r}:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    listeners.append(socket.socket(socket.AF_UNIX))
    listeners[-1].bind(path)
    os.chmod(path, 0o777)
    listeners[-1].listen(100)
    listeners[-1].set_inheritable(True)  # it listens for as long as the pilot lives
"""
CALLS = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def keyctl(*words):
    return libc.syscall({KEYCTL[1]}, *words)
"""
"""The pilot's user has a key in the session and one in the keyring of all sessions."""
KEYS = f"""{CALLS}
import sys
keyctl(1, None)
for keyring, name in ((-3, b"of-session"), (-4, b"of-user")):
    assert libc.syscall({KEYCTL[0]}, b"user", name, b"a secret", 8, keyring) > 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""
READ_KEYS = f"""{CALLS}
import sys
for line in open("/proc/keys"):
    if "_uid" in line or "of-" in line:
        serial = int(line.split()[0], 16)
        keyctl(8, serial, -3)  # link
for keyring in (-3, -4, -5):
    for name in (b"of-session", b"of-user"):
        serial = keyctl(10, keyring, b"user", name, 0)  # search
        text = ctypes.create_string_buffer(20)
        if serial > 0 and keyctl(11, serial, text, 20) > 0:
            sys.exit(f"read {{name}}: {{text.value}}")
"""
CONNECT = """
import socket, sys
def reached(address):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        return True
    except OSError:
        return False
"""


@contextmanager
def node(**changes: object) -> Iterator[Field]:
    """A fleet that insists on namespaces, in a place that every user reaches."""
    base = Path(tempfile.mkdtemp(prefix="tm-", dir="/var/tmp"))
    base.chmod(0o755)
    try:
        with field(base, isolation="required", batch_commands=["sbatch"], **changes) as it:  # type: ignore[arg-type]
            binary = base / "tidemill-node"
            shutil.copy(it.node, binary)
            it.node = binary
            yield it
    finally:
        shutil.rmtree(base, ignore_errors=True)


def run(it: Field, script: str, *, timeout_s: float = 60, **changes: Any) -> Failed | None:
    """Run a script of Python as a payload; how it failed, None if it did not."""
    program_: Program = program(executable=PYTHON, **changes)
    work = msgspec.structs.replace(
        job(1, "", events=1), argv=["-S", "-c", script.replace("{", "{{").replace("}", "}}")]
    )
    it.fleet.write_work(programs=[program_], jobs=[work], grants=grants(work))
    it.lead()
    base = it.fleet.directory.parent
    for name, text in (
        ("node.py", NODE + "import sys\nos.execv(sys.argv[1], sys.argv[1:])\n"),
        ("keys.py", KEYS),
    ):
        (base / name).write_text(text)
    it.prefix = [PYTHON, str(base / "node.py")]
    if os.geteuid() == 0:
        for path in (it.fleet.directory, *it.fleet.directory.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        drop = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        it.prefix += [str(shutil.which("setpriv")), *drop]
    else:
        it.prefix += ["/usr/bin/env"]
    if KEYCTL[0]:
        it.prefix += [PYTHON, str(base / "keys.py")]
    pilot = it.pilot("--cores", "2", "--memory-mb", "2000", user=os.geteuid() != 0)
    assert it.ended(pilot, timeout_s=timeout_s) == 0, it.tails()
    found = it.of(Failed)
    assert len(found) + len(it.of(Done)) == 1, it.tails()
    return found[0] if found else None


@pytest.mark.skipif(KEYCTL[0] == 0, reason="numbers of keyctl(2) are not known here")
def test_keys_of_the_sites_user_cannot_be_read() -> None:
    with node() as it:
        assert run(it, READ_KEYS) is None, it.tails()


def test_sockets_of_batch_system_message_bus_and_containers_are_not_there() -> None:
    script = f"""{CONNECT}
open_ = [path for path in {SOCKETS!r} if reached(path)]
if open_ or not reached("/run/other/socket"):
    sys.exit(f"reached {{open_}}; other {{reached('/run/other/socket')}}")
"""
    with node() as it:
        assert run(it, script) is None, it.tails()


def test_an_application_that_may_use_the_batch_system_reaches_it_and_nothing_else() -> None:
    script = f"""{CONNECT}
open_ = [path for path in {SOCKETS!r} if reached(path)]
if open_ != {SOCKETS[:4]!r}:
    sys.exit(f"reached {{open_}}")
"""
    with node() as it:
        assert run(it, script, batch_commands=True) is None, it.tails()


@pytest.mark.parametrize("network", ["preferred", "closed"])
def test_an_abstract_socket_and_a_port_of_the_node_cannot_be_reached(network: str) -> None:
    name = f"tidemill-attack-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener, socket.create_server(("127.0.0.1", 0)) as port:
        listener.bind("\0" + name)
        listener.listen(5)
        script = f"""{CONNECT}
if reached("\\0{name}"):
    sys.exit("reached the abstract socket")
try:
    socket.create_connection({port.getsockname()!r}, 5)
except OSError:
    pass
else:
    sys.exit("reached the port")
with socket.create_server(("127.0.0.1", 0)) as own:  # MPI on one node does this
    socket.create_connection(own.getsockname(), 5).close()
"""
        with node(network=network) as it:
            assert run(it, script, network=network) is None, it.tails()
            (started,) = it.of(Started)
            assert (started.isolation, started.note) == ("namespaces", "")


def test_what_fails_for_want_of_a_network_names_the_key_that_opens_it() -> None:
    with node(network="preferred") as it:
        failed = run(it, "import socket; socket.create_connection(('192.0.2.1', 80), 5)", network="preferred")
        assert failed is not None, it.tails()
        assert "`network = true`" in failed.message, failed


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param(False, id="falls-back-and-says-so"),
        pytest.param(True, id="refuses"),
    ],
)
def test_a_node_without_network_namespaces_says_so_or_refuses(closed: bool) -> None:
    """The limit is that of the user namespace in which the pilot runs: none is left."""
    word = "closed" if closed else "preferred"
    with node(network=word) as it:
        work = job(1, "true", events=1)
        it.fleet.write_work(programs=[program(network=word)], jobs=[work], grants=grants(work))
        it.lead()
        if os.geteuid() == 0:
            it.prefix = ["unshare", "-Ur"]
        before = "true" if os.geteuid() == 0 else "echo 0 > /proc/sys/user/max_net_namespaces"
        if os.geteuid() == 0:
            it.prefix += ["/bin/sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$0" "$@"']
        pilot = it.pilot("--cores", "1", "--memory-mb", "400", before=before, user=os.geteuid() != 0)
        it.ended(pilot)
        (started,) = it.of(Started)
        if closed:
            assert pilot.returncode != 0, it.tails()
            assert 'network = "closed"' in it.tails()
            assert it.of(Done) == []
        else:
            assert pilot.returncode == 0, it.tails()
            assert "payloads reach the node's network and its abstract sockets" in started.note, started
            assert started.isolation == "namespaces"
            assert len(it.of(Done)) == 1


MEMFD = """
import os, time
f = os.memfd_create("x")
block = bytes(1 << 20)
for _ in range(400):
    os.write(f, block)
time.sleep(30)
"""


def test_memory_that_no_process_maps_counts() -> None:
    with node() as it:
        failed = run(it, MEMFD, memory_mb=100)
        assert failed is not None, it.tails()
        assert failed.failure == "memory"
        assert "limit is 100 MB" in failed.message


SLEEPERS = """
import os, time
for _ in range(400):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
time.sleep(5)
"""


def test_400_processes_are_refused_and_the_message_names_the_limit() -> None:
    with node(affinity="compact") as it:
        failed = run(it, SLEEPERS)
        assert failed is not None, it.tails()
        assert "288, `processes_max`" in failed.message, failed


def test_an_application_may_be_allowed_more_processes() -> None:
    with node(affinity="compact") as it:
        script = SLEEPERS.replace("time.sleep(5)", "time.sleep(1)")
        # page tables of 400 processes count, too
        assert run(it, script, processes_max=500, memory_mb=300) is None, it.tails()


FILLS = {
    "300 MB": "open(os.environ['HOME'] + '/big', 'wb').write(bytes(300 << 20))",
    "20,000 files": "[open(f\"{os.environ['HOME']}/{i}\", 'w').close() for i in range(20000)]",
    "removed": "f = open(os.environ['HOME'] + '/x', 'wb'); os.remove(f.name); f.write(bytes(300 << 20))",
}


@pytest.mark.parametrize("what", list(FILLS))
def test_the_home_of_a_slot_takes_what_its_scratch_may(what: str) -> None:
    with node() as it:
        failed = run(it, f"import os\n{FILLS[what]}", scratch_mb=64, memory_mb=1000)
        assert failed is not None, it.tails()
        assert failed.failure == "disk"
        assert "64 MB" in failed.message
        assert "resources.scratch_mb" in failed.message


SHARED = View(
    shared=True, own_tmp=False, veils=[], keep=[], show=[], write=[], credentials=[], allowed=[],
)  # fmt: skip
NAMESPACES = {
    "user": 1 << 28, "mnt": 1 << 17, "net": 1 << 30, "pid": 1 << 29,
    "ipc": 1 << 27, "uts": 1 << 26, "cgroup": 1 << 25, "time": 1 << 7,
}  # fmt: skip
UNSHARE = f"""
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
made = []
for name, flag in {NAMESPACES!r}.items():
    if os.fork() == 0:  # the first call of a process: a second one may fail for reasons of its own
        os._exit(0 if libc.unshare(flag) == 0 else ctypes.get_errno())
    status = os.waitstatus_to_exitcode(os.wait()[1])
    if status != errno.EPERM:
        made.append((name, status))
"""


def test_no_namespace_can_be_made() -> None:
    with node(view=SHARED) as it:
        assert run(it, f"{UNSHARE}\nif made: sys.exit(repr(made))") is None, it.tails()


@pytest.mark.parametrize("who", ["an application that mounts", "a program of one's own"])
def test_who_may_makes_namespaces(who: str) -> None:
    mounts = who == "an application that mounts"
    changes: dict[str, object] = {"view": SHARED} if mounts else {}
    named: dict[str, Any] = {"named": NamedPaths(show=[], write=[], may_mount=True)} if mounts else {}
    with node(**changes) as it:
        script = f"{UNSHARE}\nif ('user', 0) not in made: sys.exit(repr(made))"
        assert run(it, script, **named) is None, it.tails()


HIDE = """
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
block = bytes(1 << 20)
"""
IN_FLIGHT = f"""{HIDE}
a, b = socket.socketpair()
for _ in range(8):
    f = os.memfd_create("x")
    for _ in range(50):
        os.write(f, block)
    socket.send_fds(a, [b"m"], [f])
    os.close(f)
time.sleep(120)
"""
BUFFERS = f"""{HIDE}
pairs = [socket.socketpair() for _ in range(500)]
for end in (end for pair in pairs for end in pair):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    end.setblocking(False)
    try:
        while True:
            end.send(block)
    except BlockingIOError:
        pass
time.sleep(120)
"""


@pytest.mark.parametrize(
    "script", [pytest.param(IN_FLIGHT, id="memfds in flight"), pytest.param(BUFFERS, id="socket buffers")]
)
def test_memory_behind_no_descriptor_counts(script: str) -> None:
    with node(view=SHARED) as it:
        failed = run(it, script, memory_mb=100, timeout_s=60.0)
        assert failed is not None, it.tails()
        assert failed.failure == "memory", failed
        assert "limit is 100 MB" in failed.message


SEGMENT = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(1 << 28 | 1 << 27) == 0:
    sys.exit("an IPC namespace of its own, whose segments no account shows")
"""


def test_no_segment_is_in_an_ipc_namespace_of_its_own() -> None:
    with node(view=SHARED) as it:
        assert run(it, SEGMENT, memory_mb=100) is None, it.tails()
