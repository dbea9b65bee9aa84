"""`tidemill app list|show|check|approve`: applications that sites offer, and files that are or become some."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import ask, say, show, show_json, show_table
from tidemill.errors import ConfigError, did_you_mean
from tidemill.model.application import DEFAULT_EVENT_S
from tidemill.model.legal import shown
from tidemill.model.quantities import (
    bytes_text,
    count_text,
    counted_text,
    digest_text,
    percent_text,
    ratio,
    times_text,
)

if TYPE_CHECKING:
    from tidemill.site.applications.catalogue import Approved


def define_list(parser: Parser) -> None:
    """Options of `app list`."""
    parser.add_argument("--site", metavar="NAME", help="only what this site offers (default: all sites)")


def define_show(parser: Parser) -> None:
    """Options of `app show`."""
    parser.add_argument("name", metavar="NAME", help="the application")
    define_list(parser)


def define_check(parser: Parser) -> None:
    """Options of `app check`."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.toml", help="application files")
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="directory of images (default: `images` beside the directory of the file)",
    )


def define_approve(parser: Parser) -> None:
    """Options of `app approve`."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE.toml",
        help="the application file: the one in SITE/apps is what the site reads",
    )
    parser.add_argument("--yes", action="store_true", help="approve without asking (default: ask)")


def _offers(args: Namespace) -> list[Any]:
    return [each for each in client_of(args).applications() if args.site in (None, each.site)]


def _refused(args: Namespace) -> dict[tuple[str, str], str]:
    """Applications that sites do not run now: (site, name, or file where it names none) -> why, and what to do."""
    return {
        (row.name, each.name or each.file): each.why
        for row in client_of(args).sites()
        for each in row.refused
        if args.site in (None, row.name)
    }


def list_apps(args: Namespace) -> int:
    """List applications, also those that a site refuses to run, with the reason."""
    offers, refused = _offers(args), _refused(args)
    offered = {(each.site, each.app.name) for each in offers}
    missing = [key for key in refused if key not in offered]
    if args.json:
        rows: list[dict[str, Any]] = [
            {"site": each.site, "app": each.app, "refused": refused.get((each.site, each.app.name))}
            for each in offers
        ]
        rows += [{"site": key[0], "app": {"name": key[1]}, "refused": refused[key]} for key in missing]
        show_json(rows)
        return 0
    if not offers and not refused:
        say("no site offers an application")
        return 0
    show_table(
        ["APP", "VERSION", "SITE", "STATE", "MODE", "CORES", "MEMORY MB", "OUTPUTS", "ABOUT"],
        [
            *(
                [
                    each.app.name,
                    each.app.version,
                    each.site,
                    "refused" if (each.site, each.app.name) in refused else "offered",
                    each.app.mode,
                    each.app.cores,
                    each.app.memory_mb,
                    ", ".join(each.app.outputs) or "-",
                    each.app.help,
                ]
                for each in offers
            ),
            *([name, "-", site, "refused", "-", "-", "-", "-", ""] for site, name in missing),
        ],
        right=(5, 6),
    )
    for (site, name), why in refused.items():
        say(f"{name} at {site} is refused: {why}")
    return 0


def show_app(args: Namespace) -> int:
    """Show one application."""
    offers = _offers(args)
    chosen = [each for each in offers if each.app.name == args.name]
    refused = {site: why for (site, name), why in _refused(args).items() if name == args.name}
    if refused and not chosen:
        told = "; ".join(f"at {site}: {why}" for site, why in refused.items())
        raise ConfigError(f"no site offers `{args.name}`, it is refused {told}")
    if not chosen:
        raise ConfigError(
            f"no site offers `{args.name}`", hint=did_you_mean(args.name, {each.app.name for each in offers})
        )
    if args.json:
        show_json(chosen)
        return 0
    measured = {row.name: row.capacity.get("event_s") or {} for row in client_of(args).sites()}
    for offer in chosen:
        _show_offer(offer, measured.get(offer.site, {}).get(args.name), refused.get(offer.site))
    return 0


def _show_offer(offer: Any, measured_s: float | None, refused: str | None) -> None:
    app = offer.app
    show(f"{app.name} {app.version} at {offer.site}: {app.help or 'no description'}")
    if refused:
        show(f"    refused: {refused}")
    size = f"{counted_text(app.cores, 'core')}, {app.memory_mb} MB"
    show(f"    {app.mode} mode, {size}, {_event_text(app, measured_s)}")
    if app.ranks_max:
        show(f"    at most {app.nodes_max} nodes and {app.ranks_max} ranks of a payload")
    show(f"    {app.digest}")
    for image in app.images:
        show(f"    image {image}")
    if app.container:
        show(f"    container {app.container}")
    for line in app.setup:
        show(f"    setup {line}")
    if app.inputs is not None:
        show(f"    inputs: {', '.join(app.inputs) or 'none'}")
    show(f"    outputs: {', '.join(app.outputs) or 'none'}")
    if app.start is not None:
        show(f"    {_start(app.start)}")
    for name, parameter in sorted(app.parameters.items()):
        show(f"    -p {name}={_legal(parameter)}{_default(parameter)}  {parameter.help}".rstrip())


def _event_text(app: Any, measured_s: float | None) -> str:
    """How long an event takes: as its site measured it, else as its file says or as is assumed."""
    if measured_s:
        return f"{measured_s:.3g} s per event (measured)"
    source = "assumed" if app.event_s == DEFAULT_EVENT_S else "`event_s` of its file"
    return f"about {app.event_s:g} s per event ({source}; the first events measure it)"


def _start(cost: Any) -> str:
    """What one start costs file systems."""
    share = percent_text(ratio(cost.failed, cost.ops))
    traced = f"{times_text(cost.runs)} traced"

    def read(name: str) -> str:
        return f", reads {bytes_text(cost.bytes[name])}" if cost.bytes.get(name) else ""

    areas = "".join(f"; {name}: {count_text(ops)}{read(name)}" for name, ops in sorted(cost.areas.items()))
    return f"a start: {count_text(cost.ops)} metadata operations, {share} of them fail ({traced}){areas}"


def _legal(parameter: Any) -> str:
    if parameter.choices:
        return "|".join(parameter.choices)
    low = "" if parameter.min is None else shown(parameter.min)
    high = "" if parameter.max is None else shown(parameter.max)
    return str(parameter.type).upper() + (f" ({low}..{high})" if low or high else "")


def _default(parameter: Any) -> str:
    return "  (required)" if parameter.default is None else f"  (default: {parameter.default})"


def check(args: Namespace) -> int:
    """Check application files as a site would; print what there is to approve."""
    from tidemill.client.home import home_dir
    from tidemill.site.applications.catalogue import is_offered, load_application
    from tidemill.site.applications.handed.cautions import cautions

    store = None if args.store is None else args.store.absolute()
    checked = [(path, load_application(path, store=store)) for path in args.files]
    if args.json:
        show_json(
            [
                {
                    "file": str(path),
                    "app": each.app,
                    "digests": each.files,
                    "images": {image.named: f"sha256:{image.use.file.sha256}" for image in each.images},
                    "inputs": each.inputs,
                    "warnings": cautions(each.app, each.inputs),
                }
                for path, each in checked
            ]
        )
        return 0
    for path, each in checked:
        _show_checked(path, each)
    apps = home_dir(args.home) / "site" / "apps"
    if all(is_offered(path) for path in args.files):
        say("the site reads it here: it is offered as soon as the agent has read it")
    else:
        place = f"`{apps}`" if is_offered(apps / "NAME") else "SITE/apps/"
        say(f"put the file into {place} to offer the application; the agent reads it at once")
    return 0


def _show_checked(path: Path, each: Approved) -> None:
    """What there is to approve, and what its author should know."""
    from tidemill.image.reference import PINNED
    from tidemill.site.applications.handed.cautions import cautions

    show(f"{path}: `{each.app.name}` version {each.app.version} is sound, {each.app.mode} mode")
    for key, file in (("executable", each.app.executable), ("script", each.app.script)):
        if file is not None:
            show(f"    {key:<10} {file}")
            if file in each.files:
                show(f"               {digest_text(each.files[file])}")
    _show_contained(each)
    if each.inputs:
        show(f"    inputs     {', '.join(each.inputs)}")
    for image in each.images:
        show(f"    image      {image.named.partition(PINNED)[0]}: {', '.join(image.use.areas)}")
        show(f"               {digest_text(image.use.file.sha256)}")
    if each.app.container is None:
        _show_pins(each)
    _warn_of_runtime(path, each)
    for caution in cautions(each.app, each.inputs):
        say(f"warning: {caution}")


def _warn_of_runtime(path: Path, each: Approved) -> None:
    """Warn of a container runtime that this host lacks: only a job would find that compute nodes lack it, too."""
    from tidemill.site.applications.approval import runtime_of, site_of

    container = each.app.container
    if container is None:
        return
    try:
        site = site_of(path)
    except ConfigError:  # `site check` reports what is wrong in site.toml
        return
    if site is None:
        return
    program = runtime_of(container, site).program
    if not os.access(program, os.X_OK):
        say(
            f"warning: `{program}` does not run on this host: right where only compute nodes have it; else correct "
            f"`containers.{container.runtime}.command` in site.toml"
        )


def approve(args: Namespace) -> int:
    """Show which files of a program have changed since their approval, and approve them as they are now."""
    from tidemill.site.applications.catalogue import is_offered
    from tidemill.site.applications.reapproval import approve as approve_files
    from tidemill.site.applications.reapproval import check_owner, program_files

    path: Path = args.file.absolute()
    check_owner(path)
    app, files = program_files(path)
    show(f"{path}: `{app.name}` version {app.version}")
    for each in files:
        show(f"    {each.path}")
        if each.approved is None:
            show(
                "        approved  the bytes that the site found when it read this file (no digest is given)"
            )
        else:
            show(f"        approved  {digest_text(each.approved)}")
        show(f"        now       {'the same' if each.found == each.approved else each.found}")
    if all(each.found == each.approved for each in files):
        say("nothing has changed: there is nothing to approve")
        return 0
    if not args.yes and not _agrees():
        say("nothing was approved")
        return 1
    approve_files(path, files)
    if is_offered(path):
        say("approved: the agent reads the file within seconds; jobs that wait for it go on by themselves")
    else:
        say("approved in this file, which no site reads: copy it to SITE/apps/")
    return 0


def _agrees() -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(
            "approving needs an answer, and stdin is not a terminal", hint="`--yes` answers beforehand"
        )
    return ask("Approve it as it is now? [y/N]").lower() in ("y", "yes")


def _show_pins(each: Approved) -> None:
    """The lines that approve exactly these files and images, where some are not pinned yet."""
    from tidemill.image.reference import PINNED

    app = each.app
    loose = any(PINNED not in image.named for image in each.images)
    if not loose and app.digest is not None and (app.script is None or app.script_digest is not None):
        return
    show("    approve exactly these files by adding to it:")
    show(f'    digest = "{each.files[app.executable]}"')
    if app.script is not None:
        show(f'    script_digest = "{each.files[app.script]}"')
    if loose:
        pins = [f'"{i.named.partition(PINNED)[0]}{PINNED}{i.use.file.sha256}"' for i in each.images]
        show(f"    images = [{', '.join(pins)}]")


def _show_contained(each: Approved) -> None:
    container = each.app.container
    if container is not None:
        show(f"    container  {container.runtime.value}: {container.image}")
        if each.digest not in container.image:
            show(f"               {each.digest}")
    for line in each.app.setup:
        show(f"    setup      {line}")
    if each.app.setup:
        from tidemill.site.applications.setup_lines import key_of

        show(f"               kept on node types as {key_of(each.app)}")


COMMANDS = {
    "app list": Command(define_list, list_apps, "tidemill app list --site local"),
    "app show": Command(define_show, show_app, "tidemill app show pythia8"),
    "app check": Command(define_check, check, "tidemill app check pythia8.toml", talks=False),
    "app approve": Command(
        define_approve, approve, "tidemill app approve SITE/apps/pythia8.toml", talks=False
    ),
}
