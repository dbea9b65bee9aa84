"""The container in which a person's own command runs: the image as typed, the runtime that the site has or finds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.errors import UnfitError
from tidemill.files import why_unseen
from tidemill.model.application import Container, Runtime
from tidemill.site.applications.containers import parse_image

PROGRAMS = {
    Runtime.APPTAINER: ("apptainer", "singularity"),
    Runtime.CHARLIECLOUD: ("ch-run",),
    Runtime.PODMAN_HPC: ("podman-hpc",),
    Runtime.PODMAN: ("podman",),
}
"""In the order in which they are tried. Shifter's images are its own."""

OF_TREES = (Runtime.APPTAINER, Runtime.CHARLIECLOUD, Runtime.PODMAN)
OF_FILES = (Runtime.APPTAINER,)
OF_NAMES = (Runtime.PODMAN_HPC, Runtime.PODMAN)


def adhoc_container(
    text: str, site: SiteConfig, *, which: Callable[[str], str | None] = shutil.which
) -> tuple[Container, ContainerRuntime]:
    """The container of a command, and what starts it. Raises UnfitError with the reason."""
    if site.serves_others:
        raise UnfitError(
            "this site serves others: it runs containers of approved applications only",
            hint="`tidemill app list` shows them",
        )
    image = parse_image(text)
    if image is None:
        raise UnfitError(
            f"image `{text}` is neither an absolute path nor a name with its digest",
            hint="name a directory, a `.sif` file, or NAME@sha256:DIGEST",
        )
    why = why_unseen(Path(image.path)) if image.path else ""
    if why:
        raise UnfitError(f"at this site, image `{image.path}` {why}")
    fitting = OF_NAMES if image.name else OF_TREES if Path(image.path).is_dir() else OF_FILES
    for runtime in fitting:
        allowed = site.containers.get(runtime.value)
        if allowed is not None:
            return Container(image=text, runtime=runtime), allowed
    for runtime in fitting:
        found = next((path for name in PROGRAMS[runtime] if (path := which(name)) is not None), None)
        if found is not None:
            return Container(image=text, runtime=runtime), ContainerRuntime(command=[found])
    names = ", ".join(f"`{PROGRAMS[each][0]}`" for each in fitting)
    raise UnfitError(f"no runtime for image `{text}` is installed here: looked for {names}")
