"""`setup` lines of an application: what pilots receive of them. Pure.

Pilots run them (`crates/pilot/src/setup.rs`) and store the difference that they make to the environment as
`SITE/setup/KEY.NODETYPE.json`, which every later start reads.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from tidemill.model.application import Application
from tidemill.wire.node import SetupDef

FOLDER = "setup"
LINES_MAX = 100
LINE_BYTES_MAX = 4096
TIMEOUT_S_MAX = 3600
KEY_DIGITS = 24


def setup_of(app: Application, site_dir: Path) -> SetupDef | None:
    """What a program's pilots need; None where the application has no `setup`."""
    if not app.setup:
        return None
    return SetupDef(
        key=key_of(app),
        lines=app.setup,
        store=str(site_dir / FOLDER),
        timeout_s=float(app.setup_timeout_s),
    )


def key_of(app: Application) -> str:
    """Another one for every other name, version or line: nothing that was stored before is used then."""
    content = msgspec.json.encode([app.name, app.version, app.setup])
    return f"{app.name}-{hashlib.sha256(content).hexdigest()[:KEY_DIGITS]}"


def check_setup(app: Application) -> list[str]:
    """What is wrong with the lines, in words."""
    if len(app.setup) > LINES_MAX:
        return [
            f"{len(app.setup)} lines, at most {LINES_MAX} are legal: put them into a file and `source` it"
        ]
    if not 1 <= app.setup_timeout_s <= TIMEOUT_S_MAX:
        return [f"`setup_timeout_s` is {app.setup_timeout_s}, legal is 1 to {TIMEOUT_S_MAX}"]
    for number, line in enumerate(app.setup, start=1):
        if not line.strip():
            return [f"line {number} is empty"]
        if "\n" in line or "\0" in line or len(line.encode()) > LINE_BYTES_MAX:
            return [f"line {number} holds a line end or NUL, or more than {LINE_BYTES_MAX} bytes"]
    return []
