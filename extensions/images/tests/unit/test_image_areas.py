"""Which areas a profile offers for an image, and trees as they are written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.errors import ConfigError
from tidemill.image.profile import Area, Mount, Profile, read_profile
from tidemill_images.areas import outermost, parse_tree, shared_areas

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "profiles"


@pytest.fixture
def profile() -> Profile:
    return read_profile(FIXTURES / "first.json")


def test_a_profile_offers_the_shared_file_systems_that_were_used(profile: Profile) -> None:
    assert shared_areas(profile) == ["/lustre", "/sw"]


def test_prefixes_that_were_asked_for_count_and_inner_ones_are_part_of_outer_ones(profile: Profile) -> None:
    mounts = [
        Mount(point="/", type="ext4"),
        Mount(point="/", type="ext4", prefix="/opt/sw"),
        Mount(point="/cvmfs/lab", type="fuse"),
        Mount(point="/cvmfs/lab/deep", type="fuse"),
        Mount(point="/proc", type="proc"),
        Mount(point="/nfs/unused", type="nfs4"),
        Mount(point="/dev/shared", type="nfs4"),
    ]
    names = ["/", "/opt/sw", "/cvmfs/lab", "/cvmfs/lab/deep", "/proc", "/dev/shared"]
    areas = [Area(area=name, ops=5, failed=0, files=1, so=0, py=0) for name in names]
    changed = msgspec.structs.replace(profile, mounts=mounts, areas=areas)
    assert shared_areas(changed) == ["/cvmfs/lab", "/opt/sw"]


def test_a_profile_without_shared_file_systems_tells_what_it_has(profile: Profile) -> None:
    changed = msgspec.structs.replace(profile, mounts=[Mount(point="/", type="ext4")])
    with pytest.raises(ConfigError, match=r"it has `/sw` \(15 operations\), `/` \(7 operations\)") as caught:
        shared_areas(changed)
    assert "--area" in str(caught.value.hint)


def test_areas_are_sorted_and_outermost() -> None:
    assert outermost(["/b", "/a/x", "/a", "/ab", "/b"]) == ["/a", "/ab", "/b"]


def test_a_tree_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert parse_tree(str(tmp_path / "a:b")).at == str(tmp_path / "a:b")
