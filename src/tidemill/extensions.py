"""Extensions: distributions `tidemill-NAME` beside the core, which add verbs, batch systems and the like.

They join by entry points (docs/extensions.md). Names and targets are read from the metadata files themselves: the
standard `importlib.metadata` takes longer to import than `tidemill --help` may take, and reads every distribution.
An extension that cannot be imported, or is of another version, is left out, and `faults` says why: it breaks nothing
but itself. The core imports no extension by name.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tidemill import __version__
from tidemill.errors import ConfigError

VERBS = "tidemill.verbs"
BATCH = "tidemill.batch"
TRANSFER = "tidemill.transfer"
PAGES = "tidemill.pages"
ROUTES = "tidemill.routes"
VIEWS = "tidemill.views"
SDK = "tidemill.sdk"
SETTINGS = "tidemill.settings"
TRANSPORTS = "tidemill.transports"
CACHES = "tidemill.caches"
PROVIDERS = "tidemill.providers"


class Brings(NamedTuple):
    """What an extension of this repository adds, by name: known where it is not installed."""

    verbs: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()  #: kinds of batch systems, as `batch` in site.toml names them
    commands: tuple[str, ...] = ()  #: those by which a login node shows that it has one of them
    transfer: tuple[str, ...] = ()  #: schemes of URLs
    pages: tuple[str, ...] = ()  #: first parts of addresses of the server's pages
    routes: tuple[str, ...] = ()  #: first parts of addresses of its API, after `/v1/`
    views: tuple[str, ...] = ()  #: what sites show at the server
    sdk: tuple[str, ...] = ()  #: names that `tidemill` exports
    settings: tuple[str, ...] = ()  #: tables of server.toml, site.toml and client.toml
    transports: tuple[str, ...] = ()  #: schemes of servers' addresses
    caches: tuple[str, ...] = ()  #: what runs a site's caches
    providers: tuple[str, ...] = ()  #: tables of settings of which it makes something for the core


KNOWN: dict[str, Brings] = {
    "caches": Brings(
        verbs=tuple(f"cache {each}" for each in ("init", "run", "status", "ls", "purge", "check", "study")),
        caches=("xcache",),
    ),
    "calls": Brings(sdk=("CallError", "CallFuture", "CallTimeoutError", "Executor")),
    "downtimes": Brings(verbs=("downtimes check",), settings=("downtimes",), providers=("downtimes",)),
    "gridengine": Brings(batch=("gridengine",), commands=("qsub", "qconf"), settings=("gridengine",)),
    "gridftp": Brings(transfer=("ftp", "gsiftp")),
    "images": Brings(
        verbs=(
            *("trace", "trace show", "trace merge", "trace explain"),
            *(f"image {each}" for each in ("build", "list", "inspect", "verify", "gc", "export", "run")),
        )
    ),
    "messages": Brings(
        verbs=("message submit", "message follow", "server broker-setup"),
        settings=("amqp", "message"),
        transports=("amqp", "amqps"),
    ),
    "replicas": Brings(settings=("replicas",), providers=("replicas",)),
    "report": Brings(verbs=("report",), sdk=("frames",)),
    "stress": Brings(
        verbs=("stress run", "stress scan", "stress compare", "stress schedule"), pages=("stress",)
    ),
    "study": Brings(verbs=("report opportunity", "report accounting", "simulate")),
    "tokens": Brings(settings=("tokens",), providers=("tokens",)),
}
_FIELDS = {
    VERBS: "verbs", BATCH: "batch", TRANSFER: "transfer", PAGES: "pages", ROUTES: "routes", VIEWS: "views",
    SDK: "sdk", SETTINGS: "settings", TRANSPORTS: "transports", CACHES: "caches", PROVIDERS: "providers",
}  # fmt: skip


class Extension(NamedTuple):
    """An installed extension: `entries` has, by group, the targets (`module:attribute`) of its entry points by name."""

    name: str
    version: str
    entries: dict[str, dict[str, str]]


@cache
def installed() -> dict[str, Extension]:
    """The installed extensions by name, sorted; the first on the path of each."""
    found: dict[str, Extension] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 -- a Path for each of a thousand names takes longer
        except OSError:
            continue
        for name in names:
            if name.startswith("tidemill_") and name.endswith(".dist-info"):
                extension = _read(Path(folder or ".") / name)
                if extension is not None:
                    found.setdefault(extension.name, extension)
    return dict(sorted(found.items()))


def _read(folder: Path) -> Extension | None:
    """The extension whose metadata is in this folder; None for a distribution without such entry points."""
    try:
        text = (folder / "entry_points.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    entries: dict[str, dict[str, str]] = {}
    group = ""
    for line in text.splitlines():
        name, separator, target = line.partition("=")
        if line.startswith("["):
            group = line.strip("[] ")
        elif separator and group.startswith("tidemill."):
            entries.setdefault(group, {})[name.strip()] = target.strip()
    name, _, version = folder.name.removesuffix(".dist-info").removeprefix("tidemill_").partition("-")
    return Extension(name.replace("_", "-"), version, entries) if entries else None


_FAULTS: dict[str, str] = {}


def faults() -> dict[str, str]:
    """What is wrong with installed extensions, by name: all versions, and what has failed in this process."""
    wrong = {each.name: _mismatch(each) for each in installed().values()}
    return {name: text for name, text in wrong.items() if text} | _FAULTS


def warn(name: str, text: str) -> None:
    """Note what is wrong with an extension, for `faults`."""
    _FAULTS[name] = text


def entries(group: str) -> Iterator[tuple[str, str, Any]]:
    """The objects that extensions have under this group, with the names of extension and entry point; those at fault
    are left out."""
    for extension in installed().values():
        for name, target in extension.entries.get(group, {}).items():
            try:
                yield extension.name, name, _imported(extension, target)
            except ConfigError as error:
                warn(extension.name, error.message)


def is_name(name: str) -> bool:
    """Whether an entry point may have this name as the first part of addresses: lower-case letters, digits, hyphens."""
    return name[:1].isalpha() and name.isascii() and name == name.lower() and name.replace("-", "").isalnum()


def forget_faults() -> None:
    """Forget what has failed in this process: what is installed has changed."""
    _FAULTS.clear()


def tables(group: str) -> Iterator[tuple[str, Any]]:
    """The objects of a group of entry points whose names say nothing, each with its extension."""
    for extension, _, found in entries(group):
        yield extension, found


def find(group: str, name: str) -> Any:
    """The object that an extension has under this name; None if none has.

    Raises ConfigError where the extension that has it is not installed, or at fault.
    """
    for extension in installed().values():
        target = extension.entries.get(group, {}).get(name)
        if target is not None:
            return _imported(extension, target)
    error = missing(group, name)
    if error is not None:
        raise error
    return None


def owner(group: str, name: str) -> str:
    """The installed extension that has this name in the group; empty if none has."""
    return next((each.name for each in installed().values() if name in each.entries.get(group, {})), "")


def fitting(group: str) -> set[str]:
    """The names that this group has in installed extensions of this version."""
    wrong = faults()
    return {
        name
        for each in installed().values()
        if each.name not in wrong
        for name in each.entries.get(group, {})
    }


def names(group: str) -> set[str]:
    """The names that this group has in installed extensions, and in those that could be installed."""
    found = {name for each in installed().values() for name in each.entries.get(group, {})}
    return found | {name for each in KNOWN.values() for name in getattr(each, _FIELDS[group])}


def missing(group: str, name: str) -> ConfigError | None:
    """The error for the use of what a known extension brings, where it is not there; None if none brings it."""
    what = {
        VERBS: f"`tidemill {name}`", BATCH: f"the batch system `{name}`", TRANSFER: f"`{name}:`",
        PAGES: f"the page `/{name}`", ROUTES: f"`/v1/{name}`", VIEWS: f"the view `{name}`", SDK: f"`tidemill.{name}`",
        SETTINGS: f"`[{name}]`", TRANSPORTS: f"a server at `{name}:`",
        CACHES: "a cache that this site runs (`directory` in `[[caches]]`)", PROVIDERS: f"`[{name}]`",
    }[group]  # fmt: skip
    for extension, brings in KNOWN.items():
        if name in getattr(brings, _FIELDS[group]):
            fault = faults().get(extension)
            text = f"{what} needs the extension `{extension}`" + (f": {fault}" if fault else "")
            return ConfigError(text, hint=f"install it: pip install 'tidemill[{extension}]'")
    return None


def batch_commands(name: str) -> tuple[str, ...]:
    """The commands by which a kind of batch system is recognised whose extension is known; empty if none is."""
    return next((each.commands for each in KNOWN.values() if name in each.batch), ())


def import_module(name: str, module: str) -> Any:
    """A module of an extension. Raises ConfigError in one line where it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # an extension's code may raise anything when it is imported
        text = f"the extension `{name}` cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(text, hint=_again(name)) from error


def _imported(extension: Extension, target: str) -> Any:
    """The object of an entry point. Raises ConfigError."""
    fault = _mismatch(extension)
    if fault:
        raise ConfigError(fault, hint=_again(extension.name))
    module, _, attribute = target.partition(":")
    found = import_module(extension.name, module)
    if not attribute:
        return found
    try:
        return getattr(found, attribute)
    except Exception as error:  # also of a module's own `__getattr__`
        text = f"the extension `{extension.name}` has no `{target}`: {error}"
        raise ConfigError(text, hint=_again(extension.name)) from error


def at_fault(error: BaseException) -> tuple[str, bool]:
    """The installed extension whose code an exception came through last (empty = none), and whether the core raised it
    for that code."""
    packages = {
        target.partition(":")[0].partition(".")[0]: each.name
        for each in installed().values()
        for named in each.entries.values()
        for target in named.values()
    }
    found, is_of_core = "", False
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "tidemill":
            is_of_core = True
        elif package in packages:
            found, is_of_core = packages[package], False
        trace = trace.tb_next
    return found, bool(found) and is_of_core


def unfit(group: str, name: str, found: object, expected: str) -> ConfigError:
    """The error for an entry point of an installed extension whose object is not what its group expects."""
    extension = owner(group, name)
    target = installed()[extension].entries[group][name]
    what = f"the class `{found.__name__}`" if isinstance(found, type) else f"of type `{type(found).__name__}`"
    text = f"the extension `{extension}`: its entry point `{name} = {target}` in [{group}] is {what}, not {expected}"
    return ConfigError(text, hint=_again(extension))


def _again(name: str) -> str:
    """What to do about an extension that cannot be used; only this repository's are extras of `tidemill`."""
    if name in KNOWN:
        return f"install it again: pip install 'tidemill[{name}]'"
    return f"install it again, made for Tidemill {__version__}, or remove it: pip uninstall tidemill-{name}"


def _mismatch(extension: Extension) -> str:
    """Why an extension does not fit the core; empty if it does."""
    if extension.version == __version__:
        return ""
    return f"its version is {extension.version}, and Tidemill's is {__version__}"
