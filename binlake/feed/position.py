"""The position of a feed, as recorded by its sink."""

from __future__ import annotations

from typing import NamedTuple

_LAST_START_TS, _LAST_SEQ = (1 << 63) - 1, (1 << 31) - 1


class ChangePosition(NamedTuple):
    """A position in the order of all changes."""

    commit_ts: int
    start_ts: int
    seq: int

    @classmethod
    def after_commit(cls, commit_ts: int) -> ChangePosition:
        """The end of all changes with this commit_ts."""
        return cls(commit_ts, _LAST_START_TS, _LAST_SEQ)

    @classmethod
    def from_text(cls, text: str) -> ChangePosition:
        """Parse what `to_text` wrote."""
        return cls(*map(int, text.split("-")))

    def to_text(self) -> str:
        """The text that a sink records."""
        return f"{self.commit_ts}-{self.start_ts}-{self.seq}"
