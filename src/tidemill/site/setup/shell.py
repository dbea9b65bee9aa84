"""What a user's shell sets for batch jobs. `site init` copies it into site.toml: in the shell it has no effect on
Tidemill.

Source: sbatch(1), salloc(1) and srun(1), "input environment variables"; pbs.conf(8B).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tidemill.batch.contract import Facts
from tidemill.batch.environment import SERVER_VARIABLES, ignored
from tidemill.batch.kinds import ACCOUNT, PARTITION, ShellSetting, kind_of
from tidemill.config.site import Cluster, SiteConfig
from tidemill.site.setup.finding import Finding

CHECK = "your shell"
NAMES_SHOWN = 8
SERVER = "cluster.server"
_PREFIXES = ("SBATCH_", "SALLOC_", "SLURM_")
_OPTIONS = {
    "ACCOUNT": ACCOUNT,
    "PARTITION": PARTITION,
    "QOS": "cluster.qos",
    "RESERVATION": "cluster.reservation",
    "CONSTRAINT": "cluster.features",
    "WCKEY": "cluster.directives",
}
_FEATURES = re.compile(r"[\w.:-]+(&[\w.:-]+)*", re.ASCII)
_CLUSTERS = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")


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
    elif kind != "local":
        found = {each.key: each for each in kind_of(kind).settings(environ)}
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
    if kind != "local":
        told = kind_of(kind).remarks(None, {each.source for each in taken})
        yield from (Finding(CHECK, *each) for each in told)


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
    if read.batch != "local":
        yield from (Finding(CHECK, *each) for each in kind_of(read.batch).remarks(read, sources))


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


def remarks(read: SiteConfig, environ: Mapping[str, str]) -> list[str]:
    """The remarks that `up` and `run` print when they start a site."""
    return [
        f"{each.text} has no effect on Tidemill; set `{each.key}` in site.toml instead"
        for each in without_key(read, environ)
    ]


def first_cluster(partition: str | None, kind: str, environ: Mapping[str, str]) -> Cluster:
    """The settings for queries of the batch system before site.toml exists."""
    return Cluster(partition=partition or "", server=server_of_shell(environ) if kind == "pbs" else "")
