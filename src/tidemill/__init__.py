"""Tidemill runs many-task science on supercomputers that you do not own.

This module exports the names of the SDK; docs/sdk.md is their reference. Each name is imported at its first use, so
`import tidemill` costs nothing; `__init__.pyi` declares the names for type checkers.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Client": "client.client",
    "ConfigError": "errors",
    "Input": "model.job",
    "InputKind": "model.job",
    "JobChanges": "model.retry.changes",
    "JobError": "errors",
    "JobFile": "client.jobfile",
    "JobSpec": "model.job",
    "Member": "client.outputs",
    "Output": "model.job",
    "OutputFile": "client.outputs",
    "OutputKind": "model.job",
    "Resources": "model.job",
    "SiteError": "errors",
    "Submission": "client.client",
    "TidemillError": "errors",
    "limits": "model.retry.changes",
    "load_job_file": "client.jobfile",
    "progress": "client.progress",
}
_OF_EXTENSIONS = (
    "CallError",
    "CallFuture",
    "CallTimeoutError",
    "Executor",
    "frames",
)  # `extensions.KNOWN` says of which


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _all()
    if name in _OF_EXTENSIONS:
        return _of_extension(name)
    if name not in _HOMES:
        raise AttributeError(f"module `tidemill` has no attribute `{name}`")
    import importlib

    module = importlib.import_module(f"tidemill.{_HOMES[name]}")
    found = getattr(module, name)
    globals()[name] = found
    return found


def _all() -> list[str]:
    """The names of `from tidemill import *`: those of extensions only where they are installed."""
    from tidemill import extensions

    return sorted({*_HOMES, *extensions.fitting(extensions.SDK).intersection(_OF_EXTENSIONS)})


def _of_extension(name: str) -> Any:
    """A name that an extension brings. Raises ImportError with the command that installs it."""
    from tidemill import extensions
    from tidemill.errors import ConfigError

    try:
        found = extensions.find(extensions.SDK, name)
    except ConfigError as error:
        raise ImportError(f"{error.message}; {error.hint}") from error.__cause__
    if found is None:
        raise ImportError(f"no installed extension brings `tidemill.{name}`")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), "__all__", *_all()})
