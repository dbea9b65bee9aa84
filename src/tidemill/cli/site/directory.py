"""The site directory that a verb works on: which one, its configuration, and whose agent runs there."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Parser
from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig


def site_directory(args: Namespace) -> Path:
    """The site directory named on the command line, else `HOME/site`. Raises ConfigError where it has no site.toml."""
    from tidemill.client.home import home_dir

    directory: Path = (args.dir or home_dir(args.home) / "site").absolute()
    if not (directory / "site.toml").is_file():
        raise ConfigError(
            f"`{directory}` is not a site directory: it has no site.toml",
            hint="`tidemill site init` makes one",
        )
    return directory


def read_site(directory: Path) -> SiteConfig:
    """The configuration of a site directory. Raises ConfigError."""
    from tidemill import config
    from tidemill.config.site import SiteConfig

    return config.load(directory / "site.toml", SiteConfig)


def nodes_text(config: SiteConfig, when: str = "") -> str:
    """How many nodes a site may use: `at most 4 nodes`, or `1 emulated node`. `when` follows a maximum."""
    if config.batch == "local":
        return counted_text(min(config.local.nodes, config.nodes_max), "emulated node")
    return f"at most {counted_text(config.nodes_max, 'node')}{when}"


def define_directory(parser: Parser) -> None:
    """Define the argument that names a site."""
    parser.add_argument(
        "dir", type=Path, nargs="?", metavar="DIR", help="the site's directory (default: HOME/site)"
    )


def owner_of(directory: Path) -> dict[str, Any] | None:
    """The newest epoch of the site directory, and whether its agent has left. Raises ConfigError."""
    newest = max((directory / "epoch").glob("*.json"), default=None)
    if newest is None:
        return None
    try:
        told: dict[str, Any] = json.loads(newest.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"failed to read `{newest}`: {error}") from error
    return {**told, "ended": newest.with_suffix(".ended").exists()}
