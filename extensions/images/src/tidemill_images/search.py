"""Which search path a look-up belongs to: `libm.so.6` below LD_LIBRARY_PATH, `numpy` below PYTHONPATH.

Pure, and from names alone. Sources: execvp(3), ld.so(8) of glibc 2.36 (glibc-hwcaps subdirectories; before 2.33
`tls/haswell/x86_64`), Python's `importlib` documentation, GCC's "Environment Variables Affecting GCC".
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from tidemill.image.profile import Kind, PathUse, is_library, is_python


class Style(Enum):
    """How names are looked up below the entries of a search path."""

    COMMANDS = auto()  #: a file in the directory itself
    LIBRARIES = auto()  #: a library in it, or in a subdirectory for this processor
    MODULES = auto()  #: Python: the directory itself, files and packages below
    FILES = auto()  #: anything below


STYLES = {"PATH": Style.COMMANDS, "LD_LIBRARY_PATH": Style.LIBRARIES, "PYTHONPATH": Style.MODULES}

LISTS = frozenset(
    {
        *STYLES,
        *(
            "CPATH",
            "C_INCLUDE_PATH",
            "CPLUS_INCLUDE_PATH",
            "LIBRARY_PATH",
            "COMPILER_PATH",
            "PKG_CONFIG_PATH",
        ),
        *("PERL5LIB", "PERLLIB", "RUBYLIB", "ROOT_INCLUDE_PATH", "CMAKE_PREFIX_PATH", "CLASSPATH"),
        *("GAUDI_PLUGIN_PATH", "JOBOPTSEARCHPATH", "DATAPATH", "XMLPATH"),
    }
)
"""Variables that are lists of directories to every reader: without a dead entry they mean the same."""

_LIST_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(PATH|LIB|LIBS|DIRS)")
_LEVELS = frozenset(
    {"tls", "haswell", "avx512_1", "xeon_phi", "x86_64", "aarch64", "atomics", "power8", "power9"}
)
_ROOT = re.compile(
    r"(?P<root>/(?:.*?/)?(?:lib|lib64|Lib)/(?:python|pypy)(?P<version>[23](?:\.\d+)?)?)(?=/|$)"
)
_ZIP = re.compile(r"(?P<zip>/.*/python[23]\d+\.zip)(?:/|$)")
_BELOW_ROOT = re.compile(r"/(?:site-packages|dist-packages|lib-dynload)(?=/|$)")


class PathEntry(NamedTuple):
    """One entry of a search path: as it was written, and the directory that it names (None = not known)."""

    text: str
    directory: str | None

    @property
    def is_relative(self) -> bool:
        """Whether it means another directory after a `chdir`."""
        return not self.text.startswith("/")


class Path(NamedTuple):
    """A search path of the environment."""

    name: str
    style: Style
    places: list[PathEntry]
    separator: str
    is_list: bool  #: its entries may be dropped one by one


def search_paths(env: Mapping[str, str], cwd: str) -> list[Path]:
    """The search paths of an environment, PATH, LD_LIBRARY_PATH and PYTHONPATH first."""
    order = [name for name in STYLES if name in env] + sorted(set(env) - set(STYLES))
    result = []
    for name in order:
        value = env[name]
        if name not in LISTS and not (":" in value and _LIST_NAME.fullmatch(name)):
            continue
        separator = ";" if name == "LD_LIBRARY_PATH" and ";" in value and ":" not in value else ":"
        places = [_place(text, cwd) for text in value.split(separator)] if value else []
        if any(place.directory for place in places):
            result.append(Path(name, STYLES.get(name, Style.FILES), places, separator, name in LISTS))
    return result


def _place(text: str, cwd: str) -> PathEntry:
    if (
        "$" in text or "%" in text
    ):  # $ORIGIN of the loader, a pattern of Lua's: each program reads it in its way
        return PathEntry(text, None)
    return PathEntry(text, os.path.normpath(os.path.join(cwd, text)))  # noqa: PTH118 -- text, no file is asked


def below(path: str, directory: str) -> str | None:
    """What follows the directory in the path (empty for itself); None where it is not below it."""
    if path == directory:
        return ""
    prefix = directory if directory.endswith("/") else directory + "/"
    return path[len(prefix) :] if path.startswith(prefix) else None


def fits(style: Style, rest: str) -> bool:
    """Whether a search of this style looks for such a name below an entry."""
    match style:
        case Style.COMMANDS:
            return bool(rest) and "/" not in rest
        case Style.LIBRARIES:
            return not rest or is_loader_name(rest)
        case _:
            return True


def is_loader_name(rest: str) -> bool:
    """`libm.so.6`, `glibc-hwcaps/x86-64-v3/libm.so.6`, `glibc-hwcaps/x86-64-v3`, `tls/x86_64/libm.so.6`."""
    *levels, name = rest.split("/")
    if not is_library(name):
        levels.append(name)
    elif not levels:
        return True
    if levels[0] == "glibc-hwcaps":
        return len(levels) <= 2
    return all(level in _LEVELS for level in levels)


def is_hit(style: Style, rest: str, use: PathUse) -> bool:
    """Whether something was found through an entry, or might have been: then it is not dead."""
    if not use.exists or not rest or not fits(style, rest):
        return False
    if style in (Style.COMMANDS, Style.LIBRARIES):
        return use.kind not in (Kind.DIRECTORY, Kind.LISTED)
    return True


def is_module_name(path: str) -> bool:
    """A name that only Python asks for."""
    name = path.rpartition("/")[2]
    return (
        is_python(path)
        or ".cpython-" in name
        or name.endswith((".abi3.so", "module.so", ".pth", ".egg-link"))
        or name == "__pycache__"
    )


def preferred(path: str) -> tuple[Style, ...]:
    """Styles in the order in which a look-up of this path is credited."""
    if is_module_name(path):
        return Style.MODULES, Style.FILES, Style.LIBRARIES, Style.COMMANDS
    if is_library(path):
        return Style.LIBRARIES, Style.FILES, Style.MODULES, Style.COMMANDS
    return Style.COMMANDS, Style.FILES, Style.MODULES, Style.LIBRARIES


def python_root(path: str) -> str | None:
    """The entry of Python's own sys.path that a path is below: zip, standard library, `lib-dynload`, site-packages."""
    zipped = _ZIP.match(path)
    if zipped:
        return zipped["zip"]
    root = _ROOT.match(path)
    if root is None:
        return None
    further = _BELOW_ROOT.match(path, root.end())
    return path[: further.end()] if further else root["root"]


def python_versions(paths: Iterable[PathUse]) -> set[tuple[int, int]]:
    """Versions of the standard libraries of Python that modules were read from."""
    result = set()
    for use in paths:
        match = _ROOT.match(use.path) if use.exists and is_python(use.path) else None
        if match and "." in (match["version"] or ""):
            major, minor = match["version"].split(".")
            result.add((int(major), int(minor)))
    return result


def family(path: str) -> str:
    """What kind of search a look-up belongs to that no variable explains."""
    name = path.rpartition("/")[2]
    if "/gconv/" in path or name == "gconv-modules.cache":
        return "gconv"
    if "/locale/" in path or name == "locale-archive" or name.startswith("LC_") or name.endswith(".mo"):
        return "locale"
    if is_module_name(path):
        return "sys.path"
    if is_library(path) or "/glibc-hwcaps" in path or name in _LEVELS:
        return "RPATH"
    if name.endswith((".h", ".hh", ".hpp", ".hxx", ".gch", ".icc", ".inc")) or "/include/" in path:
        return "include"
    if name.endswith((".pm", ".pmc", ".pl", ".ph")):
        return "perl"
    if name.endswith((".rootmap", ".pcm", ".root", ".C")) or "/etc/plugins/" in path:
        return "ROOT"
    return "other"


def loader_directory(path: str) -> str:
    """The directory of the run that a library, or a subdirectory for this processor, was looked for in."""
    directory = path.rpartition("/")[0] if is_library(path) else path
    head, found, _ = directory.partition("/glibc-hwcaps")
    if found:
        return head or "/"
    parts = directory.split("/")
    while len(parts) > 1 and parts[-1] in _LEVELS:
        parts.pop()
    return "/".join(parts) or "/"
