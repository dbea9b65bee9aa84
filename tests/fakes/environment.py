"""The environment in which Tidemill calls batch commands. The fakes refuse other variables.

The list is written a second time, on purpose: whoever lengthens the product's has to say so here, too.
"""

from __future__ import annotations

import os

ALLOWED = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "KRB5CCNAME", "LC_ALL", "TZ"),
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_SACK_SOCKET", "SLURM_JWT"),
    *("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"),
    *("PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME", "PBS_DEFAULT", "PBS_SERVER"),
}
OF_THE_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}
"""Variables that /bin/sh itself sets for its commands."""


def refusal(*own: str) -> str:
    """Why this process has to refuse its call; empty = it has not. `own`: variables of the fake itself."""
    extra = sorted(set(os.environ) - ALLOWED - OF_THE_SHELL - set(own))
    if extra:
        return f"fake: the environment holds {', '.join(extra)}, which no command of a batch system may get"
    if (os.environ.get("LC_ALL"), os.environ.get("TZ")) != ("C", "UTC"):
        return "fake: expected LC_ALL=C and TZ=UTC"
    return ""
