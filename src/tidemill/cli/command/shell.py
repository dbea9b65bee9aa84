"""What the submitting shell sets for its programs: the umask and the soft limits (`ulimit -S`)."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from tidemill.files import current_umask

if TYPE_CHECKING:
    from tidemill.model.job import Shell


def shell_of_process() -> Shell:
    """The umask and soft limits of this process, which are those of the shell that started it."""
    from tidemill.model.job import Shell
    from tidemill.model.legal import LIMITS

    limits = {}
    for name in LIMITS:
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        limits[name] = -1 if soft == resource.RLIM_INFINITY else soft
    return Shell(umask=current_umask(), limits=limits)
