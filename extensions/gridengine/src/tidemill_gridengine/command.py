"""Command lines of Grid Engine, pure. Source: qsub(1), sge_types(1), complex(5) of 8.1.9."""

from __future__ import annotations

import math
import re

from tidemill.batch import constants
from tidemill.batch.contract import BatchSubmission, Ending
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.model.state import AllocationState
from tidemill_gridengine.settings import GridEngineSettings

CONTEXT = "tidemill"
PRIORITY_MIN = -1023
_ID = re.compile(rb"(?m)^(\d+)(?:\.\d+-\d+:\d+)?\s*$")

STATES = {
    Ending.DONE: AllocationState.COMPLETED,
    Ending.WALLTIME: AllocationState.COMPLETED,
    Ending.CANCELED: AllocationState.CANCELED,
    Ending.FAILED: AllocationState.FAILED,
    Ending.LAUNCH: AllocationState.FAILED,
    Ending.NODE: AllocationState.FAILED,
    Ending.MEMORY: AllocationState.FAILED,
    Ending.UNKNOWN: AllocationState.FAILED,
}


def submit_words(
    submission: BatchSubmission, config: Cluster, own: GridEngineSettings, *, key: str, account: str
) -> list[str]:
    """The options of `qsub` behind `defaults.submit_start`. Raises SiteError for what Grid Engine cannot do with these
    settings.

    `-notify`: a signal (USR2) comes before KILL, as early as the queue's `notify` says. `-w e`: what can never run is
    refused. Requests of a configured line of `directives` come last, and win: GPUs are asked for by them, since each
    centre names that resource itself.
    """
    words = ["-terse", "-N", submission.name, "-S", "/bin/sh", "-o", "/dev/null", "-j", "y"]
    words += ["-ac", f"{CONTEXT}={key},about={_plain(submission.comment)}", "-A", accounting_string(key)]
    words += ["-r", "n", "-notify", "-w", "e", "-l", f"h_rt={max(1, math.ceil(submission.walltime_s))}"]
    slots = max(1, submission.cores)
    if own.parallel_environment:
        least = submission.nodes_min or submission.nodes
        wide = f"{least * slots}-{submission.nodes * slots}"
        words += [
            "-pe",
            own.parallel_environment,
            wide if least < submission.nodes else str(slots * submission.nodes),
        ]
    elif submission.nodes > 1 or slots > 1:
        raise SiteError(
            f"Grid Engine gives {submission.nodes} nodes of {slots} slots by a parallel environment only",
            hint="set `gridengine.parallel_environment`; `qconf -spl` lists them",
            transient=False,
        )
    if submission.count > 1:
        words += ["-t", f"1-{submission.count}"]
    queue, project = submission.partition or config.partition, submission.account or account
    words += ["-q", queue] if queue else []
    words += ["-P", project] if project else []
    words += ["-ar", config.reservation] if config.reservation else []
    is_behind = submission.polite and constants.NICE > 0
    words += ["-p", str(max(PRIORITY_MIN, -constants.NICE))] if is_behind else []
    for feature in dict.fromkeys([*config.features, *submission.features]):
        words += ["-l", f"{feature}=TRUE"]
    exclude = sorted({*config.exclude, *submission.exclude})
    words += ["-l", f"hostname=!({'|'.join(exclude)})"] if exclude else []
    for line in config.directives:
        words += line.split()
    return words


def accounting_string(key: str) -> str:
    """What `qacct -A` knows our jobs by."""
    return f"{CONTEXT}.{key}"


def read_id(output: bytes) -> str:
    """The number that `qsub -terse` printed, perhaps among lines of the site's own. Raises SiteError."""
    match = _ID.search(output)
    if match is None:
        shown = output[:200].decode(errors="replace").strip()
        raise SiteError(f"`qsub -terse` printed `{shown}`, expected a number")
    return match[1].decode()


def _plain(text: str) -> str:
    """Text that a context takes: commas part its variables."""
    return re.sub(r"[^A-Za-z0-9 @._:/+-]", "_", text)[:400] or "-"
