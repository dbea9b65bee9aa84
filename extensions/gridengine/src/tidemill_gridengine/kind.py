"""What the core knows of Grid Engine before it asks one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.batch.contract import BatchSystem
from tidemill.batch.kinds import BatchKind, no_reason
from tidemill.config.site import Cluster
from tidemill_gridengine import setup
from tidemill_gridengine.adapter import GridEngineBatchSystem
from tidemill_gridengine.settings import GridEngineSettings


def opened(
    directory: Path, config: Cluster, *, key: str, account: str, tables: Mapping[str, Any]
) -> BatchSystem:
    """The Grid Engine of a site; before there is a site.toml, one that is only asked."""
    own = tables.get("gridengine", GridEngineSettings())
    return GridEngineBatchSystem(directory, config, key=key, account=account, own=own)


KIND = BatchKind(
    open=opened,
    submit_commands=("qsub", "qconf"),
    query_commands=("qstat", "qhost"),
    cancel_words="qdel",
    shows_plan=False,
    lowers_limits=False,
    shown_reason=no_reason,  # its state, such as `qw`
    choices=setup.choices,
    settings=setup.settings,
    remarks=setup.remarks,
)
