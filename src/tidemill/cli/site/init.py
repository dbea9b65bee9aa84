"""`tidemill site init`: inspects the machine, writes a commented site.toml, sends one small job to a compute node."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, count, duration
from tidemill.cli.configfile import brief, write_new
from tidemill.cli.findings import tell_findings, wrapped
from tidemill.cli.site.directory import nodes_text
from tidemill.cli.terminal import ask, say, say_lines, show, show_json
from tidemill.errors import ConfigError, SiteError, TidemillError, did_you_mean
from tidemill.files import make_private, write_durable
from tidemill.model.quantities import counted_text
from tidemill.site.nodes.planning import PROMISES, policy_of

if TYPE_CHECKING:
    from tidemill.batch.contract import Facts
    from tidemill.config.site import SiteConfig
    from tidemill.site.setup.detection import Login, SiteWishes, Suggestion
    from tidemill.site.setup.finding import Finding
    from tidemill.site.setup.probe import NodeFacts

PROBE_WAIT_S = 300
HEAD = (
    "A Tidemill site, written by `tidemill site init`; `->` says where a value comes from. Lines that begin with",
    "`# NAME =` show defaults. `tidemill site check --effective` prints all settings, docs/configuration.md has each.",
)
OFFERED = ("allow_adhoc", "output_dir")
"""Keys that people change, and that a new file shows with their defaults."""

OFFERED_ON_CLUSTERS = (
    *OFFERED,
    *("contact", "stop_file", "walltime_s", "node.gpus", "harvest.policy"),
    *("cluster.qos", "cluster.exclude", "cluster.directives"),
)
OFFERED_HERE = (*OFFERED, "batch", "node.cores", "node.memory_mb")
OFFERED_ELSEWHERE = ("certificate", "key", "ca", "token_file")
"""Beside these, where the server is another machine's: it lets no site in without a credential."""


def define(parser: Parser) -> None:
    """Options of `site init`."""
    from tidemill.batch import kinds

    parser.add_argument(
        "dir", type=Path, nargs="?", metavar="DIR", help="the site's directory (default: HOME/site)"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the site's name (default: the cluster's, or `local` on this machine)"
    )
    parser.add_argument(
        "--server", metavar="ADDRESS", help="the server it works for (default: the socket in HOME/server)"
    )
    parser.add_argument(
        "--batch", choices=[*kinds.names(), "local"],
        help="the batch system (default: the one whose commands are here)",
    )  # fmt: skip
    parser.add_argument(
        "--partition", metavar="P", help="partition or queue to use (default: the batch system's default)"
    )
    parser.add_argument("--account", metavar="A", help="account to charge (default: the batch system's)")
    parser.add_argument(
        "--contact",
        default="",
        metavar="MAIL",
        help="your mail address, for the centre's staff (default: none)",
    )
    parser.add_argument(
        "--stop-file",
        type=Path,
        metavar="PATH",
        help="a file by which the centre's staff stop Tidemill (default: SITE/STOP only)",
    )
    parser.add_argument(
        "--nodes", type=count, metavar="N", help="nodes at most (default: 1 emulated one, or 4 of a cluster)"
    )
    parser.add_argument(
        "--enable", action="store_true", help="let it submit jobs from the start (default: it only observes)"
    )
    parser.add_argument("--no-probe", action="store_true", help="submit no job to inspect a compute node")
    parser.add_argument(
        "--probe-wait", type=duration, default=PROBE_WAIT_S, metavar="T",
        help="wait at most T for the probe to start, such as `10m` (default: 5m)",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask before the probe is submitted")


def init(args: Namespace) -> int:
    """Inspect the machine, write site.toml, probe a node, complete site.toml, print the findings."""
    import msgspec

    from tidemill.cli.home_parts import SITE_NAME, split_home
    from tidemill.client.home import home_dir, make_home
    from tidemill.site.setup.detection import suggest
    from tidemill.site.setup.shell import taken_findings

    home = home_dir(args.home)
    directory: Path = (args.dir or home / "site").absolute()
    path = directory / "site.toml"
    replaces = _check_free(path, home)
    if args.dir is None:
        make_home(home)
        _tell_split(split_home(home), home)
    _take_over(directory)
    wishes, facts = _inspect_machine(args, home, directory)
    if replaces and args.name is None:  # what the site has done so far is known by this name
        wishes = msgspec.structs.replace(wishes, name=SITE_NAME)
    login = login_facts(directory)
    suggestion = suggest(wishes, login, facts)
    text = draw(suggestion)
    read = _checked(text, path)
    if replaces:
        write_durable(path, text.encode(), failure=ConfigError)
    else:
        write_new(path, text)
    node, problem, fit = None, None, []
    if facts is not None:
        fit = examine_fit(facts, read)
        node, problem = _probe(args, read, directory, login=login)
    if node is not None:
        suggestion = suggest(wishes, login, facts, node)
        write_durable(path, draw(suggestion).encode(), failure=ConfigError)
    told = taken_findings(wishes.shell, os.environ, kind=wishes.batch) if facts is not None else ()
    findings = [*suggestion.findings, *told, *([problem] if problem else []), *fit]
    return _report(args, path, findings, read=_checked(draw(suggestion), path))


def _take_over(directory: Path) -> None:
    """Make the site's directory, or one that is there already, private."""
    try:
        for each in (directory, directory / "apps"):
            make_private(each, failure=ConfigError)
            each.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"failed to make `{directory}` a private directory of yours: {error.strerror}",
            hint="name another place: `tidemill site init DIR`",
        ) from error


def _check_free(path: Path, home: Path) -> bool:
    """Whether there is a file of `tidemill up` that may be replaced. ConfigError if there is another one."""
    from tidemill.cli.home_parts import MARK
    from tidemill.client.home import up_runs

    if not path.exists():
        return False
    if not path.read_text(errors="replace").startswith(MARK):
        raise ConfigError(
            f"`{path}` exists already",
            hint="`tidemill site check` checks it; rename it, or name another directory",
        )
    if up_runs(home):
        raise ConfigError(f"`tidemill up` runs with `{path}`", hint="stop it first: `tidemill up --stop`")
    return True


def _tell_split(local: Path | None, home: Path) -> None:
    if local is not None:
        told = (
            f"`{home}` is on a network file system: the site stays there, for compute nodes to see; your "
            f"server works in `{local}` on this host, where its database is safe"
        )
        say_lines(wrapped("", told))


def _inspect_machine(args: Namespace, home: Path, directory: Path) -> tuple[SiteWishes, Facts | None]:
    """What is wanted and what the batch system says."""
    from tidemill.batch.kinds import ACCOUNT, PARTITION
    from tidemill.site.setup.detection import SiteWishes
    from tidemill.site.setup.shell import shell_settings, usable

    kind, origin, facts = find_batch(args, directory)
    said = {key for key, value in ((PARTITION, args.partition), (ACCOUNT, args.account)) if value is not None}
    wanted = usable(shell_settings(kind, os.environ), facts) if facts is not None else []
    shell = {each.key: each for each in wanted if each.key not in said}
    personal = args.server is None and args.dir is None
    wishes = SiteWishes(
        server=args.server or f"unix:{home}/server/api.sock",
        batch=kind,
        batch_origin=origin,
        name=args.name,
        partition=shell[PARTITION].value if PARTITION in shell else args.partition,
        account=shell[ACCOUNT].value if ACCOUNT in shell else args.account,
        shell=list(shell.values()),
        contact=args.contact,
        stop_file=None if args.stop_file is None else str(args.stop_file.expanduser().absolute()),
        enable=args.enable,
        personal=personal,
        nodes=args.nodes,
    )
    if facts is not None:
        check_named(facts, partition=args.partition, account=args.account)
    return wishes, facts


def find_batch(args: Namespace, directory: Path) -> tuple[str, str, Facts | None]:
    """The batch system (kind, why, what it says). One that was named must answer; of those whose commands are on PATH
    but belong to no cluster the next is tried. Raises SiteError with what to do."""
    from tidemill.batch import kinds
    from tidemill.batch.open import open_cluster
    from tidemill.site.setup.advice import advise, is_unconfigured
    from tidemill.site.setup.shell import first_cluster

    here = kinds.kinds_here(submits=True)
    if args.batch not in (None, "local", *here):
        wanted = kinds.kind_of(args.batch).submit_commands
        missing = [name for name in wanted if shutil.which(name) is None]
        raise SiteError(
            f"the commands of {args.batch} are not on PATH: {', '.join(missing)}",
            hint="log in to a login node, or load the centre's module",
            transient=False,
        )
    passed_over = ""
    for kind in [args.batch] if args.batch else here:
        if kind == "local":
            break
        cluster = first_cluster(args.partition, kind, os.environ)
        try:
            facts = open_cluster(kind, directory / "batch", cluster, account=args.account or "").facts()
        except SiteError as error:
            if args.batch is None and is_unconfigured(error.message):
                passed_over += f"; {kind}'s commands are here, but no cluster behind them"
                continue
            raise SiteError(
                error.message, hint=error.hint or advise(error.message), transient=error.transient
            ) from error
        first = kinds.kind_of(kind).submit_commands[0]
        return kind, "as you said" if args.batch else f"`{first}` is on PATH", facts
    return "local", "as you said" if args.batch else f"no cluster was found{passed_over}", None


def check_named(facts: Facts, *, partition: str | None, account: str | None) -> None:
    """ConfigError where a partition or account that was named is not there."""
    names = [each.name for each in facts.partitions]
    if partition is not None and names and partition not in names:
        raise ConfigError(
            f"{facts.system} has no partition `{partition}`", hint=did_you_mean(partition, names)
        )
    if account is not None and facts.accounts and account not in facts.accounts:
        raise ConfigError(f"you have no account `{account}`", hint=did_you_mean(account, facts.accounts))


def login_facts(directory: Path) -> Login:
    """This host and its `tidemill-node`; the probe and `doctor` report a missing binary."""
    from tidemill.node.binary import find_binary
    from tidemill.site.setup.detection import Login, elf_machine

    try:
        binary = find_binary(site=directory)
    except ConfigError:
        binary = directory / "tidemill-node"
    return Login(
        host=platform.node(),
        machine=platform.machine(),
        binary=str(binary),
        binary_machine=elf_machine(binary),
    )


def draw(suggestion: Suggestion) -> str:
    """The site.toml of a suggestion, which may have values for tables of extensions."""
    from tidemill import config
    from tidemill.config.site import SiteConfig

    values = {each.key: each.value for each in suggestion.choices if each.value}
    origins = {each.key: each.origin for each in suggestion.choices}
    offered = OFFERED_ON_CLUSTERS if "batch" in values else OFFERED_HERE
    if not values["server"].startswith('"unix:'):
        offered = (*offered, *OFFERED_ELSEWHERE)
    return brief(
        config.extended(SiteConfig),
        head=HEAD,
        values=dict.fromkeys([*offered, *origins], "") | values,
        origins=origins,
        tail=suggestion.tail,
    )


def examine_fit(facts: Facts, read: SiteConfig) -> list[Finding]:
    """What to expect of the site's partition: none where it is unknown, or where the site asks for parts of nodes."""
    from tidemill.site.setup.detection import choose_partition
    from tidemill.site.setup.fit import fit_findings
    from tidemill.site.setup.past import last_day

    partition, _ = choose_partition(facts, read.cluster.partition or None)
    if partition is None or any("oversubscribe" in each for each in read.cluster.directives):
        return []
    return fit_findings(facts, partition, *last_day(facts, partition, batch=read.batch))


def _checked(text: str, path: Path) -> SiteConfig:
    from tidemill import config
    from tidemill.config.site import SiteConfig

    return config.loads(text, SiteConfig, source=path)


def _probe(
    args: Namespace, read: SiteConfig, directory: Path, *, login: Login
) -> tuple[NodeFacts | None, Finding | None]:
    """Let a job inspect a compute node. The site works without: what goes wrong is a finding."""
    from tidemill.site.setup.finding import Finding

    if args.no_probe or not _may_submit(args, read):
        return None, None
    try:
        return probe_node(read, directory, binary=Path(login.binary), wait_s=args.probe_wait), None
    except KeyboardInterrupt:
        return None, Finding("probe", "warn", "interrupted and canceled; the site works without it",
                             "`tidemill doctor --compute` tries again")  # fmt: skip
    except TidemillError as error:
        return None, Finding("probe", "fail", error.message, error.hint or "")


def _may_submit(args: Namespace, read: SiteConfig) -> bool:
    if args.yes or args.json or not sys.stdin.isatty():
        return True
    where = f"partition `{read.cluster.partition}`" if read.cluster.partition else "the default partition"
    say(f"One small job (1 core, 2 minutes at most) in {where} can inspect a compute node.")
    return ask("Submit it? [Y/n]").lower() in ("", "y", "yes")


def probe_node(config: SiteConfig, directory: Path, *, binary: Path, wait_s: float) -> NodeFacts:
    """Run a probe of this site and print its progress. Raises SiteError (too late is one), KeyboardInterrupt."""
    from tidemill.batch.open import open_batch, site_key
    from tidemill.site.setup.advice import advise
    from tidemill.site.setup.probe import Probe, run_probe

    comment = f"tidemill {site_key(directory)} site={config.name} contact={config.contact}"
    try:
        probe = Probe(open_batch(config, directory), directory, config=config, binary=binary, comment=comment)
        facts = run_probe(probe, wait_s=wait_s, tell=lambda news: say_lines(wrapped("", news)))
    except SiteError as error:
        raise SiteError(
            error.message, hint=error.hint or advise(error.message), transient=error.transient
        ) from error
    if facts is None:
        reason = probe.status.reason if probe.status is not None else ""
        raise SiteError(
            f"no compute node within {wait_s:.0f} s"
            + (f": {reason}" if reason else "")
            + "; the probe was canceled",
            hint=advise(reason) or "`tidemill doctor --compute --probe-wait 1h` waits longer",
        )
    return facts


# ---- messages --------------------------------------------------------------------------------------


def _report(args: Namespace, path: Path, findings: list[Finding], *, read: SiteConfig) -> int:
    failed = any(each.state == "fail" for each in findings)
    if args.json:
        show_json(
            {
                "site": str(path.parent),
                "name": read.name,
                "batch": read.batch,
                "mode": read.mode,
                "partition": read.cluster.partition,
                "tcp": read.harvest.tcp,
                "findings": [each._asdict() for each in findings],
            }
        )
        return 2 if failed else 0
    tell_findings(findings, say_lines)
    show(str(path))
    if read.batch == "local" and args.batch is None:
        told = f"no cluster was found: this site emulates {counted_text(read.local.nodes, 'node')} on this machine"
        say_lines(wrapped(f"{'batch':<8} ", f"{told}; `--batch slurm` shows what is missing on a login node"))
    for head, text in next_steps(read, path, is_default=args.dir is None, failed=failed):
        say_lines(wrapped(f"{head:<8} ", text))
    return 2 if failed else 0


def next_steps(read: SiteConfig, path: Path, *, is_default: bool, failed: bool) -> list[tuple[str, str]]:
    """What the site does from here on and which command comes next: (head, text)."""
    where = "" if is_default else f" {path.parent}"
    stop_file = read.stop_file or path.parent / "STOP"
    is_up = is_default and read.is_its_own  # `tidemill up` runs the server of the home, and this site with it
    start = "`tidemill up --detach`" if is_up else f"`tidemill site run{where}`"
    steps = _missing_credential(read, path)
    if read.batch == "local":
        if is_up:
            return [*steps, ("next", "`tidemill run -- hostname`")]
        return [*steps, ("next", f"read it; put application files into apps/; then {start}")]
    if failed:
        steps.append(("missing", f"what is marked `fail` above; then `tidemill site check{where}`"))
    if read.mode == "observe":
        steps += [
            ("mode", "observe: it computes and logs what it would do, and submits nothing"),
            ("next", f"{start} lets it look; `tidemill site status{where}` shows what it sees"),
            ("begin", f"`tidemill site enable{where}`: then it submits jobs as you, {_bounds(read)}"),
        ]
    else:
        steps += [
            ("mode", f"run: it submits jobs as you, {_bounds(read)}; {PROMISES[policy_of(read)]}"),
            ("stop", f"`tidemill site drain{where} --reason TEXT`, or make {stop_file}"),
            ("next", "`tidemill run -- hostname`" if is_up else f"{start} connects it to its server"),
        ]  # fmt: skip
    if not read.contact:
        steps.append(
            ("contact", "none: `contact` in site.toml should name you, the staff see it with every job")
        )
    return steps


def _missing_credential(read: SiteConfig, path: Path) -> list[tuple[str, str]]:
    """What a site has to have before another machine's server lets it in."""
    from tidemill.config.keys import addresses

    if read.is_its_own or read.certificate or read.token_file or read.secret_file:
        return []
    named = ", ".join(addresses(read.server))
    told = f"`certificate`, `token_file` or `secret_file` in {path}: {named} lets no site in without one"
    return [("missing", f"{told}; ask its operator")]


def _bounds(read: SiteConfig) -> str:
    hours = read.harvest.node_hours_max
    return nodes_text(read, " at a time") + (f" and {hours:g} node-hours in all" if hours else "")


COMMANDS = {
    "site init": Command(
        define, init, "tidemill site init --partition batch --contact me@example.org", talks=False
    )
}
