"""Opens and closes of files, from the texts of a kernel that has NFS and Lustre, through the installed binary,
FLEET/monitor, the agent and the server's window. The clients are faked at the edge: their texts are mounted over those
of this machine's kernel.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.node.test_node_monitor import line
from tests.worlds.node.pilot_fleet import binary

from tidemill.model.state import AllocationState
from tidemill.server.monitoring.window import SampleWindow
from tidemill.site.state import site_state
from tidemill.site.watch.node_samples import NodeSamples
from tidemill.wire.monitoring import AllocationSamples, SampleReply
from tidemill.wire.node import FIGURES, Sampled

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount texts over those of the kernel"
)

DEADLINE_S = 120
#: `$1`: a directory with our texts. Readings wait at `stat` and `loadavg`, which are pipes.
NODE = """
for name in stat loadavg; do mount --bind "$1/$name" /proc/$name; done
for name in mountstats mountinfo; do mount --bind "$1/$name" /proc/$$/$name; done
mount --bind "$1/kernel" /sys/kernel
shift
exec "$@"
"""
MOUNTINFO = "36 1 0:40 / / rw - ext4 /dev/sda1 rw\n37 36 0:41 / /scratch rw - lustre 10.0.0.1@o2ib:/lfs rw\n"


def nfs(point: str, version: str, events: str, requests: str) -> str:
    """A mount in `mountstats`, as Linux 5.3 and later write it."""
    kind = "nfs" if version == "3" else "nfs4"
    return (
        f"device fs.example.org:{point} mounted on {point} with fstype {kind} statvers=1.1\n"
        f"\topts:\trw,vers={version},rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,sec=sys\n\tage:\t8640\n"
        f"\tcaps:\tcaps=0x3ffdf,wtmult=512,dtsize=131072,bsize=0,namlen=255\n\tsec:\tflavor=1,pseudoflavor=1\n"
        f"\tevents:\t{events} \n\tbytes:\t100 0 0 0 100 0 1 0 \n"
        f"\tRPC iostats version: 1.1  p/v: 100003/{version[0]} (nfs)\n"
        "\txprt:\ttcp 786 0 2 0 6 9000 9000 0 9000 0 32 100 100\n\tper-op statistics\n"
        f"\t        NULL: 1 1 0 44 24 0 0 0 0\n{requests}\n"
    )


def mountstats(opens: int, closes: int) -> str:
    """A mount of NFSv4.1, where only requests count, and one of NFSv3, where only calls do."""
    requests = "".join(
        f"\t{name:>12}: {count} {count} 0 9 9 1 1 1 0\n"
        for name, count in (
            ("OPEN", opens // 4), ("OPEN_NOATTR", opens - opens // 4), ("OPEN_DOWNGRADE", 9 * opens),
            ("CLOSE", closes), ("GETATTR", 7),
        )
    )  # fmt: skip
    calls = f"9 300 0 7 {2 * opens} 12 900 0 5 40 0 3 2 0 77 1 0 {2 * closes} 0 0 0 0 0 0 0 0 0"
    return (
        "device proc mounted on /proc with fstype proc\n"
        + nfs("/sw", "4.1", "9 300 0 7 1 12 900 0 5 40 0 3 2 0 77 1 0 77 0 0 0 0 0 0 0 0 0", requests)
        + nfs("/home", "3", calls, "\t     GETATTR: 5 5 0 9 9 1 1 1 0\n")
    )


def tell(pipe: Path, text: str, running: subprocess.Popen[str]) -> None:
    """Write to a pipe once the node reads it."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or running.poll() is not None or time.monotonic() > until_s:
                raise
        time.sleep(0.005)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def measured(directory: Path, *, llite: bool) -> dict[str, Any]:
    """What `tidemill-node monitor` reports of two readings: 1,000 opens and 400 closes of a kind later."""
    for name in ("stat", "loadavg"):
        os.mkfifo(directory / name)
    stats = (
        directory / "kernel" / "debug" / "lustre" / ("llite/lfs-ff" if llite else "mdc/lfs-MDT0000-mdc-ff")
    )
    stats.mkdir(parents=True)

    def count(opens: int, closes: int) -> None:
        (directory / "mountstats").write_text(mountstats(opens, closes))
        known = (
            f"open {3 * opens} samples [usecs] 0 1 2 3\nopencount {opens} samples [reqs] 1 2 3 4\n"
            if llite
            else ""
        )
        (stats / ("stats" if llite else "md_stats")).write_text(
            f"snapshot_time 1710759783.27 secs.nsecs\n{known}close {3 * closes} samples [reqs]\n"
        )

    (directory / "mountinfo").write_text(MOUNTINFO)
    count(0, 0)  # there, so that it can be mounted
    node = [str(binary()), "monitor", "--once", "--json"]
    command = ["unshare", "-m", "sh", "-ec", NODE, "sh", str(directory), *node]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            for opens, closes in ((50_000, 40_000), (51_000, 40_400)):
                # a reading begins with `stat`, and what counts files follows on `loadavg`
                tell(directory / "stat", "cpu  100 0 0 900 0\ncpu0 100 0 0 900 0\n", running)
                count(opens, closes)
                tell(directory / "loadavg", "0.50 0.40 0.30 1/99 4242\n", running)
            told, _ = running.communicate(timeout=DEADLINE_S)
        finally:
            running.kill()
    found: dict[str, Any] = json.loads(told)
    return found


def through_agent_and_server(directory: Path, told: dict[str, Any]) -> SampleReply:
    """The sample of a pilot in FLEET/monitor, as the API shows it then."""
    state = site_state.SiteState(
        site="titan", fleets={"f": site_state.SiteFleet(name="f", epoch=1, created_us=1)},
        allocations={"a": site_state.Allocation(
            name="a", fleet="f", nodes=1, cores=16, state=AllocationState.ACTIVE, intended_us=1,
        )},
    )  # fmt: skip
    sampled = Sampled(
        p="a.r0.i1", node="n17", at_us=1_001_000_000, over_us=10_000_000, cores=told["cores"], mounts=told["mounts"],
        figures=[told["figures"][name] for name in FIGURES if name in told["figures"]],
    )  # fmt: skip
    monitor = directory / "f" / "monitor"
    monitor.mkdir(parents=True)
    (monitor / "lead-1.1.log").write_bytes(line(sampled))
    agent = NodeSamples(directory, 10.0, lambda: state)
    agent.step(now_s=1000.0, now_us=1_002_000_000)
    sent = msgspec.json.decode(msgspec.json.encode(agent.next_samples()), type=list[AllocationSamples])
    window = SampleWindow()
    window.add("titan", sent)
    return window.reply("titan", "a")


def test_opens_and_closes_of_nfs_and_lustre_reach_the_api(tmp_path: Path) -> None:
    told = measured(tmp_path, llite=True)
    found = through_agent_and_server(tmp_path, told)
    ((point,),) = [each.points for each in found.nodes]
    values = dict(zip(found.quantities, point.values, strict=True))
    # per second: of two mounts of NFS, 1,000 + 2,000 opens in 10 s
    assert (values["nfs_opens"], values["nfs_closes"]) == (300, 120)
    assert (values["lustre_opens"], values["lustre_closes"]) == (300, 120)
    mounts = {each.mount: (each.opens_per_s, each.closes_per_s) for each in found.nodes[0].mounts}
    assert mounts == {"/sw": (100, 40), "/home": (200, 80), "/scratch": (300, 120)}


def test_opens_on_lustre_are_unknown_where_its_mounts_count_for_root_only(tmp_path: Path) -> None:
    told = measured(tmp_path, llite=False)
    found = through_agent_and_server(tmp_path, told)
    ((point,),) = [each.points for each in found.nodes]
    values = dict(zip(found.quantities, point.values, strict=True))
    assert (values["lustre_ops"], values["lustre_opens"], values["lustre_closes"]) == (120, None, 120)
    assert values["nfs_opens"] == 300
