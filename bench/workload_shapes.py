"""Eight machines for `bench/workloads.py`: what their users submit, as numbers with their sources. Pure.

"Fitted" means: taken from the job logs of the Argonne Leadership Computing Facility, a DOE Office of Science User
Facility under contract DE-AC02-06CH11357 (Theta 2022 and 2023/24, 4,392 nodes; Mira 2018, 49,152 nodes), as shares,
deciles and quantiles; hours and weekdays in Chicago's time. "Lublin" is U. Lublin and D. Feitelson, The workload on
parallel supercomputers, J. Parallel Distrib. Comput. 63 (2003), with the constants of the authors' m_lublin99.c.
"PWA" is the Parallel Workloads Archive, https://www.cs.huji.ac.il/labs/parallel/workload. "Chosen" has no source.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HOUR_S = 3600
DAY_S = 86400
MINUTE_S = 60

Table = Sequence[tuple[int, float]]
Width = Callable[[random.Random], int]
Times = Callable[[random.Random, int], tuple[int, int]]
Number = Callable[[random.Random], int]


@dataclass(frozen=True)
class Kind:
    """A kind of job. `share`: of the bursts; `times`: (run time, limit) of a width; `size`: jobs of a burst."""

    name: str
    share: float
    width: Width
    times: Times
    size: Number
    gap_s: Number
    spread: Callable[[random.Random], float]
    weekdays: Sequence[float] = ()
    hours: Sequence[float] = ()


@dataclass(frozen=True)
class Maintenance:
    """The machine is out of service for some hours every `every_days` days, first on a weekday (Monday = 0)."""

    weekday: int
    hour: int
    hours: int
    every_days: int = 7


@dataclass(frozen=True)
class Shape:
    """A machine and its users. `load`: node-seconds of its jobs / those it is up; `day_spread`: see `day_factors`."""

    name: str
    about: str
    nodes: int
    days: int
    load: float
    kinds: Sequence[Kind]
    hours: Sequence[float]
    weekdays: Sequence[float]
    day_spread: float
    maintenance: Sequence[Maintenance] = ()


# -- when users submit -------------------------------------------------------------------------------------------------

HOURS_THETA = (
    *(0.97, 0.99, 0.88, 0.77, 0.97, 1.13, 0.85, 0.77, 0.55, 0.70, 0.60, 0.51),
    *(0.41, 0.73, 0.99, 1.31, 1.54, 1.47, 1.38, 1.15, 1.41, 1.45, 1.28, 1.18),
)
"""Jobs by hour of the day over their mean. Fitted to Theta 2022."""
HOURS_MIRA = (
    *(0.93, 0.98, 0.89, 0.89, 0.62, 0.72, 0.60, 0.57, 0.57, 0.53, 0.62, 0.80),
    *(1.18, 1.32, 1.33, 1.32, 1.24, 1.33, 1.27, 1.44, 1.35, 1.42, 1.08, 1.00),
)
"""Fitted to Mira 2018."""
HOURS_OFFICE = (
    *(0.48, 0.39, 0.31, 0.24, 0.19, 0.20, 0.38, 0.62, 0.89, 1.17, 1.42, 1.62),
    *(1.76, 1.83, 1.82, 1.76, 1.66, 1.52, 1.36, 1.19, 1.02, 0.87, 0.72, 0.59),
)
"""One peak after noon, a tenth of it before dawn. Lublin's daily cycle: gamma(8.17, 3.96) in half hours."""
WEEK_THETA = (1.07, 1.08, 1.10, 0.97, 0.75, 0.92, 1.11)
"""Jobs by weekday, from Monday. Fitted to Theta 2022."""
WEEK_MIRA = (0.93, 1.04, 1.04, 1.28, 1.01, 0.89, 0.81)
"""Fitted to Mira 2018."""
WEEK_OFFICE = (1.20, 1.25, 1.25, 1.20, 1.10, 0.50, 0.50)
"""Chosen: half as much at weekends, where few do more than look after what runs."""
MONDAYS = (6.0, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1)
"""Chosen after Theta's "Big Run Mondays": jobs of 802 nodes or more come first (ALCF, Job scheduling policy)."""
DAY_SPREAD = 0.5
"""Of the logarithm of a day's factor. Chosen: the logs have 0.70 to 0.85 for jobs a day, a part of it from bursts."""


# -- how wide jobs are -------------------------------------------------------------------------------------------------


def widths(*table: tuple[int, float]) -> Width:
    """Widths by weight."""
    values, weights = zip(*table, strict=True)
    return lambda chance: int(chance.choices(values, weights)[0])


def lublin_widths(nodes: int, serial: float = 0.244) -> Width:
    """Lublin's widths: one node, powers of two, others; log2 of the width is uniform in two stages."""
    high = math.log2(nodes)
    middle = high - 2.5  # m_lublin99.c: "UMed should be in [UHi-1.5, UHi-3.5]"

    def width(chance: random.Random) -> int:
        if chance.random() < serial:
            return 1
        low, top = (0.8, middle) if chance.random() < 0.86 else (middle, high)
        power = chance.uniform(low, top)
        is_round = chance.random() < 0.576 / (1 - 0.244)
        return max(2, round(2 ** (round(power) if is_round else power)))

    return width


THETA_SMALL = widths((128, 13382), (144, 77), (150, 59), (192, 345), (216, 68))
THETA_QUARTER = widths(
    *((256, 4344), (300, 121), (384, 193), (400, 133), (512, 1020), (540, 84), (600, 78), (640, 209)),
    *((768, 78), (802, 106), (804, 212), (875, 137), (957, 50), (1024, 1198)),
)
THETA_LARGE = widths(
    *((1140, 21), (1408, 29), (1536, 37), (1620, 44), (2048, 139), (2200, 17), (2400, 44), (3180, 28)),
    *((3850, 22), (4096, 20)),
)
"""Fitted to Theta 2022, counts of jobs of the most frequent widths (4,096 nodes: 2023/24)."""
DEBUG = widths((1, 54), (2, 30), (4, 12), (8, 16), (16, 24), (32, 91), (64, 86))
"""Fitted to Mira 2018, jobs below 512 nodes, those of 128 and 256 left out. On such a machine they are development jobs
(PWA, ANL Intrepid log: "Partitions of less than 512 nodes are only used for development jobs")."""


def mira_widths(part: str, divisor: int = 1) -> Width:
    """Fitted to Mira 2018, counts of jobs; `divisor` makes them those of a smaller machine."""
    found = {
        "block": ((512, 11194),),
        "rack": ((1024, 4811), (2048, 3632)),
        "row": ((4096, 675), (8192, 1058)),
        "large": ((16384, 318), (32768, 44), (49152, 63)),
    }[part]
    return widths(*((width // divisor, weight) for width, weight in found))


# -- how long jobs run and what they ask for ---------------------------------------------------------------------------

LIMITS_THETA_SMALL = ((1200, 9), (1800, 128), (2700, 116), (3600, 158), (5400, 22), (7200, 72), (10800, 496))
USED_THETA_SMALL = (0.001, 0.023, 0.084, 0.278, 0.546, 0.787, 0.935, 0.985, 1, 1, 1)
LIMITS_THETA_QUARTER = (
    *((1800, 78), (2700, 68), (3600, 147), (5400, 9), (7200, 50), (10800, 92), (14400, 50)),
    *((21600, 311), (32400, 110), (43200, 26), (64800, 5), (86400, 53)),
)
USED_THETA_QUARTER = (0.001, 0.018, 0.083, 0.348, 0.666, 0.824, 0.959, 0.991, 1, 1, 1)
LIMITS_THETA_LARGE = (
    *((1800, 93), (3600, 40), (5400, 19), (7200, 123), (10800, 117), (14400, 67), (21600, 157)),
    *((32400, 51), (43200, 51), (64800, 21), (86400, 260)),
)
USED_THETA_LARGE = (0.001, 0.008, 0.038, 0.160, 0.504, 0.700, 0.961, 1, 1, 1, 1)
"""Limits (s) by weight, and deciles of run time / limit. Fitted to Theta 2022, up to 255, to 1,098, and more nodes."""
LIMITS_THETA_2023 = (
    *((1200, 123), (1800, 95), (2700, 160), (3600, 222), (5400, 49), (7200, 55), (10800, 293)),
)
USED_THETA_2023 = (0.002, 0.034, 0.074, 0.119, 0.349, 0.499, 0.650, 0.985, 1, 1, 1)
LIMITS_THETA_2023_LARGE = (
    *((1800, 31), (3600, 67), (10800, 89), (14400, 36), (21600, 244), (32400, 53), (43200, 84)),
    *((64800, 44), (86400, 342)),
)
USED_THETA_2023_LARGE = (0.001, 0.005, 0.042, 0.110, 0.369, 0.546, 0.802, 0.983, 1, 1, 1)
"""Fitted to Theta 2023/24, up to 255 nodes, and more than 1,098."""
LIMITS_DEBUG = ((600, 145), (900, 370), (1200, 45), (1800, 98), (2700, 53), (3600, 106))
USED_DEBUG = (0.004, 0.048, 0.085, 0.133, 0.170, 0.213, 0.302, 0.450, 0.635, 1, 1)
"""Fitted to Mira 2018, jobs below 512 nodes, up to an hour: what debug queues allow (such as ERDC, Queue summary)."""
LIMITS_MIRA_BLOCK = (
    *((600, 24), (900, 6), (1200, 12), (1800, 159), (3600, 200), (5400, 141), (7200, 31), (10800, 42)),
    *((14400, 72), (21600, 286), (32400, 9), (43200, 14)),
)
USED_MIRA_BLOCK = (0.001, 0.079, 0.377, 0.511, 0.549, 0.705, 0.822, 0.879, 1, 1, 1)
LIMITS_MIRA_RACK = (
    *((600, 12), (900, 13), (1200, 13), (1800, 27), (2700, 23), (3600, 159), (5400, 53), (7200, 218)),
    *((10800, 192), (14400, 44), (21600, 167), (32400, 5), (43200, 73)),
)
USED_MIRA_RACK = (0.002, 0.158, 0.296, 0.371, 0.552, 0.636, 0.768, 0.856, 0.957, 1, 1)
LIMITS_MIRA_ROW = (
    *((600, 9), (900, 32), (1800, 91), (2700, 11), (3600, 56), (5400, 17), (7200, 50), (10800, 62)),
    *((14400, 56), (21600, 253), (32400, 54), (43200, 80), (64800, 38), (86400, 184)),
)
USED_MIRA_ROW = (0.001, 0.010, 0.085, 0.218, 0.475, 0.709, 0.816, 0.859, 0.983, 1, 1)
LIMITS_MIRA_LARGE = (
    *((900, 21), (1800, 56), (2700, 232), (3600, 59), (5400, 47), (7200, 145), (10800, 159)),
    *((14400, 33), (21600, 98), (32400, 16), (43200, 56), (64800, 14), (86400, 63)),
)
USED_MIRA_LARGE = (0.002, 0.111, 0.177, 0.214, 0.240, 0.352, 0.506, 0.670, 0.937, 1, 1)
"""Fitted to Mira 2018: 512, up to 3,072, up to 12,288, and more nodes."""
LADDER = (600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 28800, 43200, 64800, 86400)
"""What people ask for: 20 values make 90 % (D. Tsafrir and others, Modeling user runtime estimates, JSSPP 2005)."""
RUN_S_MAX = 86400


def asked(limits: Table, used: Sequence[float]) -> Times:
    """A limit by weight, and a run time by the share of limits that jobs use."""
    values, weights = zip(*limits, strict=True)

    def times(chance: random.Random, _: int) -> tuple[int, int]:
        limit_s = int(chance.choices(values, weights)[0])
        return max(1, round(limit_s * decile(used, chance.random()))), limit_s

    return times


def up_to(limit_s: int, limits: Table) -> Table:
    """Only limits up to this one."""
    return [each for each in limits if each[0] <= limit_s]


def lublin_times(used: Sequence[float], *, run_s_max: int = RUN_S_MAX, wide: int = 128) -> Times:
    """Lublin's run times (hyper-gamma of the logarithm, longer for wide jobs) and a limit from the ladder.

    `wide`: a width that counts as Lublin's 128 nodes. All run 10 s to `run_s_max`.
    """

    def times(chance: random.Random, width: int) -> tuple[int, int]:
        first = -0.0054 * width * 128 / wide + 0.78
        while True:
            shape, scale = (4.2, 0.94) if chance.random() < first else (312.0, 0.03)
            run_s = round(math.exp(min(30.0, chance.gammavariate(shape, scale))))
            if 10 <= run_s <= run_s_max:
                break
        wanted_s = min(run_s / max(0.02, decile(used, chance.random())), LADDER[-1])
        return run_s, LADDER[bisect_left(LADDER, wanted_s)]

    return times


def decile(table: Sequence[float], place: float) -> float:
    """The value at a place from 0 to 1 of a distribution that is known by its deciles."""
    k = min(int(place * 10), 9)
    return table[k] + (table[k + 1] - table[k]) * (place * 10 - k)


# -- how many at once --------------------------------------------------------------------------------------------------

BURST_SIZES = (
    *(
        (1, 836),
        (2, 77),
        (3, 27),
        (4, 15),
        (5, 14),
        (6, 6),
        (8, 8),
        (10, 5),
        (13, 6),
        (16, 5),
        (20, 1),
        (41, 1),
    ),
)
"""Jobs of one user with one width and limit, each within 5 minutes of the last. Fitted to Mira 2018, per mille."""
GAPS_S = (1, 2, 2, 3, 5, 8, 15, 25, 45, 97, 300)
"""Deciles of the seconds between jobs of a burst. Fitted to Mira 2018 (quantiles 10, 25, 50, 75 and 90 %)."""
SPREADS = (0.0, 0.0, 0.005, 0.01, 0.04, 0.06, 0.12, 0.20, 0.50, 1.19, 2.0)
"""Deciles of the spread of the logarithm of run times within a burst. Fitted to Mira 2018, bursts of four or more."""
ARRAY_SIZES = (10, 500)
"""Chosen: no public log marks arrays. Log-uniform; Slurm's default bound is 1,001 (slurm.conf(5), MaxArraySize)."""


def burst_size(chance: random.Random) -> int:
    """Jobs of a burst."""
    values, weights = zip(*BURST_SIZES, strict=True)
    return int(chance.choices(values, weights)[0])


def array_size(chance: random.Random) -> int:
    """Elements of a job array."""
    low, high = ARRAY_SIZES
    return round(math.exp(chance.uniform(math.log(low), math.log(high))))


def one(_: random.Random) -> int:
    """A single job."""
    return 1


def gap_s(chance: random.Random) -> int:
    """Seconds to the next job of a burst."""
    return round(decile(GAPS_S, chance.random()))


def together(_: random.Random) -> int:
    """The elements of an array come in one call."""
    return 0


def spread(chance: random.Random) -> float:
    """How unlike the run times of a burst are."""
    return decile(SPREADS, chance.random())


def kind(
    name: str,
    share: float,
    width: Width,
    times: Times,
    *,
    size: Number = burst_size,
    weekdays: Sequence[float] = (),
) -> Kind:
    """A kind of job that comes in bursts as on Mira, or in arrays."""
    gap = together if size is array_size else gap_s
    return Kind(name, share, width, times, size, gap, spread, weekdays)


# -- the machines ------------------------------------------------------------------------------------------------------

_THETA = (
    kind("small", 0.600, THETA_SMALL, asked(LIMITS_THETA_SMALL, USED_THETA_SMALL)),
    kind("quarter", 0.374, THETA_QUARTER, asked(LIMITS_THETA_QUARTER, USED_THETA_QUARTER)),
    kind("large", 0.026, THETA_LARGE, asked(LIMITS_THETA_LARGE, USED_THETA_LARGE), size=one),
)
"""Shares fitted to Theta 2022."""


def _mira(divisor: int = 1) -> tuple[Kind, ...]:
    """Shares fitted to Mira 2018."""
    return (
        kind("block", 0.50, mira_widths("block", divisor), asked(LIMITS_MIRA_BLOCK, USED_MIRA_BLOCK)),
        kind("rack", 0.376, mira_widths("rack", divisor), asked(LIMITS_MIRA_RACK, USED_MIRA_RACK)),
        kind("row", 0.077, mira_widths("row", divisor), asked(LIMITS_MIRA_ROW, USED_MIRA_ROW), size=one),
        kind(
            "large", 0.019, mira_widths("large", divisor), asked(LIMITS_MIRA_LARGE, USED_MIRA_LARGE), size=one
        ),
    )


SHAPES = {
    each.name: each
    for each in (
        Shape(
            name="debug",
            about="like Theta, with a debug queue on the same nodes: half of all jobs are small and short",
            nodes=4392,
            days=28,
            load=0.80,
            kinds=(*_THETA, kind("debug", 1.0, DEBUG, asked(LIMITS_DEBUG, USED_DEBUG))),
            hours=HOURS_THETA,
            weekdays=WEEK_THETA,
            day_spread=DAY_SPREAD,
        ),
        Shape(
            name="arrays",
            about="a capacity machine as large as LLNL's Thunder (PWA: 1,024 nodes, 860 jobs a day), with arrays",
            nodes=1024,
            days=21,
            load=0.82,
            kinds=(
                kind("parallel", 0.97, lublin_widths(256), lublin_times(USED_MIRA_BLOCK, wide=256)),
                kind(
                    "array", 0.03, widths((1, 1)), lublin_times(USED_DEBUG, run_s_max=7200), size=array_size
                ),
            ),
            hours=HOURS_MIRA,
            weekdays=WEEK_MIRA,
            day_spread=0.25,
        ),
        Shape(
            name="diurnal",
            about="a university's cluster: by far the most jobs come in office hours, few at weekends",
            nodes=512,
            days=28,
            load=0.80,
            kinds=(
                kind("parallel", 1.0, lublin_widths(128), lublin_times(USED_THETA_SMALL, run_s_max=43200)),
            ),
            hours=HOURS_OFFICE,
            weekdays=WEEK_OFFICE,
            day_spread=0.25,
        ),
        Shape(
            name="maintenance",
            about="Theta at half its size, each Monday from 9:00 to 17:00 out of service (ALCF, Job scheduling policy)",
            nodes=2048,
            days=28,
            load=0.80,
            kinds=(
                kind(
                    "small",
                    0.84,
                    widths((16, 40), (32, 60), (64, 5612), (75, 112), (96, 139)),
                    asked(LIMITS_THETA_2023, USED_THETA_2023),
                ),
                kind(
                    "quarter",
                    0.126,
                    widths((128, 1028), (192, 91), (256, 139), (320, 57), (400, 143), (450, 82), (512, 171)),
                    asked(up_to(43200, LIMITS_THETA_QUARTER), USED_THETA_QUARTER),
                ),
                kind(
                    "large",
                    0.027,
                    widths((570, 18), (768, 62), (1024, 30), (1500, 18), (1900, 18)),
                    asked(up_to(43200, LIMITS_THETA_2023_LARGE), USED_THETA_2023_LARGE),
                    size=one,
                ),
            ),
            hours=HOURS_THETA,
            weekdays=WEEK_THETA,
            day_spread=DAY_SPREAD,
            maintenance=(Maintenance(weekday=0, hour=9, hours=8),),
        ),
        Shape(
            name="full-machine",
            about="days on which jobs of half and all of the machine run one after another, as on Big Run Mondays",
            nodes=8192,
            days=28,
            load=0.78,
            kinds=(
                *_mira(6),
                kind(
                    "whole",
                    0.008,
                    widths((4096, 1), (6144, 1), (8192, 2)),
                    asked(LIMITS_MIRA_LARGE, USED_MIRA_LARGE),
                    weekdays=MONDAYS,
                ),
            ),
            hours=HOURS_MIRA,
            weekdays=WEEK_MIRA,
            day_spread=DAY_SPREAD,
        ),
        Shape(
            name="capability",
            about="like Mira: nothing below 512 nodes but development jobs, and jobs of the whole machine",
            nodes=49152,
            days=42,
            load=0.80,
            kinds=(*_mira(), kind("debug", 0.028, DEBUG, asked(LIMITS_DEBUG, USED_DEBUG))),
            hours=HOURS_MIRA,
            weekdays=WEEK_MIRA,
            day_spread=DAY_SPREAD,
        ),
        Shape(
            name="throughput",
            about="one-node jobs by the thousand, as on RICC (PWA: 447,794 jobs in five months on 1,024 nodes)",
            nodes=128,
            days=14,
            load=0.80,
            kinds=(
                kind("serial", 0.92, widths((1, 90), (2, 5), (4, 3), (8, 2)), lublin_times(USED_MIRA_BLOCK)),
                kind(
                    "array",
                    0.01,
                    widths((1, 1)),
                    lublin_times(USED_MIRA_BLOCK, run_s_max=7200),
                    size=array_size,
                ),
            ),
            hours=HOURS_MIRA,
            weekdays=WEEK_MIRA,
            day_spread=0.10,
        ),
        Shape(
            name="light",
            about="a department's machine with nodes to spare: most jobs start at once",
            nodes=256,
            days=21,
            load=0.77,
            kinds=(
                kind(
                    "parallel",
                    1.0,
                    lublin_widths(32),
                    lublin_times(USED_THETA_SMALL, run_s_max=43200, wide=32),
                ),
            ),
            hours=HOURS_MIRA,
            weekdays=WEEK_MIRA,
            day_spread=0.10,
        ),
    )
}
