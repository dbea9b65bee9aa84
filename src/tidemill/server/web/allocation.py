"""The page of one allocation: what its nodes do, as small charts that share a time axis, and a table of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from tidemill.charts.lines import TimeLine, lines
from tidemill.charts.time import clock_marks, nice_ceiling
from tidemill.model.identity import Act
from tidemill.model.metrics.nodes import PLACES, QUANTITIES
from tidemill.model.quantities import bytes_text, figure_text
from tidemill.server.read import samples
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.monitoring import NodePoint, NodeSeries, SampleReply

STEPS_MAX = 80  #: points of a line; more are joined to means
EVERY_S_MIN, EVERY_S_MAX = 2, 30
Text = Callable[[float], str]


class NodeChart(NamedTuple):
    """A chart: the sum of these quantities. One without a value in any sample is not shown."""

    title: str
    about: str
    quantities: tuple[str, ...]


CHARTS = (
    NodeChart("CPU in programs", "User and nice time of all cores", ("cpu_user", "cpu_nice")),
    NodeChart("CPU in the kernel", "System time of all cores", ("cpu_system",)),
    NodeChart(
        "I/O wait", "Time for which cores were idle and input or output was under way", ("cpu_iowait",)
    ),
    NodeChart("CPU stolen by the host", "Of a virtual machine", ("cpu_steal",)),
    NodeChart("Load", "Load average of one minute", ("load1",)),
    NodeChart("Running processes", "", ("running",)),
    NodeChart("CPU pressure", "Time for which some processes waited for a core", ("pressure_cpu_some",)),
    NodeChart(
        "Memory pressure", "Time for which some processes waited for memory", ("pressure_memory_some",)
    ),
    NodeChart("I/O pressure", "Time for which some processes waited for storage", ("pressure_io_some",)),
    NodeChart("Memory in use", "Without page cache", ("memory_used",)),
    NodeChart("Page cache", "", ("page_cache",)),
    NodeChart("Swapped pages", "In and out, per second", ("swap_in", "swap_out")),
    NodeChart("Network in", "Bytes per second", ("network_in",)),
    NodeChart("Network out", "Bytes per second", ("network_out",)),
    NodeChart("Packets", "In and out, per second", ("packets_in", "packets_out")),
    NodeChart("Local disks", "Bytes read and written per second", ("disk_read", "disk_write")),
    NodeChart("Busiest local disk", "Time for which it worked", ("disk_busy",)),
    NodeChart("NFS requests", "Per second", ("nfs_ops",)),
    NodeChart("NFS opens", "Files opened per second", ("nfs_opens",)),
    NodeChart("NFS closes", "Files closed per second", ("nfs_closes",)),
    NodeChart("NFS round trip", "Mean of all requests", ("nfs_rtt",)),
    NodeChart("NFS", "Bytes from and to servers per second", ("nfs_read", "nfs_write")),
    NodeChart("NFS retransmissions", "Per second", ("nfs_retransmissions",)),
    NodeChart("Lustre requests", "Metadata, per second", ("lustre_ops",)),
    NodeChart("Lustre opens", "Files opened per second", ("lustre_opens",)),
    NodeChart("Lustre closes", "Files closed per second", ("lustre_closes",)),
    NodeChart("Lustre", "Bytes read and written per second", ("lustre_read", "lustre_write")),
    NodeChart("GPUs", "Mean use", ("gpu_busy",)),
    NodeChart("GPU memory", "", ("gpu_memory",)),
)
#: shown only where one of them is above 0: most nodes have nothing there
RARE = frozenset({"cpu_steal", "swap_in", "nfs_ops", "nfs_rtt", "nfs_read", "nfs_retransmissions", "lustre_ops",
                  "lustre_read"})  # fmt: skip
#: shown where there are requests: there, 0 opens are a finding, and without a chart they are unknown
OF_REQUESTS = {"nfs_opens": "nfs_ops", "nfs_closes": "nfs_ops", "lustre_opens": "lustre_ops",
               "lustre_closes": "lustre_ops"}  # fmt: skip
#: what a batch job asks of a shared file system: the sum over its nodes is what the server feels
SHARED = frozenset({"nfs_ops", *OF_REQUESTS, "nfs_read", "lustre_ops", "lustre_read"})
_UNCOUNTED = {
    "nfs": "opens of files on NFS (this mount does not count them)",
    "lustre": "opens of files on Lustre (its clients since 2.12 show `stats` of `llite` to root only)",
}


class Drawn(NamedTuple):
    """A chart with its texts; `now`: the mean of the last interval. `total`: all nodes, empty where a sum says
    nothing."""

    panel: NodeChart
    drawing: Markup
    top: str
    now: str
    total: str = ""


class NodeRow(NamedTuple):
    """A node of the table: its last sample in words."""

    node: str
    at_us: int
    cpu: str
    load: str
    memory: str
    network: str
    storage: str
    cores: list[tuple[str, str]]  #: class and text of each core


def page(ask: PageRequest, made: Pages) -> str:
    """`/allocations/NAME`."""
    own = ask.own(Act.ALLOCATIONS)
    row = samples.allocation(ask.session, ask.at["name"], site=own or ask.query.text("site"))
    reply = ask.dispatcher.node_samples.reply(row.site, row.name)
    span = _span(reply)
    return made.show(
        ask, "allocation.html", row=row, found=reply, charts=charts(reply, span), unknown=uncounted(reply),
        nodes=[_row(each) for each in reply.nodes], cores=cores,
        marks=[] if span is None else clock_marks(span[0], span[1] - span[0]), every=_every_s(reply),
        is_active=ask.dispatcher.writer.is_active,
    )  # fmt: skip


def _every_s(reply: SampleReply) -> int:
    """The page asks for itself as often as there is something new."""
    last = [each.points[-1].over_us for each in reply.nodes if each.points]
    return max(EVERY_S_MIN, min([EVERY_S_MAX, *(over_us // 1_000_000 for over_us in last)]))


def _span(reply: SampleReply) -> tuple[float, float] | None:
    times = [each.points[k].at_us / 1e6 for each in reply.nodes for k in (0, -1)]
    return (min(times), max(max(times), min(times) + 1.0)) if times else None


def charts(reply: SampleReply, span: tuple[float, float] | None) -> list[Drawn]:
    """One for each panel of which there is a value."""
    if span is None:
        return []
    drawn = [_drawn(each, reply, span) for each in CHARTS]
    return [each for each in drawn if each is not None]


def uncounted(reply: SampleReply) -> list[str]:
    """What is unknown of the file systems that the nodes use."""
    if not any(_used(reply, f"{system}_ops") for system in _UNCOUNTED):
        return [
            "opens of files: the nodes used no NFS or Lustre (`tidemill trace` counts them for one payload)"
        ]
    return [
        text
        for system, text in _UNCOUNTED.items()
        if _used(reply, f"{system}_ops") and not _known(reply, f"{system}_opens")
    ]


def _known(reply: SampleReply, name: str) -> list[float]:
    series = [point for each in reply.nodes for point in each.points]
    return [value for _, value in _sums(series, [PLACES[name]])]


def _used(reply: SampleReply, name: str) -> bool:
    return any(_known(reply, name))


def _drawn(panel: NodeChart, reply: SampleReply, span: tuple[float, float]) -> Drawn | None:
    places = [PLACES[name] for name in panel.quantities]
    step_s = max((span[1] - span[0]) / STEPS_MAX, 1e-3)
    members = [TimeLine(each.node, _thinned(_sums(each.points, places), step_s)) for each in reply.nodes]
    mean = TimeLine("mean of all nodes", _thinned(_sums(reply.mean, places), step_s))
    values = [value for line in members for _, value in line.points]
    first = panel.quantities[0]
    if not values or (first in RARE and not any(values)):
        return None
    if first in OF_REQUESTS and not any(values) and not _used(reply, OF_REQUESTS[first]):
        return None
    unit = QUANTITIES[places[0]].unit
    text = _texts(unit)
    highest = max([*values, *(value for _, value in mean.points)])
    top = (
        1.0
        if unit == "ratio" and highest > 0.6
        else nice_ceiling(max(highest, 0.01 if unit == "ratio" else 0.0))
    )
    latest = [line.points[-1][1] for line in members if line.points]
    now = mean.points[-1][1] if mean.points else sum(latest) / len(latest)
    title = f"{panel.title}: {len(members)} nodes, mean {text(now)}, highest {text(max(values))}"
    nodes = max(reply.nodes_total, len(members))
    total = text(now * nodes) if first in SHARED and nodes > 1 else ""
    drawing = Markup(lines(members, mean, span=span, top=top, title=title))
    return Drawn(panel, drawing, text(top), text(now), total)


def _sums(points: Sequence[NodePoint], places: Sequence[int]) -> list[tuple[float, float]]:
    rows = []
    for point in points:
        known = [point.values[k] for k in places if k < len(point.values)]
        values = [value for value in known if value is not None]
        if values:
            rows.append((point.at_us / 1e6, sum(values)))
    return rows


def _thinned(points: Sequence[tuple[float, float]], step_s: float) -> list[tuple[float, float]]:
    """Means over steps."""
    steps: dict[int, list[tuple[float, float]]] = {}
    for at, value in points:
        steps.setdefault(int(at // step_s), []).append((at, value))
    return [
        (sum(at for at, _ in each) / len(each), sum(value for _, value in each) / len(each))
        for _, each in sorted(steps.items())
    ]


def _texts(unit: str) -> Text:
    return {
        "ratio": lambda value: f"{100 * value:.3g} %",
        "bytes": lambda value: bytes_text(round(value)),
        "bytes/s": lambda value: f"{bytes_text(round(value))}/s",
        "s": lambda value: f"{1000 * value:.3g} ms",
        "1/s": lambda value: f"{value:.2g}/s" if 0 < value < 1 else f"{figure_text(value)}/s",
    }.get(unit, figure_text)


def _row(each: NodeSeries) -> NodeRow:
    last = each.points[-1]

    def of(*names: str) -> float | None:
        values = [last.values[PLACES[name]] for name in names if PLACES[name] < len(last.values)]
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    def told(unit: str, *names: str) -> str:
        value = of(*names)
        return "-" if value is None else _texts(unit)(value)

    used, whole = of("memory_used"), of("memory")
    memory = told("bytes", "memory_used") + (
        f" of {bytes_text(round(whole))}" if used is not None and whole else ""
    )
    return NodeRow(
        node=each.node, at_us=last.at_us, cpu=told("ratio", "cpu_user", "cpu_nice", "cpu_system"),
        load=told("", "load1"),
        memory=memory, network=told("bytes/s", "network_in", "network_out"),
        storage=told("bytes/s", "nfs_read", "nfs_write", "lustre_read", "lustre_write"),
        cores=[(f"b{digit}", f"{10 * int(digit)} % or more") for digit in each.cores],
    )  # fmt: skip


def cores(found: Sequence[tuple[str, str]]) -> Markup:
    """A row of cells, one per core, the darker the busier."""
    if not found:
        return Markup("-")
    busy = sum(kind == "b9" for kind, _ in found)
    title = f"{len(found)} cores or groups of cores, {busy} of them busy for 90 % of the time or more"
    cells = "".join(
        f'<rect class="{escape(kind)}" x="{4 * k}" width="4" height="10"/>'
        for k, (kind, _) in enumerate(found)
    )
    return Markup(
        f'<svg class="cores" viewBox="0 0 {4 * len(found)} 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{cells}</svg>'
    )
