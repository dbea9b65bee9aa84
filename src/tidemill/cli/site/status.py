"""`tidemill site status`: what a site does, from its directory and from its server."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill import clock
from tidemill.cli.arguments import Command, Parser
from tidemill.cli.findings import wrapped
from tidemill.cli.site.directory import define_directory, nodes_text, owner_of, read_site, site_directory
from tidemill.cli.terminal import show_json, show_lines
from tidemill.errors import TidemillError
from tidemill.model.quantities import bytes_text, count_text, counted_text, duration_text
from tidemill.site import constants

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig
    from tidemill.harvest.account.broker_log import PlanMade
    from tidemill.model.trouble import Trouble
    from tidemill.site.applications.catalogue import Applications
    from tidemill.site.data.moves import UnderWay
    from tidemill.site.state.status import BatchOutage, DataFigures, FailedRuns, HarmFigures, SiteStatus
    from tidemill.wire.api import SiteRow
    from tidemill.wire.monitoring import RegularWaits


MOVES_SHOWN = 5
HOUR_S = 3600.0
NONE_RUNS = "none runs now: `tidemill run` and `tidemill up` start it"
STALE_BEATS = 12
"""Heartbeats after which a status is old: an agent replaces it every three."""


def define_status(parser: Parser) -> None:
    """Options of `site status`."""
    define_directory(parser)


def status(args: Namespace) -> int:
    """Print what the directory and the server know of the site."""
    from tidemill.site.applications.catalogue import Applications
    from tidemill.site.applications.checksums import RECORD
    from tidemill.site.staff.drain import drained
    from tidemill.site.state.status import outage_of, read_status

    directory = site_directory(args)
    config = read_site(directory)
    applications = Applications(directory / "apps", site=config, beside=True)
    applications.digests.read_known(directory / RECORD)
    applications.refresh()
    applications.digests.close()  # large files that the agent has not read are not read here
    (row, why), owner = _server_view(config, args.home), _owner(config, directory)
    stopped, denied = drained(directory), denied_lines(directory)
    known, problem = read_status(directory)
    is_served = owner is not None and not owner["ended"]
    away = outage_of(directory, known, dead_s=constants.DEAD_AGENT_S)
    problem = problem or stale_text(known, config, is_served=is_served, now_us=clock.now_us())
    if args.json:
        show_json(
            {
                **_of_site(config, directory),
                "agent": owner,
                "drained": stopped,
                "denied": denied,
                "batch_away": away,
                **_of_status(known),
                "status_problem": problem,
                "applications": sorted(applications.by_name),
                "refused_applications": applications.problems,
                "unread_applications": sorted(applications.pending),
                "server": row,
                "server_error": why,
            }
        )
        return 0
    now_s = clock.now_us() / 1e6
    _line("site", f"{config.name} in {directory}")
    _line("mode", mode_text(config))
    _show_agent(config, directory, owner, known.failed)
    if problem:
        _line("status", problem)
    if away is not None:
        _line("batch", away_text(away, now_s=now_s))
    _show_stop(args, config, directory, stopped, known.poll.warning if known.poll else "")
    for plan in known.poll.pools if known.poll else ():
        _line("nodes", plan_text(plan, now_s=now_s))
    lines = status_lines(known, is_stopped=stopped is not None, is_served=is_served)
    lines += [*_moves_lines(directory), *trouble_lines(known.troubles), *quarantine_lines(known, now_s=now_s)]
    for head, text in [*lines, *(("denied", each) for each in denied)]:
        _line(head, text)
    _show_applications(applications)
    _show_row(config, row, why)
    _show_contact(config, directory)
    return 0


def _of_site(config: SiteConfig, directory: Path) -> dict[str, Any]:
    from tidemill.site.data.transfer_node import under_way
    from tidemill.site.nodes.planning import policy_of

    return {
        "site": config.name,
        "directory": str(directory),
        "batch": config.batch,
        "mode": config.mode,
        "policy": policy_of(config).value,
        "nodes_max": config.nodes_max,
        "contact": config.contact,
        "stop_file": None if config.stop_file is None else str(config.stop_file),
        "moving": under_way(directory),
    }


def _of_status(status: SiteStatus) -> dict[str, Any]:
    from tidemill.site.watch.metrics import samples_of

    metrics: dict[str, list[tuple[dict[str, str], float]]] = {}
    for sample in samples_of(status) if status.at_us else ():
        metrics.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return {
        "status_us": status.at_us,
        "agent_failed": status.failed,
        "plans": status.poll.pools if status.poll else [],
        "awaits": status.poll.awaits if status.poll else None,
        "metrics": metrics,
        "troubles": status.troubles,
    }


def stale_text(status: SiteStatus, config: SiteConfig, *, is_served: bool, now_us: int) -> str:
    """That the figures are old, and why; empty = they are not."""
    age_s = (now_us - status.at_us) / 1e6
    if not status.at_us:
        return "no agent has polled its batch system yet: there are no figures"
    if age_s < STALE_BEATS * constants.HEARTBEAT_S:
        return ""
    why = "its agent may hang or wait for its batch system" if is_served else "no agent runs"
    return f"the figures below are of {duration_text(age_s)} ago: {why}"


def _show_stop(
    args: Namespace, config: SiteConfig, directory: Path, stopped: str | None, warning: str
) -> None:
    """Why the site works no more, or asks for nothing now."""
    from tidemill.site.staff.drain import paused, way_out

    if stopped is not None:
        end = way_out(shlex.quote(str(args.dir)) if args.dir else "", stop_file=config.stop_file)
        _line("stopped", f"{stopped or 'no reason given'}; {end}")
        return
    if warning:
        _line("canceled", warning)
    if (pause := paused(directory)) is not None:
        _line("paused", pause)


def _show_applications(applications: Applications) -> None:
    _line("applications", ", ".join(sorted(applications.by_name)) or "none")
    for file, problem in sorted(applications.problems.items()):
        _line("refused", f"{file}: {problem}")
    for file in sorted(applications.pending):
        _line("not read", f"{file}: it has large files, which the agent has not read yet")


def trouble_lines(troubles: list[Trouble]) -> list[tuple[str, str]]:
    """What jobs wait for at the site, and what would end it: (head, text)."""
    from tidemill.model.trouble import next_try_text, whose_text

    lines: list[tuple[str, str]] = []
    for each in troubles:
        jobs = f"{counted_text(each.jobs, 'job')} waiting"
        text = f"{each.failure}{f' at {each.name}' if each.name else ''}, {jobs}: {each.message}"
        if each.hint:
            text += f"; to end it: {each.hint}"
        if each.is_open:
            whose = whose_text(each.owner, each.scope, each.name)
            text += f"; blocked {whose}: nothing more of it is taken; {next_try_text(each.next_us, clock.now_us())}"
        lines.append(("breaker" if each.is_open else "waits", text))
    return lines


def _show_contact(config: SiteConfig, directory: Path) -> None:
    if config.batch != "local":
        _line("contact", config.contact or "none: set `contact`, the centre's staff should know whom to ask")
        staff = f"the staff's: {config.stop_file}" if config.stop_file else "none is agreed with the staff"
        _line("stop files", f"yours: {directory / 'STOP'}; {staff}")


def denied_lines(directory: Path) -> list[str]:
    """Whom the site's staff deny, and why."""
    from tidemill.site.staff import denials

    try:
        found = denials.read(directory)
    except TidemillError as error:
        return [f"all submitters: {error.message} ({error.hint})"]
    return [f"{each.submitter}: {each.reason} ({each.by}, {clock.utc_text(each.at_us)})" for each in found]


def away_text(away: BatchOutage, *, now_s: float) -> str:
    """That the batch system does not answer, or starts nothing, in words."""
    age = duration_text(max(0.0, now_s - away.since_us / 1e6))
    if away.doubted:
        return f"{away.reason}, for {age}: Tidemill submits nothing new; what to do: {away.hint}"
    if away.answers:
        return f"{away.reason}, for {age}: jobs wait, and Tidemill submits none until it is back"
    text = f"it has given no usable answer for {age}, and is asked again and again"
    return text + (f": {away.reason}" if away.reason else "") + (f" ({away.hint})" if away.hint else "")


def _owner(config: SiteConfig, directory: Path) -> dict[str, Any] | None:
    """The newest agent, and whether it has ended: cleanly, or with an error."""
    from tidemill.site.state.epoch import serving

    owner = owner_of(directory)
    if owner is not None and serving(directory, dead_s=constants.DEAD_AGENT_S) is None:
        owner["ended"] = True
    return owner


def _show_agent(
    config: SiteConfig, directory: Path, owner: dict[str, Any] | None, failed: FailedRuns | None
) -> None:
    _line("agent", _owner_text(owner))
    if failed is not None:
        _line("agent ended", failed_text(failed))
    if config.transfer.where == "apart":
        _line("mover", _owner_text(owner_of(directory / "transfer")))


def failed_text(failed: FailedRuns) -> str:
    """How often the agent has ended with an error, and the last one."""
    text = f"{counted_text(failed.times, 'time')} with an error since {clock.utc_text(failed.since_us)}"
    text += f", last at {clock.utc_text(failed.at_us)}: {failed.reason}"
    return text + (f" ({failed.hint})" if failed.hint else "")


def _line(head: str, text: str) -> None:
    show_lines(wrapped(f"{head:<12} ", text))


def mode_text(config: SiteConfig) -> str:
    """Batch system, mode, policy and bounds in one line."""
    from tidemill.site.nodes.planning import policy_of

    hours = config.harvest.node_hours_max
    bounds = nodes_text(config) + (f", {hours:g} node-hours in all" if hours else "")
    where = (
        f" partition `{config.cluster.partition}`"
        if config.batch != "local" and config.cluster.partition
        else ""
    )
    text = f"{config.mode} on {config.batch}{where}, policy {policy_of(config).value}, {bounds}"
    return text + ("; it submits nothing: `tidemill site enable`" if config.mode == "observe" else "")


def plan_text(plan: PlanMade, *, now_s: float) -> str:
    """What a poll showed of a pool, and what was done, in words, with the age of the poll."""
    from tidemill.model.figures.awaited import states_text

    age = f"as of {duration_text(max(0.0, now_s - plan.at_s))} ago"
    if plan.counts is not None:
        text = f"{plan.pool}: {states_text(plan.counts)}"
    else:  # of an agent of an older version
        text = f"{plan.pool}: {counted_text(plan.nodes, 'node')}: {plan.idle} idle, {plan.busy} in use by others, "
        text += f"{plan.held} in use by Tidemill"
    text += f"; {counted_text(plan.queue, 'regular job')} {'waits' if plan.queue == 1 else 'wait'} for them"
    if plan.waiting:
        text += f"; allocations of Tidemill wait for {counted_text(plan.waiting, 'node')}"
    acts = [(plan.submit, "asked for"), (plan.cancel, "released"), (plan.shorten, "shortened")]
    done = ", ".join(f"{counted_text(number, 'allocation')} {word}" for number, word in acts if number)
    if done:
        text += f"; {done}"
    if plan.yields_to:
        text += (
            f" for {', '.join(plan.yields_to[:3])}"
            if done
            else f"; yields to {', '.join(plan.yields_to[:3])}"
        )
    return f"{text}; {age}"


def status_lines(
    status: SiteStatus, *, is_stopped: bool = False, is_served: bool = True
) -> list[tuple[str, str]]:
    """What people want to know of the figures: (head, text). `is_stopped`: the site was stopped, perhaps since they
    were written; `is_served`: an agent serves it now."""
    lines: list[tuple[str, str]] = []
    for each in status.grants:
        lines.append(
            (
                "account",
                f"{each.account}: {each.used_s / HOUR_S:.1f} of {each.granted_s / HOUR_S:.0f} node-hours used, "
                f"{each.committed_s / HOUR_S:.1f} more may be by what runs, {each.left_s / HOUR_S:.1f} left",
            )
        )
    if status.left_node_s is not None:
        left = status.left_node_s / HOUR_S
        lines.append(("node-hours", f"{left:.1f} may still be asked for, by all bounds together"))
    noted: dict[str, list[str]] = {}
    for sample in status.figures:
        if sample.name == "tidemill_noted_total":
            labels = dict(sample.labels)
            noted.setdefault(labels["topic"], []).append(f"{sample.value:.0f} {labels['mode']}")
    lines += [
        (topic, f"{', '.join(modes)} (on nodes, since the agent's start)") for topic, modes in noted.items()
    ]
    lines += data_lines(status.data)
    if status.is_glance_off:
        lines.append(("glances", "off: changes show at the next poll; the log says why"))
    if is_stopped:
        lines.append(("why no more", "the site is stopped"))
    elif text := why_text(status, is_served=is_served):
        lines.append(("why no more", text))
    if status.harm is not None:
        lines.append(("today", _harm_text(status.harm, status.waits)))
    return lines


def _harm_text(harm: HarmFigures, waits: Iterable[RegularWaits]) -> str:
    if harm.jobs:
        return (
            f"{counted_text(harm.jobs, 'regular job')} waited {harm.today_s:.0f} s ({harm.low_s:.0f} to "
            f"{harm.high_s:.0f} s) because of Tidemill; all regular jobs that started waited "
            f"{sum(each.wait_s for each in waits):.0f} s, `tidemill site harm` gives details"
        )
    if harm.high_s < 0.5:
        return "no regular job waited because of Tidemill"
    return f"no regular job is known to have waited because of Tidemill; at most {harm.high_s:.0f} s in all"


def _held_text(pinned: float, idle: float) -> str:
    if not pinned:
        return f"{bytes_text(idle)}; no job needs them now"
    return f"{bytes_text(pinned)} that jobs need, {bytes_text(idle)} kept"


def data_lines(data: DataFigures) -> list[tuple[str, str]]:
    """What the site keeps of inputs, and what was moved: (head, text)."""
    lines: list[tuple[str, str]] = []
    if data.files:
        held = _held_text(data.pinned_bytes, data.bytes - data.pinned_bytes)
        asked = data.hits + data.misses
        text = f"{counted_text(data.files, 'file')}, {held}; {data.hits} of {asked} inputs were there already"
        lines.append(("data cache", text))
    if data.pinned_bytes or data.reserved_bytes or data.waiting_bytes:
        text = f"{bytes_text(data.pinned_bytes)} in use, {bytes_text(data.reserved_bytes)} reserved"
        if data.waiting_jobs:
            text += f"; {data.waiting_jobs} jobs wait for {bytes_text(data.waiting_bytes)} more"
        lines.append(("stage", text))
    moved = {way: moved_bytes for way, _, _, moved_bytes in data.moves}
    failed = sum(failed for _, _, failed, _ in data.moves)
    if any(moved.values()) or failed:
        text = f"{bytes_text(moved.get('in', 0))} came, {bytes_text(moved.get('out', 0))} went"
        lines.append(("moved", text + (f", {failed} moves failed" if failed else "")))
    return lines


def _moves_lines(directory: Path) -> list[tuple[str, str]]:
    from tidemill.site.data.transfer_node import under_way

    return moves_lines(under_way(directory))


def moves_lines(moves: list[UnderWay]) -> list[tuple[str, str]]:
    """The moves that run now: (head, text), the first few by name."""
    lines: list[tuple[str, str]] = []
    for move in moves[:MOVES_SHOWN]:
        words = "from" if move.direction == "in" else "to"
        of = f" of {bytes_text(move.size_bytes)}" if move.size_bytes else ""
        lines.append(("moving", f"{bytes_text(move.bytes)}{of} {words} {move.url}"))
    if len(moves) > MOVES_SHOWN:
        lines.append(("moving", f"and {len(moves) - MOVES_SHOWN} more"))
    return lines


def why_text(status: SiteStatus, *, is_served: bool = True) -> str:
    """Why no more nodes are asked for: as every command and page says it, or in words without figures where no machine
    is polled; empty = nothing is known to hold back more."""
    from tidemill.harvest.plan.sentences import FOR_MORE, awaited_text, hindrances_text, more_text

    poll, now_us = status.poll, clock.now_us()
    awaits = poll.awaits if poll is not None else None
    if poll is not None and awaits is not None and (awaits.hindrances or awaits.queued or awaits.starting):
        text = more_text(awaits, now_us) if poll.is_at_work else awaited_text(awaits, now_us)
        more = hindrances_text(awaits.hindrances) if awaits.asked_us else ""
        head = "" if poll.is_at_work else FOR_MORE
        return f"{text}; {head}{more}" if more else text
    if not is_served:  # the causes are of the agent's last seconds, and no agent asks for anything now
        return ""
    return "; ".join(_cause_text(cause, poll.pools if poll is not None else ()) for cause in status.causes)


def _cause_text(cause: str, plans: Sequence[PlanMade]) -> str:
    """Why no more nodes are asked for, in words. Of what holds back starts the plan has the time of the next."""
    from tidemill.harvest.plan.waves import SENTENCES, Binding
    from tidemill.site.nodes import planning
    from tidemill.site.nodes.doubts import CAUSE

    if cause in (planning.FAILED_STARTS, planning.WITHDRAWN, Binding.STARTS):
        told = next((plan.waits_for for plan in plans if " " in plan.waits_for), "")
        if told:
            return told
    own = {
        planning.STOPPED: "the site is stopped",
        CAUSE: "replies of the batch system are not believed, see `batch` above",
        planning.CONTESTED: "the server takes another agent for this site's, see the agent's log",
        planning.WIDE: "a job that spans nodes waits for them",
        planning.FAILED_STARTS: "starts have failed, and the next is tried after a pause",
        planning.WITHDRAWN: "waiting allocations were canceled, and not by Tidemill: it pauses before it asks again",
    }
    words = {binding.value: text for binding, text in SENTENCES.items()} | own
    return words.get(cause, cause)


def quarantine_lines(status: SiteStatus, *, now_s: float) -> list[tuple[str, str]]:
    """Nodes that are not used because starts fail there, from SITE/status.json."""
    lines = [
        ("quarantine", f"{each.node} until {clock.utc_text(each.until_us)}: {each.why}")
        for each in sorted(status.bad_nodes, key=lambda each: each.node)
        if each.until_us > now_s * 1e6
    ]
    more = status.bad_nodes_total - len(status.bad_nodes)
    return [*lines, ("quarantine", f"and {counted_text(more, 'more node')}")] if more > 0 else lines


def _show_row(config: SiteConfig, row: SiteRow | None, why: str) -> None:
    if row is None:
        _line("server", why if why == NONE_RUNS else f"{config.server}: {why}")
        return
    age = duration_text(max(0, clock.now_us() - row.seen_us) / 1e6)
    _line("server", f"{config.server}: {row.state}, heard of {age} ago")
    states = ", ".join(f"{number} {state}" for state, number in sorted(row.allocations.items()) if number)
    _line("allocations", states or "none")
    _line("leased", f"{count_text(row.leased_events)} events")
    for each in row.remarks:
        _line("remark", each)


def _server_view(config: SiteConfig, home: Path | None) -> tuple[SiteRow | None, str]:
    from tidemill.client.client import Client
    from tidemill.client.home import home_dir
    from tidemill.site.link.transport import credentials_of
    from tidemill.wire.transports import scheme_of

    if scheme := scheme_of(config.server):
        return None, f"reached by `{scheme}:`, which answers the agent alone"
    if is_absent(config.server, home_dir(home)):
        return None, NONE_RUNS
    try:
        client = Client(config.server, credentials=credentials_of(config), retry_s=0)
        rows = [row for row in client.sites() if row.name == config.name]
    except TidemillError as error:
        return None, error.message
    return (rows[0], "") if rows else (None, "does not know this site yet")


def is_absent(server: str, home: Path) -> bool:
    """Whether a site's server is the private one of this home, and has not started or has ended."""
    socket = home / "server" / "api.sock"
    return server == f"unix:{socket}" and not socket.exists()


def _owner_text(owner: dict[str, Any] | None) -> str:
    if owner is None:
        return "none has run yet"
    who = f"process {owner['pid']} on {owner['host']} since {clock.utc_text(owner['since_us'])}, epoch {owner['epoch']}"
    return who + (" (has ended)" if owner["ended"] else "")


COMMANDS = {"site status": Command(define_status, status, "tidemill site status --json", talks=False)}
