"""A progress bar, in terminals and in Jupyter: `for future in progress(futures)`, `client.wait(..., on_progress=bar)`.

Drawn by rich, which knows both. `bar=tqdm` uses tqdm, or what speaks its protocol, instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from tidemill.wire.api import CampaignRow

T = TypeVar("T")


class ProgressBar(Protocol):
    """What is used of tqdm's protocol."""

    total: Any

    def update(self, n: int = 1) -> Any:
        """So many more are done."""

    def close(self) -> Any:
        """No more come."""


class RichBar:
    """rich's bar on stderr, with tqdm's protocol."""

    def __init__(self, total: int | None = None, desc: str | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, disable=not (console.is_terminal or console.is_jupyter),
        )  # fmt: skip
        self._task = self._progress.add_task(desc or "", total=total)
        self._progress.start()

    @property
    def total(self) -> Any:
        """How many there are."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, value: Any) -> None:
        self._progress.update(self._task, total=value)

    def update(self, n: int = 1) -> None:
        """So many more are done."""
        self._progress.update(self._task, advance=n)

    def close(self) -> None:
        """No more come."""
        self._progress.stop()


def progress(
    futures: Sequence[Future[T]],
    *,
    desc: str = "calls",
    bar: Callable[..., ProgressBar] = RichBar,
    timeout_s: float | None = None,
) -> Iterator[Future[T]]:
    """Futures as they complete, behind a progress bar. Raises TimeoutError after `timeout_s`."""
    drawn = bar(total=len(futures), desc=desc)
    try:
        for future in as_completed(futures, timeout=timeout_s):
            drawn.update(1)
            yield future
    finally:
        drawn.close()


class CampaignBar:
    """A bar for `Client.wait(campaign, on_progress=...)`: events of all jobs, failed and canceled ones included."""

    def __init__(self, *, bar: Callable[..., ProgressBar] = RichBar) -> None:
        self._make, self._done = bar, 0
        self._bar: ProgressBar | None = None

    def __call__(self, row: CampaignRow) -> None:
        """Draw what the campaign's row says."""
        if self._bar is None:
            self._bar = self._make(total=row.events, desc=row.name)
        self._bar.total = row.events
        done = row.events_done + row.events_failed + row.events_canceled
        self._bar.update(done - self._done)
        self._done = done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
