"""Inputs as they are typed: files, URLs, patterns such as `data/*.root`, directories, names with spaces."""

from __future__ import annotations

import glob
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.command.words import unused
from tidemill.errors import ConfigError, SiteError
from tidemill.files import open_private
from tidemill.octets import is_utf8, shown

if TYPE_CHECKING:
    from tidemill.model.job import Input

MATCHES_MAX = 1_000
"""Inputs of a job, as `model.legal` has it."""

_PATTERN = re.compile(r"[*?\[]")
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]")


class TypedInputs(NamedTuple):
    """`links`: (name of an input, name that the command knows it by), where a file's own name cannot be the name of an
    input; `directories`: (name of an input, directory, name that the command knows it by) to be packed into an archive
    of the first name."""

    inputs: list[Input]
    links: list[tuple[str, str]]
    directories: list[tuple[str, Path, str]]

    @property
    def names(self) -> set[str]:
        """What a command may call them."""
        named = {each.name for each in self.inputs} | {known for _, known in self.links}
        return named | {known for _, _, known in self.directories}


def typed_inputs(texts: Sequence[str]) -> TypedInputs:
    """Inputs of `run`: `FILE`, `URL`, `NAME=FILE`, `PATTERN` or `DIRECTORY`. Raises ConfigError."""
    from tidemill.model.job import Input

    result = TypedInputs([], [], [])
    places: dict[str, str] = {}
    for text in texts:
        name, url = split_input(text)
        if not url:
            raise ConfigError(f"--input `{text}`: the path is empty", hint="write --input [NAME=]FILE")
        for each, place in _matches(name, url):
            if places.get(each) == place:
                continue  # a pattern and a name, or two patterns, that mean the same file
            if each in places:
                raise ConfigError(
                    f"inputs `{places[each]}` and `{place}` have the same name, `{each}`",
                    hint=f"--input NAME={place} gives one of them another name",
                )
            places[each] = place
            taken = {one.name for one in result.inputs}
            path = Path(place).expanduser()
            if ":" not in place.partition("/")[0] and path.is_dir():
                archive = _fit(f"{each}.tar", taken)
                result.directories.append((archive, path.absolute(), each))
                url = shown(str(path.absolute()))  # replaced by the path of its archive
                result.inputs.append(Input(name=archive, url=url))
                continue
            fit = _fit(each, taken)
            result.inputs.append(Input(name=fit, url=checked_url(place)))
            if fit != each:
                result.links.append((fit, each))
    if len(result.inputs) > MATCHES_MAX:
        raise ConfigError(
            f"there are {len(result.inputs)} inputs, a job may have {MATCHES_MAX}",
            hint="`--input DIRECTORY` brings a directory as one input; `--each LIST` gives each event its own file",
        )
    return result


def split_input(text: str) -> tuple[str, str]:
    """Name and place of `NAME=PLACE` or `PLACE`; an existing file whose name holds `=` is a place."""
    name, separator, url = text.partition("=")
    if separator and "/" not in name and ":" not in name and not Path(text).exists():
        return name, url
    return Path(text.rstrip("/")).name, text


def _matches(name: str, url: str) -> list[tuple[str, str]]:
    """(name, place) of what a pattern stands for, or of the one place."""
    if ":" in url.partition("/")[0] or not _PATTERN.search(url) or Path(url).exists():
        return [(name, url)]
    paths = sorted(path for path in glob.glob(str(Path(url).expanduser())) if Path(path).is_file())  # noqa: PTH207
    if not paths:
        raise ConfigError(
            f"no file matches `{url}`", hint=f"looked in `{Path(url).expanduser().absolute().parent}`"
        )
    return [(Path(path).name, path) for path in paths]


def _fit(name: str, taken: set[str]) -> str:
    """A name that an input may have, like the file's; different from others."""
    return unused(_UNFIT.sub("-", name).lstrip("._+-")[:90] or "input", taken)


def checked_url(url: str) -> str:
    """A URL as it is; a path as absolute path. Raises ConfigError if the file does not exist."""
    if ":" in url.partition("/")[0]:
        return url
    path = Path(url).expanduser().absolute()
    check_utf8(str(path), what="input", hint="rename it, or link it under another name: `--input LINK`")
    if not path.exists():
        raise ConfigError(f"input `{url}` does not exist", hint=f"looked for `{path}`")
    if not path.is_file():
        raise ConfigError(f"input `{url}` is not a regular file", hint=f"the path is `{path}`")
    return str(path)


def check_utf8(name: str, *, what: str, hint: str) -> str:
    """Return the name of a job's file or directory. Raises ConfigError unless it is UTF-8: messages between processes,
    manifests and URLs cannot hold other bytes."""
    if not is_utf8(name):
        raise ConfigError(f"{what} `{shown(name)}`: the name is not valid UTF-8", hint=hint)
    return name


def pack_directory(directory: Path, archive: Path, *, name: str) -> int:
    """Write a directory, as `name`, as a tar archive; its size. Raises SiteError."""
    try:
        with (
            open_private(archive, "wb") as file,
            tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as tar,
        ):
            tar.add(directory, arcname=name)
        return archive.stat().st_size
    except (OSError, tarfile.TarError) as error:
        archive.unlink(missing_ok=True)
        raise SiteError(f"failed to pack `{directory}` into `{archive}`: {error}", transient=False) from error
