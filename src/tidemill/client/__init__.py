"""1 submit: the SDK. `Client` talks to a server, `load_job_file` reads job files.

Names are imported when they are used, so that who imports one module pays for no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.client.client import Client, Submission
    from tidemill.client.jobfile import JobFile, load_job_file
    from tidemill.client.outputs import Member, members

__all__ = ["Client", "JobFile", "Member", "Submission", "load_job_file", "members"]

_HOMES = {
    "Client": "client",
    "JobFile": "jobfile",
    "Member": "outputs",
    "Submission": "client",
    "load_job_file": "jobfile",
    "members": "outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `tidemill.client` has no attribute `{name}`")
    import importlib

    return getattr(importlib.import_module(f"tidemill.client.{_HOMES[name]}"), name)
