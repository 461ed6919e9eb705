"""Progress of a replay: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from binlake.testkit.replay import replayer

_EVERY_S = 5.0


@contextmanager
def show_progress(name: str) -> Iterator[replayer.Progress]:
    """A function that takes (acked, total) and shows them on stderr."""
    if not sys.stderr.isatty():
        yield _ProgressLines(name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda acked, total: bar.update(task, completed=acked, total=total)


class _ProgressLines:
    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.monotonic()
        self._printed_at = self._began

    def __call__(self, acked: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed_at >= _EVERY_S:
            self._printed_at = now
            speed = acked / (now - self._began)
            print(f"{self._name}: {acked} of {total} binlogs, {speed:.0f} per second", file=sys.stderr, flush=True)
