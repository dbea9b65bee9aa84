"""What a user's shell sets for batch jobs. `site init` copies it into site.toml: in the shell it has no effect on
Tidemill.

Source: sbatch(1), salloc(1) and srun(1), "input environment variables"; pbs.conf(8B); sge_request(5).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tidemill.batch.contract import Facts
from tidemill.batch.environment import SERVER_VARIABLES, ignored
from tidemill.batch.gridengine.defaults import (
    DefaultOption,
    common,
    home,
    knows_cell,
    requests_of_user,
    wanted_of_user,
)
from tidemill.config.site import Cluster, SiteConfig
from tidemill.site.setup.finding import Finding

CHECK = "your shell"
NAMES_SHOWN = 8
ACCOUNT, PARTITION, SERVER = "accounts", "cluster.partition", "cluster.server"
_PREFIXES = ("SBATCH_", "SALLOC_", "SLURM_")
_OPTIONS = {
    "ACCOUNT": ACCOUNT,
    "PARTITION": PARTITION,
    "QOS": "cluster.qos",
    "RESERVATION": "cluster.reservation",
    "CONSTRAINT": "cluster.features",
    "WCKEY": "cluster.directives",
}
_REQUESTS = {
    "-P": ACCOUNT,
    "-q": PARTITION,
    "-pe": "cluster.parallel_environment",
    "-ar": "cluster.reservation",
}
"""Options of Grid Engine that have a key of their own; `cluster.directives` takes the others."""

_FEATURES = re.compile(r"[\w.:-]+(&[\w.:-]+)*", re.ASCII)
_CLUSTERS = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")


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


def shell_settings(kind: str, environ: Mapping[str, str]) -> list[ShellSetting]:
    """The shell's settings for jobs of this batch system, at most one for each key."""
    found: dict[str, ShellSetting] = {}
    if kind == "slurm":
        for option, key in _OPTIONS.items():
            name, value = _first_set(environ, (prefix + option for prefix in _PREFIXES))
            if name and (option != "CONSTRAINT" or _FEATURES.fullmatch(value)):
                found[key] = ShellSetting(name, value, key)
    elif kind == "pbs":
        name, value = _first_set(environ, SERVER_VARIABLES)
        if name:
            found[SERVER] = ShellSetting(name, value, SERVER)
    elif kind == "gridengine":
        for flag, key in (("-P", ACCOUNT), ("-q", PARTITION)):
            if value := wanted_of_user(flag):
                found[key] = ShellSetting(f"{home('.sge_request')}: {flag}", value, key)
    return list(found.values())


def server_of_shell(environ: Mapping[str, str]) -> str:
    """The server of PBS that the shell names, for commands that run without a site.toml."""
    return _first_set(environ, SERVER_VARIABLES)[1]


def _first_set(environ: Mapping[str, str], names: Iterable[str]) -> tuple[str, str]:
    """The first of these variables that has a value, and the value; empty = none has one."""
    return next(((name, environ[name]) for name in names if environ.get(name)), ("", ""))


def usable(settings: list[ShellSetting], facts: Facts) -> list[ShellSetting]:
    """The settings without partitions and accounts that the batch system does not know."""
    known = {PARTITION: [each.name for each in facts.partitions], ACCOUNT: facts.accounts}
    return [each for each in settings if not known.get(each.key) or each.value in known[each.key]]


def without_key(read: SiteConfig, environ: Mapping[str, str]) -> list[ShellSetting]:
    """Settings of the shell for whose keys site.toml has no value."""
    return [each for each in shell_settings(read.batch, environ) if not _is_said(read, each)]


def _is_said(read: SiteConfig, setting: ShellSetting) -> bool:
    if setting.key == ACCOUNT:
        return bool(read.accounts)
    value = getattr(read.cluster, setting.key.removeprefix("cluster."))
    return bool(value) if setting.key != "cluster.directives" else any("--wckey" in each for each in value)


def taken_findings(taken: list[ShellSetting], environ: Mapping[str, str], *, kind: str) -> Iterator[Finding]:
    """What `site init` reports about the shell: the settings that it took, and those without effect."""
    if taken:
        listed = ", ".join(f"{each.text} as `{each.key}`" for each in taken)
        yield Finding(CHECK, "ok", f"taken into site.toml: {listed}")
    yield from ignored_findings(environ, besides={each.source for each in taken})
    if kind == "slurm":
        yield from _token_findings(environ)
    if kind == "gridengine":
        sources = {each.source for each in taken}
        yield from _request_findings([each for each in requests_of_user() if _source(each) not in sources])


def missing_findings(read: SiteConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What `site check` reports about the shell."""
    missing = without_key(read, environ)
    for each in missing:
        yield Finding(
            CHECK, "warn", f"{each.text} has no effect on Tidemill, and site.toml does not set `{each.key}`",
            f"if Tidemill's jobs are to use it, set `{each.key}` in site.toml",
        )  # fmt: skip
    sources = {each.source for each in shell_settings(read.batch, environ)}
    yield from ignored_findings(environ, besides=sources)
    if read.batch == "slurm":
        yield from _token_findings(environ)
    if read.batch == "gridengine":
        yield from _request_findings(
            each
            for each in requests_of_user()
            if _source(each) not in sources and not _is_requested(read, each)
        )


def ignored_findings(environ: Mapping[str, str], *, besides: set[str]) -> Iterator[Finding]:
    """Variables of batch commands that have no effect on Tidemill."""
    name, clusters = _first_set(environ, _CLUSTERS)
    if name:
        yield Finding(
            CHECK, "warn", f"`{name}={clusters}` has no effect: Tidemill uses the cluster of slurm.conf",
            "for another cluster set SLURM_CONF to its slurm.conf, and run `tidemill site init` with it",
        )  # fmt: skip
    names = [name for name in ignored(environ) if name not in besides and name not in _CLUSTERS]
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield Finding(
            CHECK, "ok", f"no effect on Tidemill: {', '.join(names[:NAMES_SHOWN])}{more}",
            "set what Tidemill's jobs need in [cluster] of site.toml, such as in `directives`",
        )  # fmt: skip


def _token_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    if environ.get("SLURM_JWT"):
        yield Finding(
            CHECK, "warn", "SLURM_JWT is set: Slurm knows you by this token, and refuses the agent when it has expired",
            "unset it before the agent starts, if `env -u SLURM_JWT squeue --me` works; else see batch-systems.md",
        )  # fmt: skip


def _source(request: DefaultOption) -> str:
    return f"{request.source}: {request.flag}"


def _is_requested(read: SiteConfig, request: DefaultOption) -> bool:
    """Whether site.toml has this request, or another value of its key."""
    if request.flag == "-P":
        return bool(read.accounts)
    if request.flag in _REQUESTS:
        return bool(getattr(read.cluster, _REQUESTS[request.flag].removeprefix("cluster.")))
    return any(f" {request.text} " in f" {' '.join(line.split())} " for line in read.cluster.directives)


def _request_findings(requests: Iterable[DefaultOption]) -> Iterator[Finding]:
    """What happens to the user's default requests of Grid Engine that site.toml lacks."""
    found = [each for each in requests if each.flag not in ("-clear", "-sync")]
    listed = ", ".join(f"`{each.text}` of `{each.source}`" for each in found[:NAMES_SHOWN])
    listed += f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    keys = {flag: key for flag, key in _REQUESTS.items() if any(each.flag == flag for each in found)}
    named = [f"`{flag}` as `{key}`" for flag, key in keys.items()]
    others = [each.text for each in found if each.flag not in keys]
    named += [f"`cluster.directives = {json.dumps(others[:NAMES_SHOWN])}`"] if others else []
    if not knows_cell():
        folder = common("")
        why = f"`{folder}` is not a directory" if os.environ.get("SGE_ROOT") else "SGE_ROOT is not set"
        applied = f"; your default requests apply to Tidemill's jobs: {listed}" if found else ""
        yield Finding(
            CHECK, "warn",
            f"{why}, so Tidemill does not find the cluster's default requests: `qsub` runs without `-clear`{applied}",
            "set SGE_ROOT, and SGE_CELL where the cell is not `default`, before the agent starts: your jobs have both "
            "in their environment",
        )  # fmt: skip
    elif found:
        yield Finding(
            CHECK, "ok", f"no effect on Tidemill: {listed}",
            f"if Tidemill's jobs are to use them, set in site.toml: {', '.join(named)}",
        )  # fmt: skip


def remarks(read: SiteConfig, environ: Mapping[str, str]) -> list[str]:
    """The remarks that `up` and `run` print when they start a site."""
    return [
        f"{each.text} has no effect on Tidemill; set `{each.key}` in site.toml instead"
        for each in without_key(read, environ)
    ]


def first_cluster(partition: str | None, kind: str, environ: Mapping[str, str]) -> Cluster:
    """The settings for queries of the batch system before site.toml exists."""
    return Cluster(partition=partition or "", server=server_of_shell(environ) if kind == "pbs" else "")
