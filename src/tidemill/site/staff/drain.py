"""How people stop and resume a site: files in its directory that agent and command line share.

    SITE/STOP                 while it exists the site is drained; its text is the reason
    SITE/resume/TIME.json     Request: an operator lets the site work again; the agent takes it up and deletes it
    SITE/drained.json         `site_state.Stop`, as the agent's log has it: for people, without reading the log
    SITE/paused.json          until when nothing is asked for, after others canceled what waited (us since 1970)
    SITE/resumed.log          one JSON line for each resume that was asked for

The truth is in the site's log. `tidemill site drain` calls `request_drain`, `site resume` calls `request_resume` (with
the site's `stop_file`, so that it can refuse while staff's file exists), `site status` shows `drained`. No agent has to
run: the next one finds the files.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, ConfigError, SiteError
from tidemill.files import append_durable, read_bounded, write_durable
from tidemill.site.state.site_state import Stop

TEXT_BYTES_MAX = 4096
REQUESTS_MAX = 100


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operator wants the site to work again."""

    reason: str
    at_us: int


def request_drain(site_dir: Path, reason: str) -> None:
    """Drain the site until `request_resume`. Raises ConfigError without a reason, SiteError."""
    _check_reason(reason)
    write_durable(site_dir / "STOP", reason.strip().encode() + b"\n", mode=0o644)


def request_resume(site_dir: Path, reason: str, *, stop_file: Path | None = None) -> None:
    """Let the site work again, from the agent's next check on.

    Raises ConfigError without a reason or while the staff's `stop_file` exists, SiteError.
    """
    _check_reason(reason)
    if stop_file is not None and stop_file.exists():
        raise ConfigError(
            f"the site cannot be resumed: `{stop_file}` exists",
            hint="that file is the centre's staff's to remove: ask them, then resume",
        )
    was = drained(site_dir)
    (site_dir / "STOP").unlink(missing_ok=True)
    at_us = clock.now_us()
    directory = site_dir / "resume"
    line = msgspec.json.encode({"at": clock.utc_text(at_us), "was": was or "", "resumed": reason})
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        append_durable(site_dir / "resumed.log", line + b"\n")
    except OSError as error:
        raise SiteError(f"failed to note the resume of `{site_dir}`: {error.strerror}") from error
    write_durable(directory / f"{at_us}.json", msgspec.json.encode(ResumeRequest(reason=reason, at_us=at_us)))


def way_out(site: str = "", *, stop_file: Path | None = None) -> str:
    """What ends a stop. `site`: the directory, as words of the command line, where it is not the default one."""
    where = f" {site}" if site else ""
    command = f"`tidemill site resume{where} --reason TEXT` lets it work again"
    if stop_file is not None and os.path.lexists(stop_file):
        return f"once the centre's staff have removed `{stop_file}`, {command}"
    return command


def drained(site_dir: Path) -> str | None:
    """Why the site is drained, by its files; None where it is not, or is about to be resumed."""
    text = stop_text(site_dir / "STOP")
    if text is not None:
        return text or "no reason given"
    content = read_bounded(site_dir / "drained.json", TEXT_BYTES_MAX * 4)
    if content is None:
        return None
    try:
        stop = msgspec.json.decode(content, type=Stop)
    except UNDECODABLE:
        return "the reason cannot be read"
    if any(request.at_us > stop.at_us for request in _requests(site_dir)):
        return None
    return stop.reason


def pause_text(until_us: int) -> str:
    """Why nothing is asked for until then."""
    return (
        "allocations that waited were canceled, and not by Tidemill: nothing is asked for until "
        f"{clock.utc_text(until_us)}; `tidemill site resume --reason TEXT` ends this pause"
    )


def paused(site_dir: Path) -> str | None:
    """Why the agent pauses, after others canceled allocations that waited; None where it does not."""
    content = read_bounded(site_dir / "paused.json", TEXT_BYTES_MAX)
    try:
        until_us = msgspec.json.decode(content or b"0", type=int)
    except UNDECODABLE:
        return None
    return pause_text(until_us) if until_us > clock.now_us() else None


# ---- the agent's side ----


def stop_files(site_dir: Path, stop_file: Path | None) -> list[tuple[str, str]]:
    """(path, text) of the STOP files that exist: the site's own and the one agreed with the centre's staff."""
    found: list[tuple[str, str]] = []
    for path in (stop_file, site_dir / "STOP"):
        text = stop_text(path) if path is not None else None
        if text is not None:
            found.append((str(path), text))
    return found


def stop_text(path: Path) -> str | None:
    """The text of a STOP file, empty where it cannot be read, None where there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        return "" if os.path.lexists(path) else None
    try:
        content = os.read(descriptor, TEXT_BYTES_MAX)
    except OSError:  # a directory, or a device
        content = b""
    finally:
        os.close(descriptor)
    return " ".join(content.decode(errors="replace").split())


def take_requests(site_dir: Path) -> list[ResumeRequest]:
    """The requests to resume, oldest first."""
    return sorted(_requests(site_dir), key=lambda request: request.at_us)


def forget_requests(site_dir: Path) -> None:
    """Delete them, when the log has what followed from them."""
    for path in _files(site_dir):
        path.unlink(missing_ok=True)


def show_stop(site_dir: Path, stop: Stop | None) -> None:
    """Let SITE/drained.json show what the log has. Raises SiteError."""
    path = site_dir / "drained.json"
    if stop is None:
        path.unlink(missing_ok=True)
    else:
        write_durable(path, msgspec.json.encode(stop))


def show_pause(site_dir: Path, until_us: int) -> None:
    """Let SITE/paused.json show until when nothing is asked for; 0 = there is no pause. Raises SiteError."""
    path = site_dir / "paused.json"
    if until_us:
        write_durable(path, msgspec.json.encode(until_us))
    else:
        path.unlink(missing_ok=True)


def _requests(site_dir: Path) -> list[ResumeRequest]:
    found: list[ResumeRequest] = []
    for path in _files(site_dir):
        content = read_bounded(path, TEXT_BYTES_MAX * 4)
        try:
            found.append(msgspec.json.decode(content or b"", type=ResumeRequest))
        except UNDECODABLE:
            continue
    return found


def _files(site_dir: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(site_dir / "resume"))  # noqa: PTH208 -- names only
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SiteError(f"failed to list `{site_dir / 'resume'}`: {error.strerror}") from error
    return [
        site_dir / "resume" / name
        for name in names[:REQUESTS_MAX]
        if name.endswith(".json") and not name.startswith(".")
    ]


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError("a reason is missing", hint="say in a few words why, for those who ask later")
    if len(reason.encode()) > TEXT_BYTES_MAX:
        raise ConfigError(f"the reason has {len(reason.encode())} bytes, at most {TEXT_BYTES_MAX}")
