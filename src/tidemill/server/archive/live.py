"""A server's database and archive on this machine, and what the database still holds in the archive's form: so that a
report reads one kind of file. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from tidemill.config.server import ServerConfig
from tidemill.server.archive import operation
from tidemill.server.archive.archiver import chunks_of_batch, write_chunk
from tidemill.server.archive.parquet import Archive
from tidemill.server.database.store import Session, Store, row

MONTH = "live"
DATABASE = "tidemill.db"
ARCHIVE = "archive"


def store_of(config: ServerConfig) -> Store:
    """The database that a configuration names."""
    if config.database is not None:
        return Store(url=config.database, paired=config.pair)
    return Store(path=config.place / DATABASE, paired=config.pair)


def archive_of(config: ServerConfig) -> Path:
    """The directory of its archive, or a link to it; it need not exist yet."""
    return config.place / ARCHIVE


def export(session: Session, directory: Path, *, now_us: int) -> int:
    """Write all campaigns that are not in the archive, and what sites reported, below a directory; the number of jobs.

    A batch whose files the archiver is writing counts as not archived. Cost: reads all of these jobs; memory: some
    thousand of them. Raises SiteError.
    """
    archive, jobs = Archive(directory), 0
    sites: dict[int, str] = dict(session.rows("site_names"))
    found = row(session, "open_batch")
    batches = [0] + ([int(found.id)] if found is not None and found.phase == 0 else [])
    for batch in batches:
        with archive.batch(MONTH, batch) as out:
            for ids in chunks_of_batch(session, batch, out):
                write_chunk(session, out, ids, sites)
                jobs += len(ids)
    operation.update_files(session, archive, now_us=now_us)
    return jobs
