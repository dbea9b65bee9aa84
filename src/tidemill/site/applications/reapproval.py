"""A program that changed after its approval: its new digests, written into its application file.

A user who may write SITE/apps may approve programs there, so that only the owner of the file may do this.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.config import load
from tidemill.errors import ConfigError, TidemillError
from tidemill.files import write_durable
from tidemill.model.application import Application
from tidemill.site.applications.catalogue import load_application
from tidemill.site.applications.checksums import Digests, check_digest

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


class ProgramFile(NamedTuple):
    """A file of a program. `approved`: the digest that the application file gives; None = it gives none, and the site
    approves what it finds when it reads the application file. `found`: the digest that the file has now."""

    key: str  #: of its digest
    path: str
    approved: str | None
    found: str

    @property
    def is_changed(self) -> bool:
        """Whether the site refuses it."""
        return self.approved is not None and self.approved != self.found


def program_files(path: Path) -> tuple[Application, list[ProgramFile]]:
    """An application, and its executable and script as they are now. Raises ConfigError, SiteError."""
    app = load(path, Application)
    if app.container is not None:
        raise ConfigError(
            f"{path}: `{app.name}` runs in a container, whose image is what is approved",
            hint="`tidemill app check FILE.toml` prints the digest of a changed image; write it into the file",
        )
    digests, found = Digests(), []
    for key, file, approved in (
        ("digest", app.executable, app.digest),
        ("script_digest", app.script, app.script_digest),
    ):
        if file is not None:
            check_digest(path, key, approved)
            if not file.startswith("/"):
                raise ConfigError(f"{path}: `{file}` is not an absolute path")
            found.append(ProgramFile(key, file, approved, digests.digest(file)))
    return app, found


def check_owner(path: Path) -> None:
    """Raises ConfigError unless the application file and its directory belong to the user who asks."""
    for each in (path.parent, path):
        try:
            uid = each.stat().st_uid
        except OSError as error:
            raise ConfigError(
                f"failed to read `{each}`: {error.strerror}",
                hint="give the path of the application file: `tidemill app approve SITE/apps/NAME.toml`",
            ) from error
        if uid != os.geteuid():
            raise ConfigError(
                f"`{each}` belongs to user {uid}, not to {os.geteuid()}: programs are approved by its owner",
                hint="ask the site's operator to run this command",
            )


def rewritten(text: str, files: Sequence[ProgramFile]) -> str:
    """An application file with the digests that its files have now; all else stays as it is. Pure. Raises ConfigError
    where a digest is not on a line of its own."""
    expected = tomllib.loads(text)
    first_table = _TABLE.search(text)
    head_end = first_table.start() if first_table else len(text)
    head, rest = text[:head_end], text[head_end:]
    for each in files:
        if each.is_changed:
            line = re.compile(rf"""^(\s*{each.key}\s*=\s*["'])sha256:[0-9a-f]{{64}}(?=["'])""", re.MULTILINE)
            head = line.sub(lambda match, found=each.found: match[1] + found, head)  # type: ignore[misc]
            expected[each.key] = each.found
    changed = head + rest
    if tomllib.loads(changed) != expected:
        lines = ", ".join(f'`{each.key} = "{each.found}"`' for each in files if each.is_changed)
        raise ConfigError("the digest is not on a line of its own", hint=f"write it into the file: {lines}")
    return changed


def approve(path: Path, files: Sequence[ProgramFile]) -> None:
    """Write the digests of `files` into the application file at `path`, so that the site reads it and them again.

    Raises ConfigError or SiteError, and leaves the file as it was, where the result would not be sound, such as where
    a program has changed once more. Where the file is a link, what it leads to is rewritten, and it stays a link.
    """
    check_owner(path)
    real = path.resolve()
    check_owner(real)
    try:
        before = path.read_bytes()
        mode = stat.S_IMODE(path.stat().st_mode)
        text = rewritten(before.decode(), files)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"failed to read `{path}`: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    write_durable(real, text.encode(), mode=mode)
    try:
        sound = load_application(path)
        for each in files:
            if sound.files.get(each.path) != each.found:
                raise ConfigError(f"`{each.path}` changed again while it was approved", hint="try again")
    except TidemillError:
        write_durable(real, before, mode=mode)
        raise
