"""Commits given up by command: a C whose P is not in this pump can never be completed and would end every pull.

Durable in the data directory (`.lost`), so neither a restart nor a lost index brings them back.
"""

from __future__ import annotations

import threading
from typing import Protocol

from binlake.errors import BinlakeError, LostRange


class SmallFiles(Protocol):
    """The small files of a data directory."""

    def recall(self, name: str) -> str:
        """The content of `.name`; empty when there is none."""

    def replace(self, name: str, value: str) -> None:
        """Write `.name` durably."""


class PullFault:
    """Where pulls end with an error of this pump, and why: `text`; empty when they do not, or have got past it."""

    def __init__(self) -> None:
        self.text = ""
        self._after = 0

    def record(self, after_ts: int, error: BinlakeError) -> None:
        """A pull failed after `after_ts`. A collected range is the caller's fault and is not recorded."""
        if not isinstance(error, LostRange):
            self._after, self.text = after_ts, str(error)

    def clear_below(self, commit_ts: int) -> None:
        """A pull delivered everything up to `commit_ts`: an earlier fault is over."""
        if self.text and commit_ts > self._after:
            self.text = ""


class LostCommits:
    """The commit_ts given up, with their start_ts. Thread-safe."""

    def __init__(self, files: SmallFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        words = map(int, files.recall("lost").split())
        self._starts = dict(zip(words, words, strict=True))

    def add(self, start_ts: int, commit_ts: int) -> None:
        """Give the transaction up; durable on return. Raises OSError."""
        with self._lock:
            known = {**self._starts, commit_ts: start_ts}
            self._files.replace("lost", "\n".join(f"{commit} {start}" for commit, start in known.items()))
            self._starts = known

    def commit_ts(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self._starts)

    def __contains__(self, commit_ts: object) -> bool:
        return commit_ts in self._starts
