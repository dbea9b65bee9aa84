"""The words before an application's executable that start it in a container. Pure; runs nothing.

Sources: apptainer-exec(1) 1.3 and SingularityCE 3.11 user guide ("Environment and Metadata", "Bind Paths"); ch-run(1)
0.31 (run for real); podman-run(1) 4.3 (run for real); podman-hpc README 1.1; shifter(1) of Shifter 18.03. Which of
these were run for real, and what each refuses, stands in docs/software-environments.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tidemill.config.site import ContainerRuntime
from tidemill.errors import UnfitError
from tidemill.model.application import Application, Container, Mode, Runtime

OWN_VARIABLES = (
    *("HOME", "TMPDIR", "PYTHONPATH", "PYTHONSAFEPATH"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)
"""What slot and site add to a payload's environment besides TIDEMILL_*; PATH is the image's own."""
DESCRIPTORS = 2  #: of the range protocol: 3 and 4
PODMANS = (Runtime.PODMAN, Runtime.PODMAN_HPC)
INNER_ROOT = ("/usr/bin/unshare", "--user", "--map-root-user", "--mount")
"""podman 4.3 copies the map of the user namespace that it is in, and then fails to become user 0, whom a slot's does
not hold ("cannot setresgid: Invalid argument"): it gets one in which it is user 0."""

_NAME = re.compile(r"[A-Za-z0-9][!-~]*")
_DIGEST = re.compile(r"(?P<name>[^@]+)@(?P<digest>sha256:[0-9a-f]{64})")


class ContainerImage(NamedTuple):
    """Where a container's tree comes from: `path` on the file system, or `name` for the runtime's own store."""

    path: str
    name: str
    digest: str  #: `sha256:...`, empty for a directory


def parse_image(text: str) -> ContainerImage | None:
    """The parts of `image`; None where a name or digest is missing, or where a runtime would read an option."""
    match = _DIGEST.fullmatch(text)
    name, digest = (match["name"], match["digest"]) if match else (text, "")
    if not name.isprintable():
        return None
    if name.startswith("/"):
        return ContainerImage(name, "", digest)
    return ContainerImage("", name, digest) if digest and _NAME.fullmatch(name) else None


def wrap_words(app: Application, runtime: ContainerRuntime, *, namespaces: bool = True) -> list[str]:
    """What stands before the executable; `{work}`, `{tmp}` and `{home}` are filled in on the node. `namespaces`: slots
    have them, if the kernel gives any; then a set-user-id program gains nothing in them, and Apptainer is rootless."""
    container = app.container
    assert container is not None, "only applications with a container have words"
    image = parse_image(container.image)
    assert image is not None, "the application was checked"
    if namespaces and container.runtime is Runtime.APPTAINER:
        runtime = msgspec.structs.replace(runtime, options=["--userns", *runtime.options])
    words = _MAKERS[container.runtime](app, container, image, runtime)
    return [*INNER_ROOT, *words] if namespaces and container.runtime in PODMANS else words


def environment_of(container: Container, user: Callable[[], str], uid: int) -> dict[str, str]:
    """The variables that a runtime itself needs in a payload's environment: ch-run does not start without USER (0.31),
    podman needs a sign that its user namespace exists. Raises UnfitError if USER is needed and `user` finds no name."""
    if container.runtime is Runtime.CHARLIECLOUD:
        try:
            return {"USER": user()}
        except (KeyError, OSError) as error:
            raise UnfitError(
                f"Charliecloud needs the name of user {uid}, and the password database has none",
                hint="set LOGNAME where the agent starts",
            ) from error
    if container.runtime in PODMANS:
        return {"_CONTAINERS_USERNS_CONFIGURED": "done", "_CONTAINERS_ROOTLESS_UID": str(uid)}
    return {}


def _apptainer(
    app: Application, container: Container, image: ContainerImage, runtime: ContainerRuntime
) -> list[str]:
    return [
        *runtime.command,
        "exec",
        "--home={home}",
        "--pwd={work}",  # of all versions: since Apptainer 1.2 and SingularityCE 4 also `--cwd`
        "--bind={tmp}:{tmp}",
        *(f"--bind={each}" for each in container.bind),
        *(["--nv"] if container.gpu else []),
        *runtime.options,
        *container.options,
        image.path or f"{image.name}@{image.digest}",
    ]


def _shifter(
    app: Application, container: Container, image: ContainerImage, runtime: ContainerRuntime
) -> list[str]:
    return [
        *runtime.command,
        f"--image=id:{image.digest.removeprefix('sha256:')}",
        "--workdir={work}",
        "--volume={tmp}:{tmp}",
        *(f"--volume={each}" for each in container.bind),
        f"--module={'gpu' if container.gpu else 'none'}",
        *runtime.options,
        *container.options,
    ]


def _podman(
    app: Application, container: Container, image: ContainerImage, runtime: ContainerRuntime
) -> list[str]:
    names = [*OWN_VARIABLES, *app.environment, *app.pass_environment]
    gpu = "--gpu" if container.runtime is Runtime.PODMAN_HPC else "--device=nvidia.com/gpu=all"
    return [
        *runtime.command,
        "run",
        "--rm",
        "--pull=never",
        "--network=host",
        "--cgroups=disabled",
        "--log-driver=none",
        *([f"--preserve-fds={DESCRIPTORS}"] if app.mode is Mode.RANGE else []),
        "--workdir={work}",
        "--volume={tmp}:{tmp}",
        *(f"--volume={_volume(each)}" for each in container.bind),
        "--env=TIDEMILL_*",
        *(f"--env={name}" for name in dict.fromkeys(names)),
        *([gpu] if container.gpu else []),
        *runtime.options,
        *container.options,
        *(["--rootfs", image.path] if image.path else ["--entrypoint=", f"{image.name}@{image.digest}"]),
    ]


def _volume(bind: str) -> str:
    """podman needs source and target: `PATH` alone would be a volume of its own there."""
    source, colon, rest = bind.partition(":")
    if not colon:
        return f"{source}:{source}"
    return f"{source}:{source}:{rest}" if rest in ("ro", "rw") else bind


def _charliecloud(
    app: Application, container: Container, image: ContainerImage, runtime: ContainerRuntime
) -> list[str]:
    return [
        *runtime.command,
        "--cd={work}",
        "--set-env=HOME={home}",
        *(f"--bind={_plain(each)}" for each in container.bind),
        *runtime.options,
        *container.options,
        image.path,
        "--",
    ]


def _plain(bind: str) -> str:
    """ch-run binds are as writable as their sources: it has no word for it."""
    return bind.removesuffix(":ro").removesuffix(":rw")


_MAKERS = {
    Runtime.APPTAINER: _apptainer,
    Runtime.SHIFTER: _shifter,
    Runtime.PODMAN: _podman,
    Runtime.PODMAN_HPC: _podman,
    Runtime.CHARLIECLOUD: _charliecloud,
}
