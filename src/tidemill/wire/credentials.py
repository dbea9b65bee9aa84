"""What a client shows to a server: a certificate, a bearer token or a secret; and whom it believes to be that server.

Files are read anew when they change: a renewed certificate or token needs no restart. What is read is cut out of logs.
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import msgspec

from tidemill.confidential import hide
from tidemill.errors import ConfigError
from tidemill.files import why_unseen

SECRET_BYTES_MAX = 4096
KEY_BYTES_MIN = 16  #: of a secret by which others are checked: a shorter one can be guessed
TOKEN_BYTES_MAX = 16 * 1024
LOGIN_BYTES_MAX = 4096
LAST_PLACE = Path("/tmp")  #: the last of the WLCG's places for a token


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a client; None = without. `ca`: a PEM file, or a directory by hash; None = the system's."""

    secret_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    token_file: Path | None = None

    def bearer(self, *, encrypted: bool, stays_here: bool = False) -> str | None:
        """What follows `Authorization: Bearer`; a token only on an encrypted connection. `stays_here`: the connection
        does not leave this machine (a Unix socket, or loopback). Raises ConfigError, also for a secret that others
        could read in transit: it permits everything."""
        if self.secret_file is not None:
            if not (encrypted or stays_here):
                raise ConfigError(
                    f"the secret of `{self.secret_file}` is not sent over `http://` to another machine: others could "
                    "read it in transit",
                    hint="name the server by `https://`, or reach its loopback by `ssh -L` and `http://localhost:PORT`",
                )
            return read_secret(self.secret_file)
        if not encrypted:
            return None
        if self.token_file is not None:
            return read_token(self.token_file)
        return None if self.certificate is not None else find_token()

    def context(self) -> ssl.SSLContext:
        """For TLS connections from now on. Raises ConfigError."""
        is_directory = self.ca is not None and os.path.isdir(self.ca)  # noqa: PTH112 -- never raises
        try:
            context = ssl.create_default_context(
                cafile=None if self.ca is None or is_directory else str(self.ca),
                capath=str(self.ca) if is_directory else None,
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"CA `{self.ca}` cannot be read: {error}", hint="it is PEM") from error
        if self.certificate is not None:
            key = self.key or self.certificate
            check_private(key)
            try:
                context.load_cert_chain(self.certificate, key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"certificate `{self.certificate}` with key `{key}` cannot be used: {error}",
                    hint="both are PEM, and the key is that of the first certificate; see `tidemill certs show`",
                ) from error
        return context

    def marks(self) -> tuple[tuple[int, int], ...]:
        """Changes when one of the files that `context` reads has changed."""
        return tuple(_mark(path) for path in (self.certificate, self.key, self.ca) if path is not None)


def find_token(last: Path = LAST_PLACE) -> str | None:
    """The bearer token by the WLCG's discovery order, or None (doi:10.5281/zenodo.3937438).

    $BEARER_TOKEN, the file that $BEARER_TOKEN_FILE names, $XDG_RUNTIME_DIR/bt_u$UID, /tmp/bt_u$UID. Raises ConfigError
    for a file that is named but cannot be read, and for one that is not private.
    """
    told = os.environ.get("BEARER_TOKEN", "").strip()
    if told:
        return _token(told, "$BEARER_TOKEN")
    named = os.environ.get("BEARER_TOKEN_FILE", "").strip()
    if named:
        return read_token(Path(named))
    name = f"bt_u{os.geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "").strip()
    for folder in ([Path(runtime)] if runtime else []) + [last]:
        if not why_unseen(folder / name):
            return read_token(folder / name)
    return None


def read_token(path: Path) -> str:
    """The token in a file that we own and other users can neither read nor write; ConfigError otherwise."""
    return _token(_read_private(path, "token", TOKEN_BYTES_MAX), f"`{path}`")


def _token(text: str, where: str) -> str:
    if (
        text.count(".") != 2
        or len(text) > TOKEN_BYTES_MAX
        or not all(0x21 <= ord(each) <= 0x7E for each in text)
    ):
        raise ConfigError(
            f"{where} does not hold a token", hint="ask for a new one, as with `htgettoken` or oidc-agent"
        )
    hide(text)
    return text


def read_secret(path: Path, *, bytes_min: int = 1) -> str:
    """The secret in a file of mode 0600 (or 0400) that we own; ConfigError otherwise."""
    secret = _read_private(path, "secret", SECRET_BYTES_MAX)
    if len(secret) < bytes_min or not all(0x21 <= ord(each) <= 0x7E for each in secret):
        raise ConfigError(
            f"the secret file `{path}` does not hold one word of printable ASCII, {bytes_min} to {SECRET_BYTES_MAX} "
            "characters",
            hint=f"head -c 32 /dev/urandom | base64 -w0 > {path}",
        )
    hide(secret)
    return secret


def read_key(path: Path) -> bytes:
    """As `read_secret`, for who checks or signs by it: a longer one."""
    return read_secret(path, bytes_min=KEY_BYTES_MIN).encode()


def _read_private(path: Path, kind: str, bytes_max: int) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"failed to read the {kind} file `{path}`: {error.strerror}") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"the {kind} file `{path}` has mode {mode:04o}", hint=f"chmod 0600 {path}")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"the {kind} file `{path}` belongs to user {status.st_uid}", hint="use a file of your own"
        )
    return "" if len(text) > bytes_max else text.strip().decode("ascii", errors="replace")


def check_private(path: Path) -> None:
    """Refuse a key that others can read or write: ConfigError."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"failed to read the key `{path}`: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"the key `{path}` is open to others: mode {mode:04o}", hint=f"chmod 0600 {path}")


def _mark(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def read_login(path: Path) -> tuple[str, str]:
    """User and password from a file that its owner alone can read. Raises ConfigError, which quotes nothing of it."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            lines = file.read(LOGIN_BYTES_MAX + 1).decode("utf-8", "strict").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"login file `{path}` cannot be read: {getattr(error, 'strerror', error)}"
        ) from error
    if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.getuid():
        raise ConfigError(
            f"login file `{path}` is not private: mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid}",
            hint=f"`chmod 0600 {path}`",
        )
    if len(lines) != 2 or not all(lines):
        raise ConfigError(
            f"login file `{path}` has {len(lines)} lines, expected two", hint="the user, then the password"
        )
    hide(lines[1])
    return lines[0], lines[1]
