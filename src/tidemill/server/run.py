"""Run the server in this process: lock, database, sockets, uvicorn; ends cleanly at SIGTERM."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import uvicorn

from tidemill import __version__, log
from tidemill import config as config_files
from tidemill.config.keys import Duration, doc
from tidemill.errors import ConfigError, SiteError
from tidemill.server import access
from tidemill.server.app import Api, make_app
from tidemill.server.dispatcher import SITE_LOST_S, Dispatcher
from tidemill.server.matching import HALF_LIFE_S
from tidemill.server.store import Store

DATABASE = "tidemill.db"
SOCKET = "api.sock"
LOCK = "server.lock"
CHECK_SITES_S = 5.0
GRACE_S = 5
_LOG = log.Log("server")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server: `server.toml`."""

    dir: Annotated[
        Path | None,
        doc(
            "The server's directory (mode 0700): database, socket and lock; none = the directory of `server.toml`"
        ),
    ] = None
    database: Annotated[
        str | None, doc("`postgresql://USER@HOST/DATABASE`; none = SQLite, `tidemill.db` in the directory")
    ] = None
    listen: Annotated[
        str | None,
        doc("Address `host:port` to listen on; none = the Unix socket `api.sock` in the directory"),
    ] = None
    secret_file: Annotated[
        Path | None, doc("File (mode 0600) with the secret that `listen` wants from everybody")
    ] = None
    site_lost_s: Annotated[
        Duration, msgspec.Meta(ge=1), doc("A site silent for so long loses its leases: others get its work")
    ] = SITE_LOST_S
    half_life_s: Annotated[
        Duration,
        msgspec.Meta(ge=1),
        doc("Half of what a campaign has used is forgotten after so long, for the fair share"),
    ] = HALF_LIFE_S
    upgrade: Annotated[bool, doc("Bring an older database to this version's schema at the start")] = False

    @property
    def place(self) -> Path:
        """The server's directory. Raises ConfigError if neither a key nor a file tells it."""
        if self.dir is None:
            raise ConfigError("the server's directory is not known", hint="set `dir`")
        return self.dir


def read_config(path: Path) -> ServerConfig:
    """What `server.toml` says, and where the server lives if it does not say. Raises ConfigError."""
    found = config_files.load(path, ServerConfig)
    return found if found.dir is not None else msgspec.structs.replace(found, dir=path.absolute().parent)


def store_of(config: ServerConfig) -> Store:
    """The database that a configuration names."""
    if config.database is not None:
        return Store(url=config.database)
    return Store(path=config.place / DATABASE)


def init_server(config: ServerConfig) -> tuple[int, int]:
    """Create directory and database; the schema's version before and after. Harmless if they are there."""
    private_dir(config.place)
    store = store_of(config)
    before = store.version() if store.path is None or store.path.exists() else 0
    store.init()
    return before, store.version()


def upgrade_server(config: ServerConfig) -> tuple[int, int]:
    """Bring the schema up to date; its version before and after. Refused while a server runs."""
    private_dir(config.place)
    with locked(config.place):
        return store_of(config).upgrade()


def run_server(config: ServerConfig) -> int:
    """Serve until SIGTERM or SIGINT; 0. Raises ConfigError when the directory, lock, secret or database refuse."""
    private_dir(config.place)
    secret = access.read_secret(config.secret_file) if config.secret_file is not None else None
    if config.listen is not None and secret is None:
        raise ConfigError(
            f"listening on `{config.listen}` wants a secret",
            hint="write one to a file of mode 0600 and name it with --secret-file; or use the Unix socket",
        )
    with locked(config.place):
        store = store_of(config)
        if config.upgrade or (store.path is not None and not store.path.exists()):
            store.init()
        dispatcher = Dispatcher(store, site_lost_s=config.site_lost_s, half_life_s=config.half_life_s)
        try:
            with listening(config) as listener:
                dispatcher.start()
                asyncio.run(_serve(store, dispatcher, listener, secret))
        finally:
            dispatcher.close()
    return 0


async def _serve(store: Store, dispatcher: Dispatcher, listener: socket.socket, secret: bytes | None) -> None:
    api = Api(store, dispatcher)
    app = access.Guard(make_app(api), secret)
    config = uvicorn.Config(
        app, http=access.PeerChecked if listener.family == socket.AF_UNIX else "h11", loop="asyncio", ws="none",
        lifespan="off", log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
    )  # fmt: skip
    server = _Server(config, api)
    watcher = asyncio.create_task(_watch_sites(api))
    name = listener.getsockname()
    _LOG.info(
        "server.started",
        version=__version__,
        listen=name if isinstance(name, str) else f"{name[0]}:{name[1]}",
    )
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        api.close()
        _LOG.info("server.stopped")


class _Server(uvicorn.Server):
    """Ends the feeds before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, api: Api) -> None:
        super().__init__(config)
        self._api = api

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._api.stop_waiting()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was handled is not raised again at the end: a clean stop is no failure."""
        with super().capture_signals():
            yield
            self._captured_signals: list[int] = []


async def _watch_sites(api: Api) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(CHECK_SITES_S)
        try:
            await loop.run_in_executor(api.waiters, api.dispatcher.check_sites)
        except SiteError as error:
            _LOG.warning("sites.unchecked", error=error.message)
        except Exception as error:  # noqa: BLE001 - top of a loop: tell it and go on
            _LOG.error("sites.unchecked", error=repr(error))


def private_dir(path: Path) -> None:
    """Create the directory, or refuse one that others may enter or own. Raises ConfigError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"server directory `{path}` cannot be made: {error.strerror}") from error
    if found.st_uid != os.getuid():
        raise ConfigError(f"server directory `{path}` belongs to user {found.st_uid}, not to {os.getuid()}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"server directory `{path}` is open to others: mode {stat.S_IMODE(found.st_mode):04o}",
            hint=f"`chmod 0700 {path}`",
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the directory's lock. Raises ConfigError if another server holds it."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise ConfigError(
                f"another server runs in `{path}`: process {pid or 'unknown'}",
                hint="stop it first, or use it",
            ) from error
        with suppress(OSError):  # on a full disk the lock is held all the same, only nobody can tell by whom
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def listening(config: ServerConfig) -> Iterator[socket.socket]:
    """The listening socket; the lock must be held, so that a socket found on disk is a dead server's."""
    if config.listen is None:
        path = config.place / SOCKET
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(path))
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"socket `{path}` cannot be made: {error}", hint="a socket's path has at most 107 bytes"
            ) from error
        path.chmod(0o600)
    else:
        path = None
        host, colon, port = config.listen.rpartition(":")
        if not colon or not port.isdecimal() or not host:
            raise ConfigError(f"`{config.listen}` is no address such as `127.0.0.1:8443`")
        try:
            listener = socket.create_server(
                (host.strip("[]"), int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on `{config.listen}`: {error.strerror}") from error
    try:
        listener.listen(128)
        yield listener
    finally:
        listener.close()
        if path is not None:
            path.unlink(missing_ok=True)


def entry(config: dict[str, Any]) -> int:
    """`run_server` for a configuration as plain data (paths as text), for tests and other processes."""
    log.to_stderr()
    return run_server(msgspec.convert(config, ServerConfig, dec_hook=lambda kind, text: kind(text)))
