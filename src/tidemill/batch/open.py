"""Opens the batch system that a site's configuration names; only that adapter is imported."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemill.batch.contract import BatchSystem
from tidemill.batch.kinds import kind_of
from tidemill.config.site import Cluster, SiteConfig
from tidemill.config.tables import tables_of
from tidemill.errors import SiteError
from tidemill.files import create_durable, make_directories

KEY_BYTES = 8
_KEY_FILE = "key"


def open_batch(config: SiteConfig, site_dir: Path) -> BatchSystem:
    """The site's batch system; its scripts and output go to `SITE/batch`. Makes the site's key if there is none."""
    directory = site_dir / "batch"
    if config.batch == "local":
        from tidemill.batch.local import LocalBatchSystem

        return LocalBatchSystem(directory, config.local, config.node)
    return _open_of(config, directory, key=site_key(site_dir))


@contextlib.contextmanager
def asked_cluster(config: SiteConfig, site_dir: Path) -> Iterator[BatchSystem]:
    """The centre's batch system of a site, to be asked only: the site directory stays as it is. Before the site has
    its key, no allocation counts as Tidemill's."""
    key = site_key(site_dir) if (site_dir / _KEY_FILE).exists() else ""
    with TemporaryDirectory(prefix="tidemill-") as scratch:
        batch = _open_of(config, Path(scratch), key=key)
        if config.batch == "pbs":
            from tidemill.batch.pbs import PbsBatchSystem

            assert isinstance(batch, PbsBatchSystem)
            batch.knows_numbers = False  # the agent has them, and it alone acts on what it sees
        yield batch


def _open_of(config: SiteConfig, directory: Path, *, key: str) -> BatchSystem:
    """The centre's batch system of a site. Raises ConfigError as `open_cluster` does."""
    account = config.accounts[0].name if config.accounts else ""
    opened = kind_of(config.batch).open
    return opened(directory, config.cluster, key=key, account=account, tables=tables_of(config))


def open_cluster(kind: str, directory: Path, cluster: Cluster, *, account: str = "") -> BatchSystem:
    """A centre's batch system without a site.toml, to be asked: no allocation counts as Tidemill's. Raises ConfigError
    for a kind that there is not, or whose extension is missing."""
    return kind_of(kind).open(directory, cluster, key="", account=account, tables={})


def site_key(site_dir: Path) -> str:
    """The random key by which the site knows its own allocations: `SITE/key`, made once, mode 0600."""
    path = site_dir / _KEY_FILE
    try:
        key = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return _make_key(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SiteError(f"failed to read the site's key `{path}`: {error}", transient=False) from error
    if len(key) != 2 * KEY_BYTES or set(key) - set("0123456789abcdef"):
        raise SiteError(
            f"`{path}` is not a key: {len(key)} characters, expected {2 * KEY_BYTES} hexadecimal digits",
            hint="allocations that were submitted with the old key are not recognised with another one",
            transient=False,
        )
    return key


def _make_key(path: Path) -> str:
    """Write a new key; where two do so at a time, the first one's counts."""
    lasting = functools.partial(SiteError, transient=False)
    try:
        make_directories(path.parent, 0o077)
        with contextlib.suppress(FileExistsError):
            create_durable(path, secrets.token_hex(KEY_BYTES).encode() + b"\n", failure=lasting)
    except OSError as error:
        raise lasting(f"failed to make `{path.parent}`: {error.strerror}") from error
    return site_key(path.parent)
