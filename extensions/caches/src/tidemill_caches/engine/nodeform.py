"""The small cache of one node: inside an allocation, its files in node memory, for the payloads of this node alone.

`node_definition` is what pilots get: the generated files with placeholders for what is known on the node alone. A pilot
fills them in, chooses a port and runs xrootd (crates/pilot, `cache`). `write_node_cache` makes a cache directory on a
given port instead, for `tidemill cache run` by other means.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from tidemill import config
from tidemill.config.caching import SiteCache
from tidemill.errors import ConfigError
from tidemill.files import write_durable
from tidemill.wire.staged import NodeCacheDef
from tidemill_caches.engine import configuration, windows
from tidemill_caches.engine import directory as places
from tidemill_caches.engine.origins import parse_origin, through
from tidemill_caches.settings import RAM_BYTES_MIN, CacheConfig

REPORT = "xrd.report 127.0.0.1:{report} every 5s link\n"
"""What it has sent to its clients, by UDP, to the pilot's process beside it (xrd_config of 5.5)."""

PROGRAM = "xrootd"


class NodeCache(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's cache is made for. `memory_bytes` is all that it may use: files and blocks on their way to them."""

    port: int
    memory_bytes: int
    site: CacheConfig  #: of the site's cache, whose origins and credential the node's cache has
    upstream: str | None = (
        None  #: the site's cache, `root://HOST:PORT`, to read through; None = origins directly
    )


def write_node_cache(directory: Path, wanted: NodeCache) -> CacheConfig:
    """Make a cache directory for `tidemill cache run`; its configuration. Raises ConfigError, SiteError."""
    text = node_text(wanted)
    places.make_parts(directory)
    write_durable(directory / places.CONFIG, text.encode(), failure=ConfigError)
    config = places.read_cache(directory)
    places.make_data(directory, config)
    places.write_generated(directory, config)
    return config


def node_text(wanted: NodeCache) -> str:
    """The cache.toml of a node. Raises ConfigError where its memory does not suffice."""
    site = wanted.site
    most = wanted.memory_bytes - RAM_BYTES_MIN
    if most < 100 * site.block_bytes:
        least = RAM_BYTES_MIN + 100 * site.block_bytes
        raise ConfigError(
            f"a cache in node memory needs {least} bytes (1 GiB for blocks under way, and 100 blocks), and gets "
            f"{wanted.memory_bytes}",
            hint="give it more memory, or let the node's payloads read through the site's cache",
        )
    origins = site.origins
    if wanted.upstream is not None:
        origins = [through(wanted.upstream, parse_origin(each)) for each in site.origins]
    values: dict[str, object] = {
        "origins": origins,
        "federation": site.federation,
        "port": wanted.port,
        "block_bytes": site.block_bytes,
        "prefetch_blocks": site.prefetch_blocks,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    lines += ["[space]", f"max = {most * 8 // 10}"]  # the rest is what comes between two purges
    shown = {
        "certificate": site.credential.certificate,
        "token_file": site.credential.token_file,
        "ca": site.credential.ca,
    }
    if wanted.upstream is None and any(shown.values()):
        lines += [
            "[credential]",
            *(f"{name} = {json.dumps(str(path))}" for name, path in shown.items() if path),
        ]
    return "\n".join(lines) + "\n"


def node_definition(cache: SiteCache) -> NodeCacheDef:
    """What pilots run of a cache in node memory. Raises ConfigError, also where its memory does not suffice."""
    assert cache.memory is not None
    assert cache.settings is not None
    site = config.load(cache.settings, CacheConfig)
    configuration.check(site)
    wanted = NodeCache(port=1, memory_bytes=cache.memory, site=site, upstream=cache.upstream)
    found = config.loads(node_text(wanted), CacheConfig, source=cache.settings)
    configuration.check(found)
    made = configuration.texts(
        found, configuration.CachePlaces(data=Path("{dir}/data"), run=Path("{dir}/run"))
    )
    return NodeCacheDef(
        name=cache.name,
        program=_program(cache.settings.parent),
        memory_mb=cache.memory >> 20,
        ram_mb=RAM_BYTES_MIN >> 20,
        config=made.xrootd + REPORT,
        authdb=made.authdb,
        environment=windows.server_environment(found),
    )


def _program(directory: Path) -> str:
    """XRootD's server as pilots start it: `xrootd` of the cache's directory, such as a script that loads a module, else
    the one on the node's PATH."""
    own = directory / PROGRAM  # or a link to what only nodes have
    return str(own) if os.path.lexists(own) else PROGRAM
