"""Measures the steps of a study: each pass a process, each cold pass a cache of its own that is empty before.

Everything lies in one scratch directory, which is removed afterwards; caches that run on this host are not touched.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.errors import ConfigError, SiteError
from tidemill.routing.contact import greet
from tidemill_caches.engine import directory as places
from tidemill_caches.engine.origins import OriginPath, through
from tidemill_caches.engine.supervisor import Supervisor
from tidemill_caches.engine.windows import client_environment
from tidemill_caches.settings import CacheConfig, CacheCredential, CacheSpace
from tidemill_caches.study.advice import StudyPass
from tidemill_caches.study.dataset import StudyFile
from tidemill_caches.study.line import LongLine, lengthened
from tidemill_caches.study.plan import ReadPattern, StudySetting, StudyStep

GREETINGS, GREET_S = 5, 10.0
START_S = 60.0
PASS_S = 600.0  #: of one pass at most
SETTLE_S, SETTLED_S = 10.0, 0.5
SPACE_BYTES_MIN = 1 << 30
ROOM_FACTOR = 3
"""So many times the file must be free in the scratch directory: the cached file, with room for what the disk needs."""


class TimedRead(NamedTuple):
    """Seconds and bytes of one pass."""

    seconds: float
    read_bytes: int


class PassFailedError(Exception):
    """What the reading program said."""


def has_client() -> bool:
    """Whether this Python has XRootD's client: for all patterns but `whole`."""
    from importlib.util import find_spec

    return find_spec("XRootD") is not None


def round_trip_ms(origin: OriginPath) -> float:
    """The round trip to an origin: half of a connection with its first message, median of five. Raises SiteError."""
    taken = []
    for _ in range(GREETINGS):
        start_s = clock.monotonic_s()
        greeting = greet(origin.host, origin.port, GREET_S)
        if not greeting.answers:
            raise SiteError(f"`{origin.host}:{origin.port}` does not answer: {greeting.why}")
        taken.append(clock.monotonic_s() - start_s)
    return statistics.median(taken) / 2 * 1000


class Bench:
    """The place of a study: its files, its scratch directory, how much it may read and until when."""

    def __init__(
        self, files: Sequence[StudyFile], scratch: Path, *, bytes_max: int, deadline_s: float
    ) -> None:
        """`files`: of one server. `bytes_max`: of each of them at most."""
        self._files = files
        self._scratch = scratch
        self._bytes_max = bytes_max
        self._deadline_s = deadline_s

    @property
    def left_s(self) -> float:
        """Seconds until time is up."""
        return self._deadline_s - clock.monotonic_s()

    def measure(self, step: StudyStep) -> StudyPass:
        """Take a step; what prevents it is in the result. Raises ConfigError where no cache can run here."""
        origin = self._files[0].origin
        line = (
            nullcontext(None)
            if step.rtt_ms is None
            else lengthened(origin.host, origin.port, rtt_ms=step.rtt_ms)
        )
        with line as long:
            at = [
                each.origin if long is None else each.origin._replace(host="127.0.0.1", port=long.port)
                for each in self._files
            ]
            try:
                return self._direct(step, at, long) if step.setting is None else self._cached(step, at)
            except (PassFailedError, SiteError) as error:
                return StudyPass(step=step, failure=str(error))

    def _direct(self, step: StudyStep, at: Sequence[OriginPath], long: LongLine | None) -> StudyPass:
        config = self._config(at, StudySetting())
        found = self._read([each.url for each in at], step.pattern, config)
        if long is not None and long.down_bytes < found.read_bytes:
            raise ConfigError(
                "the origin redirects to other servers, so no round trip can be inserted",
                hint="leave `--rtt` out",
            )
        return StudyPass(step=step, first_s=found.seconds, read_bytes=found.read_bytes)

    def _cached(self, step: StudyStep, at: Sequence[OriginPath]) -> StudyPass:
        assert step.setting is not None
        config = self._config(at, step.setting)
        with running_cache(self._scratch, config) as data:
            urls = [through(f"root://127.0.0.1:{config.port}", each) for each in at]
            cold = self._read(urls, step.pattern, config)
            fetched = self._settled_bytes(data)
            warm = self._read(urls, step.pattern, config)
        if warm.read_bytes != cold.read_bytes:
            raise PassFailedError("the second pass had another number of bytes than the first")
        return StudyPass(
            step=step,
            first_s=cold.seconds,
            second_s=warm.seconds,
            read_bytes=cold.read_bytes,
            fetched_bytes=fetched,
        )

    def _config(self, at: Sequence[OriginPath], setting: StudySetting) -> CacheConfig:
        folder = posixpath.commonpath([posixpath.dirname(each.path) for each in at]).rstrip("/") + "/"
        return CacheConfig(
            origins=[at[0]._replace(path=folder).url],
            space=CacheSpace(max=max(SPACE_BYTES_MIN, 2 * sum(each.size_bytes for each in self._files))),
            port=_free_port(),
            block_bytes=setting.block_bytes,
            prefetch_blocks=setting.prefetch_blocks,
            credential=_credential(at[0]),
        )

    def _read(self, urls: Sequence[str], pattern: ReadPattern, config: CacheConfig) -> TimedRead:
        """One pass over all files, one after the other. Raises PassFailedError."""
        found = [
            self._read_file(url, pattern, config, of=file)
            for url, file in zip(urls, self._files, strict=True)
        ]
        return TimedRead(sum(each.seconds for each in found), sum(each.read_bytes for each in found))

    def _read_file(self, url: str, pattern: ReadPattern, config: CacheConfig, *, of: StudyFile) -> TimedRead:
        """One file in a process of its own. Raises PassFailedError."""
        if pattern is ReadPattern.WHOLE:
            command = [
                "xrdcp",
                "--silent",
                "--nopbar",
                url,
                "-",
            ]  # to stdout: xrdcp may replace a target that is a path
        else:
            command = [
                sys.executable,
                "-m",
                "tidemill_caches.study.reader",
                url,
                pattern,
                str(self._bytes_max),
            ]
        environ = {**os.environ, **client_environment()}
        start_s = clock.monotonic_s()
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if pattern is ReadPattern.WHOLE else subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environ,
                timeout=max(1.0, min(PASS_S, self.left_s)),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PassFailedError(f"it was ended after {error.timeout:.0f} s") from error
        except OSError as error:
            raise PassFailedError(f"`{command[0]}` cannot be started: {error.strerror}") from error
        taken_s = clock.monotonic_s() - start_s
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
            raise PassFailedError(f"the reading program ended with {done.returncode}: {said}")
        if pattern is ReadPattern.WHOLE:
            return TimedRead(taken_s, of.size_bytes)
        found = json.loads(done.stdout)
        return TimedRead(found["seconds"], found["bytes"])

    def _settled_bytes(self, data: Path) -> int:
        """What the cache has on disk once that does not grow any more: it reads ahead after a file is closed."""
        end_s, since_s, before = clock.monotonic_s() + SETTLE_S, clock.monotonic_s(), -1
        while clock.monotonic_s() < end_s and clock.monotonic_s() - since_s < SETTLED_S:
            now = _disk_bytes(data)
            if now != before:
                since_s, before = clock.monotonic_s(), now
            clock.sleep_s(0.05)
        return before


@contextmanager
def running_cache(scratch: Path, config: CacheConfig) -> Iterator[Path]:
    """An empty cache of its own, while the context lasts; where its data are. Raises ConfigError, SiteError."""
    directory = Path(tempfile.mkdtemp(prefix="c", dir=scratch))
    try:
        places.make_parts(directory)
        supervisor = Supervisor(directory, config)
        wrong: list[ConfigError | SiteError] = []

        def run() -> None:
            try:
                supervisor.run()
            except (ConfigError, SiteError) as error:
                wrong.append(error)

        thread = threading.Thread(target=run, name="cache", daemon=True)
        thread.start()
        try:
            _wait(config.port, thread, wrong)
            yield places.data_of(directory, config)
        finally:
            supervisor.stop()
            thread.join()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait(port: int, thread: threading.Thread, wrong: list[ConfigError | SiteError]) -> None:
    end_s = clock.monotonic_s() + START_S
    while not greet("127.0.0.1", port, 1.0).answers:
        if not thread.is_alive() and wrong:
            raise wrong[0]
        if not thread.is_alive() or clock.monotonic_s() > end_s:
            raise SiteError(f"the cache of the study does not answer within {START_S:.0f} s")
        clock.sleep_s(0.05)


@contextmanager
def scratch_directory(parent: Path, size_bytes: int) -> Iterator[Path]:
    """An own directory for the caches of a study, removed afterwards. Raises ConfigError, SiteError."""
    try:
        free = shutil.disk_usage(parent).free
        made = Path(tempfile.mkdtemp(prefix="tm-", dir=parent))
    except OSError as error:
        raise ConfigError(
            f"failed to use `{parent}` as scratch directory: {error.strerror}", hint="--scratch DIR"
        ) from error
    try:
        if free < ROOM_FACTOR * size_bytes:
            raise SiteError(
                f"less than {ROOM_FACTOR} times the file's size are free in `{parent}`", hint="--scratch DIR"
            )
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _credential(at: OriginPath) -> CacheCredential:
    """What direct reads of this user show, as far as a cache may show it."""
    proxy, token = os.environ.get("X509_USER_PROXY"), os.environ.get("BEARER_TOKEN_FILE")
    ca = os.environ.get("X509_CERT_DIR")
    known = Path(ca) if ca else None
    if token and at.scheme == "roots":
        return CacheCredential(token_file=Path(token), ca=known)
    return CacheCredential(certificate=Path(proxy) if proxy else None, ca=known)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port


def _disk_bytes(data: Path) -> int:
    """Allocated bytes of the cached files: blocks that are not cached are holes."""
    total = 0
    for path in data.rglob("*"):
        if path.suffix != ".cinfo" and path.is_file():
            total += path.stat().st_blocks * 512
    return total
