"""Whether the jobs of a log share nodes: simulations and reports know whole nodes only. Pure."""

from __future__ import annotations

from tidemill.errors import ConfigError

PARTS_SHARE_MAX = 0.05
"""Share of jobs with a part of a node. Some are normal, even on machines that allocate whole nodes."""
PARTS_SHARE_MOST = 0.5
"""The same for a log without starts, which cannot show whether the jobs fit as whole nodes."""
OVERFULL_SHARE_MAX = 0.01
"""Share of the time in which jobs with nodes of their own may need more nodes than the machine has."""


def check(name: str, *, parts: int, jobs: int, cores: int, overfull: float | None) -> None:
    """Raises ConfigError for a log of cores on shared nodes.

    `parts`: jobs that hold a part of a node of `cores` cores; `overfull`: the share of time in which the jobs, each on
    nodes of its own, need more nodes than the machine has; None = the log does not record starts.
    """
    if overfull is None:
        is_shared = parts > PARTS_SHARE_MOST * jobs
        why = "the log does not record when jobs started"
    else:
        is_shared = parts > PARTS_SHARE_MAX * jobs and overfull > OVERFULL_SHARE_MAX
        why = f"with nodes of their own they overfill the machine for {100 * overfull:.0f} % of the time"
    if is_shared:
        raise ConfigError(
            f"`{name}` is a log of cores on shared nodes: {parts:,} of {jobs:,} jobs had a part of a node "
            f"({cores} cores a node), and {why}",
            hint="Tidemill simulates and reports whole nodes only: use the log of a machine, or of a --partition of "
            "sacct or PBS, that allocates whole nodes",
        )
