"""Which paths of the agent's user payloads must not see: they run as that user, so permissions do not keep them out."""

from __future__ import annotations

from pathlib import Path

from tidemill.config.site import SiteConfig

_SERVER_MARK = "server.lock"


def masked_paths(site_dir: Path, config: SiteConfig) -> list[Path]:
    """The site directory, its secret, and the server beside it: whoever reaches that one's socket as our user may
    submit, and whoever reaches its directory may change the database."""
    paths = [site_dir, *([config.secret_file] if config.secret_file else [])]
    scheme, _, socket = config.server.partition(":")
    if scheme == "unix":
        directory = Path(socket).parent
        if (directory / _SERVER_MARK).exists() and not Path.home().is_relative_to(directory):
            paths.append(directory)
        else:
            paths.append(Path(socket))
    return [*paths, *config.mask]
