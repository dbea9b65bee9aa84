"""What the core knows of Grid Engine before it asks one."""

from __future__ import annotations

from tidemill.batch.kinds import BatchKind, no_reason
from tidemill_gridengine import setup
from tidemill_gridengine.adapter import GridEngineBatchSystem

KIND = BatchKind(
    open=GridEngineBatchSystem,
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
