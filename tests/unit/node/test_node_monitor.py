"""What pilots measured is read from segments, in bounds, and becomes quantities with the units of their definitions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.model.metrics.nodes import PLACES, QUANTITIES
from tidemill.node.framed import frame
from tidemill.node.monitor import MonitorFiles, mounts_of, values_of
from tidemill.wire.node import FIGURES, Sampled


def sampled(
    node: str = "n1", *, over_s: float = 10.0, pilot: str = "a.r0.i1", **figures: int | None
) -> Sampled:
    return Sampled(
        p=pilot, node=node, at_us=1_700_000_000_000_000, over_us=int(over_s * 1e6), cores="09",
        figures=[figures.get(name) for name in FIGURES], mounts={},
    )  # fmt: skip


def value(found: Sampled, name: str) -> float | None:
    return values_of(found)[PLACES[name]]


def line(found: Sampled) -> bytes:
    return frame(msgspec.json.encode(found))


def test_times_are_shares_of_all_cores_and_counters_are_rates() -> None:
    found = sampled(
        cores=4, user_ms=10_000, idle_ms=30_000, load_milli=2500, io_some_us=2_000_000, used_kb=3, net_in_bytes=1_000,
        nfs_rtt_us=1500, disk_busy_ms=5_000, gpu_busy=40, gpu_memory_mb=2,
    )  # fmt: skip
    assert (value(found, "cpu_user"), value(found, "cpu_idle")) == (0.25, 0.75)
    assert (value(found, "load1"), value(found, "pressure_io_some")) == (2.5, 0.2)
    assert (value(found, "memory_used"), value(found, "network_in")) == (3072, 100)
    assert (value(found, "nfs_rtt"), value(found, "disk_busy")) == (0.0015, 0.5)
    assert (value(found, "gpu_busy"), value(found, "gpu_memory")) == (0.4, 2_097_000)  # four digits of 2 MiB


def test_opens_and_closes_are_rates_of_each_kind_of_file_system() -> None:
    found = sampled(nfs_opens=9240, nfs_closes=0, lustre_closes=20)
    names = ("nfs_opens", "nfs_closes", "lustre_opens", "lustre_closes")
    assert [value(found, name) for name in names] == [924, 0, None, 2]


def test_what_is_not_known_is_none_and_not_zero() -> None:
    assert values_of(sampled()) == [None] * len(QUANTITIES)
    assert value(sampled(user_ms=5), "cpu_user") is None  # of how many cores?
    assert (
        value(sampled(cores=1, user_ms=99_000), "cpu_user") == 1.0
    )  # clocks of ticks and of the interval differ


def test_a_pilot_of_another_version_says_more_or_less() -> None:
    short = msgspec.structs.replace(sampled(), figures=[8])
    longer = msgspec.structs.replace(sampled(), figures=[8, *([None] * len(FIGURES)), 17])
    assert value(short, "cores") == value(longer, "cores") == 8
    before = sampled(nfs_ops=50).figures[
        : FIGURES.index("nfs_opens")
    ]  # of a version that does not count opens
    older = msgspec.structs.replace(sampled(), figures=before, mounts={"/sw": [50, 0, 1, 1, 7]})
    assert (value(older, "nfs_ops"), value(older, "nfs_opens")) == (5, None)
    (mount,) = mounts_of(older)
    assert (mount.ops_per_s, mount.opens_per_s, mount.closes_per_s) == (5, None, None)


def test_mounts_are_told_with_rates_and_the_mean_round_trip() -> None:
    found = msgspec.structs.replace(
        sampled(),
        mounts={"/sw": [100, 1, 2000, 0, 700, 60, 15], "/lfs": [10, None, 0, 0, None, None, 5]},
    )
    second, first = mounts_of(found)
    assert (first.mount, first.ops_per_s, first.retransmissions_per_s, first.rtt_s) == (
        "/sw",
        10,
        0.1,
        0.0007,
    )
    assert (second.ops_per_s, second.retransmissions_per_s, second.rtt_s) == (1, None, None)
    assert (first.opens_per_s, first.closes_per_s) == (6, 1.5)
    assert (second.opens_per_s, second.closes_per_s) == (None, 0.5)


def test_segments_are_read_on_while_they_come_and_go(tmp_path: Path) -> None:
    directory = tmp_path / "monitor"
    files = MonitorFiles(directory)
    assert files.read() == []
    directory.mkdir()
    one, two, three = (line(sampled(f"n{k}")) for k in range(3))
    (directory / "lead-1.9.log").write_bytes(one + two[:30])
    assert [each.node for each in files.read()] == ["n0"]
    assert files.read() == []
    (directory / "lead-1.9.log").write_bytes(one + two)
    (directory / "lead-1.10.log").write_bytes(three)
    assert [each.node for each in files.read()] == ["n1", "n2"]  # by number, not by name
    (directory / "lead-1.9.log").unlink()
    (directory / "lead-1.11.log").write_bytes(one)
    (directory / "README").write_bytes(one)
    assert [each.node for each in files.read()] == ["n0"]


@pytest.mark.parametrize(
    "change",
    [
        {"over_us": 0}, {"over_us": 10**15}, {"figures": [10**18 * 9]}, {"figures": [1] * 1000}, {"node": "x" * 300},
        {"node": "a\nb"}, {"mounts": {f"/{k}": [] for k in range(9)}}, {"cores": "1" * 999},
    ],
)  # fmt: skip
def test_a_sample_that_no_pilot_writes_is_left_out_and_the_next_is_read(
    tmp_path: Path, change: dict[str, object]
) -> None:
    wrong = msgspec.structs.replace(sampled(), **change)
    (tmp_path / "lead-1.1.log").write_bytes(line(wrong) + frame(b'{"x": 1}') + line(sampled("good")))
    assert [each.node for each in MonitorFiles(tmp_path).read()] == ["good"]


def test_of_many_files_some_are_read_at_once_and_all_in_turn(tmp_path: Path) -> None:
    for k in range(5):
        (tmp_path / f"a{k}.r0.i1.1.log").write_bytes(line(sampled(f"n{k}")))
    files = MonitorFiles(tmp_path, files_max=2)
    found = [[each.node for each in files.read()] for _ in range(3)]
    assert [len(each) for each in found] == [2, 2, 1]
    assert sorted(node for each in found for node in each) == ["n0", "n1", "n2", "n3", "n4"]
