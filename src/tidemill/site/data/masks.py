"""Which paths of the agent's user payloads must not see: they run as that user, so permissions do not keep them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidemill.config.site import SiteConfig
from tidemill.transfer.credentials import secret_files

_SERVER_MARK = "server.lock"


def private_paths(site_dir: Path, config: SiteConfig) -> list[Path]:
    """What `file:` inputs and outputs may not touch, should a data root hold it: what payloads must not see, and what
    only our programs need."""
    paths = [config.certificate, config.node_binary, *(endpoint.certificate for endpoint in config.endpoints)]
    return [*masked_paths(site_dir, config), *(each for each in paths if each is not None)]


def masked_paths(site_dir: Path, config: SiteConfig, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The site directory, its secrets, keys and tokens, also those for other places, and the server beside it: a
    process of this user that reaches the server's socket may submit, one that reaches its directory may change the
    database."""
    private = [config.secret_file, config.key, config.token_file, config.metrics.secret_file]
    for endpoint in config.endpoints:  # without `key` the certificate is a proxy, which holds its own
        private += [endpoint.key or endpoint.certificate, endpoint.token_file, endpoint.credentials_file]
    paths = [site_dir, *(each for each in private if each is not None), *secret_files(environ)]
    scheme, _, socket = config.server.partition(":")
    if scheme == "unix":
        directory = Path(socket).parent
        if (directory / _SERVER_MARK).exists() and not Path.home().is_relative_to(directory):
            paths.append(directory)
        else:
            paths.append(Path(socket))
    if config.shared and config.output_dir is not None and not _holds_data(config):
        paths.append(config.output_dir)  # others' outputs: those in the site directory are covered with it
    return [*paths, *config.mask]


def _holds_data(config: SiteConfig) -> bool:
    return any(root.is_relative_to(config.output_dir or root) for root in config.data_roots)
