"""Keeps the xrootd of one cache running, watches it, and records what it observes.

One loop runs in one thread; a second thread queries the origins, which may take seconds to answer. If a cache crashes
repeatedly, its supervisor waits longer before each restart and reports why. When the supervisor dies, the kernel ends
xrootd too, so a successor finds the port free.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidemill import clock, log
from tidemill.errors import ConfigError, ProtocolError, SiteError
from tidemill.files import open_private
from tidemill.routing.contact import greet
from tidemill.routing.engine import PastTrouble
from tidemill_caches import constants
from tidemill_caches.engine import directory as places
from tidemill_caches.engine import health, limits, windows
from tidemill_caches.engine.configuration import origins_of
from tidemill_caches.engine.credentials import CredentialEnd, ends_of
from tidemill_caches.engine.state import (
    CacheFinding,
    CacheState,
    OriginState,
    Phase,
    host_name,
    read_state,
    write_state,
)
from tidemill_caches.settings import CacheConfig

POLL_S = 0.2
LOOK_S = 2.0  #: between two checks of the process, the disk and the answers
ORIGINS_S = 30.0  #: between two greetings of an origin
GREET_S = 5.0
PAUSE_S = 0.5
PAUSE_MAX_S = 60.0
STEADY_S = 60.0  #: an xrootd that lived at least this long is restarted without delay
CREDENTIALS_S = 30.0  #: between two checks of the credential files
TERM_S = 10.0
LOG_BYTES_MAX = 50_000_000
LOG_TAIL_BYTES = 4000
PASSED = ("PATH", "HOME", "LD_LIBRARY_PATH", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG")
_log = log.Log("cache")


def pause_s(quick_deaths: int) -> float:
    """The pause before the next start, after `quick_deaths` consecutive deaths of an xrootd that lived briefly."""
    return 0.0 if quick_deaths <= 0 else float(min(PAUSE_S * 2 ** min(quick_deaths - 1, 20), PAUSE_MAX_S))


def check_host() -> None:
    """Raise ConfigError where no cache can run: as root, or without XRootD."""
    if os.geteuid() == 0:
        raise ConfigError(
            "a cache does not run as root: xrootd refuses to, and it needs no rights",
            hint="run it as the user to whom the cache directory belongs",
        )
    if shutil.which("xrootd") is None:
        raise ConfigError(
            "there is no program `xrootd` on this host",
            hint="install XRootD's server with its plugins (the packages `xrootd-server` and `xrootd-client`)",
        )


def check_port(port: int) -> None:
    """Raise SiteError where another process listens on the port."""
    for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except PermissionError as error:
            raise ConfigError(
                f"this user may not listen on port {port}", hint="set `port` to one above 1023 in cache.toml"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # others: a host without IPv6
                raise SiteError(
                    f"port {port} is taken by another process",
                    hint=f"`ss -ltnp 'sport = :{port}'` names it; or set another `port` in cache.toml",
                ) from error


class Supervisor:
    """The supervisor of a cache directory; `run` returns when `stop` was called."""

    def __init__(
        self,
        directory: Path,
        config: CacheConfig,
        *,
        figures_port: int | None = None,
        tend: Callable[[CacheState], None] | None = None,
    ) -> None:
        self._directory = directory
        self._config = config
        self._figures_port = figures_port
        self._tend = tend
        self._data = places.data_of(directory, config)
        self._is_asked = False
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._quick_deaths = 0
        self._begun_s = 0.0
        self._next_s = 0.0
        self._answered_s = 0.0
        self._looked_s = -LOOK_S
        self._credentials: list[CredentialEnd] = []
        self._credentials_s = -CREDENTIALS_S
        self._watch = OriginsWatch(config, self._ended)
        now = clock.now_us()
        self._state = CacheState(
            host=host_name(),
            port=config.port,
            phase="starting",
            at_us=now,
            supervisor_pid=os.getpid(),
            supervisor_started_us=now,
            figures_port=figures_port,
            past=_past(directory, now),
        )

    def stop(self) -> None:
        """Let `run` end xrootd and return. May be called by a signal handler.

        Takes no lock: a signal may come while `run` holds it, and then both would wait for ever.
        """
        self._is_asked = True

    def run(self) -> None:
        """Keep xrootd running until `stop`. Raises ConfigError, SiteError for what prevents the first start."""
        check_host()
        places.make_data(self._directory, self._config)
        places.check_credentials(self._config)
        limits.raise_limit(constants.FILES_OPEN_MAX)
        check_port(self._config.port)
        self._start()
        self._watch.start()
        try:
            while not self._is_asked:
                self._step()
                clock.sleep_s(POLL_S)
        finally:
            self._ended.set()
            self._end()
            self._note("stopped", pid=0, answers=False, findings=[], durable=True)

    def _step(self) -> None:
        now_s = clock.monotonic_s()
        if self._process is not None and self._process.poll() is not None:
            self._bury(self._process.returncode, now_s)
        if self._process is None and now_s >= self._next_s:
            self._try_start()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._check_health(now_s)
            if self._tend is not None:
                try:
                    self._tend(self._state)
                except Exception as error:  # noqa: BLE001 - what only counts ends no cache
                    _log.error("cache.untended", reason=repr(error)[:500])

    def _try_start(self) -> None:
        """A start after a death: what prevents it is noted, and tried again later."""
        try:
            check_port(self._config.port)
            places.make_data(self._directory, self._config)
            self._start(restarts=self._state.restarts + 1)
        except (ConfigError, SiteError) as error:
            self._quick_deaths += 1
            self._wait(error.message)

    def _start(self, restarts: int = 0) -> None:
        generated = places.write_generated(self._directory, self._config, figures_port=self._figures_port)
        environ = {name: os.environ[name] for name in PASSED if name in os.environ}
        command = [
            *_end_with_us(),
            "xrootd",
            "-n",
            "cache",
            "-c",
            str(generated),
            "-p",
            str(self._config.port),
        ]
        try:
            with open_private(self._directory / "log" / "xrootd.log", "ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**environ, **windows.server_environment(self._config)},
                    cwd=self._directory / "run",
                    umask=0o077,
                    start_new_session=True,
                )
        except OSError as error:
            raise SiteError(f"failed to start `xrootd`: {error.strerror}") from error
        self._begun_s = self._answered_s = clock.monotonic_s()
        _log.info("cache.started", pid=self._process.pid, port=self._config.port, restarts=restarts)
        now_us = clock.now_us()
        past = health.started(self._state.past, now_us=now_us) if restarts else self._state.past
        self._note(
            "starting", pid=self._process.pid, started_us=now_us, restarts=restarts, past=past, durable=True
        )

    def _bury(self, status: int, now_s: float) -> None:
        self._process = None
        self._quick_deaths = 0 if now_s - self._begun_s >= STEADY_S else self._quick_deaths + 1
        self._wait(f"{_how(status)}{self._last_words(of_itself=status >= 0)}")

    def _wait(self, why: str) -> None:
        wait_s = pause_s(self._quick_deaths)
        self._next_s = clock.monotonic_s() + wait_s
        _log.warning("cache.ended", reason=why, next_start_s=wait_s)
        now_us = clock.now_us()
        self._note(
            "waiting",
            past=health.ended(self._state.past, f"xrootd ended: {why}", now_us=now_us),
            pid=0,
            answers=False,
            last_end=why,
            next_start_us=now_us + int(wait_s * 1e6),
            durable=True,
        )

    def _check_health(self, now_s: float) -> None:
        pid = self._process.pid if self._process is not None else 0
        answers = pid != 0 and greet("127.0.0.1", self._config.port, LOOK_S).answers
        if answers:
            self._answered_s = now_s
        elif self._process is not None and now_s - self._answered_s > constants.HANG_S:
            _log.error("cache.hangs", pid=pid, silent_s=round(now_s - self._answered_s))
            self._process.kill()
        used, most = (limits.used_by(pid), limits.limit_of(pid)) if pid else (None, None)
        total, free = _disk(self._data)
        known = self._watch.known()
        if now_s - self._credentials_s >= CREDENTIALS_S:
            self._credentials_s, self._credentials = now_s, ends_of(self._config)
        read = health.Readings(
            running=pid != 0,
            answers=answers or now_s - self._begun_s < GREET_S,
            restarts=self._state.restarts,
            last_end=self._state.last_end,
            descriptors=used,
            descriptors_max=most,
            disk_bytes=total,
            disk_free_bytes=free,
            origins=known,
            credentials=self._credentials,
            now_us=clock.now_us(),
        )
        self._trim_log()
        phase: Phase = "running" if answers else ("starting" if pid else "waiting")
        found = health.findings(self._config, read)
        self._tell_new(found)
        self._note(
            phase,
            answers=answers,
            descriptors=used,
            descriptors_max=most,
            ram_bytes=limits.resident_bytes(pid) if pid else None,
            disk_bytes=total,
            disk_free_bytes=free,
            origins=known,
            credential_ends_us=min((each.ends_us for each in self._credentials if each.own), default=None),
            findings=found,
            past=health.remembered(
                self._state.past, [each for each in found if each.check != "process"], now_us=clock.now_us()
            ),
        )

    def _tell_new(self, found: list[CacheFinding]) -> None:
        before = {(each.check, each.state) for each in self._state.findings}
        for each in found:
            if (each.check, each.state) not in before:
                _log.warning("cache.unwell", check=each.check, state=each.state, found=each.found)

    def _note(self, phase: Phase, *, durable: bool = False, **changes: object) -> None:
        self._state = msgspec.structs.replace(self._state, phase=phase, at_us=clock.now_us(), **changes)
        try:
            write_state(self._directory, self._state, durable=durable)
        except SiteError as error:  # a full disk ends no cache
            _log.warning("cache.unwritten", reason=error.message)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _log.info("cache.stopped", pid=process.pid)

    def _trim_log(self) -> None:
        """Copy a long log aside and empty it: xrootd appends to the file that it has open."""
        path = self._directory / "log" / "xrootd.log"
        try:
            if path.stat().st_size > LOG_BYTES_MAX:
                try:
                    shutil.copyfile(path, path.with_name("xrootd.log.1"))
                finally:  # on a full disk, a log that cannot be kept must not keep growing
                    os.truncate(path, 0)
        except OSError as error:
            _log.warning("cache.log", reason=error.strerror)

    def _last_words(self, *, of_itself: bool) -> str:
        """What its log says is wrong; else its last line, if it ended of itself: of a kill that says nothing."""
        path = self._directory / "log" / "xrootd.log"
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        wrong = [line for line in lines if re.search(r"\b[Ee]rror\b|\bUnable\b", line)]
        said = wrong or (lines if of_itself else [])
        return f"; its log: {said[-1][:300]}" if said else ""


class OriginsWatch:
    """Greets each origin's server from time to time, in a thread of its own."""

    def __init__(self, config: CacheConfig, ended: threading.Event) -> None:
        self._origins = origins_of(config)
        self._ended = ended
        self._lock = threading.Lock()
        self._known: dict[str, OriginState] = {}

    def start(self) -> None:
        """Begin to greet."""
        threading.Thread(target=self._run, name="origins", daemon=True).start()

    def known(self) -> list[OriginState]:
        """Each origin that was greeted, as last found."""
        with self._lock:
            return [self._known[each.url] for each in self._origins if each.url in self._known]

    def _run(self) -> None:
        while not self._ended.is_set():
            greeted = {}
            for each in self._origins:
                if self._ended.is_set():
                    return
                server = (each.host, each.port)
                if server not in greeted:
                    greeted[server] = greet(*server, GREET_S)
                self._keep(each.url, greeted[server].why, redirects=greeted[server].redirects)
            self._ended.wait(ORIGINS_S)

    def _keep(self, url: str, why: str, *, redirects: bool) -> None:
        with self._lock:
            before = self._known.get(url)
            is_same = before is not None and before.answers == (not why)
            since = before.since_us if before is not None and is_same else clock.now_us()
            self._known[url] = OriginState(
                url=url, answers=not why, since_us=since, why=why, redirects=redirects
            )


def _past(directory: Path, now_us: int) -> list[PastTrouble]:
    """What an earlier supervisor of the directory noted, and that it died, where it did."""
    try:
        before = read_state(directory)
    except (SiteError, ProtocolError):
        return []
    if before is None or before.phase == "stopped":
        return [] if before is None else before.past
    made = health.ended(before.past, "the cache's supervisor died, and xrootd with it", now_us=before.at_us)
    return health.started(made, now_us=now_us)


def _end_with_us() -> list[str]:
    """Words that have the kernel end xrootd when the supervisor dies; none where util-linux has no such option."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    told = subprocess.run([setpriv, "--help"], capture_output=True, text=True, check=False).stdout
    return [setpriv, "--pdeathsig", "KILL", "--"] if "--pdeathsig" in told else []


def _how(status: int) -> str:
    if status < 0:
        try:
            return f"it was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"it was killed by signal {-status}"
    return f"it ended with status {status}"


def _disk(path: Path) -> tuple[int | None, int | None]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None, None
    return usage.total, usage.free
