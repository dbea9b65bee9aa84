"""Where `tidemill-node`, the static binary of the node part, is."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tidemill.errors import ConfigError

NAME = "tidemill-node"
VARIABLE = "TIDEMILL_NODE_BINARY"


def find_binary(environ: Mapping[str, str] | None = None, *, site: Path | None = None) -> Path:
    """The path of the binary: in the site directory, else $TIDEMILL_NODE_BINARY, else beside this Python's scripts,
    else on PATH.

    A file of the site, or a variable, that names no executable is an error, not a reason to look elsewhere. Raises
    ConfigError, which lists every place that was searched.
    """
    own = None if site is None else site / NAME
    if own is not None and (own.exists() or own.is_symlink()):
        if _is_executable(own):
            return own.absolute()
        raise ConfigError(
            f"`{own}` is not an executable file",
            hint=f"put a {NAME} that runs on compute nodes there, or remove it to use the installed one",
        )
    variables = os.environ if environ is None else environ
    named = variables.get(VARIABLE)
    if named:
        if _is_executable(Path(named)):
            return Path(named).absolute()
        raise ConfigError(
            f"environment variable {VARIABLE} names `{named}`, which is not an executable file",
            hint=f"unset {VARIABLE} to use the installed {NAME}",
        )
    places = _places(variables)
    for place in places:
        if _is_executable(place):
            return place
    listed = ", ".join(f"`{place}`" for place in places)
    raise ConfigError(
        f"failed to find {NAME}; tried {listed}",
        hint=f"install it with `pip install {NAME}`, or set {VARIABLE} to its path",
    )


def _places(variables: Mapping[str, str]) -> list[Path]:
    directories = [
        Path(sysconfig.get_path("scripts")),
        Path(sys.executable).parent,
        Path(sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user"))),
        *(Path(entry) for entry in variables.get("PATH", "").split(os.pathsep) if entry),
    ]
    return list(dict.fromkeys(directory / NAME for directory in directories))


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
