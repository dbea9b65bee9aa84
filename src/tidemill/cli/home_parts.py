"""A home on a network file system: its site stays there, for compute nodes to see; its server goes to a local disk.

SQLite's locks and flock(2) do not hold on network file systems. So `HOME/server` and `HOME/up.lock` become symbolic
links into a private directory on a local disk of one host, whose name is in the link's target.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from tidemill.errors import ConfigError

SITE_NAME = "local"
"""The name of the site that `tidemill up` makes in a home."""

MARK = "# Written by `tidemill up`, again at each start. Remove this line to make the file yours."
LOCAL_PLACES = (Path("/var/tmp"), Path("/tmp"))
PREFIX = "tidemill-"
_LINKED = ("server", "up.lock")


def split_home(home: Path, places: tuple[Path, ...] = LOCAL_PLACES) -> Path | None:
    """Put the server's part of a home that is on a network file system on a local disk; where it is then.

    None where the home needs no such thing, or has a server already. Raises ConfigError where no local disk is found.
    """
    from tidemill.server.database.mounts import refuse_network

    if any((home / name).is_symlink() or (home / name).exists() for name in _LINKED):
        return None
    try:
        refuse_network(home)
    except ConfigError as error:
        return _split(home, places, error)
    return None


def _split(home: Path, places: tuple[Path, ...], error: ConfigError) -> Path:
    from tidemill.server.database.mounts import refuse_network

    for place in places:
        try:
            refuse_network(place)
            local = Path(
                tempfile.mkdtemp(prefix=f"{PREFIX}{socket.gethostname()}-", dir=place)
            )  # mode 0700, owned by this user
        except (ConfigError, OSError):
            continue
        (local / "server").mkdir(mode=0o700)
        for name in _LINKED:
            (home / name).symlink_to(local / name)
        return local
    listed = ", ".join(f"`{place}`" for place in places)
    raise ConfigError(
        f"{error.message}, and no local disk was found; tried {listed}",
        hint="set $TIDEMILL_HOME to a directory on a local disk, and name a shared one for the site: "
        "`tidemill site init DIR`",
    ) from error


def check_parts(home: Path) -> None:
    """ConfigError where the server's part of the home is on another host, or was removed."""
    link = home / "server"
    if not link.is_symlink() or link.is_dir():
        return
    target = link.readlink()
    host = target.parent.name.removeprefix(PREFIX).rpartition("-")[0]
    here = socket.gethostname()
    if host != here:
        raise ConfigError(
            f"your server is on {host}: `{link}` leads to `{target}` there, this is {here}",
            hint=f"log in to {host}; or set $TIDEMILL_HOME to another directory",
        )
    raise ConfigError(
        f"the server's directory `{target}` was removed from this host's disk",
        hint=f"what it knew is lost; `rm {' '.join(str(home / name) for name in _LINKED)}` and `tidemill site init` "
        "begin anew",
    )


def server_part(home: Path) -> Path:
    """The directory whose file system must be a local one."""
    return Path(os.path.realpath(home / "up.lock")).parent
