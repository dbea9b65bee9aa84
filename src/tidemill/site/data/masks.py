"""What payloads see of the node, and which paths of the agent's user they must not see: they run as that user, so
permissions do not keep them out."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import tidemill
from tidemill.config import parse_toml
from tidemill.config.caching import CACHE_TOML
from tidemill.config.hidden import credential_patterns, is_credential
from tidemill.config.keys import CREDENTIALS, DISCOVER, addresses
from tidemill.config.site import SiteConfig
from tidemill.config.tables import tables_of
from tidemill.errors import UNDECODABLE, ConfigError
from tidemill.node.binary import find_binary
from tidemill.site.setup.homes import home_veils, user_homes
from tidemill.transfer.credentials import secret_files
from tidemill.wire.node import View

_SERVER_MARK = "server.lock"
_UP_MARK = "up.lock"
_UP_PARTS = ("server", "site")  #: of a person's own Tidemill: they are masked
_SYSTEM = (Path("/"), Path("/usr"), Path("/usr/local"))
_CACHE_SECRETS = (("credential", "certificate"), ("credential", "token_file"), ("tls", "key"))
_OTHERS = ("/run/user", "/var/tmp", "/var/mail", "/var/spool/mail", "/var/spool/cron")


def private_paths(site_dir: Path, config: SiteConfig) -> list[Path]:
    """What `file:` inputs and outputs may not touch, should a data root hold it: what payloads must not see, and what
    only our programs need."""
    paths = [config.certificate, *(endpoint.certificate for endpoint in config.endpoints)]
    return [*masked_paths(site_dir, config), *(each for each in paths if each is not None)]


def masked_paths(site_dir: Path, config: SiteConfig, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The site directory, its secrets, keys and tokens, also those for other places, and the server beside it: a
    process of this user that reaches the server's socket may submit, one that reaches its directory may change the
    database."""
    paths = [*_state(site_dir, config), *_secrets(config, environ)]
    paths += [
        cache.directory / "run" for cache in config.caches if cache.directory is not None
    ]  # XRootD's sockets
    if config.serves_others and config.output_dir is not None and not _holds_data(config):
        paths.append(config.output_dir)  # other users' outputs; `site_dir` covers those in it
    paths = [*paths, *config.mask]
    real = [Path(os.path.realpath(path)) for path in paths]  # where links lead to has its own way there
    shown = set(allowed_credentials(site_dir, config, environ))
    return [path for path in dict.fromkeys([*paths, *real]) if path not in shown]


def _secrets(config: SiteConfig, environ: Mapping[str, str]) -> list[Path]:
    """Keys, tokens and proxies that the site's file, its extensions' tables there, the files of its caches and the
    agent's environment name."""
    private = [config.secret_file, config.key, config.token_file, config.metrics.secret_file]
    for endpoint in config.endpoints:  # without `key` the certificate is a proxy, which holds its own
        private += [endpoint.key or endpoint.certificate, endpoint.token_path, endpoint.credentials_file]
    private += secrets_in(list(tables_of(config).values()))
    for cache in config.caches:
        private += [] if cache.directory is None else _secrets_of_cache(cache.directory)
    return [*(each for each in private if each is not None), *secret_files(environ)]


def secrets_in(table: Any) -> list[Path]:
    """Keys, tokens and secrets that a table of an extension, or one within it, names by the keys that mean the same
    everywhere (`CREDENTIALS`): so no extension can forget to hide its own."""
    if isinstance(table, list | tuple | dict):
        inner = list(table.values() if isinstance(table, dict) else table)
    elif isinstance(table, msgspec.Struct):
        inner = [getattr(table, name) for name in table.__struct_fields__]
    else:
        return []
    held: dict[str, Any] = {name: getattr(table, name, None) for name in CREDENTIALS}
    own = [held["key"] or held["certificate"], held["token_file"], held["secret_file"]]
    found = [each for each in own if isinstance(each, Path) and each != DISCOVER]
    return [*found, *(path for each in inner for path in secrets_in(each))]


def _secrets_of_cache(directory: Path) -> list[Path]:
    """Keys and tokens that the `cache.toml` there names, as `config.load` makes their paths. A file with another key
    that is wrong does not keep them from being hidden: its cache may run on as it was started."""
    try:
        tables = parse_toml((directory / CACHE_TOML).read_text(encoding="utf-8"))
    except (OSError, *UNDECODABLE):
        return []
    result = []
    for table, key in _CACHE_SECRETS:
        inner = tables.get(table)
        named = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(named, str) and named and "\0" not in named:
            with suppress(RuntimeError):  # `~name` of a user whom this machine does not know
                result.append((directory / Path(named).expanduser()).absolute())
    return result


def _state(site_dir: Path, config: SiteConfig) -> list[Path]:
    """The site directory, and of each server of the same machine its directory, or its socket alone."""
    state = [site_dir]
    for address in addresses(config.server):
        scheme, _, socket = address.partition(":")
        if scheme == "unix":
            directory = Path(socket).parent
            is_its_own = (directory / _SERVER_MARK).exists() and not Path.home().is_relative_to(directory)
            state.append(directory if is_its_own else Path(socket))
    return state


def _holds_data(config: SiteConfig) -> bool:
    return any(root.is_relative_to(config.output_dir or root) for root in config.data_roots)


def shown_credentials(config: SiteConfig, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """What the owner of a site shows to their programs of what is hidden otherwise: what `show` names exactly of
    credentials by their usual names, and of the secrets that the site's file and the agent's environment name. What
    `mask` names stays hidden."""
    if config.serves_others:
        return []
    secrets = {os.path.normpath(path) for path in _secrets(config, environ)}
    named = [Path(os.path.normpath(path)) for path in config.show]
    return [
        path for path in named if (is_credential(path) or str(path) in secrets) and path not in config.mask
    ]


def allowed_credentials(
    site_dir: Path, config: SiteConfig, environ: Mapping[str, str] = os.environ
) -> list[Path]:
    """The credentials that payloads may see, as named and where links lead to; never Tidemill's state."""
    named = shown_credentials(config, environ)
    state = [Path(os.path.realpath(path)) for path in _state(site_dir, config)]

    def is_state(path: Path) -> bool:
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(each) or each.is_relative_to(real) for each in state)

    return [each for path in named if not is_state(path) for each in (path, Path(os.path.realpath(path)))]


def view_of(site_dir: Path, config: SiteConfig) -> View:
    """What payloads of the site see besides their slots, and may change."""
    if config.serves_others:
        veils = [*home_veils(), *installation(site_dir, whole=False), *(Path(each) for each in _OTHERS)]
        return View(
            shared=True,
            own_tmp=False,
            veils=_texts(veils),
            keep=[],
            show=_texts(config.show),
            write=_texts(config.write),
            credentials=credential_patterns(user_homes()),
            allowed=[],
        )
    keep, beside = _home_of_up(site_dir)
    credentials = shown_credentials(config)
    return View(
        shared=False,
        own_tmp=True,
        veils=[],
        keep=_texts([*installation(site_dir, whole=True), *keep]),
        show=_texts([each for each in config.show if each not in credentials]),
        write=_texts([*config.write, *beside]),
        credentials=credential_patterns(user_homes()),
        allowed=_texts(allowed_credentials(site_dir, config)),
    )


def installation(site_dir: Path, *, whole: bool) -> list[Path]:
    """Where Tidemill's programs are. `whole`: with all that Python reads for them, which payloads must not change;
    else what payloads have no use for, and need not see."""
    package = Path(tidemill.__file__).parent
    found = [package]
    with suppress(ConfigError):
        found.append(find_binary(site=site_dir))
    is_environment = sys.prefix != sys.base_prefix
    if is_environment or whole:
        found.append(Path(sys.prefix))
    if whole:
        found.append(Path(sys.base_prefix))
        if site.ENABLE_USER_SITE:
            found.append(Path(site.getusersitepackages()))
    real = [Path(os.path.realpath(path)) for path in found]
    return [path for path in dict.fromkeys([*found, *real]) if path not in _SYSTEM and not _holds_home(path)]


def _holds_home(path: Path) -> bool:
    return any(home.is_relative_to(path) for home in user_homes())


def _home_of_up(site_dir: Path) -> tuple[list[Path], list[Path]]:
    """The home of a site that `tidemill up` made, in which nothing is to be replaced, and what else is in it."""
    home = site_dir.parent
    if not (home / _UP_MARK).exists() or home in user_homes():
        return [], []
    with suppress(OSError):
        others = [each for each in home.iterdir() if each.name not in _UP_PARTS and each.is_dir()]
        return [home], [each for each in others if not each.is_symlink()]
    return [home], []


def _texts(paths: list[Path]) -> list[str]:
    return [str(path) for path in dict.fromkeys(paths)]
