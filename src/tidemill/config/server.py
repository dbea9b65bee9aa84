"""What `server.toml` may hold: one record, with a section for each part that keeps its keys in its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from tidemill import config as config_files
from tidemill.config.archive import Archiving
from tidemill.config.hospital import Ward
from tidemill.config.keys import doc
from tidemill.config.notify import Mail, Notify
from tidemill.config.quotas import Quotas
from tidemill.config.tls import Roles, Tls
from tidemill.errors import ConfigError


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server: `server.toml`."""

    FILE: ClassVar[str] = "server.toml"

    dir: Annotated[
        Path | None,
        doc(
            "The server's directory (mode 0700): database, socket and lock; none = the directory of `server.toml`"
        ),
    ] = None
    database: Annotated[
        str | None, doc("`postgresql://USER@HOST/DATABASE`; none = SQLite, `tidemill.db` in the directory")
    ] = None
    pair: Annotated[
        bool,
        doc(
            "One of two servers on one PostgreSQL: answer reads while the other server is active, and take over when "
            "it ends"
        ),
    ] = False
    listen: Annotated[
        str | None,
        doc("Address `host:port` to listen on, besides the private Unix socket `api.sock` in the directory"),
    ] = None
    secret_file: Annotated[
        Path | None,
        doc(
            "File (mode 0600) with a secret for `listen` that permits everything; accepted by https, and on loopback. "
            "Without https every client needs it, and `listen` must be on loopback"
        ),
    ] = None
    wards: Annotated[
        list[Ward], doc("The hospital: where jobs with a `home` are treated that wait or fail there")
    ] = []
    tls: Tls = Tls()
    roles: Roles = Roles()
    quotas: Quotas = Quotas()
    archive: Archiving = Archiving()
    mail: Mail = Mail()
    notify: Notify = Notify()

    @property
    def place(self) -> Path:
        """The server's directory. Raises ConfigError if neither a key nor a file names it."""
        if self.dir is None:
            raise ConfigError("the server's directory is not known", hint="set `dir`")
        return self.dir


def read_config(path: Path) -> ServerConfig:
    """What `server.toml` says, and where the server lives if it does not say. Raises ConfigError."""
    config = config_files.load(path, ServerConfig)
    return config if config.dir is not None else msgspec.structs.replace(config, dir=path.absolute().parent)
