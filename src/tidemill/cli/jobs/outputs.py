"""`tidemill outputs ls|get`: outputs of a job or campaign: at the site, arrived, delivered."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Command, Parser, client_of, count_or_zero
from tidemill.cli.arriving import outputs_lines, still_kept
from tidemill.cli.jobs.named import NamedJobs, named, needed
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError, JobError
from tidemill.model.quantities import bytes_text

if TYPE_CHECKING:
    from tidemill.wire.api import KeptOutputs

EVENTS_CHARACTERS_MAX = 30
JOBS_EXPLAINED = 3  #: jobs that go on of which it is said when their outputs come


def define_ls(parser: Parser) -> None:
    """Options of `outputs ls`."""
    _define_jobs(parser)
    parser.add_argument("--files", action="store_true", help="list the files inside of bundles, too")


def _define_jobs(parser: Parser) -> None:
    parser.add_argument(
        "job",
        nargs="?",
        metavar="NAME|JOB",
        help="the job's number, or the name of a campaign: all of its jobs",
    )
    parser.add_argument("--campaign", metavar="NAME", help="all jobs of this campaign, likewise")


def define_get(parser: Parser) -> None:
    """Options of `outputs get`."""
    _define_jobs(parser)
    parser.add_argument("--output", metavar="NAME", help="only the output of this name (default: all)")
    parser.add_argument(
        "--event",
        type=count_or_zero,
        metavar="N",
        help="only the file that holds this event, out of its bundle (several jobs: as JOB-NAME)",
    )
    parser.add_argument("--file", metavar="NAME", help="only the file of this name, likewise")
    parser.add_argument(
        "--to",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where copies go (default: the current directory)",
    )


def _find(args: Namespace, verb: str) -> tuple[Any, NamedJobs, list[Any]]:
    words = [] if args.job is None else [args.job]
    what = needed(named(words, args.campaign, verb=verb, several=False), verb)
    client = client_of(args)
    if what.campaign is None:
        client.job(what.jobs[0])  # an unknown job is an error, a job without outputs is not
    else:
        client.campaign(what.campaign)
    return client, what, list(client.outputs(campaign=what.campaign, job=what.job))


def ls(args: Namespace) -> int:
    """List outputs: what is delivered, what has arrived of jobs that go on, and what is done but not delivered."""
    from tidemill.client.outputs import is_arriving

    client, what, found = _find(args, "outputs ls")
    if args.files:
        return _ls_files(found, as_json=args.json)
    if args.json:
        show_json(found)
        return 0
    kept = client.kept_outputs(campaign=what.campaign, job=what.job)
    if not found and not kept:
        say("nothing has arrived (yet)")
        return 0
    show_table(
        ["JOB", "OUTPUT", "STATE", "EVENTS", "SIZE", "SHA256", "URL"],
        [
            [
                each.job,
                each.output.name,
                "arrived" if is_arriving(each.output) else "delivered",
                _shortened(each.output.events),
                bytes_text(each.output.size_bytes),
                each.output.sha256[:12] or "-",
                each.output.url,
            ]
            for each in found
        ]
        + [[each.job, *_kept(each), "-", "-", "-"] for each in still_kept(kept, found)],
        right=(0, 4),
    )
    for each in kept[:JOBS_EXPLAINED]:
        for line in outputs_lines(client.job(each.job)):
            say(f"job {each.job}: output {line}")
    return 0


def _kept(kept: KeptOutputs) -> list[str]:
    """Output, state and events of what is not delivered; of `sent` only what merge steps make is missing."""
    output = "merged" if kept.sent == kept.events else "all"
    return [output, "under way" if kept.under_way else f"at {kept.site}", _shortened(kept.events)]


def _shortened(events: str) -> str:
    return events if len(events) <= EVENTS_CHARACTERS_MAX else events[:EVENTS_CHARACTERS_MAX] + "..."


def _ls_files(found: list[Any], *, as_json: bool) -> int:
    from tidemill.client.outputs import listing

    files = [file for each in found for file in listing(each.job, each.output)]
    if as_json:
        show_json(files)
        return 0
    show_table(
        ["JOB", "OUTPUT", "FIRST", "EVENTS", "SIZE", "FILE"],
        [
            [
                each.job,
                each.output,
                "-" if each.first is None else each.first,
                "-" if each.count is None else each.count,
                bytes_text(each.size_bytes),
                each.name,
            ]
            for each in files
        ],
        right=(0, 2, 3, 4),
    )
    return 0


def get(args: Namespace) -> int:
    """Copy outputs here, of a job that goes on what has arrived. Checksums of whole outputs are verified on the way,
    those of files out of bundles are not."""
    from tidemill.client.outputs import copy_members, copy_outputs

    if args.event is not None and args.file is not None:
        raise ConfigError("both --event and --file say which file is meant", hint="give one of them")
    client, what, found = _find(args, "outputs get")
    of = f"job {what.job}" if what.campaign is None else f"campaign `{what.campaign}`"
    if not found:
        lines = [] if what.job is None else outputs_lines(client.job(what.job))
        raise JobError(
            f"failed to copy outputs of {of}: nothing has arrived (yet)",
            hint="; ".join(f"output {line}" for line in lines) or None,
        )
    chosen = [each for each in found if args.output in (None, each.output.name)]
    if not chosen:
        names = ", ".join(f"`{name}`" for name in sorted({each.output.name for each in found}))
        raise ConfigError(f"{of} has no output `{args.output}`", hint=f"it has: {names}")
    if args.event is None and args.file is None:
        copies = [path for each in chosen for path in copy_outputs(each.job, each.output, args.to)]
    else:
        copies = copy_members(chosen, args.to, name=args.file, event=args.event)
        if not copies:
            words = what.job or what.campaign
            wanted = f"file `{args.file}`" if args.event is None else f"file for event {args.event}"
            raise ConfigError(
                f"no output of {of} has a {wanted}", hint=f"`tidemill outputs ls {words} --files` lists them"
            )
    if args.json:
        show_json([str(path) for path in copies])
        return 0
    for path in copies:
        show(str(path))
    return 0


COMMANDS = {
    "outputs ls": Command(define_ls, ls, "tidemill outputs ls --campaign zmumu"),
    "outputs get": Command(define_get, get, "tidemill outputs get 7 --output hepmc --to /data/me"),
}
