"""`tidemill run --resume NAME`: go on with a campaign, with other limits where options give them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Parser
from tidemill.cli.command.places import check_output_dir
from tidemill.cli.jobs.attach import attach
from tidemill.cli.jobs.changes import CHANGING, changes_of, option_of
from tidemill.cli.jobs.dry_run import check_places
from tidemill.cli.jobs.job import tell_gone
from tidemill.cli.jobs.named import known_campaign
from tidemill.cli.jobs.outcome import PLACES_SHOWN, Telling, tell_outcome, tell_places
from tidemill.cli.terminal import say, show, show_json
from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.model.retry.changes import JobChanges
    from tidemill.wire.api import CampaignRow

ENDED_BADLY = ("PARTIAL", "FAILED", "CANCELED")
CHECKED_MAX = 100  #: jobs of a campaign that a dry run checks: each costs a request

_ABOUT_THE_RUN = ("help", "resume", "dry_run", "raw", "with_credentials", "command")


def refuse_others(args: Namespace, command: list[str], define: Callable[[Parser], None]) -> None:
    """Raises ConfigError that names every given option that a resumed campaign cannot change. `define` defines the
    options of `run`."""
    parser = Parser()
    define(parser)
    given = ["a command"] if command else []
    for action in parser._actions:
        if action.dest in CHANGING or action.dest in _ABOUT_THE_RUN:
            continue
        if getattr(args, action.dest) != action.default:
            is_off = getattr(args, action.dest) is False and len(action.option_strings) > 1  # `--no-...`
            given.append(action.option_strings[-1 if is_off else 0])
    if given:
        can = ", ".join(map(option_of, CHANGING))
        raise ConfigError(
            f"--resume goes on with campaign `{args.resume}` as it was submitted, and does not take {_listed(given)}",
            hint=f"it takes {can}; anything else needs a new campaign: `tidemill run --name OTHER ... -- CMD`",
        )


def resume(args: Namespace, client: Client, how: Telling) -> int:
    """Run again what has ended without success, with the changes that options give, then follow the campaign."""
    name, changes = _asked(args, client)
    row = client.campaign(name)
    again = _unsuccessful(row)
    if row.states.get("COMPLETED", 0) == row.jobs:
        say(f"campaign `{name}` is complete: nothing is left to run")
        if not how.as_json:
            return _tell_done(client, name, row, how)
    elif again or changes is not None:
        reply = client.retry(campaign=name, reason="run --resume", changes=changes)
        if changes is None:
            again = reply.changed
        if again:
            say(f"running failed and unfinished events of {counted_text(again, 'job')} again")
        if changes is not None:
            say(f"from now on, for {counted_text(reply.changed, 'job')}: {changes.text}")
        tell_gone(reply)
    return attach(client, name, [], how, cancels=True)


def _tell_done(client: Client, name: str, row: CampaignRow, how: Telling) -> int:
    """Print the results of a complete campaign; the exit code."""
    jobs = [each.id for each in islice(client.jobs(campaign=row.reference), PLACES_SHOWN + 1)]
    if len(jobs) == 1:
        return tell_outcome(client, jobs[0], row, how._replace(with_files=True))
    tell_places(client, name, jobs)
    return 0


def dry_resume(args: Namespace, client: Client) -> int:
    """Print what would run again; changes nothing."""
    name, changes = _asked(args, client)
    row = client.campaign(name)
    jobs = [
        job
        for state in ENDED_BADLY
        if row.states.get(state)
        for job in client.jobs(campaign=name, state=state)
    ]
    events = sum(job.events - job.events_done for job in jobs)
    if changes is not None:
        _check_changed(client, name, changes)
    facts: dict[str, Any] = {
        "campaign": name,
        "jobs": len(jobs),
        "events": events,
        "changes": "" if changes is None else changes.text,
    }
    if args.json:
        show_json(facts)
        return 0
    show(f"campaign    {name}")
    if jobs:
        show(f"would run   {counted_text(events, 'event')} of {counted_text(len(jobs), 'job')}")
    else:
        show("would run   nothing")
    if changes is not None:
        show(f"changes     {changes.text}")
    say("nothing was submitted")
    return 0


def _asked(args: Namespace, client: Client) -> tuple[str, JobChanges | None]:
    """The name of the campaign, and the changes to it. Raises ConfigError."""
    name = known_campaign(client, args.resume)
    changes = changes_of(args)
    if changes is not None and changes.output_dir and not client.place.is_far:
        check_output_dir(Path(changes.output_dir), name, writes=not args.dry_run)
    return name, changes


def _check_changed(client: Client, name: str, changes: JobChanges) -> None:
    """Raises ConfigError where the server would refuse the changes; of the newest CHECKED_MAX jobs."""
    from tidemill.model import legal
    from tidemill.model.retry.changes import changed

    rows = islice((row for row in client.jobs(campaign=name) if row.state != "COMPLETED"), CHECKED_MAX)
    specs = [(row.id, changed(client.job(row.id).spec, changes)) for row in rows]
    for job, spec in specs:
        fault = legal.spec_fault(spec)
        if fault is not None:
            raise ConfigError(f"job {job} with these changes: {fault.text}", hint=fault.hint)
    if changes.resizes:
        check_places(client, [spec for _, spec in specs], refuse=True)


def _unsuccessful(row: CampaignRow) -> int:
    """How many jobs of a campaign have ended without success."""
    return sum(row.states.get(state, 0) for state in ENDED_BADLY)


def _listed(names: list[str]) -> str:
    *most, last = [name if name.startswith("a ") else f"`{name}`" for name in names]
    return f"{', '.join(most)} or {last}" if most else last
