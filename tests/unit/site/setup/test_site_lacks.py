"""What a node's abilities mean, in words."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec
import pytest

from tidemill.config import describe
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.site.setup.capabilities import Abilities, parse_abilities
from tidemill.site.setup.finding import Finding
from tidemill.site.setup.limitations import ImageSize, Uses, of_abilities


def way(name: str, *, why: str = "", cost: str = "") -> dict[str, str]:
    return {"way": name, "why": why, "cost": cost}


NODE: dict[str, Any] = {
    "format": 1,
    "host": "n1",
    "kernel": "6.1.0",
    "machine": "x86_64",
    "uid": 1000,
    "gid": 1000,
    "no_new_privs": False,
    "address": "10.0.0.7",
    "sysctl": {"user.max_user_namespaces": "1000"},
    "confined": "",
    "tried": {"tcp": {"ok": True, "why": ""}, "ptrace": {"ok": True, "why": ""}},
    "programs": {"ch-run": "/usr/bin/ch-run"},
    "setuid": [],
    "cgroups": {"version": "v2", "path": "/sys/fs/cgroup/job_1", "delegated": True, "controllers": ["memory"]},
    "limits": {"open_files": [1024, 524288], "processes": [4096, 4096], "stack": [8388608, None]},
    "memory": {"total": 64_000_000_000, "available": 60_000_000_000, "limit": None},
    "places": [
        {
            "path": "/dev/shm", "kind": "tmpfs", "bytes": 32_000_000_000, "free_bytes": 31_000_000_000,
            "free_inodes": 100000, "writable": True, "no_exec": False,
        }
    ],
    "ways": {
        "images": way("fuse"),
        "isolation": way("namespaces"),
        "tracing": way("ptrace"),
        "containers": way("rootless"),
        "scratch": way("tmpfs"),
    },
}  # fmt: skip


def node(**changes: Any) -> Abilities:
    return msgspec.convert({**copy.deepcopy(NODE), **changes}, Abilities)


def found(abilities: Abilities, check: str, images: list[ImageSize] | None = None) -> Finding:
    uses = Uses(images=images or [], containers=True, peers=True)
    return next(each for each in of_abilities(abilities, uses) if each.check == check)


def test_a_node_that_can_everything_has_no_warning() -> None:
    assert {each.state for each in of_abilities(node(), Uses(containers=True, peers=True))} == {"ok"}


def test_a_lack_of_what_the_site_does_not_use_is_no_warning() -> None:
    ways = {
        **NODE["ways"],
        "images": way("unpack", why="no /dev/fuse", cost="images are unpacked into memory"),
        "tracing": way("none", why="no ptrace", cost="no profile is made here"),
        "containers": way("none", why="no user namespace inside a slot's", cost="no container starts"),
    }
    groups = {**NODE["cgroups"], "delegated": False}
    poor = node(ways=ways, cgroups=groups, address="127.0.0.1")
    assert {each.state for each in of_abilities(poor, Uses())} == {"ok"}
    image = ImageSize("release", 1, 2)
    warned = {each.check for each in of_abilities(poor, Uses([image], True, True)) if each.state == "warn"}
    assert warned == {"images", "containers", "node to node"}


def test_unpacked_images_cost_memory_in_megabytes_of_the_worst_image() -> None:
    ways = {
        **NODE["ways"],
        "images": way("unpack", why="no squashfuse", cost="images are unpacked into memory"),
    }
    images = [ImageSize("small", 10_000_000, 20_000_000), ImageSize("release", 500_000_000, 1_700_000_000)]
    finding = found(node(ways=ways), "images", images)
    assert finding.state == "warn"
    assert "no squashfuse" in finding.found
    assert "`release` needs 1200 MB more per node" in finding.hint


@pytest.mark.parametrize(
    ("changes", "check", "said"),
    [
        ({"places": []}, "/dev/shm", "there is none"),
        ({"places": [{**NODE["places"][0], "kind": "ext4"}]}, "/dev/shm", "not memory"),
        ({"places": [{**NODE["places"][0], "no_exec": True}]}, "/dev/shm", "noexec"),
        ({"places": [{**NODE["places"][0], "free_bytes": 1000}]}, "/dev/shm", "1 kB free"),
        ({"limits": {"open_files": [256, 256]}}, "open files", "limit 256"),
        ({"limits": {"processes": [100, 100]}}, "processes", "limit 100"),
        ({"limits": {"stack": [65536, 65536]}}, "stack", "deep recursion"),
        ({"tried": {"tcp": {"ok": False, "why": "refused"}}}, "node to node", "refused"),
        ({"address": "127.0.0.1"}, "node to node", "loopback"),
    ],
)
def test_each_lack_is_a_warning_with_a_way_out(changes: dict[str, Any], check: str, said: str) -> None:
    finding = found(node(**changes), check)
    assert finding.state == "warn"
    assert said in finding.found
    assert finding.hint
    settings = {key.key for key in describe(SiteConfig)}
    assert settings.issuperset(re.findall(r"`([\w.]+) = ", finding.hint))


def test_undelegated_control_groups_are_told_with_their_cost() -> None:
    groups = {**NODE["cgroups"], "delegated": False}
    assert "sampled" in found(node(cgroups=groups), "cgroups").found


def test_another_programs_output_is_an_error_that_quotes_it() -> None:
    with pytest.raises(SiteError, match="unknown command") as caught:
        parse_abilities("tidemill-node: unknown command: `doctor`")
    assert caught.value.hint is not None
    with pytest.raises(SiteError, match="format 2"):
        parse_abilities(msgspec.json.encode({**NODE, "format": 2}))
