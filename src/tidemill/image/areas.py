"""Which directories an image may stand for. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tidemill.errors import ConfigError

NEVER = {
    "/proc": "the kernel's view of processes",
    "/sys": "the kernel's view of devices",
    "/dev": "the devices of the node",
    "/tmp": "the payload's own: each slot has another one",
    "/run": "the state of the node's services",
}
"""What payloads have of their node, with the reason why no image may hide it."""


def is_below(path: str, top: str) -> bool:
    """Whether a path is this directory or in it."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def check_areas(areas: Sequence[str]) -> None:
    """Refuse areas that no image may stand for. Raises ConfigError."""
    if not areas:
        raise ConfigError("there is nothing to pack", hint="name --profile or --tree")
    for area in areas:
        why = why_not(area)
        if why is not None:
            raise ConfigError(
                f"area `{area}` cannot become an image: {why}",
                hint="name the directories of the software: --area",
            )


def why_not(area: str) -> str | None:
    """Why no image may stand for a directory; None = one may."""
    if not area.startswith("/") or os.path.normpath(area) != area:
        return "it is not a plain absolute path"
    if not area.isprintable():
        return "its name holds control characters or bytes that are not valid UTF-8"
    for path, why in NEVER.items():
        if is_below(area, path) or is_below(path, area):
            return f"`{path}` is {why}"
    return None


def why_not_beside(areas: Sequence[str], directory: str) -> str | None:
    """Why an image of these areas cannot be used by a site in `directory`; None = it can."""
    for area in areas:
        if is_below(area, directory):
            return f"its area `{area}` is in the site directory `{directory}`, which payloads do not see"
        if is_below(directory, area):
            return (
                f"its area `{area}` holds the site directory `{directory}`, which changes while payloads run"
            )
    return None
