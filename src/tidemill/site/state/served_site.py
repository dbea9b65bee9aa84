"""What the parts of one agent share: the site's directory and configuration, the epoch, the log, the helper threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.node.binary import find_binary
from tidemill.site.state import site_state as s
from tidemill.site.state.epoch import Epoch
from tidemill.site.state.log import SiteLog, restore

HELPERS = 2
"""Threads that stage inputs, deliver outputs, read logs and profiles, and send mail."""


class ServedSite(NamedTuple):
    """A site that this agent serves."""

    directory: Path
    config: SiteConfig
    epoch: Epoch
    log: SiteLog
    executor: ThreadPoolExecutor
    binary: Path  #: `tidemill-node`

    @property
    def state(self) -> s.SiteState:
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
    binary = config.node_binary or find_binary()
    restored = restore(directory / "log", config.name)
    log = SiteLog(directory / "log", epoch.number, restored.pool, lines_max=config.log_snapshot_lines)
    owner = epoch.owner
    log.apply(
        s.Opened(epoch=owner.epoch, host=owner.host, pid=owner.pid, at_us=clock.now_us(), read=restored.read)
    )
    log.commit()
    executor = ThreadPoolExecutor(HELPERS, thread_name_prefix="helper")
    return ServedSite(directory, config, epoch, log, executor, binary)
