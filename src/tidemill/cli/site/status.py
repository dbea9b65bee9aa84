"""`tidemill site status`: what a site does, from its directory and from its server."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill import clock
from tidemill.cli.arguments import Command, Parser
from tidemill.cli.findings import wrapped
from tidemill.cli.site.directory import define_directory, nodes_text, owner_of, read_site, site_directory
from tidemill.cli.terminal import show_json, show_lines
from tidemill.errors import UNDECODABLE, TidemillError
from tidemill.model.quantities import bytes_text, count_text, counted_text, duration_text

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig
    from tidemill.harvest.account.records import PlanMade
    from tidemill.model.trouble import Trouble
    from tidemill.site.applications.catalogue import Applications
    from tidemill.site.data.moves import UnderWay
    from tidemill.site.nodes.outage import BatchOutage
    from tidemill.site.state.failed_runs import FailedRuns
    from tidemill.wire.api import SiteRow
    from tidemill.wire.monitoring import AwaitedNodes


TAIL_BYTES_MAX = 1_000_000  #: of the newest file of plans
METRICS_BYTES_MAX = 1_000_000
MOVES_SHOWN = 5
HOUR_S = 3600.0
PREFIX = "tidemill_"
NONE_RUNS = "none runs now: `tidemill run` and `tidemill up` start it"
Samples = dict[str, list[tuple[dict[str, str], float]]]
"""Of metrics: (labels, value), by name."""

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


def define_status(parser: Parser) -> None:
    """Options of `site status`."""
    define_directory(parser)


def status(args: Namespace) -> int:
    """Print what the directory and the server know of the site."""
    from tidemill.site.applications.catalogue import Applications
    from tidemill.site.applications.checksums import RECORD
    from tidemill.site.data.transfer_node import under_way
    from tidemill.site.nodes.outage import read_outage
    from tidemill.site.nodes.planning import policy_of
    from tidemill.site.staff.drain import drained
    from tidemill.site.state.failed_runs import read_failed_runs

    directory = site_directory(args)
    config = read_site(directory)
    applications = Applications(directory / "apps", site=config, beside=True)
    applications.digests.read_known(directory / RECORD)
    applications.refresh()
    applications.digests.close()  # large files that the agent has not read are not read here
    (row, why), owner = _server_view(config, args.home), _owner(config, directory)
    stopped, away = drained(directory), read_outage(directory, dead_s=config.dead_agent_s)
    failed = read_failed_runs(directory)
    denied = denied_lines(directory)
    samples, known = (
        read_metrics(directory / "metrics.prom"),
        last_known(
            directory, is_stopped=stopped is not None, is_served=owner is not None and not owner["ended"]
        ),
    )
    if args.json:
        show_json(
            {
                "site": config.name,
                "directory": str(directory),
                "batch": config.batch,
                "mode": config.mode,
                "policy": policy_of(config).value,
                "nodes_max": config.nodes_max,
                "agent": owner,
                "agent_failed": failed,
                "drained": stopped,
                "denied": denied,
                "batch_away": away,
                "plans": known.plans,
                "awaits": known.awaits,
                "metrics": samples,
                "moving": under_way(directory),
                "troubles": _troubles(directory),
                "contact": config.contact,
                "stop_file": None if config.stop_file is None else str(config.stop_file),
                "applications": sorted(applications.by_name),
                "refused_applications": applications.problems,
                "unread_applications": sorted(applications.pending),
                "server": row,
                "server_error": why,
            }
        )
        return 0
    _line("site", f"{config.name} in {directory}")
    _line("mode", mode_text(config))
    _show_agent(config, directory, owner, failed)
    if away is not None:
        _line("batch", away_text(away, now_s=clock.now_us() / 1e6))
    _show_stop(args, config, directory, stopped, known.warning)
    for plan in known.plans:
        _line("nodes", plan_text(plan, now_s=clock.now_us() / 1e6))
    for head, text in _figures(directory, samples, denied, known):
        _line(head, text)
    _show_applications(applications)
    _show_row(config, row, why)
    _show_contact(config, directory)
    return 0


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


class LastKnown(NamedTuple):
    """What is known of why no more nodes are asked for: the last plans, the figures of the last poll (None = of an
    agent that did not write them), and whether the site is stopped since; whether an agent serves it now; whether a
    pilot was at work at the last poll; what is said of cancels of others."""

    plans: Sequence[PlanMade] = ()
    awaits: AwaitedNodes | None = None
    is_stopped: bool = False
    is_served: bool = True
    is_at_work: bool = False
    warning: str = ""


NOTHING_KNOWN = LastKnown()


def last_known(directory: Path, *, is_stopped: bool, is_served: bool = True) -> LastKnown:
    """The plans and figures of the last poll; of a site that polls no machine, and of an agent of an older version, the
    plans that it recorded last."""
    from tidemill.site.nodes.plan_log import read_last_poll

    polled = read_last_poll(directory)
    if polled is None:
        return LastKnown(newest_plans(directory / "harvest"), is_stopped=is_stopped, is_served=is_served)
    return LastKnown(polled.pools, polled.awaits, is_stopped, is_served, polled.is_at_work, polled.warning)


def _figures(
    directory: Path, samples: Samples, denied: list[str], waiting: LastKnown
) -> list[tuple[str, str]]:
    """What goes on: (head, text)."""
    from tidemill.site.data.transfer_node import under_way

    bad = quarantine_lines(directory / "quarantine.json", now_s=clock.now_us() / 1e6)
    moves = moves_lines(under_way(directory))
    troubles = trouble_lines(_troubles(directory))
    return [
        *metrics_lines(samples, waiting),
        *moves,
        *troubles,
        *bad,
        *(("denied", each) for each in denied),
    ]


def _troubles(directory: Path) -> list[Trouble]:
    from tidemill.site.fleet.troubles import read_troubles

    return read_troubles(directory).troubles


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
    if owner is not None and serving(directory, dead_s=config.dead_agent_s) is None:
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


def newest_plans(directory: Path) -> list[PlanMade]:
    """The last plan of each pool of the newest agent that the newest file of records holds, without pools that
    disappeared."""
    from tidemill.errors import ProtocolError
    from tidemill.harvest.account.records import PlanMade, PoolGone, decode

    newest = max(directory.glob("????-??-??.jsonl"), default=None)
    if newest is None:
        return []
    with newest.open("rb") as file:
        file.seek(max(0, newest.stat().st_size - TAIL_BYTES_MAX))
        lines = file.read(TAIL_BYTES_MAX).split(b"\n")
    plans: dict[str, PlanMade] = {}
    epoch = ""
    for line in lines:
        try:
            record = decode(line) if line else None
        except ProtocolError:  # the first line may be cut, the last one is being written
            continue
        if isinstance(record, PlanMade):
            if record.plan.partition("-")[0] != epoch:
                epoch = record.plan.partition("-")[0]
                plans.clear()
            plans[record.pool] = record
        elif isinstance(record, PoolGone):
            plans.pop(record.pool, None)
    return list(plans.values())


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


def read_metrics(path: Path) -> Samples:
    """Samples of a file in Prometheus' text format: name -> (labels, value). Empty where there is none."""
    try:
        text = path.read_bytes()[:METRICS_BYTES_MAX].decode(errors="replace")
    except OSError:
        return {}
    samples: Samples = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or not match["name"].startswith(PREFIX):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        samples.setdefault(match["name"], []).append((labels, value))
    return samples


def metrics_lines(samples: Samples, waiting: LastKnown = NOTHING_KNOWN) -> list[tuple[str, str]]:
    """What people want to know of the metrics: (head, text). `waiting`: what is known at length.

    Metrics are written at polls: of a site that was stopped since they have an older cause.
    """
    lines: list[tuple[str, str]] = []
    grants: dict[str, dict[str, float]] = {}
    for labels, value in samples.get("tidemill_grant_node_seconds", []):
        grants.setdefault(labels.get("account", ""), {})[labels.get("kind", "")] = value / HOUR_S
    for account, kinds in grants.items():
        used = kinds.get("settled", 0.0) + kinds.get("in_flight", 0.0)
        lines.append(
            (
                "account",
                f"{account}: {used:.1f} of {kinds.get('granted', 0.0):.0f} node-hours used, "
                f"{kinds.get('committed', 0.0):.1f} more may be by what runs, {kinds.get('left', 0.0):.1f} left",
            )
        )
    left = _one(samples, "tidemill_left_node_seconds")
    if left is not None:
        lines.append(("node-hours", f"{left / HOUR_S:.1f} may still be asked for, by all bounds together"))
    noted: dict[str, list[str]] = {}
    for labels, value in samples.get("tidemill_noted_total", []):
        noted.setdefault(labels.get("topic", ""), []).append(f"{value:.0f} {labels.get('mode', '')}")
    lines += [
        (topic, f"{', '.join(modes)} (on nodes, since the agent's start)") for topic, modes in noted.items()
    ]
    lines += data_lines(samples)
    if _one(samples, "tidemill_batch_glance_off"):
        lines.append(("glances", "off: the machine is polled at `harvest.poll_s` alone; the log says why"))
    causes = [labels.get("cause", "") for labels, value in samples.get("tidemill_waits_for", []) if value]
    if waiting.is_stopped:
        lines.append(("why no more", "the site is stopped"))
    elif text := why_text(causes, waiting):
        lines.append(("why no more", text))
    harm, jobs = _one(samples, "tidemill_harm_today_seconds"), _one(samples, "tidemill_harm_today_jobs")
    if harm is not None:
        text = _harm_text(samples, harm, jobs) if jobs else _harmless_text(samples)
        lines.append(("today", text + (", `tidemill site harm` gives details" if jobs else "")))
    return lines


def _harm_text(samples: Samples, harm_s: float, jobs: float) -> str:
    low, high = (_one(samples, f"tidemill_harm_today_{bound}_seconds") for bound in ("low", "high"))
    bounds = "" if low is None or high is None else f" ({low:.0f} to {high:.0f} s)"
    waits = sum(value for _, value in samples.get("tidemill_regular_today_wait_seconds", []))
    return (
        f"{counted_text(round(jobs), 'regular job')} waited {harm_s:.0f} s{bounds} because of Tidemill"
        f"; all regular jobs that started waited {waits:.0f} s"
    )


def _harmless_text(samples: Samples) -> str:
    high_s = _one(samples, "tidemill_harm_today_high_seconds") or 0.0
    if high_s < 0.5:
        return "no regular job waited because of Tidemill"
    return f"no regular job is known to have waited because of Tidemill; at most {high_s:.0f} s in all"


def _held_text(pinned: float, idle: float) -> str:
    if not pinned:
        return f"{bytes_text(idle)}; no job needs them now"
    return f"{bytes_text(pinned)} that jobs need, {bytes_text(idle)} kept"


def data_lines(samples: Samples) -> list[tuple[str, str]]:
    """What the site keeps of inputs, and what was moved: (head, text)."""
    lines: list[tuple[str, str]] = []
    held = {labels.get("state", ""): value for labels, value in samples.get("tidemill_data_cache_bytes", [])}
    files = _one(samples, "tidemill_data_cache_files")
    if files:
        asked = {
            labels.get("outcome", ""): value
            for labels, value in samples.get("tidemill_data_cache_requests_total", [])
        }
        lines.append(
            (
                "data cache",
                f"{counted_text(int(files), 'file')}, {_held_text(held.get('pinned', 0.0), held.get('idle', 0.0))}; "
                f"{asked.get('hit', 0.0):.0f} of {sum(asked.values()):.0f} inputs were there already",
            )
        )
    room = {labels.get("state", ""): value for labels, value in samples.get("tidemill_stage_bytes", [])}
    if any(room.values()):
        text = f"{bytes_text(room.get('used', 0.0))} in use, {bytes_text(room.get('reserved', 0.0))} reserved"
        waiting = _one(samples, "tidemill_stage_waiting_jobs")
        if waiting:
            text += f"; {waiting:.0f} jobs wait for {bytes_text(room.get('waiting', 0.0))} more"
        lines.append(("stage", text))
    moved = {labels.get("way", ""): value for labels, value in samples.get("tidemill_moves_bytes_total", [])}
    failed = sum(
        value
        for labels, value in samples.get("tidemill_moves_total", [])
        if labels.get("outcome") == "failed"
    )
    if any(moved.values()) or failed:
        text = f"{bytes_text(moved.get('in', 0.0))} came, {bytes_text(moved.get('out', 0.0))} went"
        lines.append(("moved", text + (f", {failed:.0f} moves failed" if failed else "")))
    return lines


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


def why_text(causes: Sequence[str], waiting: LastKnown) -> str:
    """Why no more nodes are asked for: as every command and page says it, or in words without figures where the agent
    wrote none; empty = nothing is known to hold back more."""
    from tidemill.harvest.plan.sentences import FOR_MORE, awaited_text, hindrances_text, more_text

    awaits, now_us = waiting.awaits, clock.now_us()
    if awaits is not None and (awaits.hindrances or awaits.queued or awaits.starting):
        text = more_text(awaits, now_us) if waiting.is_at_work else awaited_text(awaits, now_us)
        more = hindrances_text(awaits.hindrances) if awaits.asked_us else ""
        head = "" if waiting.is_at_work else FOR_MORE
        return f"{text}; {head}{more}" if more else text
    if not waiting.is_served:  # metrics are of the agent's last seconds, and no agent asks for anything now
        return ""
    return "; ".join(_cause_text(cause, waiting.plans) for cause in causes_now(causes, waiting.plans))


def causes_now(causes: Sequence[str], plans: Sequence[PlanMade]) -> list[str]:
    """The causes of metrics, which are some seconds old, but for those that plans name: plans are recorded when that
    changes."""
    from tidemill.harvest.plan.waves import Binding
    from tidemill.site.nodes import planning

    if not plans:
        return list(causes)
    of_plans = {*(binding.value for binding in Binding), planning.FAILED_STARTS, planning.WITHDRAWN}
    named = [plan.waits_for for plan in plans if plan.waits_for]
    return list(dict.fromkeys([*named, *(cause for cause in causes if cause not in of_plans)]))


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


def quarantine_lines(path: Path, *, now_s: float) -> list[tuple[str, str]]:
    """Nodes that are not used because starts fail there, from SITE/quarantine.json."""
    import msgspec

    from tidemill.harvest.machine.quarantine import State

    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return []
    except (OSError, *UNDECODABLE) as error:
        return [("quarantine", f"`{path}` cannot be read: {error}")]
    serving = {each.node: each for each in state.trail if each.until_s > now_s}
    return [
        ("quarantine", f"{each.node} until {clock.utc_text(int(each.until_s * 1e6))}: {each.why}")
        for node, each in sorted(serving.items())
        if node not in state.nodes or state.nodes[node].until_s > now_s
    ]


def _one(samples: Samples, name: str) -> float | None:
    found = samples.get(name)
    return found[0][1] if found else None


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
    from tidemill.wire.broker import is_broker

    if is_broker(config.server):
        return None, "reached by messages, which answer the agent alone"
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
