"""One small job that reports what a compute node is like: the site directory, networks, memory, clock, our binary.

There need be no Python on the node: the probe is a POSIX shell program that travels within the batch script and prints
`key=value` lines. It reads; the only thing it does beyond that is to connect to listeners of this process on this host.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.batch.contract import Answer, BatchSubmission, BatchSystem, Ending, Status
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.model.number import whole
from tidemill.model.quantities import duration_text
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site.setup.capabilities import Abilities, parse_abilities
from tidemill.site.setup.finding import Finding

WALLTIME_S = 120.0
MEMORY_MB = 512
"""The probe's children take less; a job that names no memory gets all of a node on some clusters."""
REMIND_S = 30.0  #: what a probe waits for is said again after this time
POLL_S = 0.25  #: pause between two reads of the output file and the listeners
STATUS_S = 1.0  #: first pause between two questions to the batch system; each is longer, up to
STATUS_S_MAX = 8.0
OUTPUT_S = (
    15.0  #: a shared file system may show the output this long after the end (attribute caches, NFS: 3-60 s)
)
OUTPUT_BYTES_MAX = 100_000
ADDRESSES_MAX = 16
GREETING_BYTES_MAX = 200
CONNECTIONS_MAX = 64
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>

SCRIPT = r"""# tidemill probe: says what this node is like, as key=value lines. It changes nothing.
site=$1; node=$2; nonce=$3; home=$4; shift 4
LC_ALL=C; export LC_ALL
put() { printf '%s=%s\n' "$1" "$(printf '%s' "$2" | tr '\n' ' ')"; }
tool() { command -v "$1" >/dev/null 2>&1; }
room() { df -Pk "$1" 2>/dev/null | awk 'END { print $4 }'; }
kind() { stat -f -c %T "$1" 2>/dev/null; }
may() { if [ ! -d "$1" ]; then echo absent; elif [ -w "$1" ]; then echo writable; else echo readonly; fi; }
identity() { stat -c %i "$1" 2>/dev/null; }
memory() { awk -v k="$1:" '$1 == k { print $2 }' /proc/meminfo; }
put probe 1
put host "$(uname -n)"
put machine "$(uname -m)"
put kernel "$(uname -r)"
put user "$(id -u)"
put time "$(date +%s)"
put cores "$(getconf _NPROCESSORS_ONLN)"
put cores_ours "$(nproc 2>/dev/null)"
put memory_kb "$(memory MemTotal)"
put memory_free_kb "$(memory MemAvailable)"
put site "$(may "$site")"
put home "$(may "$home")"
put home_identity "$(identity "$home")"
put shm_kb "$(room /dev/shm)"
put shm_mode "$(may /dev/shm)"
for place in "${TMPDIR:-/tmp}" /tmp /local /scratch /localscratch; do
  [ -d "$place" ] && [ -w "$place" ] && put local "$(kind "$place") $(room "$place") $place"
done
put open_files "$(ulimit -n)"
put fuse "$([ -e /dev/fuse ] && echo yes || echo no)"
if tool unshare; then
  if said=$(unshare -Urm true 2>&1); then put namespaces yes; else put namespaces "no: $said"; fi
else
  put namespaces "unknown: max_user_namespaces=$(cat /proc/sys/user/max_user_namespaces 2>/dev/null)"
fi
for each in srun mpiexec mpirun apptainer singularity shifter podman-hpc ch-run; do
  tool "$each" && put has "$each"
done
said=$("$node" --version 2>&1); status=$?
put node_status "$status"
put node_said "$said"
[ "$status" = 0 ] && put doctor "$("$node" doctor --json 2>/dev/null)"
if tool bash && tool timeout; then
  put network bash
  for each in "$@"; do
    timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1" && printf "%s %s %s\n" "$2" "$(date +%s)" "$3" >&3' \
      "${each%:*}" "${each##*:}" "$nonce" "$(uname -n)" 2>/dev/null && put reached "${each%:*}"
  done
else
  put network none
fi
put end 1
"""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe found out about a compute node. None or empty = unknown."""

    host: str
    machine: str  #: as `uname -m`
    kernel: str = ""
    cores: int | None = None
    cores_ours: int | None = None
    memory_mb: int | None = None
    memory_free_mb: int | None = None
    site: str = ""  #: `writable`, `readonly`, `absent`
    home: str = ""
    home_same: bool | None = None  #: is it the same directory as here, by its inode?
    shm_mb: int | None = None
    places: list[tuple[str, str, int]] = []  #: node-local directories: path, file system, free MB
    open_files: int | None = None
    fuse: bool | None = None
    namespaces: str = ""  #: `yes`, `no: WHY`, `unknown: ...`
    launchers: list[str] = []
    node_status: int | None = None  #: exit status of `tidemill-node --version`
    node_said: str = ""
    abilities: Abilities | None = None  #: as `tidemill-node doctor` found them there
    untold: Finding | None = None  #: why there are none, though the binary runs there
    network: bool = False  #: could it try to connect?
    reached: list[str] = []  #: addresses of this host on which it reached us
    clock_offset_s: float | None = None  #: its clock minus this host's


class Heard(msgspec.Struct, frozen=True):
    """A connection of the probe: the address here that it came to, its clock and the one here."""

    address: str
    its_s: float
    ours_s: float


class Listeners:
    """One listener on each address of this host; only greetings with the nonce count. Close it."""

    def __init__(self, addresses: list[str], nonce: str) -> None:
        self._nonce = nonce
        self._sockets: dict[str, socket.socket] = {}
        self._open: list[tuple[str, socket.socket, bytearray]] = []
        self.heard: list[Heard] = []
        for address in addresses[:ADDRESSES_MAX]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            try:
                listener.bind((address, 0))
                listener.listen(4)
            except OSError:
                listener.close()  # a lead cannot use an address that cannot be listened on
                continue
            self._sockets[address] = listener

    @property
    def places(self) -> list[str]:
        """`address:port` of each."""
        return [f"{address}:{each.getsockname()[1]}" for address, each in self._sockets.items()]

    def poll(self) -> None:
        """Take what has come in, without waiting."""
        for address, listener in self._sockets.items():
            while len(self._open) < CONNECTIONS_MAX:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    break
                connection.setblocking(False)
                self._open.append((address, connection, bytearray()))
        self._open = [each for each in self._open if self._read(*each)]

    def _read(self, address: str, connection: socket.socket, text: bytearray) -> bool:
        try:
            got = connection.recv(GREETING_BYTES_MAX)
        except BlockingIOError:
            return True
        except OSError:
            got = b""
        text += got
        if got and b"\n" not in text and len(text) < GREETING_BYTES_MAX:
            return True
        connection.close()
        words = text.decode(errors="replace").split()
        if len(words) >= 2 and words[0] == self._nonce and words[1].isdecimal():
            self.heard.append(Heard(address, float(words[1]), clock.now_us() / 1e6))
        return False

    def close(self) -> None:
        """Close everything."""
        for each in (*self._sockets.values(), *(connection for _, connection, _ in self._open)):
            each.close()


def own_addresses() -> list[str]:
    """Addresses of this host that a node could reach: loopback first (one machine), then private, then public ones."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    try:
        named = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        found += [str(each[4][0]) for each in named]
    except OSError:
        pass  # a host that does not know its own name still has interfaces
    known = list(dict.fromkeys(found))
    return sorted(known, key=_remoteness)


def _remoteness(address: str) -> int:
    parsed = ipaddress.ip_address(address)
    return 0 if parsed.is_loopback else 1 if parsed.is_private else 2


class Probe:
    """One probe: `start`, then `poll` until it gives facts; `cancel` at any time. It asks for one core and no GPU, so
    that it finds room on nodes that other jobs use."""

    def __init__(
        self, batch: BatchSystem, site_dir: Path, *, config: SiteConfig, binary: Path, comment: str
    ) -> None:
        self._batch = batch
        self._site_dir = site_dir
        self._binary = binary
        self._comment = comment
        nonce = secrets.token_hex(8)
        self.name = f"tm-{config.name}-e0-{clock.now_us() // 1_000_000}"
        self._listeners = Listeners(own_addresses(), nonce)
        self._nonce = nonce
        self._next_s = 0.0
        self._pause_s = STATUS_S
        self._ended_s: float | None = None
        self._is_submitted = False
        self.status: Status | None = None
        self.trouble = ""  #: why the batch system could not be asked the last time

    def start(self, wait_s: float) -> str:
        """Submit it; its number in the batch system. It never starts after `wait_s`. Raises SiteError."""
        words = [str(self._site_dir), str(self._binary), self._nonce, str(Path.home())]
        self._is_submitted = True  # also where the answer is lost: then it is there
        return self._batch.submit(
            BatchSubmission(
                name=self.name,
                command=["/bin/sh", "-c", SCRIPT, "tidemill-probe", *words, *self._listeners.places],
                nodes=1,
                cores=1,
                whole=False,
                memory_mb=MEMORY_MB,
                walltime_s=WALLTIME_S,
                start_by_s=clock.now_us() / 1e6 + wait_s,
                comment=self._comment,
                polite=False,  # as a guest behind all others it might wait for ever
            )
        )

    def poll(self) -> NodeFacts | None:
        """What the probe reported, None while there is nothing yet.

        Raises SiteError that says why, where it has ended without a report.
        """
        self._listeners.poll()
        text = _read(self._batch.output(self.name))
        now = clock.monotonic_s()
        if "\nend=1\n" in text:
            return parse(text, heard=self._listeners.heard)
        if now >= self._next_s:
            self._next_s = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, STATUS_S_MAX)
            self._ask()
        if self._has_ended() and self._ended_s is None:
            self._ended_s = now
        if self._ended_s is not None and now - self._ended_s > OUTPUT_S:
            raise _silent(self.status, text)
        return None

    def _ask(self) -> None:
        try:
            answer = self._batch.status([self.name]).get(self.name)
        except SiteError as error:
            if not error.transient:
                raise
            self.trouble = error.message
            return
        self.trouble = ""
        if answer is not None and answer.answer is not Answer.UNCLEAR:
            self.status = answer

    def _has_ended(self) -> bool:
        return self.status is not None and (
            self.status.answer is Answer.GONE or self.status.state in ALLOCATION_FINAL
        )

    def close(self) -> None:
        """Close the listeners; cancel it if it has not ended."""
        self._listeners.close()
        if self._is_submitted and not self._has_ended():
            self._batch.cancel([self.name])

    def forget(self) -> None:
        """Remove its output."""
        self._batch.output(self.name).unlink(missing_ok=True)


def run_probe(probe: Probe, *, wait_s: float, tell: Callable[[str], None]) -> NodeFacts | None:
    """Submit a probe and wait for its report; None if it did not start in time. `tell` gets news, one line each.

    The probe never stays behind: it is canceled whatever happens. Raises SiteError.
    """
    said, said_s = "", 0.0
    began_s = clock.monotonic_s()
    try:
        number = probe.start(wait_s)
        named = f"{probe.name}, number {number}" if number != probe.name else probe.name
        tell(
            f"probe job submitted: {named}; it asks for one core of a node, and waits {duration_text(wait_s)} at most"
        )
        while (now_s := clock.monotonic_s()) < began_s + wait_s:
            facts = probe.poll()
            if facts is not None:
                probe.forget()
                return facts
            news = probe_news(probe.status, probe.trouble)
            if news != said:
                tell(news)
            elif now_s > said_s + REMIND_S:
                tell(f"{news}, for {duration_text(now_s - began_s)}")
            if news != said or now_s > said_s + REMIND_S:
                said, said_s = news, now_s
            clock.sleep_s(POLL_S)
        return None
    finally:
        probe.close()


_WAITS = (
    ("Resources", "a free core"),
    ("Priority", "jobs of other users that come first"),
    ("ReqNodeNotAvail", "nodes that are down or reserved"),
    ("Reservation", "nodes that are down or reserved"),
    ("Partition", "its partition: its limit or state does not let it start"),
    ("QOS", "a limit of your account or QOS"),
    ("Assoc", "a limit of your account or QOS"),
    ("BeginTime", "the next try of the batch system"),
)
"""How reasons begin (squeue(1), JOB REASON CODES), and what they mean for a probe."""


def probe_news(status: Status | None, trouble: str) -> str:
    """What a probe does or waits for, in a line; the batch system's own words are quoted. Pure."""
    if trouble:
        return f"the batch system cannot be asked: {trouble}"
    if status is None or status.answer is Answer.GONE:
        return "the probe waits for a compute node"
    if status.state is AllocationState.ACTIVE:
        return f"the probe runs on {status.nodes[0]}" if status.nodes else "the probe runs"
    if status.state is not AllocationState.QUEUED:
        return "the probe has ended; its report is awaited"
    known = next((what for word, what in _WAITS if status.reason.startswith(word)), "a compute node")
    return f"the probe waits for {known}" + (
        f" (the batch system says: {status.reason})" if status.reason else ""
    )


def _silent(status: Status | None, text: str) -> SiteError:
    """The error for a probe that has ended and reported nothing, or not all."""
    why = "" if status is None else (status.reason or status.ending.value)
    if status is not None and status.ending in (
        Ending.NODE,
        Ending.PREEMPTED,
        Ending.CANCELED,
        Ending.DEADLINE,
    ):
        return SiteError(f"the probe was ended before it could report anything: {why}", hint="try again")
    last = text.strip().splitlines()[-1:] or ["nothing"]
    return SiteError(
        f"the probe ended ({why or 'no reason given'}), and this host sees no answer; its output: {last[0][:200]}",
        hint="is the site directory on a file system that compute nodes see and may write to? Name one that is: "
        "`tidemill site init DIR`",
        transient=False,
    )


def _read(path: Path) -> str:
    """The file, opened again, at most the given bytes: network file systems show changes to a new descriptor."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return "\n" + os.read(descriptor, OUTPUT_BYTES_MAX).decode(errors="replace")
    finally:
        os.close(descriptor)


def parse(text: str, *, heard: list[Heard]) -> NodeFacts:
    """The facts in the probe's lines and in its connections. Raises SiteError if `text` is not a probe's output."""
    single: dict[str, str] = {}
    many: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.isidentifier():
            single[key] = value.strip()
            many.setdefault(key, []).append(value.strip())
    if single.get("probe") != "1" or not single.get("machine"):
        raise SiteError(f"the probe's output is invalid: `{text.strip()[:200]}`", transient=False)
    network = single.get("network") == "bash"
    abilities, untold = _abilities(single.get("doctor"))
    offsets = [each.its_s + 0.5 - each.ours_s for each in heard]  # `date +%s` cuts half a second on average
    return NodeFacts(
        host=single.get("host", ""),
        machine=single["machine"],
        kernel=single.get("kernel", ""),
        cores=_number(single.get("cores")),
        cores_ours=_number(single.get("cores_ours")),
        memory_mb=_thousandth(single.get("memory_kb")),
        memory_free_mb=_thousandth(single.get("memory_free_kb")),
        site=single.get("site", ""),
        home=single.get("home", ""),
        home_same=_same(single.get("home_identity"), Path.home()),
        shm_mb=_thousandth(single.get("shm_kb")) if single.get("shm_mode") == "writable" else None,
        places=_places(many.get("local", [])),
        open_files=_number(single.get("open_files")),
        fuse={"yes": True, "no": False}.get(single.get("fuse", "")),
        namespaces=single.get("namespaces", ""),
        launchers=many.get("has", []),
        node_status=_number(single.get("node_status")),
        node_said=single.get("node_said", "")[:300],
        abilities=abilities,
        untold=untold,
        network=network,
        reached=list(dict.fromkeys(each.address for each in heard)),
        clock_offset_s=min(offsets, key=abs) if offsets else None,
    )


def _abilities(text: str | None) -> tuple[Abilities | None, Finding | None]:
    """What the binary's doctor reported, or what is wrong with that; neither where the binary did not run."""
    try:
        return None if text is None else parse_abilities(text), None
    except SiteError as error:
        return None, Finding("abilities", "warn", error.message, error.hint or "")


def _number(text: str | None) -> int | None:
    return whole(text) if text else None


def _thousandth(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else number * 1024 // 1_000_000


def _same(told: str | None, here: Path) -> bool | None:
    """Whether the inode is that of the directory here; None where either is unknown."""
    try:
        inode = here.stat().st_ino
    except OSError:
        return None
    return _number(told) == inode if told else None


def _places(lines: list[str]) -> list[tuple[str, str, int]]:
    found: dict[str, tuple[str, str, int]] = {}
    for line in lines:
        words = line.split(" ", 2)
        kilobytes = whole(words[1]) if len(words) == 3 else None
        if kilobytes is not None:
            found.setdefault(words[2], (words[2], words[0], kilobytes * 1024 // 1_000_000))
    return list(found.values())
