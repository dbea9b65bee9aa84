"""What the parts of one agent share: the site's directory and configuration, the epoch, the log, the helper threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.node.binary import find_binary
from tidemill.site.state import site_state
from tidemill.site.state.epoch import Epoch
from tidemill.site.state.log import SiteLog, restore

STAGE_THREADS = 2
"""Plan and link inputs: they ask for sizes, and wait for no large file."""

COPY_THREADS = 4
"""Large files of this site's file systems that are copied and hashed at the same time, at most."""

DELIVERY_THREADS = 2

TICK_S = 0.05
"""Pause of the agent's loop while work is running: 20 reads of journals a second find results soon enough."""

SNAPSHOT_LINES = 50_000
"""Lines after which the site's log is condensed into a snapshot: a restart reads these in a second."""


class HelperPools(NamedTuple):
    """Threads of the agent beside its loop, one pool for each kind of work: slow inputs hold up no delivery, a slow
    delivery no log, and none of them mail. Remote files have their own (`moves`)."""

    stage_in: ThreadPoolExecutor
    copies: ThreadPoolExecutor
    deliveries: ThreadPoolExecutor
    logs: ThreadPoolExecutor
    profiles: ThreadPoolExecutor
    mail: ThreadPoolExecutor

    def close(self) -> None:
        """Start nothing more; what runs ends by itself."""
        for pool in self:
            pool.shutdown(wait=False, cancel_futures=True)


def open_pools() -> HelperPools:
    """The pools of one agent. Threads start when they are first needed."""
    sizes = {"stage_in": STAGE_THREADS, "copies": COPY_THREADS, "deliveries": DELIVERY_THREADS}
    return HelperPools(
        *(ThreadPoolExecutor(sizes.get(name, 1), thread_name_prefix=name) for name in HelperPools._fields)
    )


class ServedSite(NamedTuple):
    """A site that this agent serves."""

    directory: Path
    config: SiteConfig
    epoch: Epoch
    log: SiteLog
    pools: HelperPools
    binary: Path  #: `tidemill-node`

    @property
    def state(self) -> site_state.SiteState:
        """As the log has it; changes only by entries."""
        return self.log.pool.state

    @property
    def fleets_dir(self) -> Path:
        """Where the fleets' directories are."""
        return self.directory / "fleets"

    @property
    def may_lease(self) -> bool:
        """Whether new work is wanted: the site runs work, and neither the server nor a stop keeps it from that."""
        return self.config.mode == "run" and self.state.drained is None and self.state.stop is None


def serve(config: SiteConfig, directory: Path, epoch: Epoch) -> ServedSite:
    """Open the site's log for an epoch, with the state that earlier epochs left. Raises TidemillError."""
    binary = find_binary(site=directory)
    restored = restore(directory / "log", config.name)
    log = SiteLog(directory / "log", epoch.number, restored.pool, lines_max=SNAPSHOT_LINES)
    owner = epoch.owner
    log.apply(
        site_state.Opened(
            epoch=owner.epoch, host=owner.host, pid=owner.pid, at_us=clock.now_us(), read=restored.read
        )
    )
    log.commit()
    return ServedSite(directory, config, epoch, log, open_pools(), binary)
