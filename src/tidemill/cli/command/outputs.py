"""Outputs as they are typed: a file, or a directory (`plots/`) or pattern (`hist*.root`) as an archive. Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.command.inputs import check_utf8
from tidemill.cli.command.words import unused
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.model.job import Output

FILES_MAX = 4_096
"""Events whose outputs are delivered as files of their own, where nothing else is asked: a directory with more is slow
on network file systems, and each file is a metadata operation."""

STDOUT = "stdout"
_PLACE = re.compile(r"\{[^{}]*\}")
_PATTERN = re.compile(r"[*?\[]")
_OF_EVENT = re.compile(r"\{(event|first_event|last_event|seed)\}")


class TypedOutputs(NamedTuple):
    """`packed`: (archive, words for the shell) of outputs that are directories or patterns."""

    outputs: list[Output]
    packed: list[tuple[str, str]]

    @property
    def names(self) -> set[str]:
        """What a command may call them."""
        return {each.path for each in self.outputs}


def typed_outputs(paths: Sequence[str], *, as_files: bool) -> TypedOutputs:
    """Outputs of `run`. `as_files`: those of each event become files of their own, named as `PATH` says.

    Raises ConfigError.
    """
    from msgspec import UNSET

    from tidemill.model.job import Output, Pack

    result = TypedOutputs([], [])
    names = Counter(_base_name(path) for path in paths)
    for path in paths:
        check_utf8(path, what="output", hint="use a UTF-8 name; `sh -c` can rename what CMD leaves")
        if not path:
            raise ConfigError("--output: the path is empty", hint=f"--output {STDOUT}.txt")
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ConfigError(
                f"output `{path}` is outside the command's work directory", hint="write a relative path"
            )
        place = path
        if path.endswith("/") or _PATTERN.search(path):
            place = _archive_of(path, {each.path for each in result.outputs} | set(paths))
            result.packed.append((place, _shell_words(path)))
        is_shared = place == path and names[_base_name(path)] > 1
        known = "-".join(Path(path).parts) if is_shared else _base_name(place)
        name = _name(known, {each.name for each in result.outputs})
        result.outputs.append(Output(name=name, path=place, pack=Pack.FILES if as_files else UNSET))
    return result


def _archive_of(path: str, taken: set[str]) -> str:
    """The archive of a directory or pattern: `plots/` -> `plots.tar`, `out/hist*.root` -> `hist.tar`; `hist-2.tar`
    where another output has that name."""
    name = Path(path.rstrip("/")).name if path.endswith("/") else Path(path).name.partition(".")[0]
    stem = _PATTERN.sub("", name).strip("-._]") or "outputs"
    return unused(stem, taken, ending=".tar")


def _shell_words(path: str) -> str:
    """The paths of an archive for the shell, which fills in patterns. Raises ConfigError for templates of text."""
    foreign = [each for each in _PLACE.findall(path) if not _OF_EVENT.fullmatch(each)]
    if foreign:
        raise ConfigError(
            f"output `{path}`: a directory or pattern may hold `{{event}}` and `{{seed}}`, not `{foreign[0]}`"
        )
    if path.endswith("/"):
        return shlex.quote(path.rstrip("/"))
    pieces = re.split(r"([*?]|\[[^]]*\])", path)
    return "".join(piece if k % 2 else shlex.quote(piece) if piece else "" for k, piece in enumerate(pieces))


def _base_name(path: str) -> str:
    return Path(path).name


def _name(name: str, taken: set[str]) -> str:
    plain = re.sub(r"[^A-Za-z0-9._+-]", "-", _PLACE.sub("", name))
    stem, dot, suffix = plain.partition(".")
    name = (stem.strip("-._+") + dot + suffix).strip("-._+")[:90] or "output"
    if name == STDOUT:
        name = "stdout-file"
    return unused(name, taken)
