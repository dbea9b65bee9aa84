"""Images of the site's applications: names in application files become what pilots are told. Knows no fleet.

The bytes of each pack are compared with its name once per agent and pack, and again when the file looks different,
large ones beside the agent's tick (`digest`); nodes compare the whole image's digest before they show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.image.areas import check_areas, why_not_beside
from tidemill.image.recipe import use_of
from tidemill.image.reference import resolve
from tidemill.image.workingset import is_below
from tidemill.site.digest import PendingError
from tidemill.wire.staged import ImageUse

IMAGES_MAX = 16
"""Of one application: each is a mount of its own in every slot."""

FOLDER = "images"


class ApprovedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image as it was when the application was read. `named`: as the application names it."""

    named: str
    use: ImageUse


def resolve_images(
    named: Sequence[str], store: Path, digest_of: Callable[[str], str], *, site: Path | None
) -> list[ApprovedImage]:
    """The images of an application: there, whole, and of areas that do not overlap. `site`: its directory, which no
    area may hold. Raises ConfigError, SiteError."""
    if len(named) > IMAGES_MAX:
        raise ConfigError(f"{len(named)} images are more than {IMAGES_MAX}")
    found = [
        ApprovedImage(named=text, use=use_of(recipe, path.parent))
        for text in named
        for path, recipe in [resolve(text, store)]
    ]
    for number, image in enumerate(found):
        check_areas(image.use.areas)
        why = why_not_beside(image.use.areas, str(site)) if site is not None else None
        if why is not None:
            raise ConfigError(f"image `{image.named}`: {why}", hint="build it of narrower areas: --area")
        for other in found[:number]:
            _refuse_overlap(image, other)
        check_bytes(image, digest_of)
    return found


def _refuse_overlap(image: ApprovedImage, other: ApprovedImage) -> None:
    for area in image.use.areas:
        for another in other.use.areas:
            if is_below(area, another) or is_below(another, area):
                raise ConfigError(
                    f"images `{other.named}` and `{image.named}` stand for the same directory: `{another}`, `{area}`",
                    hint="build one image of both: --profile and --tree may be repeated",
                )


def check_bytes(image: ApprovedImage, digest_of: Callable[[str], str]) -> None:
    """Compare the packs of an image with their names. Raises SiteError where one lacks or is another one."""
    for path in sorted({piece.path for piece in image.use.file.pieces}):
        wanted = f"sha256:{Path(path).stem}"
        found = digest_of(path)
        if found != wanted:
            raise SiteError(
                f"image `{image.named}`: pack `{path}` has digest {found}, expected is {wanted}",
                hint="it was changed or cut: build the image again",
                transient=False,
            )


def why_changed(image: ApprovedImage, store: Path, digest_of: Callable[[str], str]) -> str | None:
    """Why an image is not what it was when the application was read; None = it is. Raises PendingError."""
    try:
        _, recipe = resolve(image.named, store)
        check_bytes(image, digest_of)
    except PendingError:
        raise
    except TidemillError as error:
        return error.message
    if recipe.file.sha256 != image.use.file.sha256:
        return (
            f"image `{image.named}` has digest sha256:{recipe.file.sha256}, "
            f"approved is sha256:{image.use.file.sha256}"
        )
    return None
