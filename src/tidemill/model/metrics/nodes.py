"""What is measured on nodes: every quantity once, with its unit, its meaning and its name in Prometheus. Pure.

docs/monitoring.md defines them for people; `node/monitor` makes them of what a pilot counted.
"""

from __future__ import annotations

from typing import NamedTuple


class Quantity(NamedTuple):
    """A quantity of a node. `metric` and `labels`: its name in Prometheus, where it is the mean over nodes."""

    name: str
    unit: str  #: `ratio`, `bytes`, `bytes/s`, `1/s`, `s`, or empty for a number
    help: str
    metric: str
    labels: tuple[tuple[str, str], ...] = ()


def _cpu(mode: str, about: str) -> Quantity:
    return Quantity(
        f"cpu_{mode}",
        "ratio",
        f"CPU time of all cores: {about}",
        "tidemill_node_cpu_ratio",
        (("mode", mode),),
    )


def _pressure(resource: str, kind: str) -> Quantity:
    who = "some processes" if kind == "some" else "all processes"
    return Quantity(
        f"pressure_{resource}_{kind}", "ratio", f"Time for which {who} waited for {resource} (PSI)",
        "tidemill_node_pressure_ratio", (("resource", resource), ("kind", kind)),
    )  # fmt: skip


def _memory(name: str, state: str, about: str) -> Quantity:
    return Quantity(name, "bytes", about, "tidemill_node_memory_bytes", (("state", state),))


def _flow(name: str, unit: str, about: str, metric: str, direction: str) -> Quantity:
    return Quantity(name, unit, about, metric, (("direction", direction),))


QUANTITIES: tuple[Quantity, ...] = (
    _cpu("user", "programs"),
    _cpu("nice", "programs of lower priority"),
    _cpu("system", "the kernel, interrupts included"),
    _cpu("iowait", "idle while input or output was under way"),
    _cpu("idle", "idle"),
    _cpu("steal", "taken by the host of a virtual machine"),
    Quantity("cores", "", "Cores of the node", "tidemill_node_cores"),
    Quantity("load1", "", "Load average of one minute", "tidemill_node_load1"),
    Quantity("running", "", "Processes that ran or could have", "tidemill_node_running_processes"),
    _pressure("cpu", "some"),
    _pressure("memory", "some"),
    _pressure("memory", "full"),
    _pressure("io", "some"),
    _pressure("io", "full"),
    _memory("memory", "total", "Memory of the node"),
    _memory("memory_used", "used", "Memory that programs cannot have without swapping"),
    _memory("page_cache", "page_cache", "Page cache, without files in memory"),
    _memory("swap_used", "swap", "Swap space in use"),
    _flow("swap_in", "1/s", "Pages swapped in", "tidemill_node_swap_pages_per_second", "in"),
    _flow("swap_out", "1/s", "Pages swapped out", "tidemill_node_swap_pages_per_second", "out"),
    Quantity("major_faults", "1/s", "Page faults that had to read", "tidemill_node_major_faults_per_second"),
    _flow("network_in", "bytes/s", "Bytes received", "tidemill_node_network_bytes_per_second", "in"),
    _flow("network_out", "bytes/s", "Bytes sent", "tidemill_node_network_bytes_per_second", "out"),
    _flow("packets_in", "1/s", "Packets received", "tidemill_node_network_packets_per_second", "in"),
    _flow("packets_out", "1/s", "Packets sent", "tidemill_node_network_packets_per_second", "out"),
    _flow("disk_read", "bytes/s", "Bytes read from local disks", "tidemill_node_disk_bytes_per_second", "read"),
    _flow("disk_write", "bytes/s", "Bytes written to local disks", "tidemill_node_disk_bytes_per_second", "write"),
    Quantity("disk_ops", "1/s", "Reads and writes of local disks", "tidemill_node_disk_operations_per_second"),
    Quantity("disk_busy", "ratio", "Time for which the busiest local disk worked", "tidemill_node_disk_busy_ratio"),
    Quantity("nfs_ops", "1/s", "Requests to NFS servers", "tidemill_node_nfs_operations_per_second"),
    Quantity(
        "nfs_retransmissions", "1/s", "Requests to NFS servers that were sent again",
        "tidemill_node_nfs_retransmissions_per_second",
    ),
    _flow("nfs_read", "bytes/s", "Bytes from NFS servers", "tidemill_node_nfs_bytes_per_second", "read"),
    _flow("nfs_write", "bytes/s", "Bytes to NFS servers", "tidemill_node_nfs_bytes_per_second", "write"),
    Quantity("nfs_rtt", "s", "Mean round trip of requests to NFS servers", "tidemill_node_nfs_round_trip_seconds"),
    Quantity("lustre_ops", "1/s", "Metadata requests to Lustre", "tidemill_node_lustre_operations_per_second"),
    _flow("lustre_read", "bytes/s", "Bytes read from Lustre", "tidemill_node_lustre_bytes_per_second", "read"),
    _flow("lustre_write", "bytes/s", "Bytes written to Lustre", "tidemill_node_lustre_bytes_per_second", "write"),
    Quantity("gpu_busy", "ratio", "Use of the node's GPUs", "tidemill_node_gpu_busy_ratio"),
    Quantity("gpu_memory", "bytes", "Memory of GPUs in use", "tidemill_node_gpu_memory_bytes"),
    Quantity("nfs_opens", "1/s", "Files opened on NFS", "tidemill_node_nfs_opens_per_second"),
    Quantity("nfs_closes", "1/s", "Files closed on NFS", "tidemill_node_nfs_closes_per_second"),
    Quantity("lustre_opens", "1/s", "Files opened on Lustre", "tidemill_node_lustre_opens_per_second"),
    Quantity("lustre_closes", "1/s", "Files closed on Lustre", "tidemill_node_lustre_closes_per_second"),
)  # fmt: skip
"""In the order in which sites send their values: a later version adds at the end."""

PLACES = {each.name: place for place, each in enumerate(QUANTITIES)}

FAMILIES = {
    "tidemill_node_cpu_ratio": "CPU time of all cores, by what they did",
    "tidemill_node_pressure_ratio": "Time for which some, or all, processes waited for a resource (PSI)",
    "tidemill_node_memory_bytes": "Memory; `page_cache` without files in memory, `swap` is swap space in use",
    "tidemill_node_swap_pages_per_second": "Pages swapped in and out",
    "tidemill_node_network_bytes_per_second": "Bytes of physical network interfaces",
    "tidemill_node_network_packets_per_second": "Packets of physical network interfaces",
    "tidemill_node_disk_bytes_per_second": "Bytes of local disks",
    "tidemill_node_nfs_bytes_per_second": "Bytes from and to NFS servers",
    "tidemill_node_lustre_bytes_per_second": "Bytes read from and written to Lustre",
}
"""What metrics mean that stand for several quantities."""
