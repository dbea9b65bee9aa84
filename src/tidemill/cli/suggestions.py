"""The verb that a mistyped word means: by meaning first (words of other tools), then by distance. Pure."""

from __future__ import annotations

from collections.abc import Collection

MEANINGS = {
    "abort": "job cancel",
    "autocomplete": "completion",
    "campaigns": "top",
    "cancel": "job cancel",
    "condor_q": "jobs",
    "condor_rm": "job cancel",
    "condor_submit": "submit",
    "delete": "job cancel",
    "describe": "job show",
    "diagnose": "doctor",
    "down": "up --stop",
    "download": "outputs get",
    "explain": "job explain",
    "failures": "errors",
    "fetch": "outputs get",
    "files": "outputs ls",
    "follow": "attach",
    "get": "outputs get",
    "info": "job show",
    "kill": "job cancel",
    "list": "jobs",
    "log": "job logs",
    "logs": "job logs",
    "ls": "jobs",
    "manual": "man",
    "map": "run",
    "monitor": "top",
    "output": "outputs ls",
    "peek": "job logs",
    "progress": "attach",
    "ps": "jobs",
    "qdel": "job cancel",
    "qstat": "jobs",
    "qsub": "submit",
    "queue": "jobs",
    "rerun": "job retry",
    "restart": "job retry",
    "results": "outputs ls",
    "resubmit": "job retry",
    "resume": "run --resume",
    "retry": "job retry",
    "rm": "job cancel",
    "sbatch": "submit",
    "scancel": "job cancel",
    "serve": "up",
    "show": "job show",
    "squeue": "jobs",
    "srun": "run",
    "start": "up",
    "stat": "jobs",
    "status": "jobs|site status",
    "stderr": "job logs",
    "stdout": "job logs",
    "stop": "up --stop",
    "sweep": "run --sweep",
    "tail": "job logs",
    "version": "--version",
    "watch": "top",
    "why": "job explain",
}
"""What people of shells, Slurm, HTCondor and Grid Engine type -> the command of Tidemill that does it, or two (`|`)."""

LENGTH_MAX = 40
"""A longer word is not a mistyped verb, and comparing takes time."""


def suggested(typed: str, verbs: Collection[str]) -> str:
    """A hint for what is not a verb: the command that is most likely meant, else where all are listed."""
    word = typed.lower()
    if word in MEANINGS:
        return _meant(MEANINGS[word])
    known = dict(MEANINGS) if " " not in word else {}  # `tidemill cancle 7`
    known |= {verb.partition(" ")[0]: verb.partition(" ")[0] for verb in verbs}
    known |= {verb: verb for verb in verbs}
    near = _nearest(word, known)
    if near is None:
        return "`tidemill --help` lists the verbs"
    return _meant(near)


def _meant(commands: str) -> str:
    named = " or ".join(f"`tidemill {each}`" for each in commands.split("|"))
    return f"did you mean {named}?"


def _nearest(word: str, known: dict[str, str]) -> str | None:
    """What the name at the smallest distance stands for; None where each is further away than a slip of the finger."""
    if len(word) > LENGTH_MAX:
        return None
    allowed = 1 if len(word) < 6 else 2
    distances = sorted((distance(word, name), name) for name in known)
    return known[distances[0][1]] if distances and distances[0][0] <= allowed else None


def distance(left: str, right: str) -> int:
    """Letters to insert, drop, change or swap with their neighbour (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, mine in enumerate(left, 1):
        before, above, row = row, before, [i]
        for j, theirs in enumerate(right, 1):
            cost = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (mine != theirs))
            if i > 1 and j > 1 and mine == right[j - 2] and left[i - 2] == theirs:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]
