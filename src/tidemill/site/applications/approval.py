"""Applications in containers: whether this site lets them be what they say, and the files that approve them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemill.config import load
from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.errors import ConfigError, SiteError, did_you_mean, is_transient
from tidemill.model.application import Application, Container, Runtime
from tidemill.model.quantities import digest_text
from tidemill.site.applications.checksums import check_digest
from tidemill.site.applications.compatibility import check
from tidemill.site.applications.containers import ContainerImage, parse_image
from tidemill.site.applications.setup_lines import check_setup

LINKS_MAX = 40
"""As many symbolic links as the kernel follows, path_resolution(7)."""

_RESERVED = (
    "--preserve-fds",
    "--env-host",
    "--privileged",
    "--writable",
    "--write",
    "-w",
    "--detach",
    "-d",
    "--join",
)
"""Options that would undo what slots rely on, or that the words before them say already."""


def site_of(path: Path) -> SiteConfig | None:
    """The site that an application file belongs to, None where it lies in no site's `apps`."""
    config = path.absolute().parent.parent / "site.toml"
    return load(config, SiteConfig) if config.is_file() else None


def runtime_of(container: Container, site: SiteConfig) -> ContainerRuntime:
    """The site's program for it. Raises ConfigError where the site allows none."""
    name = container.runtime.value
    result = site.containers.get(name)
    if result is None:
        allowed = ", ".join(sorted(site.containers)) or "none"
        raise ConfigError(
            f"this site does not allow container runtime `{name}`; it allows: {allowed}",
            hint=f'the site\'s staff may: in site.toml, [containers.{name}], command = ["/usr/bin/..."]',
        )
    return result


def check_contained(
    path: Path, app: Application, areas: Sequence[str], *, site: SiteConfig | None = None
) -> None:
    """Refuse an application whose `container` or `setup` cannot work, with the reason. `areas`: of its images; `site`:
    if not the one in whose `apps` it lies. Raises ConfigError."""
    wrong = check_setup(app)
    if wrong:
        raise ConfigError(f"{path}: `setup`: {wrong[0]}")
    if app.container is None:
        return
    site = site or site_of(path)
    configured = None
    if site is not None:
        _check_names(site, path)
        try:
            configured = runtime_of(app.container, site)
        except ConfigError as error:
            raise ConfigError(f"{path}: `container.runtime`: {error.message}", hint=error.hint) from error
    refused = check(app, configured, "auto" if site is None else site.isolation)
    if refused:
        raise ConfigError(
            f"{path}: `container`: {refused[0]}",
            hint="docs/software-environments.md shows what goes together",
        )
    _check_words(path, app.container, areas)


def _check_names(site: SiteConfig, path: Path) -> None:
    known = [each.value for each in Runtime]
    for name in site.containers:
        if name not in known:
            raise ConfigError(
                f"{path.absolute().parent.parent / 'site.toml'}: `containers.{name}` is not a known runtime",
                hint=did_you_mean(name, known),
            )


def _check_words(path: Path, container: Container, areas: Sequence[str]) -> None:
    sources = []
    for bind in container.bind:
        parts = bind.split(":")
        if (
            len(parts) > 3
            or not all(part.startswith("/") or part in ("ro", "rw") for part in parts)
            or "," in bind
        ):
            raise ConfigError(
                f"{path}: `container.bind`: `{bind}` is not valid",
                hint="`/path`, `/source:/target`, with `:ro` where it must not be written",
            )
        sources.append(Path(parts[0]))
    for option in container.options:
        if not option.startswith("-") or option.split("=")[0] in _RESERVED:
            raise ConfigError(
                f"{path}: `container.options`: `{option}` is not allowed",
                hint="each begins with `-`, its value behind `=`; what the slot relies on stays as it is",
            )
    for area in areas:
        if not any(Path(area).is_relative_to(source) for source in sources):
            raise ConfigError(
                f"{path}: `container.bind` lacks `{area}`, an area of the application's images",
                hint="a container has a root of its own: what is not bound is not seen in it",
            )


def container_files(
    path: Path, app: Application, digest_of: Callable[[str], str]
) -> tuple[dict[str, str], str]:
    """Files of the image that were approved, with their digests, and the digest that stands for the whole. Raises
    ConfigError."""
    assert app.container is not None, "asked for containers only"
    image = parse_image(app.container.image)
    if image is None:
        raise ConfigError(
            f"{path}: `container.image` `{app.container.image}` has no digest",
            hint="`/directory`, `/file@sha256:...` or `name@sha256:...`",
        )
    for key, file in (("executable", app.executable), ("script", app.script)):
        if file is not None and not file.startswith("/"):
            raise ConfigError(f"{path}: `{key}` is `{file}`, expected an absolute path in the image")
    if not image.path:
        _refuse_digests(path, app, "an image of the runtime's store")
        return {}, image.digest
    if os.path.isdir(image.path):  # noqa: PTH112 -- Path.is_dir raises where we may not look
        return _of_directory(path, app, image, digest_of)
    _refuse_digests(path, app, "an image file")
    return _of_file(path, image, digest_of)


def _refuse_digests(path: Path, app: Application, what: str) -> None:
    if app.digest is not None or app.script_digest is not None:
        raise ConfigError(
            f"{path}: `digest` and `script_digest` cannot be compared in {what}",
            hint="leave them out: the image's own digest says what is in it",
        )


def _of_file(
    path: Path, image: ContainerImage, digest_of: Callable[[str], str]
) -> tuple[dict[str, str], str]:
    try:
        found = digest_of(image.path)
    except SiteError as error:
        if error.transient:
            raise
        raise ConfigError(f"{path}: `container.image`: {error}") from error
    if found != image.digest:
        approved = (
            digest_text(image.digest) if image.digest else "none: an image that is not a directory needs one"
        )
        raise ConfigError(
            f"{path}: `container.image` `{image.path}` has digest {digest_text(found)}, approved is {approved}",
            hint=f'image = "{image.path}@{found}"',
        )
    return {image.path: found}, found


def _of_directory(
    path: Path, app: Application, image: ContainerImage, digest_of: Callable[[str], str]
) -> tuple[dict[str, str], str]:
    if image.digest:
        raise ConfigError(f"{path}: `container.image` `{image.path}` is a directory: it has no digest")
    files: dict[str, str] = {}
    for key, file, wanted in (
        ("executable", app.executable, app.digest),
        ("script", app.script, app.script_digest),
    ):
        if file is None:
            continue
        check_digest(path, key, wanted)
        try:
            real = str(inside(Path(image.path), file))
            found = digest_of(real)
        except (OSError, SiteError) as error:
            if is_transient(error):
                raise
            raise ConfigError(f"{path}: `{key}` in `{image.path}`: {error}") from error
        if wanted is not None and found != wanted:
            raise ConfigError(
                f"{path}: `{key}` `{file}` in `{image.path}` has digest {digest_text(found)}, approved is "
                f"{digest_text(wanted)}",
                hint="it was changed: approve it again, or put the old one back",
            )
        files[real] = found
    return files, next(iter(files.values()))


def inside(root: Path, file: str) -> Path:
    """Where a path of a container's tree is outside of it; links lead where they would lead inside. Raises OSError."""
    left = [part for part in file.split("/") if part]
    at: list[str] = []
    links = 0
    while left:
        part = left.pop(0)
        if part == "..":
            at = at[:-1]
            continue
        here = root.joinpath(*at, part)
        if part != "." and here.is_symlink():
            links += 1
            if links > LINKS_MAX:
                raise OSError(f"`{file}` has more than {LINKS_MAX} links")
            target = str(here.readlink())
            at = [] if target.startswith("/") else at
            left = [each for each in target.split("/") if each] + left
        elif part != ".":
            at.append(part)
    return root.joinpath(*at)
