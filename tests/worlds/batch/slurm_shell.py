"""A user of a real Slurm whose shell exports variables."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from tests.worlds.batch.person import SlurmPerson
from tests.worlds.batch.shell_trial import Trial, tried
from tests.worlds.batch.slurm_cluster import OTHER_USER, USER, SlurmCluster

VARIABLES = {
    "SQUEUE_USERS": OTHER_USER, "SQUEUE_PARTITION": "shared", "SQUEUE_ACCOUNT": "phys", "SQUEUE_STATES": "R",
    "SCANCEL_INTERACTIVE": "true", "SLURM_TIME_FORMAT": "relative",
    "SBATCH_GRES": "gpu:1", "SBATCH_ARRAY_INX": "0-1", "SBATCH_CLUSTERS": "other", "SBATCH_WAIT": "1",
    "SLURM_CLUSTERS": "other",
}  # fmt: skip
"""Variables of public profiles, with values that make Slurm's commands hide, refuse or change something here."""


class SlurmTrialUser(SlurmPerson):
    """An ordinary user, on all nodes of a cluster."""

    batch = "slurm"
    yields = True
    started_s = 90.0

    def __init__(self, cluster: SlurmCluster, variables: Mapping[str, str], *, nodes: int) -> None:
        super().__init__(cluster, f"shell-{secrets.token_hex(3)}")
        self.env.update(variables)
        self.nodes = nodes

    def make_site(self) -> None:
        """Set up the site as a newcomer does."""
        self.done("site", "init", "--enable", "--no-probe", "--nodes", str(self.nodes))

    def told(self, *words: str) -> str:
        """What a command prints on either stream, whatever its exit code."""
        answer = self.run(*words)
        return answer.stdout + answer.stderr

    def ours(self, *, waiting: bool) -> int:
        """Tidemill's jobs that run; those that wait, too."""
        states = "R,PD" if waiting else "R"
        rows = self.cluster.run("squeue", "-h", "-a", "-r", "-t", states, "-o", "%u %j").splitlines()
        return sum(row.startswith(f"{USER} tm-") for row in rows)

    def submit(self) -> str:
        """The number of a short job of another user on all nodes."""
        words = ["sbatch", "--parsable", "-N", str(self.nodes), "-t2", "-o", "/dev/null", "--chdir=/"]
        return self.cluster.run_as_user(*words, "--wrap", "sleep 2", user=OTHER_USER).strip()

    def waits(self, number: str) -> bool:
        """Whether that job waits."""
        told = self.cluster.run("squeue", "-h", "-a", "-t", "all", "-j", number, "-o", "%t")
        return told.strip() == "PD"


def trial(cluster: SlurmCluster, variables: Mapping[str, str], *, nodes: int) -> Trial:
    """One trial on an idle cluster, which is idle again afterwards. The user's shell exports `variables`."""
    user = SlurmTrialUser(cluster, variables, nodes=nodes)
    with user.staying():
        found = tried(user)
    cluster.cancel_all()
    return found
