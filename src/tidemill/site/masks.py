"""Which paths of the agent's user payloads must not see: they run as that user, so permissions do not keep them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidemill.config.site import SiteConfig

_SERVER_MARK = "server.lock"
_NAMED = (
    "X509_USER_PROXY",
    "X509_USER_KEY",
    "BEARER_TOKEN_FILE",
    "KRB5CCNAME",
    "AWS_SHARED_CREDENTIALS_FILE",
)
"""Variables of the agent by which clients find what to show at endpoints for which the configuration names nothing."""


def private_paths(site_dir: Path, config: SiteConfig) -> list[Path]:
    """What `file:` inputs and outputs may not touch, should a data root hold it: what payloads must not see, and what
    only our programs need."""
    paths = [config.certificate, config.node_binary, *(endpoint.certificate for endpoint in config.endpoints)]
    return [*masked_paths(site_dir, config), *(each for each in paths if each is not None)]


def masked_paths(site_dir: Path, config: SiteConfig, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The site directory, its secrets, keys and tokens, also those for other places, and the server beside it: whoever
    reaches that one's socket as our user may submit, and whoever reaches its directory may change the database."""
    private = [config.secret_file, config.key, config.token_file, config.metrics.secret_file]
    for endpoint in config.endpoints:  # without `key` the certificate is a proxy, which holds its own
        private += [endpoint.key or endpoint.certificate, endpoint.token_file, endpoint.credentials_file]
    paths = [site_dir, *(each for each in private if each is not None), *_named(environ)]
    scheme, _, socket = config.server.partition(":")
    if scheme == "unix":
        directory = Path(socket).parent
        if (directory / _SERVER_MARK).exists() and not Path.home().is_relative_to(directory):
            paths.append(directory)
        else:
            paths.append(Path(socket))
    return [*paths, *config.mask]


def _named(environ: Mapping[str, str]) -> list[Path]:
    """Files of credentials that the agent's environment names; of Kerberos, `FILE:PATH` or `DIR:PATH`."""
    words = (environ.get(name, "") for name in _NAMED)
    paths = (Path(word.removeprefix("FILE:").removeprefix("DIR:")) for word in words)
    return [path for path in paths if path.is_absolute()]
