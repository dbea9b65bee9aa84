"""What an application's own file names, and what its slot shows for that. Looks at links of the file system only.

Slots hide /tmp, and on sites that run jobs of others home directories and Tidemill's installation. What is below those
and is named by the site's staff comes back: the program with its installation, constant arguments and variables that
are paths, what a container binds, `show` and `write`. A submitter's values are not asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.config.hidden import TMP, why_hidden
from tidemill.config.site import SiteConfig
from tidemill.model.application import Application
from tidemill.site.applications.templates import Template
from tidemill.site.setup.homes import home_veils
from tidemill.wire.node import NamedPaths

LINKS_MAX = 40
"""As many symbolic links as the kernel follows, path_resolution(7)."""


class Places(NamedTuple):
    """Directories that slots hide."""

    hiding: list[Path]  #: what is named in them comes back: /tmp, home directories
    private: list[Path]  #: a program in them comes back alone: the site directory

    def hold(self, path: Path) -> bool:
        """Whether slots hide this path."""
        return any(path.is_relative_to(root) for root in (*self.hiding, *self.private))


def places_of(config: SiteConfig, site_dir: Path) -> Places:
    """What slots of this site hide."""
    private = [site_dir.absolute(), site_dir.resolve(), *config.mask]
    return Places([TMP, *(home_veils() if config.serves_others else [])], private)


def named_paths(
    app: Application, config: SiteConfig, templates: Sequence[Template], places: Places
) -> NamedPaths:
    """What slots of this application show besides what all show."""
    show: list[Path] = []
    if app.container is None:
        for file in (app.executable, app.script):
            if file is not None:
                show += [around(each, places) for each in chain_of(Path(file))]
    show += _mentioned([*(_literal(each) for each in templates), *app.environment.values()], places)
    bound = _bound(app, config)
    show += [path for path, is_written in bound if not is_written]
    write = [path for path, is_written in bound if is_written]
    return NamedPaths(
        # where nothing is hidden nothing is to be shown: applications share slots then
        show=_texts(each for each in [*show, *app.show] if places.hold(each)),
        write=_texts(each for each in [*write, *app.write] if config.serves_others or places.hold(each)),
        may_mount=app.mounts or app.container is not None,
    )


def chain_of(file: Path) -> Iterator[Path]:
    """A file and all that links lead to on the way to it: each must be seen for it to be found."""
    for _ in range(LINKS_MAX):
        yield file
        try:
            file = Path(os.path.normpath(file.parent / file.readlink()))
        except OSError:
            break
    yield Path(os.path.realpath(file))


def around(file: Path, places: Places) -> Path:
    """What is shown for a program: its directory, or the one above where that is named `bin`, so that a relocatable
    installation is whole. Never what holds a home or /tmp itself, nor anything private: then the file alone."""
    roots = [root for root in places.hiding if file.is_relative_to(root)]
    if not roots or any(file.is_relative_to(root) for root in places.private):
        return file
    inner = max(roots, key=lambda root: len(root.parts))
    whole = file.parent.parent if file.parent.name == "bin" else file.parent
    for directory in (whole, file.parent):
        if directory != inner and directory.is_relative_to(inner):
            return directory
    return file


def _mentioned(texts: Iterable[str], places: Places) -> list[Path]:
    """Paths of places that are hidden, in constant arguments and values of variables."""
    words = (word for text in texts for word in text.split(":"))
    paths = [Path(word) for word in words if word.startswith("/") and "\0" not in word]
    return [
        path
        for path in paths
        if places.hold(path)
        and not any(root.is_relative_to(path) for root in (*places.hiding, *places.private))
        and not any(path.is_relative_to(root) for root in places.private)
        and why_hidden(path) is None
    ]


def _literal(template: Template) -> str:
    return "" if template.names() else "".join(text for text, _ in template.pieces)


def _bound(app: Application, config: SiteConfig) -> list[tuple[Path, bool]]:
    """What the container's runtime needs, and whether it is written: its image, what is bound, and where the runtime
    keeps what it knows, which options of the site name."""
    container = app.container
    runtime = None if container is None else config.containers.get(container.runtime.value)
    if container is None or runtime is None:
        return []
    found = [(Path(container.image.split("@", 1)[0]), False), (runtime.program, False)]
    for bind in container.bind:
        found.append((Path(bind.split(":", 1)[0]), not bind.endswith(":ro")))
    for word in [*runtime.command[1:], *runtime.options, *container.options]:
        value = word.partition("=")[2] if word.startswith("-") else word
        found.append((Path(value.split(":", 1)[0]), True))
    return [(path, write) for path, write in found if path.is_absolute() and why_hidden(path) is None]


def _texts(paths: Iterable[Path]) -> list[str]:
    """In one order, so that applications with the same needs share slots."""
    return sorted({str(path) for path in paths})
