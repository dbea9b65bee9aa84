"""What goes together: tracing, namespaces, images, widths and protocols with containers, CVMFS and modules. Pure.

docs/software-environments.md shows the table that this makes; `check` refuses an application with the reason of its
cell.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.config.site import ContainerRuntime
from tidemill.model.application import Application, Mode, Runtime
from tidemill.site.applications.containers import parse_image

ASPECTS = ("trace", "namespaces", "no namespaces", "images", "range mode", "several nodes")
"""Rows: tracing payloads; slots with namespaces (`isolation = "auto"`) and without (`"off"`); images of Tidemill; the
range protocol's descriptors; payloads that a launcher starts on several nodes."""

KINDS = (
    "apptainer",
    "podman",
    "podman-hpc",
    "charliecloud",
    "setuid apptainer",
    "shifter",
    "cvmfs",
    "modules",
)
"""Columns: rootless runtimes, then those with a set-user-id program, then trees and environments."""

SETUID = ("setuid apptainer", "shifter")
CONTAINERS = KINDS[:6]


class Cell(NamedTuple):
    """`works`, `differently` or `refused`; how, or why."""

    state: str
    why: str = ""


WORKS = Cell("works")
_NOWHERE = "without namespaces nothing can be shown at its own path"
_NO_PRIVILEGES = (
    "set-user-id programs gain nothing in a slot (no_new_privs, and only one user in its user namespace); the site may "
    'set `isolation = "off"`'
)


def cell(aspect: str, kind: str) -> Cell:
    """The verdict of one cell."""
    found = _CELLS.get((aspect, kind))
    if found is not None:
        return found
    if kind in SETUID and aspect in ("trace", "namespaces"):
        return _OF_SETUID[aspect]
    if kind in CONTAINERS:
        return _OF_CONTAINERS.get(aspect, WORKS)
    return WORKS


_OF_SETUID = {
    "trace": Cell(
        "refused", "the kernel does not allow tracing of a set-user-id program that keeps its rights"
    ),
    "namespaces": Cell("refused", _NO_PRIVILEGES),
}

_OF_CONTAINERS = {
    "trace": Cell("differently", "paths are those inside the container"),
    "no namespaces": Cell(
        "differently", "/tmp and /dev/shm are the node's; the slot's directories are bound"
    ),
    "images": Cell("differently", "its areas must be among `bind`: a container has a root of its own"),
    "several nodes": Cell("refused", "the launcher's ranks would need the slot's directories on every node"),
}

_CELLS = {
    ("no namespaces", "setuid apptainer"): WORKS,
    ("no namespaces", "shifter"): WORKS,
    ("images", "shifter"): Cell("refused", _NOWHERE),
    ("images", "setuid apptainer"): Cell("refused", _NOWHERE),
    ("namespaces", "podman"): Cell(
        "differently",
        "one user only: no entries of yours in /etc/subuid, foreign files in the container have the overflow owner",
    ),
    ("namespaces", "podman-hpc"): Cell(
        "differently",
        "one user only: no entries of yours in /etc/subuid, foreign files in the container have the overflow owner",
    ),
    ("range mode", "podman"): Cell("differently", "`--preserve-fds=2` hands the protocol's descriptors on"),
    ("range mode", "podman-hpc"): Cell(
        "differently", "`--preserve-fds=2` hands the protocol's descriptors on"
    ),
    ("images", "cvmfs"): Cell(
        "differently", "an image is laid over the repository's path; what it lacks is read there"
    ),
    ("trace", "modules"): Cell(
        "differently", "the shell and `module` are not in the profile: they ran before"
    ),
    ("images", "modules"): Cell(
        "differently", "trace with the set-up: then what the modules name is in the image"
    ),
}


def kind_of(runtime: Runtime, configured: ContainerRuntime | None, isolation: str) -> str:
    """The column of a runtime as the site has it. Apptainer uses its set-user-id program where it has one and that
    gains rights, unless an option of the site says `--userns`."""
    is_rootless = configured is not None and not {"--userns", "-u"}.isdisjoint(configured.options)
    if runtime is Runtime.APPTAINER and isolation == "off" and not is_rootless:
        return "setuid apptainer"
    return runtime.value


def may_trace(app: Application, configured: ContainerRuntime | None, isolation: str) -> bool:
    """Whether payloads of the application can be traced at all. `isolation` as in site.toml."""
    if app.container is None:
        return True
    return cell("trace", kind_of(app.container.runtime, configured, isolation)).state != "refused"


def check(app: Application, configured: ContainerRuntime | None, isolation: str) -> list[str]:
    """Why the application cannot run as it is written, in words; nothing where it can. `configured`: the site's
    runtime, None where none is known; `isolation` as in site.toml."""
    if app.container is None:
        return []
    kind = kind_of(app.container.runtime, configured, isolation)
    aspects = ["no namespaces" if isolation == "off" else "namespaces"]
    if app.mode is Mode.RANGE:
        aspects.append("range mode")
    if app.images:
        aspects.append("images")
    if app.ranks_max:
        aspects.append("several nodes")
    verdicts = {aspect: cell(aspect, kind) for aspect in aspects}
    if app.images and isolation == "off":
        verdicts["images"] = Cell("refused", _NOWHERE)
    found = [f"{aspect}: {each.why}" for aspect, each in verdicts.items() if each.state == "refused"]
    return [*found, *_of_image(app)]


def _of_image(app: Application) -> list[str]:
    container = app.container
    assert container is not None, "asked for containers only"
    image = parse_image(container.image)
    if image is None:
        return ["image: a name without a digest may be another image tomorrow; write `NAME@sha256:...`"]
    if container.runtime is Runtime.CHARLIECLOUD and not image.path:
        return ["image: ch-run takes a directory (or a squashfs file), not a name: `ch-convert` makes one"]
    if container.runtime is Runtime.SHIFTER and image.path:
        return ["image: Shifter runs images of its gateway only: `shifterimg pull`, then `NAME@sha256:ID`"]
    if container.runtime in (Runtime.PODMAN, Runtime.PODMAN_HPC) and image.path and image.digest:
        return ["image: podman runs a directory or an image of its store, no file: `podman load` it"]
    return []


def table() -> str:
    """All cells as Markdown: `yes` or `no`, with the numbers of the notes below, which say how and why."""
    notes: list[str] = []

    def shown(cell: Cell) -> str:
        if not cell.why:
            return "yes"
        if cell.why not in notes:
            notes.append(cell.why)
        return f"{'no' if cell.state == 'refused' else 'yes'} ({notes.index(cell.why) + 1})"

    lines = ["| | " + " | ".join(KINDS) + " |", "|---" * (len(KINDS) + 1) + "|"]
    lines += [
        f"| {aspect} | " + " | ".join(shown(cell(aspect, kind)) for kind in KINDS) + " |"
        for aspect in ASPECTS
    ]
    return "\n".join([*lines, "", *(f"{n}. {note}" for n, note in enumerate(notes, start=1))]) + "\n"
