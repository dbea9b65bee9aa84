"""Tidemill runs many-task science on supercomputers that you do not own.

This module exports the names of the SDK; docs/sdk.md is their reference. Each name is imported at its first use, so
`import tidemill` costs nothing; `__init__.pyi` declares the names for type checkers.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CallError": "client.executor",
    "CallFuture": "client.executor",
    "CallTimeoutError": "client.executor",
    "Client": "client.client",
    "ConfigError": "errors",
    "Executor": "client.executor",
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
    "frames": "report.frames",
    "limits": "model.retry.changes",
    "load_job_file": "client.jobfile",
    "progress": "client.progress",
}

__all__ = [
    "CallError", "CallFuture", "CallTimeoutError", "Client", "ConfigError", "Executor", "Input", "InputKind",
    "JobChanges", "JobError", "JobFile", "JobSpec", "Member", "Output", "OutputFile", "OutputKind", "Resources",
    "SiteError", "Submission", "TidemillError", "frames", "limits", "load_job_file", "progress",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `tidemill` has no attribute `{name}`")
    import importlib

    module = importlib.import_module(f"tidemill.{_HOMES[name]}")
    found = module if name == "frames" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
