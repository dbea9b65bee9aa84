"""Good and bad nodes: which differ from the others more than chance explains. Pure.

Each payload's wall time per event is compared, as a logarithm, with the median of its level. A node's figure is the
median of its payloads; its error, the payloads' spread over the root of their number. Among nodes the centre is the
median and the spread the median distance from it, so that a few bad nodes do not hide themselves. Holm's method bounds
the probability of naming any good node by ALPHA.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tidemill_stress.payloads import Payload
from tidemill_stress.statistics import median

ALPHA = 0.01
FACTOR_MIN = 1.1
"""A node that is slower by less is not worth a repair, however certain that is."""

PAYLOADS_MIN = 5
NODES_MIN = 4
TO_SIGMA = 1.4826  #: median absolute deviation to standard deviation, of a normal distribution
MEDIAN_ERROR = 1.2533  #: standard error of a median over that of a mean, of a normal distribution


class NodeQuality(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `factor`: wall time per event relative to the other nodes. `verdict`: `good`, `slow`, `failing`, or
    `few` = too few payloads to say."""

    node: str
    payloads: int
    failed: int
    factor: float
    p: float
    verdict: str
    reason: str


def judge(levels: Sequence[Sequence[Payload]]) -> list[NodeQuality]:
    """All nodes, the slowest first. `levels`: the payloads of each level's window."""
    figures, failed, total = _figures(levels)
    centre = {node: median(values) for node, values in figures.items() if len(values) >= PAYLOADS_MIN}
    middle = median(list(centre.values()))
    spread = TO_SIGMA * median([abs(each - middle) for each in centre.values()])
    within = TO_SIGMA * median([abs(each - centre[node]) for node in centre for each in figures[node]])
    scores = {
        node: _score(
            value - middle, math.hypot(spread, MEDIAN_ERROR * within / math.sqrt(len(figures[node])))
        )
        for node, value in centre.items()
    }
    slow = _holm(scores) if len(centre) >= NODES_MIN else set()
    failing = _failing(failed, total)
    found = []
    for node in sorted(total):
        factor = math.exp(centre[node] - middle) if node in centre else 1.0
        reasons = []
        if node in slow and factor >= FACTOR_MIN:
            reasons.append(
                f"an event takes {factor:.2f} times as long as on the other nodes (p = {scores[node]:.1g})"
            )
        if node in failing:
            rest = (sum(failed.values()) - failed[node]) / max(1, sum(total.values()) - total[node])
            reasons.append(f"{failed[node]} of {total[node]} payloads failed, {100 * rest:.1f} % elsewhere")
        verdict = (
            "slow" if node in slow and factor >= FACTOR_MIN else "failing" if node in failing else "good"
        )
        if node not in centre and verdict == "good":
            verdict, reasons = "few", [f"fewer than {PAYLOADS_MIN} payloads were counted"]
        reason = "; ".join(reasons)
        found.append(
            NodeQuality(
                node=node, payloads=total[node], failed=failed[node], factor=factor, p=scores.get(node, 1.0),
                verdict=verdict, reason=reason,
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: (each.verdict in ("good", "few"), -each.factor, each.node))


def slow_nodes(qualities: Sequence[NodeQuality]) -> set[str]:
    """The names of nodes that are slow."""
    return {each.node for each in qualities if each.verdict == "slow"}


def _figures(
    levels: Sequence[Sequence[Payload]],
) -> tuple[dict[str, list[float]], dict[str, int], dict[str, int]]:
    figures: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for payloads in levels:
        done = [each for each in payloads if each.events and each.wall_s > 0]
        middle = median([math.log(each.wall_s / each.events) for each in done])
        for each in done:
            figures[each.node].append(math.log(each.wall_s / each.events) - middle)
        for each in payloads:
            total[each.node] += 1
            failed[each.node] += bool(each.failure)
    return figures, failed, total


def _score(distance: float, error: float) -> float:
    """The probability of such a distance by chance, upwards."""
    return 0.5 * math.erfc(distance / max(error, 1e-9) / math.sqrt(2))


def _holm(scores: dict[str, float]) -> set[str]:
    found: set[str] = set()
    for k, node in enumerate(sorted(scores, key=lambda each: scores[each])):
        if scores[node] > ALPHA / (len(scores) - k):
            break
        found.add(node)
    return found


def _failing(failed: dict[str, int], total: dict[str, int]) -> set[str]:
    """Nodes on which payloads fail more often than on the others: binomial tails, by Holm."""
    if len(total) < 2:
        return set()
    scores = {}
    for node, count in total.items():
        others = sum(total.values()) - count
        share = (sum(failed.values()) - failed[node] + 1) / (others + 2)
        scores[node] = _tail(failed[node], count, share)
    return {node for node in _holm(scores) if failed[node] >= 3}


def _tail(least: int, count: int, share: float) -> float:
    """The probability of `least` or more of `count` with this share each."""
    return math.fsum(
        math.exp(
            math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
            + k * math.log(share) + (count - k) * math.log1p(-share)
        )
        for k in range(least, count + 1)
    )  # fmt: skip
