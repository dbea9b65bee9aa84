"""This node: whether `tidemill-node` runs here, and what it finds that the node can do."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import __version__
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.site.setup.capabilities import Abilities, parse_abilities
from tidemill.site.setup.finding import Finding
from tidemill.site.setup.limitations import ImageSize, Uses, of_abilities

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig

TIMEOUT_S = 30  # the binary gives up each of its three children after 5 s

VERSION_S = 20


def binary_finding(site: Path | None = None) -> Finding:
    """Whether tidemill-node, of this site if one is named, is there and runs on this host."""
    from tidemill.node.binary import find_binary

    try:
        path = find_binary(site=site)
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False
        )
    except ConfigError as error:
        return Finding("node binary", "fail", error.message, error.hint or "")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(
            "node binary", "fail", f"`{path}` does not run: {error}", "is it built for this machine?"
        )
    if done.returncode != 0:
        why = done.stderr.strip() or f"exit status {done.returncode}"
        return Finding(
            "node binary", "fail", f"`{path}` does not run: {why}", "install `tidemill-node` again"
        )
    told = done.stdout.strip()
    if __version__ not in told:
        return Finding(
            "node binary",
            "warn",
            f"{path}: `{told}`, tidemill is {__version__}",
            "install both of the same version",
        )
    return Finding("node binary", "ok", f"{path}: {told}")


def abilities_findings(args: Namespace) -> Iterator[Finding]:
    """What this node can do and what each lack costs. One `warn` finding where it could not be asked."""
    from tidemill.client.home import home_dir

    directory = args.site or home_dir(args.home) / "site"
    try:
        here = look_here()
    except ConfigError:
        return  # the missing binary has been reported
    except TidemillError as error:
        yield Finding("abilities", "warn", error.message, error.hint or "")
        return
    yield from of_abilities(here, site_uses(directory))


def look_here() -> Abilities:
    """Ask the installed binary. Raises ConfigError where there is none, SiteError where it does not answer."""
    from tidemill.node.binary import find_binary

    command = [str(find_binary()), "doctor", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(f"`{' '.join(command)}` does not answer: {error}", transient=False) from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[:1] or [f"exit status {done.returncode}"]
        raise SiteError(
            f"`{' '.join(command)}` failed: {said[0]}",
            hint="is it of the same version as tidemill? `tidemill-node --version`",
            transient=False,
        )
    return parse_abilities(done.stdout)


def site_uses(directory: Path, config: SiteConfig | None = None) -> Uses:
    """What a site uses of its nodes. `config` None: of this host alone, which serves no files to other nodes."""
    from tidemill.site.applications.catalogue import Applications

    images = site_images(directory)
    if config is None:
        return Uses(images=images)
    applications = Applications(directory / "apps", site=config)
    applications.refresh()
    has_containers = any(each.app.container for each in applications.by_name.values())
    return Uses(
        images=images,
        containers=bool(config.containers) or has_containers,
        peers=config.batch != "local" and config.harvest.has_peers,
    )


def site_images(directory: Path) -> list[ImageSize]:
    """Images of a site, as far as their recipes can be read; for how much memory unpacking them takes."""
    from tidemill.image.recipe import read_store

    try:
        recipes = read_store(directory / "images").recipes
    except TidemillError:
        return []  # a site need not have any; `tidemill image list` says what is wrong with them
    return [ImageSize(each.name, each.file.bytes, each.unpacked_bytes) for each in recipes.values()]
