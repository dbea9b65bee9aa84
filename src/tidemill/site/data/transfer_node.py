"""Moves by a process on a data-transfer node: `tidemill site run --only transfer`, which shares the site directory.

    SITE/transfer/orders/ID.json   what the agent wants, `MoveOrder`; gone = it is not wanted any more
    SITE/transfer/done/ID.json     what came of it, `MoveOutcome`; the agent deletes both when it has read it
    SITE/transfer/moving.json      how far the moves are that run now; `tidemill site status` shows it
    SITE/transfer/epoch/           who moves: one process, as in `epoch`

No lock files: every file is written whole and renamed, by one writer. A mover that is killed leaves orders, and parts
of files that its successor goes on with. An agent starts with no orders, and a mover ends what has no order any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import UNDECODABLE, SiteError, TidemillError
from tidemill.files import make_directories, names_in, read_bounded, write_durable
from tidemill.log import Log
from tidemill.site import constants
from tidemill.site.data.moves import LocalMoves, MoveCounts, MoveOrder, MoveOutcome, Moves, UnderWay
from tidemill.site.setup.ownership import check_site_directory
from tidemill.site.state.epoch import Epoch, SupersededError, claim
from tidemill.transfer.contract import Direction

POLL_S = 0.5
"""Each side lists the other's directory at this interval."""

FILE_BYTES_MAX = 1 << 20
PROGRESS = "moving.json"
_log = Log("mover")


def open_moves(site_dir: Path, config: SiteConfig) -> Moves:
    """Who moves remote files for a site's agent, as its configuration says."""
    if config.transfer.where == "apart":
        return TransferNodeMoves(site_dir / "transfer", config)
    if config.endpoints:
        (site_dir / "transfer").mkdir(mode=0o700, exist_ok=True)
    return LocalMoves(config, site_dir / "transfer" / PROGRESS if config.endpoints else None)


def under_way(site_dir: Path) -> list[UnderWay]:
    """The moves that run at a site now, as their process wrote it down last; none where that cannot be read."""
    content = read_bounded(site_dir / "transfer" / PROGRESS, FILE_BYTES_MAX)
    try:
        return msgspec.json.decode(content or b"[]", type=list[UnderWay])
    except msgspec.DecodeError:
        return []


class TransferNodeMoves:
    """The agent's side: orders out, outcomes in. Thread-safe."""

    def __init__(self, directory: Path, config: SiteConfig) -> None:
        LocalMoves(config).close()  # impossible endpoints are refused at the start
        self._orders, self._done = directory / "orders", directory / "done"
        for folder in (self._orders, self._done):
            make_directories(folder, 0o077)
            for name in names_in(folder) or []:
                (folder / name).unlink(missing_ok=True)
        self._wanted: dict[str, MoveOrder] = {}
        self._seen: set[str] = set()
        self._next_poll_s = 0.0
        self._lock = threading.Lock()
        self.counts = {direction: MoveCounts() for direction in Direction}

    def submit(self, order: MoveOrder) -> None:
        """Have the move made; an order with a known id is not made twice. Raises SiteError; it is not wanted then."""
        with self._lock:
            if order.id in self._wanted:
                return
            former = self._done / f"{order.id}.json"
            try:
                # of the same order that was canceled, and whose mover did not know: it would take this one for done
                former.unlink(missing_ok=True)
            except OSError as error:
                raise SiteError(f"failed to remove `{former}`: {error.strerror}") from error
            self._wanted[order.id] = order
            self._seen.discard(order.id)
        try:
            write_durable(self._orders / f"{order.id}.json", msgspec.json.encode(order))
        except SiteError:
            with self._lock:
                self._wanted.pop(order.id, None)
            raise

    def pop_outcome(self, order_id: str) -> MoveOutcome | None:
        """The outcome, once; None while there is none, and for an order that is not wanted any more."""
        if order_id not in self._wanted:
            return None
        path = self._done / f"{order_id}.json"
        content = read_bounded(path, FILE_BYTES_MAX)
        if content is None:
            return None
        try:
            outcome = msgspec.json.decode(content, type=MoveOutcome)
        except UNDECODABLE as error:
            raise SiteError(f"failed to read `{path}`: {error}", transient=False) from error
        (self._orders / path.name).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        with self._lock:
            order = self._wanted.pop(order_id, None)
            self._seen.discard(order_id)
            if order is not None:
                counts = self.counts[order.direction]
                counts.failed += bool(outcome.error)
                counts.done += not outcome.error
                counts.bytes += outcome.moved.size_bytes if outcome.moved is not None else 0
        return outcome

    def is_done(self, order_ids: Iterable[str]) -> bool:
        """Whether none of these is still on its way. Lists a directory, twice a second at most."""
        with self._lock:
            now_s = clock.monotonic_s()
            if now_s >= self._next_poll_s:
                self._next_poll_s = now_s + POLL_S
                self._seen = {name.removesuffix(".json") for name in names_in(self._done) or []}
            return all(each in self._seen or each not in self._wanted for each in order_ids)

    def cancel(self, *order_ids: str) -> None:
        """Break off moves that are not wanted any more: the mover ends what has no order."""
        with self._lock:
            for order_id in order_ids:
                self._wanted.pop(order_id, None)
                self._seen.discard(order_id)
        for order_id in order_ids:
            for folder in (self._orders, self._done):
                (folder / f"{order_id}.json").unlink(missing_ok=True)

    @property
    def is_busy(self) -> bool:
        """Whether any move is on its way, or it cannot be seen. One that has an outcome is not: its delivery may have
        been called off."""
        try:
            return bool(self._wanted) and not self.is_done(self._wanted)
        except SiteError:
            return True

    def close(self) -> None:
        """Start nothing more. Orders stay: a mover may work on them; the next agent deletes them."""


def run_mover(site_dir: Path, config: SiteConfig, *, once: bool = False, take_over: bool = False) -> int:
    """Move what the site's agent orders until TERM, or (`once`) until nothing is ordered; the exit code.

    Raises TidemillError when it cannot start, or another process took over.
    """
    check_site_directory(site_dir.absolute())
    directory = site_dir.absolute() / "transfer"
    for folder in (directory, directory / "orders", directory / "done"):
        make_directories(folder, 0o077)
    epoch = claim(
        directory, take_over=take_over, heartbeat_s=constants.HEARTBEAT_S, dead_s=constants.DEAD_AGENT_S
    )
    asked: list[int] = []  # plain: a handler that sets an event may find the loop with its lock
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: asked.append(number))
    here = LocalMoves(config, directory / PROGRESS)
    _log.info("mover.started", site=config.name, epoch=epoch.number, host=epoch.owner.host)
    try:
        while not asked:
            epoch.beat()
            try:
                busy = _step(directory, site_dir.absolute() / "stage", here, epoch)
            except SupersededError:
                raise
            except TidemillError as error:
                _log.error("step.failed", reason=error.message, hint=error.hint)
                busy = True
            if once and not busy:
                break
            clock.sleep_s(POLL_S / 5 if busy else POLL_S)
    finally:
        here.close()
    epoch.leave()
    _log.info("mover.ended", site=config.name, epoch=epoch.number)
    return 0


def _step(directory: Path, stage: Path, here: LocalMoves, epoch: Epoch) -> bool:
    """Take new orders, write outcomes, drop what is not wanted any more; whether anything is on its way."""
    epoch.check()
    orders = {name.removesuffix(".json") for name in names_in(directory / "orders") or [] if name[0] != "."}
    done = {name.removesuffix(".json") for name in names_in(directory / "done") or [] if name[0] != "."}
    known = here.known()
    here.cancel(*(known - orders))
    for order_id in orders - known - done:
        try:
            order = _read(directory / "orders" / f"{order_id}.json", stage)
        except SiteError as error:
            if error.transient:
                raise
            _log.error("order.refused", order=order_id, reason=error.message)
            _write_outcome(directory, MoveOutcome(id=order_id, error=error.message, hint=error.hint), epoch)
            continue
        if order is not None:
            here.submit(order)
    for order_id in known & orders:
        outcome = here.pop_outcome(order_id)
        if outcome is not None:
            _write_outcome(directory, outcome, epoch)
    return bool(orders - done)


def _write_outcome(directory: Path, outcome: MoveOutcome, epoch: Epoch) -> None:
    epoch.check()
    write_durable(directory / "done" / f"{outcome.id}.json", msgspec.json.encode(outcome))


def _read(path: Path, stage: Path) -> MoveOrder | None:
    """The order in a file, None if it is gone. Raises SiteError for one that leaves the stage: no agent writes that."""
    content = read_bounded(path, FILE_BYTES_MAX)
    if content is None:
        return None
    try:
        order = msgspec.json.decode(content, type=MoveOrder)
    except UNDECODABLE as error:
        raise SiteError(f"failed to read `{path}`: {error}", transient=False) from error
    is_path = "\0" not in order.path
    if not (is_path and Path(order.path).resolve().is_relative_to(stage.resolve())) or order.id != path.stem:
        raise SiteError(
            f"`{path}` names `{ascii(order.path)[1:-1]}`, which is not in the stage", transient=False
        )
    return order
