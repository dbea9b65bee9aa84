"""Run the server in this process: lock, database, sockets, uvicorn; ends cleanly at SIGTERM."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import uvicorn

from tidemill import __version__, extensions, log
from tidemill.config.hospital import WARDS_MAX, Ward
from tidemill.config.server import ServerConfig
from tidemill.config.tables import extended, provided, tables_of
from tidemill.config.tls import Bearer
from tidemill.errors import ConfigError, SiteError, blaming, did_you_mean
from tidemill.files import make_directories
from tidemill.model.failure import FailureClass
from tidemill.model.identity import Identity
from tidemill.net.addresses import is_loopback
from tidemill.server import constants
from tidemill.server.api.app import Api, make_app
from tidemill.server.api.connection import ConnectionLimits, PeerProtocol, Peers
from tidemill.server.api.pace import Gate
from tidemill.server.archive.live import DATABASE, archive_of, store_of
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit.audit_log import AuditLog
from tidemill.server.audit.keeper import Keeper
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.database.store import Store, value
from tidemill.server.database.upgrade import UpgradePlan, copy_database
from tidemill.server.hospital import downtimes
from tidemill.server.identity import access, bearer
from tidemill.server.identity.certificates import Certificates
from tidemill.server.identity.revocations import Revoked
from tidemill.server.notices.addressees import Addressees
from tidemill.server.pair import ActiveParts, PairedRole
from tidemill.server.web.routes import Website
from tidemill.server.web.visits.entrance import VISIT, Visit
from tidemill.server.web.visits.sessions import Sessions
from tidemill.wire.credentials import read_key
from tidemill.wire.transports import wanted
from tidemill.wire.views import types

SOCKET = "api.sock"
REVOKED = "revoked.txt"
SESSION_KEY = "session.key"
LOCK = "server.lock"
CHECK_SITES_S = 5.0
ROUNDS_MAX = 10  #: transactions of the hospital between two checks of sites
GRACE_S = 5
SESSION_S = 3600.0  #: a login to the pages ends after this time, or when its credential expires
SWITCH_S = 0.001  #: between threads: with Python's 5 ms a short request waits for each step of a long one
HANDSHAKE_S = 10.0  #: of TLS, at the start and at the end of a connection
_LOG = log.Log("server")


def init_server(config: ServerConfig) -> tuple[int, int]:
    """Create directory and database; the schema's version before and after. Harmless if they are there."""
    private_dir(config.place)
    store = store_of(config)
    before = store.version() if store.path is None or store.path.exists() else 0
    store.init()
    return before, store.version()


class Upgraded(NamedTuple):
    """The schema before and after, and the copy of the database as it was; None = there is none."""

    before: int
    after: int
    copy: Path | None


def plan_upgrade(config: ServerConfig) -> UpgradePlan:
    """What `upgrade_server` would do. Raises ConfigError when there is no database."""
    store = store_of(config)
    if store.path is not None and not store.path.exists():
        raise ConfigError(f"there is no database `{store.path}`", hint="`tidemill server init` makes one")
    return store.plan_upgrade()


def upgrade_server(config: ServerConfig, *, copies: bool = True) -> Upgraded:
    """Bring the schema up to date. Refused while a server runs. `copies`: SQLite's file is copied first."""
    private_dir(config.place)
    with locked(config.place):
        store = store_of(config)
        copy = _copied(store) if copies else None
        return Upgraded(*store.upgrade(), copy)


def _copied(store: Store, *, replace: bool = False) -> Path | None:
    """The copy of a SQLite file that an upgrade would change; None = there is nothing to copy."""
    if store.path is None or not store.path.exists():
        return None
    found = store.version()
    return copy_database(store.path, found, replace=replace) if 0 < found < store.newest else None


def run_server(config: ServerConfig, *, upgrade: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; 0. `upgrade`: bring an older database to this version's schema first.

    Raises ConfigError when the directory, lock, secret or database refuse.
    """
    private_dir(config.place)
    authenticator, sessions = read_authenticator(config), sessions_of(config)
    sys.setswitchinterval(SWITCH_S)
    _raise_open_files()
    with locked(config.place):
        store = store_of(config)
        if upgrade or (store.path is not None and not store.path.exists()):
            # replaced, not refused: a start that was killed after its copy must not be in the way of the next
            if copy := _copied(store, replace=True):
                _LOG.info("database.copied", path=str(copy))
            store.init()
        audit = AuditLog(config.place)
        authenticator = msgspec.structs.replace(authenticator, on_refused=audit.refused)
        dispatcher = Dispatcher(store, rules_of(config))
        try:
            _refuse_lost_list(store, authenticator.revoked)
            parts = ActiveParts(store, dispatcher, config, authenticator=authenticator, audit=audit)
            with ending_at_sigterm() as ending, ExitStack() as running, listening(config) as listeners:
                running.enter_context(authenticator.revoked.watched())
                role = PairedRole(dispatcher, parts, audit) if config.pair else None
                with ending.held():
                    dispatcher.start()
                    running.callback(parts.stop if role is None else role.close)
                    (parts if role is None else role).start()
                api = Api(store, dispatcher, authenticator=authenticator, transport_up=parts.transport_up)
                keeper = Keeper(
                    api.readers, dispatcher.writer.write, audit, kept_s=constants.AUDIT_KEPT_S,
                    is_active=lambda: dispatcher.writer.is_active,
                )  # fmt: skip
                asyncio.run(
                    _serve(api, listeners, authenticator=authenticator, keeper=keeper, sessions=sessions)
                )
        finally:
            dispatcher.close()
    return 0


def _refuse_lost_list(store: Store, revoked: Revoked) -> None:
    """Raises ConfigError where the database knows of a list of what is revoked, and this server has none: it is new,
    rebuilt, or the second of a pair."""
    session = store.reader()
    try:
        if session.rows("revoked_known"):
            revoked.refuse_lost()
    finally:
        session.close()


def _raise_open_files() -> None:
    """Let the process hold as many connections as it may: the usual soft limit is 1,024 (systemd.exec(5))."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def rules_of(config: ServerConfig) -> DispatchRules:
    """What the configuration says about the verbs."""
    return DispatchRules(
        site_lost_s=constants.SITE_LOST_S,
        addressees=Addressees(config.mail, config.notify, messages=wanted(config) is not None),
        quotas=config.quotas, archive=Archive(archive_of(config)),
        wards=wards_of(config), downtimes=downtimes.reader_of(config), added=tables_of(config),
    )  # fmt: skip


def wards_of(config: ServerConfig) -> tuple[Ward, ...]:
    """The wards of the hospital. Raises ConfigError for what could never work."""
    names = [each.name for each in config.wards]
    if len(set(names)) < len(names) or len(names) > WARDS_MAX:
        raise ConfigError(
            f"`wards` names {len(names)} wards", hint=f"at most {WARDS_MAX}, each with a name of its own"
        )
    for index, ward in enumerate(config.wards):
        with blaming(f"server.toml: `wards[{index}]`"):
            _check_ward(ward)
    return tuple(config.wards)


def _check_ward(ward: Ward) -> None:
    for each in ward.failures:
        if each not in list(FailureClass):
            raise ConfigError(
                f"ward `{ward.name}` admits `{each}`, which is not a class of failures",
                hint=did_you_mean(each, list(FailureClass)),
            )
    if ward.waited_s is None and not ward.failures and not ward.home_down:
        raise ConfigError(
            f"ward `{ward.name}` admits no job", hint="set `waited_s`, `failures` or `home_down`"
        )


def read_authenticator(config: ServerConfig) -> access.Authenticator:
    """Judges credentials. Raises ConfigError for files that cannot be read, or settings that would admit any client."""
    tls, members = config.tls, config.roles.listed
    issuers = provided(bearer.NAME, bearer.TokenIssuers, config)
    _check_members(config, () if issuers is None else issuers.names)
    secured = tls.certificate is not None or tls.key is not None
    with blaming("server.toml: `secret_file`"):
        secret = None if config.secret_file is None else read_key(config.secret_file)
    authenticator = access.Authenticator(
        secret=secret,
        certificates=Certificates(tls, members) if secured else None,
        tokens=None if issuers is None else issuers.verifier(members),
        revoked=Revoked(config.place / REVOKED),
    )
    if config.listen is not None and not secured and authenticator.secret is None:
        raise ConfigError(
            f"listening on `{config.listen}` needs a secret, or https",
            hint="write one to a file of mode 0600 and name it with `secret_file`, or set `tls.certificate`; "
            "or use the Unix socket",
        )
    if config.listen is not None and not secured and not is_loopback(config.listen.rpartition(":")[0]):
        raise ConfigError(
            f"listening on `{config.listen}` needs https: others could read the secret, which permits everything",
            hint="set `tls.certificate`, or listen on `127.0.0.1:PORT` and reach it by `ssh -L`",
        )
    if authenticator.tokens is not None and not secured:
        raise ConfigError("tokens are taken by https only", hint="set `tls.certificate`")
    return authenticator


def _check_members(config: ServerConfig, issuers: Sequence[str]) -> None:
    """Raises ConfigError for a member that no credential could ever match, or that might mean another. `issuers`: the
    names of those whose tokens are believed."""
    known: dict[Bearer, str] = {}
    for each in config.roles.listed:
        shown, what = each.bearer, f"`roles.members` of `{each.name}`"
        if shown in known:
            raise ConfigError(
                f"{what} names `{each.who}`, as that of `{known[shown]}` does",
                hint="give each credential one role",
            )
        known[shown] = each.name
        if shown.issuer and shown.issuer not in issuers:
            raise ConfigError(
                f"{what} names `{each.who}`, but no issuer is called `{shown.issuer}`",
                hint=did_you_mean(shown.issuer, issuers)
                or "what follows the last `@` is the `name` of one of `tokens.issuers`",
            )
        if each.who.startswith("/") and each.who.rpartition("@")[2] in issuers:
            raise ConfigError(
                f"{what} names `{each.who}`, which may mean a certificate or a token",
                hint=f"write `subject:{each.who}` or `token:{each.who}`",
            )
        if shown.subject and config.tls.other_ca is None:
            raise ConfigError(f"{what} needs `tls.other_ca`", hint="name the CA of its certificate")


def lines_told(place: Path) -> int:
    """How many lines of the audit log the database of a server's directory knows of; 0 for another database."""
    path = place / DATABASE
    if not path.exists():
        return 0
    session = Store(path=path).reader()
    try:
        return int(value(session, "audit_lines") or 0)
    finally:
        session.close()


def sessions_of(config: ServerConfig) -> Sessions:
    """What signs the logins to the pages. Raises ConfigError."""
    key = config.place / SESSION_KEY
    return Sessions(SESSION_S, read_key(key) if os.path.lexists(key) else None)


def application(api: Api, authenticator: access.Authenticator, sessions: Sessions) -> Any:
    """What is served: the API behind its guard, and the pages before it."""
    web = Website(api, sessions, authenticator)
    app = Gate(make_app(api, web.handlers(), web.error), _asking)
    types()  # views of extensions are imported here, not in the first sync, and their faults are said below
    for name, why in extensions.faults().items():
        _LOG.warning("extension.left_out", name=name, why=why)
    return web.before(app, access.Guard(app, authenticator))


def _asking(scope: Any) -> Identity | None:
    """Who makes a request: of the API by its credential, of a page by its session."""
    visit, identity = scope.get(VISIT), scope.get(access.IDENTITY)
    if isinstance(visit, Visit) and visit.session is not None:
        return visit.session.identity
    return identity if isinstance(identity, Identity) else None


async def _serve(
    api: Api,
    listeners: list[socket.socket],
    *,
    authenticator: access.Authenticator,
    keeper: Keeper,
    sessions: Sessions,
) -> None:
    app = application(api, authenticator, sessions)
    config = uvicorn.Config(
        app, http=PeerProtocol, loop="asyncio", ws="none", proxy_headers=False,
        lifespan="off", log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
    )  # fmt: skip
    server = _Server(config, api, authenticator)
    tasks = [asyncio.create_task(_watch_sites(api, authenticator.revoked)), asyncio.create_task(keeper.run())]
    over = threading.Event()
    if api.dispatcher.rules.downtimes.sources:
        threading.Thread(target=_watch_downtimes, args=(api, over), name="downtimes", daemon=True).start()
    if authenticator.certificates is not None:
        tasks.append(asyncio.create_task(authenticator.certificates.watch()))
    for listener in listeners:
        name = listener.getsockname()
        _LOG.info(
            "server.started",
            version=__version__,
            listen=name if isinstance(name, str) else f"{name[0]}:{name[1]}",
            tls=listener.family != socket.AF_UNIX and authenticator.certificates is not None,
        )
    try:
        await server.serve(sockets=listeners)
    finally:
        over.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(SiteError):  # the database keeps what the log does not have
            await api.read(keeper.move)
        api.close()
        _LOG.info("server.stopped")


class _Server(uvicorn.Server):
    """TLS for TCP and none for the Unix socket; ends the feeds before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, api: Api, authenticator: access.Authenticator) -> None:
        super().__init__(config)
        self._api, self._keys = api, authenticator
        self._limits = ConnectionLimits(constants.HEAD_S, constants.STALL_S, constants.CONNECTIONS_MAX)
        self._peers = Peers()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with TLS for the sockets that need it, and bounded handshakes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        self.servers: list[asyncio.base_events.Server] = []
        for each in sockets or []:
            tls: dict[str, Any] = {}
            if self._keys.certificates is not None and not _is_unix(each):
                tls = {
                    "ssl": self._keys.certificates.context, "ssl_handshake_timeout": HANDSHAKE_S,
                    "ssl_shutdown_timeout": HANDSHAKE_S,
                }  # fmt: skip
            backlog = self.config.backlog
            self.servers.append(await loop.create_server(self._protocol, sock=each, backlog=backlog, **tls))
        self.started = True

    def _protocol(self) -> PeerProtocol:
        return PeerProtocol(
            self.config, self.server_state, self.lifespan.state, limits=self._limits, peers=self._peers
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._api.stop_waiting()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was handled is not raised again at the end: a clean stop is not a failure."""
        with super().capture_signals():
            yield
            self._captured_signals: list[int] = []


def _is_unix(listener: socket.socket) -> bool:
    return listener.family == socket.AF_UNIX


async def _watch_sites(api: Api, revoked: Revoked) -> None:
    loop = asyncio.get_running_loop()
    is_noted = False
    while True:
        await asyncio.sleep(CHECK_SITES_S)
        try:
            if not is_noted and revoked.has_entries():
                is_noted = await loop.run_in_executor(api.waiters, api.dispatcher.note_revoked)
            await loop.run_in_executor(api.waiters, api.dispatcher.check_sites)
            await loop.run_in_executor(api.waiters, api.dispatcher.check_downtimes)
            for _ in range(ROUNDS_MAX):
                if not (await loop.run_in_executor(api.waiters, api.dispatcher.check_hospital)).more:
                    break
        except SiteError as error:
            _LOG.warning("sites.unchecked", error=error.message)
        except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
            _LOG.error("sites.unchecked", error=repr(error))


def _watch_downtimes(api: Api, over: threading.Event) -> None:
    """Read the calendars, in a daemon thread: a server that ends does not wait for a slow source."""
    while not over.is_set():
        try:
            api.dispatcher.read_downtimes()
        except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
            if not over.is_set():
                text = error.message if isinstance(error, SiteError) else repr(error)
                _LOG.warning("downtimes.unread", error=text)
        over.wait(constants.DOWNTIMES_EVERY_S)


def private_dir(path: Path) -> None:
    """Create the directory, or refuse one that others may enter or own. Raises ConfigError."""
    try:
        make_directories(path, 0o077)
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
        with suppress(OSError):  # on a full disk the lock is held all the same, only its owner is not known
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


class EndAtSigterm:
    """What SIGTERM does while uvicorn does not handle it: it ends the server at once, or after what is `held`."""

    def __init__(self) -> None:
        self._is_held = self._is_asked = False

    def at_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM."""
        if not self._is_held:
            raise SystemExit(0)
        self._is_asked = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish this block first: a thread whose start is interrupted may run, and yet cannot be joined."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_asked:
            raise SystemExit(0)


@contextmanager
def ending_at_sigterm() -> Iterator[EndAtSigterm]:
    """Make SIGTERM run the server's `finally` blocks also before and after uvicorn handles signals. Otherwise the
    socket would stay, and clients would take it for a running server's."""
    ending = EndAtSigterm()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield ending
        return
    before = signal.signal(signal.SIGTERM, ending.at_signal)
    try:
        yield ending
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def listening(config: ServerConfig) -> Iterator[list[socket.socket]]:
    """The private Unix socket, and the port if one is named. The lock must be held, so that a socket found on disk is a
    dead server's."""
    path = config.place / SOCKET
    listeners = []
    try:
        try:
            listeners.append(_unix(path))
        except ConfigError as error:
            if config.listen is None:
                raise
            _LOG.warning("socket.none", error=error.message, hint=error.hint)
        if config.listen is not None:
            listeners.append(_tcp(config.listen))
        for each in listeners:
            each.listen(128)
        yield listeners
    finally:
        for each in listeners:
            each.close()
        path.unlink(missing_ok=True)


def _unix(path: Path) -> socket.socket:
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
    return listener


def _tcp(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise ConfigError(f"`{address}` is not an address such as `127.0.0.1:8443`")
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise ConfigError(f"cannot listen on `{address}`: {error.strerror}") from error


def entry(config: dict[str, Any]) -> int:
    """`run_server` for a configuration as plain data (paths as text), for tests and other processes."""
    log.to_stderr()
    return run_server(msgspec.convert(config, extended(ServerConfig), dec_hook=lambda kind, text: kind(text)))
