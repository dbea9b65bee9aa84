"""Images of the site's applications: names in application files become what pilots receive. Knows no fleet.

The bytes of each pack are compared with its name once per agent and pack, and again when the file looks different,
large ones beside the agent's tick (`digest`); nodes compare the whole image's digest before they show it. Recipes are
read again when they look different: they have up to a million pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidemill.errors import ConfigError, SiteError, TidemillError, is_transient
from tidemill.image.areas import check_areas, is_below, why_not_beside
from tidemill.image.recipe import use_of
from tidemill.image.reference import PINNED, resolve
from tidemill.model.quantities import digest_text
from tidemill.site.applications.checksums import Digests
from tidemill.wire.staged import ImageUse

IMAGES_MAX = 16
"""Of one application: each is a mount of its own in every slot."""

FOLDER = "images"


class ApprovedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image as it was when the application was read. `named`: as the application names it."""

    named: str
    use: ImageUse
    recipe: str  #: its path
    packs: list[str]  #: paths of those that it needs


def resolve_images(
    named: Sequence[str], store: Path, digest_of: Callable[[str], str], *, site: Path | None
) -> list[ApprovedImage]:
    """The images of an application: there, whole, and of areas that do not overlap. `site`: its directory, which no
    area may hold. Raises ConfigError, SiteError."""
    if len(named) > IMAGES_MAX:
        raise ConfigError(f"{len(named)} images are more than {IMAGES_MAX}")
    result = [_approved(text, store) for text in named]
    for number, image in enumerate(result):
        check_areas(image.use.areas)
        why = why_not_beside(image.use.areas, str(site)) if site is not None else None
        if why is not None:
            raise ConfigError(f"image `{image.named}`: {why}", hint="build it of narrower areas: --area")
        for other in result[:number]:
            _refuse_overlap(image, other)
        check_bytes(image, digest_of)
    return result


def _approved(named: str, store: Path) -> ApprovedImage:
    path, recipe = resolve(named, store)
    packs = sorted(str(path.parent / pack) for pack in recipe.packs())
    return ApprovedImage(named=named, use=use_of(recipe, path.parent), recipe=str(path), packs=packs)


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
    for path in image.packs:
        wanted = f"sha256:{Path(path).stem}"
        found = digest_of(path)
        if found != wanted:
            raise SiteError(
                f"image `{_name(image)}`: pack `{path}` has digest {digest_text(found)}, its name says another one",
                hint="it was changed or cut: build the image again",
                transient=False,
            )


def _name(image: ApprovedImage) -> str:
    """How the application names it, without the digest."""
    return image.named.partition(PINNED)[0]


def why_changed(image: ApprovedImage, store: Path, digests: Digests) -> str | None:
    """Why an image differs from what it was when the application was read; None = it does not. Raises SiteError if
    the image cannot be checked now."""
    try:
        found = digests.cached(image.recipe, lambda: resolve(image.named, store)[1].file.sha256)
        check_bytes(image, digests.digest)
    except TidemillError as error:
        if is_transient(error):
            raise
        return error.message
    if found != image.use.file.sha256:
        approved = digest_text(image.use.file.sha256)
        return f"image `{_name(image)}` has digest {digest_text(found)}, approved is {approved}"
    return None
