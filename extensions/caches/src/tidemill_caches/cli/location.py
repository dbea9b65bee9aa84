"""The cache directory that a verb works on, and its configuration."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tidemill.cli.arguments import Parser


def define_directory(parser: Parser) -> None:
    """Define the argument that names a cache."""
    parser.add_argument(
        "dir", type=Path, nargs="?", metavar="DIR", help="the cache's directory (default: HOME/cache)"
    )


def cache_directory(args: Namespace) -> Path:
    """The cache directory named on the command line, else `HOME/cache`."""
    from tidemill.client.home import home_dir

    directory: Path = (args.dir or home_dir(args.home) / "cache").absolute()
    return directory


def path_in(text: str) -> str:
    """The path of a cached file or dataset as a person names it: as a path, or as the URL at the origin.

    Raises ConfigError.
    """
    from tidemill.errors import ConfigError

    path = text.partition("://")[2].partition("/")[2] if "://" in text else text
    names = [each for each in path.split("/") if each]
    if any(each in (".", "..") for each in names) or "\0" in path:
        raise ConfigError(f"`{text}`: `.` and `..` are refused in a path")
    return "/" + "/".join(names)
