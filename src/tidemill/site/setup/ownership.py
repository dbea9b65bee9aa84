"""Whether other users can change a site's directory, its site.toml or application files. Asks the file system.

A line added to an application file can run another program with the agent's rights, so these files are worth as much as
its key. If only its owner can enter the site directory, everything below it is safe, whatever its mode.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from tidemill.errors import ConfigError

ENTRIES_MAX = 10_000  #: of a site directory that others may enter
_OBEYED = ("site.toml", "apps")  #: links to elsewhere or not
_ACL = "system.posix_acl_access"  # acl(5)


def check_site_directory(site_dir: Path) -> None:
    """Raises ConfigError where others can change a site's directory, its site.toml, or what lies beside that."""
    for path in (site_dir, *(site_dir / name for name in _OBEYED), *_reachable(site_dir)):
        check_own(path)


def check_application_file(path: Path) -> None:
    """Raises ConfigError where others can change a file below `SITE/apps`, and for that directory."""
    for each in (path.parent, path):
        if each.is_symlink() or not _is_private(path.parent.parent):
            check_own(each)


def check_own(path: Path) -> None:
    """Raises ConfigError where a file or directory can be changed by others; what is not there cannot."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"`{path}` belongs to user {found.st_uid}, not to {os.geteuid()}, who runs the site",
            hint=f"`chown {os.geteuid()} {path}`, or run the site as its owner",
        )
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_own_group(path, found)):
        raise ConfigError(f"`{path}` can be changed by others: mode {mode:04o}", hint=f"`chmod go-w {path}`")


def _is_private(directory: Path) -> bool:
    """Whether only its owner and root can enter a directory."""
    try:
        found = directory.stat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH)


def _reachable(site_dir: Path) -> Iterator[Path]:
    """What lies in a site directory that others can enter. Links may lead to stores of software that others keep."""
    if _is_private(site_dir):
        return
    try:
        with os.scandir(site_dir) as entries:
            for number, entry in enumerate(entries):
                if number >= ENTRIES_MAX:
                    raise ConfigError(f"`{site_dir}` holds more than {ENTRIES_MAX} entries")
                if not entry.is_symlink():
                    yield Path(entry.path)
    except OSError as error:
        raise ConfigError(f"failed to list `{site_dir}`: {error.strerror}") from error


def _is_own_group(path: Path, stat: os.stat_result) -> bool:
    """Whether a file's group is its owner alone: the group has the owner's name and no other member, and the file has
    no access control list.

    Red Hat's systems give every user such a group, and a umask of 002 (login.defs(5), USERGROUPS_ENAB).
    """
    try:
        os.getxattr(path, _ACL)
    except OSError:
        pass
    else:
        return False
    try:
        group, owner = grp.getgrgid(stat.st_gid), pwd.getpwuid(stat.st_uid)
    except KeyError:
        return False
    return (
        group.gr_name == owner.pw_name
        and owner.pw_gid == group.gr_gid
        and set(group.gr_mem) <= {owner.pw_name}
    )
