"""Shows a pull on standard error: bars on a terminal, and in a pipe only what explains a wait or a change of source.

What is pulled is left to the commands, how to ``models.download``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from treadle.models.download import Progress as PullProgress
from treadle.models.download import PullEvent

__all__ = ["pull_display"]

_VERBS = {"download": "fetching", "verify": "checking"}


@contextmanager
def pull_display(*, quiet: bool = False, console: Console | None = None) -> Iterator[PullProgress]:
    """Yield the callback to give to ``pull_model`` or ``resolve_model``; the bars vanish at the end."""
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    tasks: dict[tuple[str, str], TaskID] = {}

    def show(event: PullEvent) -> None:
        if event.phase in ("wait", "fallback"):
            if not quiet:
                note = event.reason or "another process is pulling it; waiting"
                bars.console.print(f"{event.model}: {note}", markup=False, highlight=False, soft_wrap=True)
        else:
            key = (event.phase, event.file)
            if key not in tasks:
                tasks[key] = bars.add_task(f"{_VERBS[event.phase]} {event.file}", total=event.total_bytes)
            bars.update(tasks[key], completed=event.done_bytes, total=event.total_bytes)

    with bars:
        yield show
