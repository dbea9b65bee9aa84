"""Where a person's Tidemill lives, and how a client finds its server. Starts and stops nothing.

$TIDEMILL_HOME (default ~/.local/state/tidemill, 0700)
  up.json      what `tidemill up` runs: address and process ids (0600, gone when it has ended)
  client.toml  another server to use: `server = "https://host:port"`, `secret_file = "..."`
  server/      database and socket of the person's own server
  site/        directory of the person's own site
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from tidemill import config
from tidemill.config.keys import Addresses, doc, refuse_password
from tidemill.errors import UNDECODABLE, ConfigError
from tidemill.files import current_umask, make_directories
from tidemill.wire.credentials import Credentials

UP_NAME = "up.json"
HOME_VARIABLE = "TIDEMILL_HOME"
SERVER_VARIABLE = "TIDEMILL_SERVER"
SECRET_VARIABLE = "TIDEMILL_SECRET_FILE"
CERTIFICATE_VARIABLE = "TIDEMILL_CERTIFICATE"
KEY_VARIABLE = "TIDEMILL_KEY"
CA_VARIABLE = "TIDEMILL_CA"


class UpFile(msgspec.Struct, kw_only=True):
    """HOME/up.json: what a running `tidemill up` publishes for other commands."""

    version: str
    pid: int
    address: str
    site_dir: str
    server_pid: int
    site_pid: int
    started_us: int
    nodes: int
    cores: int


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HOME/client.toml: the server that clients of this home talk to."""

    FILE: ClassVar[str] = "client.toml"

    server: Annotated[
        Addresses,
        doc(
            "The server: `unix:/path/api.sock`, `http://host:port`, `https://...`; of a pair both, as a list. Or the "
            "message broker, for `tidemill message`: `amqps://USER@HOST:PORT/VHOST`"
        ),
    ]
    secret_file: Annotated[Path | None, doc("File (mode 0600) with the secret of the server")] = None
    certificate: Annotated[
        Path | None, doc("Your certificate (PEM), as `tidemill certs issue submitter NAME` makes it")
    ] = None
    key: Annotated[Path | None, doc(config.CREDENTIALS["key"])] = None
    ca: Annotated[Path | None, doc(config.CREDENTIALS["ca"])] = None
    token_file: Annotated[
        Path | None,
        doc(
            "File (mode 0600) with a bearer token; none = without certificate and secret, the one found in the WLCG's "
            "order: `$BEARER_TOKEN`, `$BEARER_TOKEN_FILE`, `$XDG_RUNTIME_DIR/bt_u$UID`, `/tmp/bt_u$UID`"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse a password."""
        refuse_password(self.server)


class ServerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A server's address, what is shown to it, and where this was read."""

    address: str
    credentials: Credentials = Credentials()
    source: str

    @property
    def secret_file(self) -> Path | None:
        """The file with the server's secret."""
        return self.credentials.secret_file

    @property
    def is_own(self) -> bool:
        """Whether the `tidemill up` of the home runs it: its site has the file systems of this machine."""
        return Path(self.source).name == UP_NAME

    @property
    def is_far(self) -> bool:
        """Whether it is reached by http or https: its sites may not have this machine's files."""
        return self.address.startswith("http")


def home_dir(named: Path | None = None) -> Path:
    """The home to use: the one named, else $TIDEMILL_HOME, else ~/.local/state/tidemill. It need not exist."""
    if named is not None:
        return named.expanduser().absolute()
    told = os.environ.get(HOME_VARIABLE)
    if told:
        return Path(told).expanduser().absolute()
    try:
        return Path.home() / ".local" / "state" / "tidemill"
    except RuntimeError as error:
        raise ConfigError(
            "failed to find your home directory", hint=f"set {HOME_VARIABLE} to a directory on a local disk"
        ) from error


def make_home(home: Path) -> None:
    """Create the home with mode 0700; ConfigError if it is another user's or open to others."""
    try:
        make_directories(home.parent, current_umask() | 0o022)
        home.mkdir(exist_ok=True, mode=0o700)
        status = home.stat()
    except OSError as error:
        raise ConfigError(
            f"failed to create `{home}`: {error.strerror}",
            hint=f"set {HOME_VARIABLE} to a directory of yours",
        ) from error
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"`{home}` belongs to user {status.st_uid}", hint=f"set {HOME_VARIABLE} to another one"
        )
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"`{home}` is open to other users (mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"chmod 0700 {home}",
        )


def read_up(home: Path) -> UpFile | None:
    """What the `tidemill up` of this home runs, or None if none is alive."""
    path = home / UP_NAME
    try:
        up = msgspec.json.decode(path.read_bytes(), type=UpFile)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise ConfigError(
            f"failed to read `{path}`: {error.strerror}", hint="is it another user's home?"
        ) from error
    except UNDECODABLE:
        return None  # of another version, or torn by a full disk: nothing alive keeps such a file
    return up if up_runs(home) else None


def up_runs(home: Path) -> bool:
    """Whether a `tidemill up` holds the home's lock: flock(2) ends with its holder, however that died."""
    try:
        with (home / "up.lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def find_server(
    address: str | None = None, *, secret_file: Path | None = None, home: Path | None = None
) -> ServerPlace | None:
    """The server to use, or None: as named, from $TIDEMILL_SERVER, HOME/client.toml, HOME/up.json, or the socket that a
    `tidemill server run` of this home listens on, in this order. Certificates are those of the environment, else those
    of client.toml if it names the same server."""
    where = home_dir(home)
    if address is not None:
        return ServerPlace(
            address=address, credentials=_credentials(secret_file, address, where), source="as named"
        )
    told = os.environ.get(SERVER_VARIABLE)
    if told:
        secret = secret_file or _path(os.environ.get(SECRET_VARIABLE))
        return ServerPlace(
            address=told, credentials=_credentials(secret, told, where), source=f"${SERVER_VARIABLE}"
        )
    client_toml = where / "client.toml"
    if client_toml.exists():
        read = config.load(client_toml, ClientConfig)
        secret = secret_file or read.secret_file
        return ServerPlace(
            address=read.server, credentials=_credentials(secret, read.server, where), source=str(client_toml)
        )
    up = read_up(where)
    if up is not None:
        return ServerPlace(address=up.address, source=str(where / UP_NAME))
    path = where / "server" / "api.sock"
    if path.is_socket() and not ((where / UP_NAME).exists() and _is_deserted(path)):
        return ServerPlace(address=f"unix:{path}", source=str(path))
    return None


def _is_deserted(path: Path) -> bool:
    """Whether no process listens on a socket: a `tidemill up` that was killed, or its machine, left it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except (
            OSError
        ):  # busy, closed to this user, or a path too long to connect to: the request itself will say so
            return False
    return False


def _credentials(secret_file: Path | None, address: str, home: Path) -> Credentials:
    certificate = _path(os.environ.get(CERTIFICATE_VARIABLE))
    ca = _path(os.environ.get(CA_VARIABLE))
    if certificate is not None or ca is not None or not (home / "client.toml").exists():
        key = _path(os.environ.get(KEY_VARIABLE))
        return Credentials(secret_file=secret_file, certificate=certificate, key=key, ca=ca)
    read = config.load(home / "client.toml", ClientConfig)
    if read.server != address:
        return Credentials(secret_file=secret_file)
    return Credentials(
        secret_file=secret_file, certificate=read.certificate, key=read.key, ca=read.ca, token_file=read.token_file
    )  # fmt: skip


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None
