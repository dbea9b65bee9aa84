"""What the core asks of the caches that a site runs (`tidemill.routing.engine`): from their directories.

Their supervisors write down what they see, do and hold; the agent of the site reads those few files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tidemill import clock, config
from tidemill.config.caching import SiteCache
from tidemill.errors import ConfigError, TidemillError
from tidemill.routing.engine import CacheContents, CacheEngine
from tidemill.wire.far import CacheFigures, CacheView
from tidemill_caches.contents.record import cached_share, held, read_contents
from tidemill_caches.engine import directory as places
from tidemill_caches.engine.configuration import origins_of
from tidemill_caches.engine.credentials import ends_of
from tidemill_caches.engine.nodeform import node_definition
from tidemill_caches.engine.origins import allowing, parse_file
from tidemill_caches.engine.state import health_of, is_supervised, read_state
from tidemill_caches.figures.collector import read_sums
from tidemill_caches.figures.ledger import CacheLedger, Sums, believe, is_thrashing
from tidemill_caches.settings import CacheConfig

DATASETS_MAX = 20


def contents(directory: Path) -> CacheContents | None:
    """What a cache that runs holds; None = it does not, or nothing was listed yet. Raises TidemillError."""
    state = read_state(directory)
    summary = read_contents(directory) if state is not None and is_supervised(directory, state) else None
    return None if summary is None else CacheContents(summary.at_us, partial(cached_share, summary))


def holdings(directory: Path) -> list[tuple[str, float]]:
    """The datasets in a cache that runs, the largest first. Raises TidemillError."""
    state = read_state(directory)
    if state is None or not is_supervised(directory, state):
        return []
    summary = read_contents(directory)
    return [] if summary is None else held(summary, origins_of(places.read_cache(directory)))


def readable(cache: SiteCache) -> Callable[[str], bool]:
    """Whether a cache in node memory may read a URL. Raises ConfigError."""
    assert cache.settings is not None
    origins = origins_of(config.load(cache.settings, CacheConfig))

    def may_read(url: str) -> bool:
        try:
            return allowing(origins, parse_file(url)) is not None
        except ConfigError:
            return False

    return may_read


def about(cache: SiteCache) -> str:
    """What the cache's directory says of it, behind a semicolon. Raises TidemillError."""
    assert cache.directory is not None
    config = places.read_cache(cache.directory)
    places.check_credentials(config)
    now_us = clock.now_us()
    told = []
    for each in ends_of(config):
        ends = clock.utc_text(each.ends_us)
        if each.ends_us < now_us:
            raise ConfigError(
                f"`{each.path}`, which cache.toml names, ended at {ends}",
                hint="renew it: `voms-proxy-init` makes a proxy certificate, htgettoken or oidc-agent a token",
            )
        if each.own:
            told.append(f"its credential `{each.path}` is valid until {ends}")
    if not told:
        shown = config.credential.certificate or config.credential.token_file
        told = [
            "it shows origins no credential"
            if shown is None
            else f"its credential `{shown}` does not say how long it is valid"
        ]
    if cache.memory is not None:
        node_definition(cache)  # whether its memory suffices
    return f"; {cache.directory / places.CONFIG} is legal, {told[0]}"


def view(cache: SiteCache) -> CacheView:
    """A cache as its files say, whatever is in them."""
    assert cache.watched is not None
    state, at_us, restarts, findings = _state(cache.watched)
    try:
        sums = read_sums(cache.watched)
    except TidemillError as error:
        sums, findings = None, [*findings, error.message]
    if sums is None:
        sums = CacheLedger()
    return CacheView(
        name=cache.name, url=cache.address, form=cache.form, state=state, at_us=at_us, restarts=restarts,
        findings=findings, since_us=sums.since_us, total=_figures("", sums.total), datasets=_datasets(sums),
        wire_origin=sums.wire_origin_bytes, lost=sums.lost, unread=sums.malformed, unsure=sums.total.unsure,
        believe=believe(sums), thrashing=is_thrashing(sums.recent(clock.now_s(), 2)),
    )  # fmt: skip


def _state(directory: Path) -> tuple[str, int, int, list[str]]:
    try:
        state = read_state(directory)
        if state is None:
            return "stopped", 0, 0, []
        alive = is_supervised(directory, state)
    except (TidemillError, OSError) as error:
        return "unknown", 0, 0, [str(error)]
    phase = state.phase if alive or state.phase == "stopped" else "dead"
    return phase, state.at_us, state.restarts, [each.found for each in state.findings]


def _datasets(sums: CacheLedger) -> list[CacheFigures]:
    return [_figures(name, each) for name, each in sums.busiest(DATASETS_MAX)]


def _figures(name: str, sums: Sums) -> CacheFigures:
    return CacheFigures(
        name=name, opens=sums.opens, served=sums.served_bytes, hit=sums.hit_bytes, known=sums.known_bytes,
        fetched=sums.fetched_bytes, bypass=sums.bypass_bytes, again=sums.again_bytes,
    )  # fmt: skip


ENGINE = CacheEngine(
    health=health_of, contents=contents, holdings=holdings, view=view, readable=readable, on_nodes=node_definition,
    about=about,
)  # fmt: skip
