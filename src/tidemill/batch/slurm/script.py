"""Words for sbatch(1) and the script that it gets. Pure; nothing of a user's reaches a shell unquoted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidemill.batch import constants
from tidemill.batch.contract import ELEMENT, BatchSubmission
from tidemill.batch.launch import launch_words
from tidemill.batch.slurm.hostlist import compress
from tidemill.batch.slurm.times import minutes_up
from tidemill.config.site import Cluster
from tidemill.errors import SiteError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
AVOID_CHARS_MAX = 4000
"""slurmctld keeps a list of excluded nodes with each job, and reads it in each cycle."""

_NODES = 999_999_937
"""Stands for the number of nodes until the script knows it: that of an allocation that takes what there is."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission does not say itself."""

    directory: Path
    comment: str
    account: str
    launcher: str
    now_s: float


def output_path(directory: Path, name: str) -> Path:
    """What the allocation of this name prints."""
    return directory / "output" / name


def submit_words(submission: BatchSubmission, config: Cluster, asked: Asked) -> list[str]:
    """The sbatch command; the script comes on its standard input. Raises SiteError."""
    s = submission
    output = str(output_path(asked.directory, s.name)).replace("%", "%%") + (".%a" if s.count > 1 else "")
    limit = minutes_up(s.walltime_s)
    least = limit if s.walltime_min_s is None else min(limit, minutes_up(s.walltime_min_s))
    nodes_min = s.nodes if s.nodes_min is None else min(s.nodes, s.nodes_min)
    words = ["sbatch", "--parsable", f"--job-name={s.name}", f"--comment={asked.comment}"]
    words += [f"--chdir={asked.directory}", f"--output={output}", "--open-mode=append", "--export=ALL"]
    words += [f"--nodes={s.nodes}" if nodes_min == s.nodes else f"--nodes={nodes_min}-{s.nodes}"]
    # `--ntasks-per-node` would make one node of a range (22.05.8, tried)
    words.append(f"--mincpus={s.cores}" if s.whole else f"--cpus-per-task={s.cores}")
    if s.whole and not s.leaves_gpus:
        words.append("--exclusive")  # gives all GPUs of the node, whatever `--gres` says (22.05.8, tried)
    words += [f"--time={limit}", "--no-requeue"]
    if least < limit:
        words.append(f"--time-min={least}")
    if s.count > 1:
        words.append(f"--array=0-{s.count - 1}")
    if s.memory_mb:
        words.append(f"--mem={s.memory_mb}M")
    if s.gpus:
        words.append(f"--gpus-per-node={s.gpus}")
    if s.signal_before_s is not None:
        words.append(f"--signal=B:USR1@{min(65535, max(1, round(s.signal_before_s)))}")
    # A deadline is an end: the start, and the limit. With one, 22.05.8 never uses --time-min (tried): such a job has
    # its latest start in its command alone.
    if s.start_by_s is not None and least == limit:
        words.append(f"--deadline=now+{max(1, round(s.start_by_s + least * 60 - asked.now_s))}seconds")
    avoid, features = _place(s)
    named = {
        "partition": s.partition or config.partition,
        "account": s.account or asked.account,
        "qos": config.qos,
        "reservation": config.reservation,
        "constraint": "&".join([*config.features, *features]),
        "exclude": compress([*config.exclude, *s.exclude, *avoid]),
        "nice": str(constants.NICE) if constants.NICE and s.polite else "",
    }
    words += [f"--{key}={text}" for key, text in named.items() if text]
    return [*words, *config.submit_options]


def _place(submission: BatchSubmission) -> tuple[Sequence[str], Sequence[str]]:
    """Nodes to exclude and features to ask for, so that a plan for one pool is not placed in another."""
    s = submission
    if len(compress(s.avoid)) <= AVOID_CHARS_MAX:
        return s.avoid, s.features
    return (), [*s.features, *(each for each in s.avoid_by if each not in s.features)]


def script_text(submission: BatchSubmission, launcher: str, *, head: Sequence[str] = ()) -> bytes:
    """The script: on one node it becomes the command, so that it exits at once on TERM. Raises SiteError.

    Directives, such as those of burst buffers, come before every command: Slurm reads them up to the first line that is
    not a comment (slurm.schedmd.com, "Slurm Burst Buffer Guide").
    """
    name = shlex.quote(submission.name) + ('."$SLURM_ARRAY_TASK_ID"' if submission.count > 1 else "")
    lines = [
        "#!/bin/sh",
        *head,
        "unset LC_ALL TZ SLURM_JWT",  # the token is only for the agent, and srun would not start steps with it
        '[ -S "$SLURM_SACK_SOCKET" ] || unset SLURM_SACK_SOCKET',
        f"TIDEMILL_ALLOCATION={name}",
        "export TIDEMILL_ALLOCATION",
    ]
    for key, text in sorted(submission.environment.items()):
        if not _VARIABLE.fullmatch(key):
            raise SiteError(f"`{key[:100]}` is not a valid name of a variable", transient=False)
        lines.append(f"export {key}={shlex.quote(text)}")
    command = submission.command
    ranged = submission.nodes_min is not None and submission.nodes_min < submission.nodes
    if submission.ranks and (submission.nodes > 1 or ranged):
        command = launch_words(launcher, _NODES if ranged else submission.nodes, command)
    lines.append("exec " + " ".join(map(_quote, command)))
    text = "\n".join(lines) + "\n"
    if "\0" in text:
        raise SiteError(f"a word of `{submission.name}` holds a NUL byte", transient=False)
    return text.encode()


def _quote(word: str) -> str:
    """A word for the shell, in which the allocation's name and its number of nodes are filled in by the shell."""
    parts = [shlex.quote(part) if part else "" for part in word.split(ELEMENT)]
    quoted = '"$TIDEMILL_ALLOCATION"'.join(parts) or "''"
    return quoted.replace(str(_NODES), '"$SLURM_JOB_NUM_NODES"')
