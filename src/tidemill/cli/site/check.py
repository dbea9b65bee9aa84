"""`tidemill site check|enable`: what a site.toml says and whether that is there; lets a site submit."""

from __future__ import annotations

import functools
import json
import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Command, Parser, count
from tidemill.cli.configfile import locate, set_keys
from tidemill.cli.findings import tell_findings, wrapped
from tidemill.cli.site.directory import define_directory, nodes_text, owner_of, read_site, site_directory
from tidemill.cli.site.node import binary_finding
from tidemill.cli.terminal import say, say_lines, show, show_json, show_lines, show_table
from tidemill.errors import ConfigError, TidemillError
from tidemill.files import why_unseen, write_durable
from tidemill.site.nodes.planning import PROMISES, policy_of
from tidemill.site.setup.detection import NODE_HOURS_FIRST, NODES_FIRST
from tidemill.site.setup.finding import Finding

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig


VALUE_CHARS_MAX = 60

CERTIFICATE_SOON_US = 14 * 86_400_000_000


def _hours(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e12:
        raise ArgumentTypeError(f"`{text}` is not a number of node-hours above 0")
    return number


def define_check(parser: Parser) -> None:
    """Options of `site check`."""
    define_directory(parser)
    parser.add_argument(
        "--effective",
        action="store_true",
        help="print every value and where it comes from, and check nothing more",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="connect to nothing: do not ask the batch system for partition and account, nor caches and the mail "
        "server for an answer",
    )


def define_enable(parser: Parser) -> None:
    """Options of `site enable`."""
    define_directory(parser)
    parser.add_argument(
        "--nodes", type=count, metavar="N", help=f"nodes at most (default: as it is; {NODES_FIRST} at first)"
    )
    parser.add_argument(
        "--node-hours", type=_hours, metavar="H",
        help=f"node-hours in all at most (default: as it is; {NODE_HOURS_FIRST} at first)",
    )  # fmt: skip


# ---- enable --------------------------------------------------------------------------------------------


def enable(args: Namespace) -> int:
    """Set mode and bounds in site.toml; say what that means."""
    directory = site_directory(args)
    path = directory / "site.toml"
    before = read_site(directory)
    values: dict[str, str] = {} if before.mode == "run" else {"mode": '"run"'}
    if args.nodes is not None:
        values["nodes_max"] = str(args.nodes)
    if args.node_hours is not None:
        values["harvest.node_hours_max"] = (
            f"{args.node_hours:g}" if args.node_hours < 1e6 else repr(args.node_hours)
        )
    elif before.mode == "observe" and before.harvest.node_hours_max is None:
        values["harvest.node_hours_max"] = str(NODE_HOURS_FIRST)
    if values:
        text = set_keys(path.read_text(encoding="utf-8"), values, source=path)
        write_durable(path, text.encode(), failure=ConfigError)
    after = read_site(directory)
    if args.json:
        show_json(
            {"site": str(directory), "changed": {key: json.loads(text) for key, text in values.items()}}
        )
        return 0
    for key, text in values.items():
        show(f"{key} = {text}")
    _tell_enabled(args, directory, after, changed=bool(values))
    return 0


def _tell_enabled(args: Namespace, directory: Path, read: SiteConfig, *, changed: bool) -> None:
    hours = read.harvest.node_hours_max
    bounds = (
        f"{nodes_text(read, ' at a time')}, {f'{hours:g}' if hours else 'any number of'} node-hours in all"
    )
    state = "enabled" if changed else "it was enabled already"
    told = f"{state}: it submits jobs as you, {bounds}; {PROMISES[policy_of(read)]}"
    say_lines(wrapped("", told))
    short = [each for each in read.accounts if hours and each.node_hours < hours]
    for each in short:
        say(
            wrapped(
                "", f"account `{each.name}` has {each.node_hours:g} node-hours in site.toml: it stops there"
            )
        )
    where = "" if args.dir is None else f" {directory}"
    is_up = args.dir is None and read.is_its_own
    if changed and _agent_lives(directory):
        restart = "`tidemill up --stop; tidemill up --detach`" if is_up else f"`tidemill site run{where}`"
        _hint(f"its agent has read the old file: start it again, {restart}")
    elif is_up:
        _hint(
            "`tidemill run -- hostname` starts what is needed; `tidemill site drain --reason TEXT` stops it"
        )
    else:
        _hint(f"`tidemill site run{where}` starts it; `tidemill site drain{where} --reason TEXT` stops it")


def _hint(text: str) -> None:
    say_lines(wrapped("hint: ", text))


def _agent_lives(directory: Path) -> bool:
    owner = owner_of(directory)
    return owner is not None and not owner["ended"]


# ---- check ---------------------------------------------------------------------------------------------


def check(args: Namespace) -> int:
    """Exit code 2 where something that the file names is not there."""
    directory = site_directory(args)
    read = read_site(directory)
    if args.effective:
        return _show_effective(args, directory, read)
    findings = list(examine_site(directory, read, offline=args.offline))
    failed = any(each.state == "fail" for each in findings)
    if args.json:
        show_json([each._asdict() for each in findings])
    else:
        tell_findings(findings, show_lines)
    return 2 if failed else 0


def _show_effective(args: Namespace, directory: Path, read: SiteConfig) -> int:
    rows = effective(directory / "site.toml", read)
    if args.json:
        show_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return 0
    show_table(["KEY", "VALUE", "FROM"], [[key, _shown(value), origin] for key, value, origin in rows])
    return 0


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."


def effective(path: Path, read: SiteConfig) -> list[tuple[str, Any, str]]:
    """Every key of the file with its value and where that comes from: a line of the file, or the default."""
    import msgspec

    from tidemill import config

    lines = locate(path.read_text(encoding="utf-8"))
    values = msgspec.to_builtins(read, enc_hook=str)
    values["harvest"]["policy"] = policy_of(read).value  # the batch system's, if it is not set
    rows: list[tuple[str, Any, str]] = []
    for key in [*config.describe(type(read)), *config.repeated(type(read))]:
        inside = [
            at for name, at in lines.items() if name.startswith(f"{key.key}.")
        ]  # as `containers.NAME.command`
        line = lines.get(key.key, min(inside, default=None))
        rows.append((key.key, _at(values, key.key), "default" if line is None else f"{path.name}:{line}"))
    return rows


def _at(values: Any, key: str) -> Any:
    return functools.reduce(lambda table, name: table[name], key.split("."), values)


def examine_site(directory: Path, read: SiteConfig, *, offline: bool) -> Iterator[Finding]:
    """What the file names, and whether it is there. Writes nothing."""
    from tidemill import timing
    from tidemill.cli.site.caches import examine_caches
    from tidemill.cli.site.containers import examine_containers
    from tidemill.cli.site.endpoints import examine_endpoints, examine_transport
    from tidemill.site.setup.shell import missing_findings

    number = len(locate((directory / "site.toml").read_text(encoding="utf-8")))
    yield Finding("site.toml", "ok", f"{directory / 'site.toml'}: {number} keys set, all are known and legal")
    if changed := timing.replaced():
        names = ", ".join(f"`{name}`" for name in changed)
        yield Finding("timing", "warn", f"`{timing.VARIABLE}` replaces {names}", "it is for tests: unset it")
    yield _mode(read)
    yield _payloads(read)
    yield from _paths(read)
    yield from _certificate(read)
    yield from examine_transport(read)
    yield from _ownership(directory)
    yield binary_finding(directory)
    yield from _applications(directory, read)
    yield from examine_containers(read)
    yield from examine_endpoints(read)
    yield from examine_caches(read, offline=offline)
    if read.mail.server and not offline:
        yield _mail(read)
    if read.batch != "local":
        yield from _manners(directory, read)
        yield from missing_findings(read, os.environ)
        if not offline:
            yield from _cluster(directory, read)


def _ownership(directory: Path) -> Iterator[Finding]:
    """Whether others can change what the site obeys."""
    from tidemill.site.setup.ownership import check_site_directory

    try:
        check_site_directory(directory)
    except ConfigError as error:
        yield Finding("directory", "fail", error.message, error.hint or "")


def _mode(read: SiteConfig) -> Finding:
    if read.mode == "observe":
        return Finding("mode", "ok", "observe: it submits nothing", "`tidemill site enable` lets it begin")
    hours = read.harvest.node_hours_max
    bound = f", {hours:g} node-hours" if hours else ""
    return Finding("mode", "ok", f"run, {nodes_text(read)}{bound}")


def _payloads(read: SiteConfig) -> Finding:
    """What payloads see and may change; whether nodes give them namespaces their pilots find out."""
    from tidemill.site.data.masks import shown_credentials
    from tidemill.site.setup.limitations import WITHOUT_NAMESPACES

    if read.isolation == "off" or (read.serves_others and read.isolation == "optional"):
        when = "" if read.isolation == "off" else " where the kernel gives no namespaces"
        whose = "jobs of others: " if read.serves_others else ""
        return Finding(
            "payloads", "warn", f'{whose}`isolation = "{read.isolation}"`: {WITHOUT_NAMESPACES}{when}',
            "docs/security.md says what that means" + ('; `isolation = "auto"` keeps them apart' if whose else ""),
        )  # fmt: skip
    if read.serves_others:
        return Finding(
            "payloads", "ok", "jobs of others: no home directory, files outside of the slot are read-only",
            "application files and site.toml name what programs need: `show`, `write`",
        )  # fmt: skip
    seen = ", ".join(f"`{each}`" for each in shown_credentials(read))
    return Finding(
        "payloads", "ok",
        f"jobs of yours: they may write where you may, except to Tidemill's own files, and see no credentials"
        f"{f' but {seen}' if seen else ''}",
        "if it is to run jobs of others, set `shared = true`: their payloads see no home directory",
    )  # fmt: skip


def _paths(read: SiteConfig) -> Iterator[Finding]:
    for key, path in [
        *(("data_roots", each) for each in read.data_roots),
        *(("show", each) for each in read.show),
        *(("write", each) for each in read.write),
        ("output_dir", read.output_dir),
        ("secret_file", read.secret_file),
        ("certificate", read.certificate),
        ("key", read.key),
        ("ca", read.ca),
        ("token_file", read.token_file),
    ]:
        why = "" if path is None else why_unseen(path)
        if why:
            yield Finding(key, "fail", f"`{path}` {why}", _source(key, read.name))
    private = (("secret_file", read.secret_file), ("key", read.key), ("token_file", read.token_file))
    for key, path in private:
        if path is not None and not why_unseen(path) and path.stat().st_mode & 0o077:
            yield Finding(key, "fail", f"`{path}` is open to others", f"chmod 0600 {path}")
    there = read.output_dir is not None and not why_unseen(read.output_dir)
    if read.output_dir is not None and there and not os.access(read.output_dir, os.W_OK):
        yield Finding(
            "output_dir", "fail", f"`{read.output_dir}` cannot be written by you", "chmod, or name another"
        )


def _source(key: str, site: str) -> str:
    """Where what a key names comes from, for who has not got it."""
    return {
        "certificate": f"`tidemill certs issue site {site}` makes one, or copy yours from who issued it",
        "key": f"`tidemill certs issue site {site}` makes one, or copy yours from where you made it",
        "ca": "copy it from the server's operator: `tidemill certs init` made it there, or name the CA that issued the "
        "server's certificate",
        "token_file": "what renews your token writes it, such as htgettoken or oidc-agent",
        "secret_file": "copy it from the server's operator, mode 0600",
    }.get(key, f"make it, or change `{key}`")


def _certificate(read: SiteConfig) -> Iterator[Finding]:
    """Whether the site's certificate is this site's, and lasts."""
    from tidemill import clock
    from tidemill.client.authority import describe

    if read.certificate is None or why_unseen(read.certificate):
        return
    try:
        found = describe(read.certificate)
    except ConfigError as error:
        yield Finding("certificate", "warn", error.message, error.hint or "")
        return
    ends = clock.utc_text(found.until_us)
    if found.role and (found.role, found.name) != ("site", read.name):
        yield Finding(
            "certificate", "fail", f"it is of {found.role} `{found.name}`, this is site `{read.name}`",
            f"`tidemill certs issue site {read.name}`, or set `name`",
        )  # fmt: skip
    elif found.until_us - clock.now_us() < CERTIFICATE_SOON_US:
        yield Finding("certificate", "warn", f"it ends at {ends}", "ask for a new one: `certs issue --renew`")
    else:
        yield Finding("certificate", "ok", f"of {found.subject}, until {ends}", "")


def _applications(directory: Path, read: SiteConfig) -> Iterator[Finding]:
    from tidemill.site.applications.catalogue import Applications
    from tidemill.site.data.masks import masked_paths

    applications = Applications(directory / "apps", site=read)
    applications.refresh()
    yield Finding("applications", "ok", ", ".join(sorted(applications.by_name)) or "none approved")
    for file, problem in sorted(applications.problems.items()):
        yield Finding("application", "fail", f"{file}: {problem}", "`tidemill app check FILE` gives details")
    masked = masked_paths(directory, read)
    for name, approved in sorted(applications.by_name.items()):
        for path in (*approved.app.show, *approved.app.write):
            if any(path.is_relative_to(each) for each in masked):
                yield Finding(
                    "application", "warn", f"{name} names `{path}`, which payloads never see: it is Tidemill's own",
                    "keep what programs need elsewhere, or take it out of `show` and `write`",
                )  # fmt: skip


def _why_no_directory(path: Path) -> str:
    return why_unseen(path) or ("" if path.is_dir() else "is not a directory")


def _manners(directory: Path, read: SiteConfig) -> Iterator[Finding]:
    if not read.contact:
        yield Finding(
            "contact",
            "warn",
            "no contact is named",
            "set `contact`: the centre's staff see it with each of Tidemill's jobs",
        )
    else:
        yield Finding(
            "contact", "ok", f"{read.contact}: the centre's staff see it with each of Tidemill's jobs"
        )
    if read.stop_file is None:
        yield Finding(
            "stop_file",
            "warn" if read.serves_others else "ok",
            f"`{directory / 'STOP'}` stops the site; no other file is agreed with the centre's staff",
            "set `stop_file`, and give them its path" if read.serves_others else "",
        )
    elif unseen := _why_no_directory(read.stop_file.parent):
        yield Finding("stop_file", "fail", f"its directory `{read.stop_file.parent}` {unseen}", "make it")
    elif not why_unseen(read.stop_file):
        yield Finding(
            "stop_file", "warn", f"`{read.stop_file}` exists: the site is stopped", "ask those who made it"
        )
    else:
        yield Finding("stop_file", "ok", f"`{read.stop_file}`, once it exists, stops the site")
    # one that `site init` has written is where a compute node reached this host
    is_default = "lead_listen" not in locate((directory / "site.toml").read_text(encoding="utf-8"))
    if is_default and read.harvest.has_lead:
        yield Finding(
            "lead_listen", "warn", f"`{read.lead_listen}` can be reached from this host only",
            "right where the compute nodes are this host; else `tidemill doctor --compute` prints the address",
        )  # fmt: skip


def _mail(read: SiteConfig) -> Finding:
    from tidemill.config.outlets import PLAIN
    from tidemill.site.staff.mail import why_no_mail

    why = why_no_mail(read)
    if why:
        return Finding(
            "mail", "fail", f"`{read.mail.server}` does not take mail: {why}",
            f"check `mail.server`; a relay without encryption is `{PLAIN}://HOST:PORT`",
        )  # fmt: skip
    if not read.contact:
        return Finding("mail", "warn", "no contact is named, so no mail is sent", "set `contact`")
    return Finding("mail", "ok", f"`{read.mail.server}` answers; mail goes to {read.contact}")


def _cluster(directory: Path, read: SiteConfig) -> Iterator[Finding]:
    from tidemill.batch.open import asked_cluster
    from tidemill.cli.site.init import examine_fit
    from tidemill.site.setup.advice import advise
    from tidemill.site.setup.detection import SiteWishes, choose_partition, of_facts

    try:
        with asked_cluster(read, directory) as batch:
            facts = batch.facts()
    except TidemillError as error:
        yield Finding("batch system", "fail", error.message, error.hint or advise(error.message) or "")
        return
    named = read.cluster.partition or None
    partition, _ = choose_partition(facts, named)
    wishes = SiteWishes(
        server=read.server,
        batch=read.batch,
        partition=named,
        account=read.accounts[0].name if read.accounts else None,
        node_hours=read.accounts[0].node_hours if read.accounts else None,
    )
    yield from of_facts(facts, partition, wishes)
    yield from examine_fit(facts, read)
    limit = partition.walltime_max_s if partition else None
    if limit and partition and read.walltime_s > limit:
        yield Finding(
            "walltime_s", "fail", f"{read.walltime_s:.0f} s, partition `{partition.name}` allows {limit:.0f} s",
            f"set `walltime_s = {limit:.0f}`",
        )  # fmt: skip


COMMANDS = {
    "site check": Command(define_check, check, "tidemill site check --effective", talks=False),
    "site enable": Command(
        define_enable, enable, "tidemill site enable --nodes 16 --node-hours 1000", talks=False
    ),
}
