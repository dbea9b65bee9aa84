"""The kinds of batch systems of a centre: those of the core, and those that extensions add (docs/extensions.md)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tidemill import extensions
from tidemill.batch import reasons
from tidemill.batch.contract import BatchSystem, Facts
from tidemill.config.site import Cluster, SiteConfig
from tidemill.errors import ConfigError, did_you_mean

ACCOUNT, PARTITION = "accounts", "cluster.partition"


class ShellSetting(NamedTuple):
    """A setting of the user for batch jobs, and its key in site.toml."""

    source: str  #: a variable, or an option of a file
    value: str
    key: str

    @property
    def toml(self) -> str:
        """The value of that key in TOML."""
        if self.key == "cluster.features":
            return json.dumps(self.value.split("&"))
        return json.dumps([f"--wckey={self.value}"] if self.key == "cluster.directives" else self.value)

    @property
    def text(self) -> str:
        """The setting, as messages quote it."""
        return f"`{self.source}={self.value}`"


class BatchOpener(Protocol):
    """Opens a batch system; its scripts and output go to `directory`. Without a key no allocation is Tidemill's.
    `tables`: those of site.toml that extensions add, by name; empty = the site has no such file yet."""

    def __call__(
        self, directory: Path, config: Cluster, *, key: str, account: str, tables: Mapping[str, Any]
    ) -> BatchSystem:
        """The batch system of a centre."""


def _no_choices(facts: Facts) -> list[tuple[str, str, str]]:
    return []


def _no_settings(environ: Mapping[str, str]) -> list[ShellSetting]:
    return []


def _no_remarks(read: SiteConfig | None, sources: set[str]) -> Iterable[tuple[str, str, str]]:
    return ()


def _as_it_is(reason: str) -> tuple[str, str]:
    return reason, ""


def no_reason(reason: str) -> tuple[str, str]:
    """Nothing: what this batch system says of a job that waits does not help people."""
    return "", ""


class BatchKind(NamedTuple):
    """What the core knows of a kind of batch system before it asks one."""

    open: BatchOpener
    submit_commands: tuple[str, ...]  #: by which a login node shows that it has this kind: all are on PATH
    query_commands: tuple[str, ...]  #: which show the machine: where all are on PATH, it can be read
    cancel_words: str  #: what people type before the numbers of jobs to end them, such as `scancel`
    shows_plan: bool = True  #: False: `harvest.policy` is `windows` unless site.toml names another
    lowers_limits: bool = True  #: False: running jobs keep their limits, and end because their pilots leave
    #: False: those of an array's elements do; where nodes are yielded, single jobs are submitted before arrays
    lowers_limits_of_elements: bool = True
    #: False: `BatchSubmission.count` is always 1, and few allocations are asked for at once; where it depends on the
    #: site, see `Snapshot.array_max`
    has_arrays: bool = True
    #: False: `BatchSubmission.exclude` has no effect, and nodes in quarantine may be given to Tidemill again; otherwise
    #: what waits is canceled when a node goes into quarantine, and asked for again without that node
    excludes_nodes: bool = True
    #: what people read of `Status.reason` of an allocation that waits: the text and, where known, its meaning; the text
    #: is empty where it says no more than that the allocation waits
    shown_reason: Callable[[str], tuple[str, str]] = _as_it_is
    #: further values of a new site.toml: dotted key, TOML text (empty = the default stays), origin
    choices: Callable[[Facts], list[tuple[str, str, str]]] = _no_choices
    #: the user's settings for jobs, which `site init` copies
    settings: Callable[[Mapping[str, str]], list[ShellSetting]] = _no_settings
    #: state, finding and hint about other settings of the user; site.toml (None: it is new), sources named already
    remarks: Callable[[SiteConfig | None, set[str]], Iterable[tuple[str, str, str]]] = _no_remarks


def _slurm(
    directory: Path, config: Cluster, *, key: str, account: str, tables: Mapping[str, Any]
) -> BatchSystem:
    from tidemill.batch.slurm import SlurmBatchSystem

    return SlurmBatchSystem(directory, config, key=key, account=account)


def _pbs(
    directory: Path, config: Cluster, *, key: str, account: str, tables: Mapping[str, Any]
) -> BatchSystem:
    from tidemill.batch.pbs import PbsBatchSystem

    return PbsBatchSystem(directory, config, key=key, account=account)


CORE = {
    "slurm": BatchKind(
        _slurm, ("sbatch", "squeue"), ("sinfo", "squeue"), "scancel", shown_reason=reasons.of_slurm
    ),
    "pbs": BatchKind(
        _pbs,
        ("qsub", "pbsnodes"),
        ("qstat", "pbsnodes"),
        "qdel",
        lowers_limits_of_elements=False,  # qalter(1B): "Invalid request"
        excludes_nodes=False,
        shown_reason=reasons.of_pbs,
    ),
}


def names() -> list[str]:
    """The names of all kinds, also of those whose extension is known and not installed."""
    return [*CORE, *sorted(extensions.names(extensions.BATCH) - CORE.keys())]


@cache
def kind_of(name: str) -> BatchKind:
    """The kind of this name. Raises ConfigError: there is none, or its extension is missing or at fault."""
    kind = CORE.get(name) or extensions.find(extensions.BATCH, name)
    if isinstance(kind, BatchKind):
        return kind
    if extensions.owner(extensions.BATCH, name):
        raise extensions.unfit(extensions.BATCH, name, kind, "a `BatchKind` (tidemill.batch.kinds)")
    known = [*names(), "local"]
    listed = ", ".join(f"`{each}`" for each in known)
    raise ConfigError(
        f"`{name}` is not a batch system", hint=did_you_mean(name, known) or f"there are: {listed}"
    )


def shown_reason(name: str, reason: str) -> tuple[str, str]:
    """What people read of why an allocation waits: the word of the batch system of this name, in one line, and its
    meaning where known; empty where the word says no more than that it waits."""
    return ("", "") if name == "local" else kind_of(name).shown_reason(" ".join(reason.split()))


def commands_of(name: str, *, submits: bool) -> tuple[str, ...]:
    """The commands by which a kind is recognised where jobs are submitted, or where only the machine is read."""
    try:
        kind = kind_of(name)
    except ConfigError:  # its use says what is missing
        return extensions.batch_commands(name)
    return kind.submit_commands if submits else kind.query_commands


def kinds_here(*, submits: bool) -> list[str]:
    """The kinds whose commands are on PATH."""
    found = {name: commands_of(name, submits=submits) for name in names()}
    return [name for name, words in found.items() if words and all(shutil.which(each) for each in words)]
