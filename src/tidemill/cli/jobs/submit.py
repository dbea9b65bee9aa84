"""`tidemill submit`: a job file, or one job of an application."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import (
    Command,
    Parser,
    client_of,
    count,
    count_or_zero,
    gpus,
    memory_span,
    wall_span,
)
from tidemill.cli.command.inputs import checked_url, split_input
from tidemill.cli.command.lines import check_lines, check_list, check_lists
from tidemill.cli.command.places import check_output_dir
from tidemill.cli.jobs.dry_run import check_places, show_plan
from tidemill.cli.terminal import about_campaign, hint, say, show_json, show_lines
from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from tidemill.client.client import Client, Submission
    from tidemill.model.application import Parameter
    from tidemill.model.job import Input, JobSpec, Resources
    from tidemill.model.notification import Subscription
    from tidemill.wire.api import CampaignRow, SiteApplication

RETRIES = 2


def define(parser: Parser) -> None:
    """Options of `submit`."""
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.toml", help="a job file (docs/files.md)")
    parser.add_argument("--campaign", metavar="NAME", help="the jobs' campaign (default: a new one)")
    parser.add_argument("--wait", action="store_true", help="wait for the end; exit code 1 if a job failed")
    define_notify(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print jobs, events, files, cost and end; submit nothing"
    )
    one = parser.add_argument_group("one job of an application")
    one.add_argument("--app", metavar="NAME", help="the application, of `tidemill app list` (default: none)")
    one.add_argument("--events", type=count, default=1, metavar="N", help="number of events (default: 1)")
    one.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter; repeatable (default: the application's)",
    )
    _define_inputs(one)
    one.add_argument(
        "--output",
        metavar="DIR",
        help="where outputs go (default: ./tidemill-out/CAMPAIGN with your own server)",
    )
    one.add_argument("--name", metavar="NAME", help="the job's name (default: none)")
    one.add_argument("--cores", type=count, metavar="C", help="cores per slot (default: the application's)")
    one.add_argument(
        "--memory",
        type=memory_span,
        metavar="SIZE",
        help="memory per slot: `2GB` or MB; `2G..8G`: 2 GB, and up to 8 GB for events that need more (default: the "
        "application's)",
    )
    define_gpus(one)
    define_width(one)
    one.add_argument(
        "--wall",
        type=wall_span,
        metavar="T",
        help="longest time of an event: `90m`, HH:MM:SS; `10m..2h`: 10 minutes, and up to 2 hours for events that "
        "need longer (default: none)",
    )
    _define_place(one)
    one.add_argument(
        "--at-once",
        type=count,
        metavar="N",
        help="run at most N events at the same time (default: as many as there are slots)",
    )
    one.add_argument(
        "--after", action="append", default=[], metavar="JOB", help="run after this job or campaign"
    )
    one.add_argument(
        "--retries",
        type=count_or_zero,
        default=RETRIES,
        metavar="N",
        help=f"retry a failed event up to N times (default: {RETRIES})",
    )
    one.add_argument(
        "--keep-stdout",
        action=BooleanOptionalAction,
        default=True,
        help="keep what payloads in command mode print, as output `stdout` (default: --keep-stdout; job files: "
        "`keep_stdout = false`)",
    )
    _define_end(one)


def _define_end(one: _ArgumentGroup) -> None:
    one.add_argument(
        "--deliver",
        choices=("done", "complete"),
        default="done",
        help="deliver what is done whenever the job ends, or nothing before it is complete (default: done)",
    )
    one.add_argument(
        "--failed-max",
        type=count_or_zero,
        default=0,
        metavar="N",
        help="accept up to N failed events (default: 0)",
    )


def _define_inputs(one: _ArgumentGroup) -> None:
    one.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]URL", help="a file for all events; repeatable"
    )
    one.add_argument(
        "--each",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a text file, line k for event k; repeatable",
    )
    one.add_argument(
        "--open",
        action="append",
        default=[],
        metavar="NAME",
        help="an input that the program opens by its URL; repeatable (default: inputs are copied)",
    )


def _define_place(one: _ArgumentGroup) -> None:
    one.add_argument("--site", metavar="NAME", help="run only there (default: any site)")
    one.add_argument(
        "--home-site",
        metavar="NAME",
        help="run there, elsewhere only while a ward of the server's hospital has it (default: any site)",
    )


def define_notify(parser: Parser) -> None:
    """Options that name addressees of notices."""
    parser.add_argument(
        "--notify",
        action="append",
        default=[],
        metavar="TARGET",
        help="notify `mail:me@example.org`, `hook:NAME`, `https://...` or `message`; repeatable (default: none)",
    )
    parser.add_argument(
        "--notify-when",
        metavar="LIST",
        help="of `job` (each end), `campaign` (its end), `failures`, `site`, with commas (default: campaign,failures)",
    )


def wants_of(args: Namespace) -> list[Subscription]:
    """Addressees and the occasions of their notices. Raises ConfigError."""
    from tidemill.config.addressee import Occasion, parse_target
    from tidemill.errors import did_you_mean
    from tidemill.model.notification import Subscription

    when = None
    if args.notify_when is not None:
        for word in args.notify_when.split(","):
            if word not in list(Occasion):
                raise ConfigError(
                    f"--notify-when: `{word}` cannot be notified",
                    hint=did_you_mean(word, list(Occasion)),
                )
        when = [Occasion(word) for word in args.notify_when.split(",")]
    for each in args.notify:
        try:
            parse_target(each)
        except ValueError as error:
            raise ConfigError(f"--notify: {error}") from error
    if when is not None and not args.notify:
        raise ConfigError("--notify-when needs an addressee", hint="add `--notify mail:me@example.org`")
    return [Subscription(to=each, when=when) for each in args.notify]


def define_gpus(group: Parser | _ArgumentGroup) -> None:
    """The option of a payload that uses GPUs."""
    group.add_argument(
        "--gpus",
        type=gpus,
        metavar="N",
        help="GPUs per slot, or a share of one, such as 0.25: payloads then share a GPU (default: the application's, "
        "else none)",
    )


def define_width(group: Parser | _ArgumentGroup) -> None:
    """Options of a payload that spans nodes."""
    group.add_argument(
        "--nodes", type=count, metavar="N", help="run it as one MPI program on N whole nodes (default: no)"
    )
    group.add_argument(
        "--ranks", type=count, metavar="R", help="its ranks on all nodes together (default: one a node)"
    )


def _resources(args: Namespace) -> Resources:
    from tidemill.model.job import Resources
    from tidemill.model.retry.changes import limits

    return Resources(
        cores=args.cores,
        devices=args.gpus,
        nodes=args.nodes,
        ranks=args.ranks,
        **limits(memory=args.memory, wall=args.wall),
    )


def check_width(args: Namespace) -> None:
    """Raises ConfigError where what `define_width` read does not go together."""
    from tidemill.model.job import Resources
    from tidemill.model.width import check_asked

    wrong = check_asked(Resources(nodes=args.nodes, ranks=args.ranks))
    if wrong is not None:
        raise ConfigError(wrong.replace("`resources.", "`--"), hint="--nodes N --ranks R, R a multiple of N")


def run(args: Namespace) -> int:
    """Submit a job file or a job of options."""
    if (args.file is None) == (args.app is None):
        raise ConfigError("`tidemill submit` needs a job file, or --app, and not both")
    client = client_of(args)
    sent = _submit_file(client, args) if args.file is not None else _submit_one(client, args)
    if sent is None:
        return 0
    with about_campaign(sent.campaign):
        return wait_and_tell(client, sent, as_json=args.json) if args.wait else _report_submitted(args, sent)


def _submit_file(client: Client, args: Namespace) -> Submission | None:
    import msgspec

    from tidemill.client.client import new_campaign
    from tidemill.client.jobfile import load_job_file, submit_job_file, waves
    from tidemill.client.offers import check_offered

    file = load_job_file(args.file)
    steps = waves(file)
    check_lists(file.jobs, source=args.file)
    campaign = args.campaign or file.campaign or new_campaign(args.file.stem)
    place = default_output(client)
    jobs = [
        msgspec.structs.replace(job, output_dir=_place(job.output_dir, args.file.parent) or place)
        for job in file.jobs
    ]
    if place is not None:  # the person's own server
        jobs = [_as_here(job) for job in jobs]
    if any(job.app is not None for job in jobs):
        offers = client.applications()
        for index, job in enumerate(jobs):
            check_offered(job, offers, where=f"{args.file}: `job[{index}]`: ", sites=client.sites)
    _check_dirs(client, jobs, campaign, writes=not args.dry_run)
    if args.dry_run:
        number = sum(file.repeat)
        say(f"`{args.file}` is valid: {counted_text(number, 'job')} in {counted_text(len(steps), 'step')}")
        check_places(client, jobs, of_file=True)
        show_plan(client, list(zip(jobs, file.repeat, strict=True)), as_json=args.json)
        return None
    check_places(client, jobs, of_file=True)
    wants = [*file.notify, *wants_of(args)]
    return submit_job_file(client, msgspec.structs.replace(file, jobs=jobs, notify=wants), campaign=campaign)


def _submit_one(client: Client, args: Namespace) -> Submission | None:
    import msgspec

    from tidemill.client.client import Wishes, check_name, new_campaign
    from tidemill.client.offers import check_offered
    from tidemill.model.job import Deliver, JobSpec

    check_width(args)
    campaign = check_name(args.campaign, "campaign") if args.campaign else new_campaign(args.name or args.app)
    offers = client.applications()
    spec = JobSpec(
        app=args.app,
        name=args.name,
        events=args.events,
        params=_parameters(args, offers),
        inputs=inputs_of(args.input, args.each, opened=args.open),
        output_dir=_place(args.output, Path()) or default_output(client),
        resources=_resources(args),
        after=[int(each) if each.isdecimal() else each for each in args.after],
        retries=args.retries,
        failed_max=args.failed_max,
        deliver=Deliver.COMPLETE if args.deliver == Deliver.COMPLETE else msgspec.UNSET,
        site=args.site,
        home=args.home_site or msgspec.UNSET,
        at_once=args.at_once or msgspec.UNSET,
        keep_stdout=args.keep_stdout and _prints(args.app, offers),
    )
    check_offered(spec, offers, sites=client.sites)
    check_places(client, [spec])
    _check_dirs(client, [spec], campaign, writes=not args.dry_run)
    if args.dry_run:
        show_plan(client, [(spec, 1)], as_json=args.json)
        return None
    return client.submit(spec, campaign=campaign, wishes=Wishes(notify=wants_of(args)))


def _prints(app: str, offers: list[SiteApplication]) -> bool:
    """Whether each event of an application has a stdout of its own that is not an output of it already."""
    named = [each.app for each in offers if each.app.name == app]
    return all(each.mode == "command" and "stdout" not in each.outputs for each in named)


def _check_dirs(client: Client, jobs: Sequence[JobSpec], campaign: str, *, writes: bool) -> None:
    """Raises ConfigError for a directory of outputs on this machine that cannot be written."""
    if not client.place.is_own:
        return  # its sites may have other file systems
    leaving = (
        job for job in jobs if job.keep_stdout or job.outputs or (job.app is not None and job.outputs is None)
    )
    for directory in dict.fromkeys(job.output_dir for job in leaving if job.output_dir):
        if directory.startswith("/"):
            check_output_dir(Path(directory), campaign, writes=writes)


def default_output(client: Client) -> str | None:
    """./tidemill-out where the server is the person's own (its site adds the campaign); None = the site decides."""
    if not client.place.is_own:
        return None
    return str((Path.cwd() / "tidemill-out").absolute())


def inputs_of(shared: list[str], each: list[str], *, opened: Sequence[str] = ()) -> list[Input]:
    """Inputs as typed: `URL`, or `NAME=URL`; paths become absolute and must exist. `opened`: names of those that the
    program opens by itself."""
    import msgspec

    from tidemill.model.job import Input, InputKind, ReadAs

    result = []
    for kind, texts in ((InputKind.SHARED, shared), (InputKind.EACH, each)):
        for text in texts:
            name, url = split_input(text)
            read = ReadAs.URL if name in opened else msgspec.UNSET
            place = checked_url(url)
            if kind is InputKind.EACH and place.startswith("/"):
                check_lines(Path(place))
            elif kind is InputKind.EACH:
                check_list(place)
            result.append(Input(name=name, url=place, kind=kind, read=read))
    unknown = [name for name in opened if name not in {one.name for one in result}]
    if unknown:
        named = ", ".join(f"`{one.name}`" for one in result) or "none"
        raise ConfigError(f"`--open {unknown[0]}` names no input", hint=f"inputs so far: {named}")
    return result


def _as_here(job: JobSpec) -> JobSpec:
    """The job with the umask and soft limits of this shell, if it is a command and the file does not set them."""
    import msgspec

    from tidemill.cli.command.shell import shell_of_process

    if job.command is None or job.shell is not msgspec.UNSET:
        return job
    return msgspec.structs.replace(job, shell=shell_of_process())


def _place(text: str | None, directory: Path) -> str | None:
    if text is None or ":" in text.partition("/")[0]:
        return text
    return str((directory / Path(text).expanduser()).absolute())


def _parameters(args: Namespace, offers: list[SiteApplication]) -> dict[str, str | int | float | bool]:
    """Parameters in the types that the application gives them; unknown ones stay text."""
    known: dict[str, Parameter] = {}
    for each in offers:
        if each.app.name == args.app:
            known.update(each.app.parameters)
    result: dict[str, str | int | float | bool] = {}
    for text in args.parameter:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"parameter `{text}` has no value", hint="write -p NAME=VALUE")
        result[name] = _typed(name, value, known[name]) if name in known else value
    return result


def _typed(name: str, value: str, parameter: Parameter) -> str | int | float | bool:
    from tidemill.model.parameter import legal_text

    booleans = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    readers: dict[str, Any] = {"int": int, "float": float, "bool": lambda text: booleans[text.lower()]}
    try:
        converted: str | int | float | bool = readers.get(parameter.type, str)(value)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"parameter `{name}` is `{value}`, it must be of type {parameter.type}",
            hint=legal_text(name, parameter),
        ) from error
    return converted


def _report_submitted(args: Namespace, sent: Submission) -> int:
    if args.json:
        show_json(sent)
        return 0
    _tell_submitted(sent)
    hint(f"`tidemill top` shows how they run, `tidemill outputs ls --campaign {sent.campaign}` what came out")
    if sent.jobs:
        show_lines("\n".join(map(str, sent.jobs)))
    return 0


def _tell_submitted(sent: Submission) -> None:
    from tidemill.cli.jobs.follow import jobs_text

    say(f"submitted {jobs_text(sent.jobs)} in campaign `{sent.campaign}`")
    if sent.remark:
        say(f"remark: {sent.remark}")


def wait_and_tell(client: Client, sent: Submission, *, as_json: bool) -> int:
    """Wait with a progress bar and print the outcome; 1 if a job failed or was canceled."""
    from tidemill.cli.jobs.follow import hint_retry, states_text, tell_jobs
    from tidemill.cli.jobs.outcome import tell_places
    from tidemill.cli.progress import Progress, WaitingCause, WaitingNotice
    from tidemill.client.client import RETRY_S

    client.retry_s = RETRY_S
    if not as_json:
        client.notice = say
        _tell_submitted(sent)
    notice = WaitingNotice(WaitingCause(client, set(sent.jobs)))

    def look(row: CampaignRow) -> None:
        progress(row)
        notice(row)

    with Progress(what=f"campaign `{sent.campaign}`") as progress:  # it may have more jobs than these
        rows = client.wait(sent, on_progress=look)
    if as_json:
        show_json(rows)
    states: dict[str, int] = {}
    for row in rows:
        states[row.state] = states.get(row.state, 0) + 1
    say(states_text(states))
    tell_places(client, sent.campaign, sent.jobs)
    failed = [row for row in rows if row.state in ("FAILED", "CANCELED")]
    tell_jobs(client, failed[:5])
    if failed or "PARTIAL" in states:
        hint_retry(sent.campaign)
    return 1 if failed else 0


COMMANDS = {
    "submit": Command(define, run, "tidemill submit --app pythia --events 10000 -p process=zmumu --wait"),
}
