"""Commits given up by command: a C whose P is not in this pump can never be completed, and would end every pull.

They are stored durably in the data directory (`.lost`), so neither a restart nor a lost index undoes the decision.
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
    """The error with which pulls end at present. `text` is empty if they do not fail, or have passed that point."""

    def __init__(self) -> None:
        self.text = ""
        self._after = 0

    def record(self, after_ts: int, error: BinlakeError) -> None:
        """A pull failed after `after_ts`. A collected range is the caller's fault and is not recorded."""
        if not isinstance(error, LostRange):
            self._after, self.text = after_ts, str(error)

    def clear_below(self, commit_ts: int) -> None:
        """A pull delivered everything up to `commit_ts`, so clear an earlier fault."""
        if self.text and commit_ts > self._after:
            self.text = ""


class LostCommits:
    """The given-up commit_ts, each with its start_ts. Thread-safe."""

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
        """All given-up commit_ts, ascending."""
        return sorted(self._starts)

    def __contains__(self, commit_ts: object) -> bool:
        return commit_ts in self._starts
