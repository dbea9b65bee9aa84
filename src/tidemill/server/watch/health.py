"""What is wrong with the server: a closed list of problems, each with its remedy; also without the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemill import __version__, clock
from tidemill.errors import SiteError, install_hint
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.core.writer import QUEUE_MAX
from tidemill.server.database.store import Session
from tidemill.server.notices import tables
from tidemill.server.read import api_pages
from tidemill.wire.api import Health, Problem

BUSY = QUEUE_MAX // 2  #: requests that wait for the writer
OLD_S = 900.0  #: age from which on a waiting message is a problem


class Watched(NamedTuple):
    """What health and metrics read. `transport_up`: whether the way beside HTTP is connected; None without one."""

    dispatcher: Dispatcher
    transport_up: Callable[[], bool] | None = None


class ProblemKind(NamedTuple):
    """A problem, and whether the server does its work in spite of it."""

    works: bool
    text: str
    hint: str


PROBLEMS: dict[str, ProblemKind] = {
    "writer_ended": ProblemKind(
        False,
        "the server writes no changes any more",
        "restart the server; its log has `writer.ended` and why",
    ),
    "database_away": ProblemKind(
        False, "the database does not answer", "is PostgreSQL running? nothing is lost meanwhile"
    ),
    "database_full": ProblemKind(False, "the database cannot grow or write", "free space on its file system"),
    "storage": ProblemKind(
        True,
        "there is no room for more jobs: submissions are refused, the rest goes on",
        "free space, raise `quotas.all_stored_bytes_max`, or archive earlier (`archive.keep_days`); "
        "`tidemill owner list` shows who stores how much",
    ),
    "busy": ProblemKind(
        True, "many requests wait for the one writer", "see `tidemill_server_transaction_seconds`"
    ),
    "archive": ProblemKind(
        True,
        "campaigns that ended long ago cannot be archived: they stay in the database",
        f"the log has `archive.failed` and why; without the package: {install_hint('archive')}",
    ),
    "no_site": ProblemKind(True, "none of the sites can be heard", "`tidemill site run` at a site"),
    "sites_silent": ProblemKind(
        True, "a site has not been heard for a while", "`tidemill site status` there; `/v1/sites`"
    ),
    "transport_away": ProblemKind(
        True,
        "the transport beside HTTP, such as a message broker, is not connected",
        "does it run, and is the server's certificate valid? the log says why",
    ),
    "notifications": ProblemKind(
        True, "messages wait for longer than they should", "the log: `message.delayed`"
    ),
}


def problems(session: Session, watched: Watched) -> list[str]:
    """What is wrong now, the worst first. Raises SiteError if the database is unreachable."""
    result = []
    writer, site_watch = watched.dispatcher.writer, watched.dispatcher.site_watch
    if not writer.lives:
        result.append("writer_ended")
    if writer.full:
        result.append("database_full")
    if watched.dispatcher.storage.is_over(session):
        result.append("storage")
    if writer.waiting > BUSY:
        result.append("busy")
    if watched.dispatcher.rules.archive.trouble:
        result.append("archive")
    joined = [site for site in api_pages.sites(session) if site.epoch]
    quiet = site_watch.silent(site.name for site in joined)
    silent = [site for site in joined if site.lost or site.name in quiet]
    if silent and len(silent) == len(joined):
        result.append("no_site")
    elif silent:
        result.append("sites_silent")
    if watched.transport_up is not None and not watched.transport_up():
        result.append("transport_away")
    oldest = [each.oldest_us for each in tables.standing(session).values() if each.oldest_us is not None]
    if oldest and clock.now_us() - min(oldest) > OLD_S * 1e6:
        result.append("notifications")
    return result


def health(session: Session | None, watched: Watched) -> Health:
    """The whole answer. It names no user and no place: every client that reaches the server may read it."""
    try:
        found = ["database_away"] if session is None else problems(session, watched)
    except SiteError:
        found = ["database_away"]
    if not watched.dispatcher.writer.lives and "writer_ended" not in found:
        found.insert(0, "writer_ended")
    failing = [each for each in found if not PROBLEMS[each].works]
    status = "full" if "database_full" in found else "failing" if failing else "degraded" if found else "ok"
    return Health(
        status=status,
        version=__version__,
        database=watched.dispatcher.writer.dialect,
        role="active" if watched.dispatcher.writer.is_active else "standby",
        now_us=clock.now_us(),
        problems=[Problem(name=each, text=PROBLEMS[each].text, hint=PROBLEMS[each].hint) for each in found],
    )
