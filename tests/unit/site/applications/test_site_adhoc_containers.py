"""Which runtime starts a person's own command in an image, and where none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.errors import UnfitError
from tidemill.model.application import Runtime
from tidemill.site.applications.adhoc_containers import adhoc_container

DIGEST = "sha256:" + "0" * 64


def site(**more: object) -> SiteConfig:
    return SiteConfig(name="s", server="unix:/x", **more)  # type: ignore[arg-type]


def installed(*programs: str):  # type: ignore[no-untyped-def]
    return lambda name: f"/usr/bin/{name}" if name in programs else None


def test_the_sites_own_runtime_comes_before_what_is_found(tmp_path: Path) -> None:
    own = {"charliecloud": ContainerRuntime(command=["/opt/ch-run"], options=["--x"])}
    container, runtime = adhoc_container(str(tmp_path), site(containers=own), which=installed("apptainer"))
    assert (container.runtime, runtime.program) == (Runtime.CHARLIECLOUD, Path("/opt/ch-run"))


def test_trees_files_and_names_have_their_runtimes(tmp_path: Path) -> None:
    file = tmp_path / "x.sif"
    file.touch()
    every = installed("singularity", "ch-run", "podman")
    kinds = {str(tmp_path): "singularity", str(file): "singularity", f"reco@{DIGEST}": "podman"}
    for image, program in kinds.items():
        assert adhoc_container(image, site(), which=every)[1].program == Path("/usr/bin") / program
    assert (
        adhoc_container(str(tmp_path), site(), which=installed("ch-run"))[0].runtime is Runtime.CHARLIECLOUD
    )


@pytest.mark.parametrize(
    ("image", "more", "said"),
    [
        ("reco:7", {}, "neither an absolute path nor a name with its digest"),
        ("/no/such/image", {}, "at this site, image `/no/such/image` does not exist"),
        ("/", {}, "no runtime for image `/` is installed here: looked for `apptainer`, `ch-run`, `podman`"),
        ("/", {"shared": True}, "this site serves others"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(image: str, more: dict[str, object], said: str) -> None:
    with pytest.raises(UnfitError, match=said):
        adhoc_container(image, site(**more), which=installed())
