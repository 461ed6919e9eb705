"""How far a feed has come, as its sink records it."""

from __future__ import annotations

from typing import NamedTuple

_LAST_START_TS, _LAST_SEQ = (1 << 63) - 1, (1 << 31) - 1


class Position(NamedTuple):
    """A place in the order of all changes."""

    commit_ts: int
    start_ts: int
    seq: int

    @classmethod
    def behind(cls, commit_ts: int) -> Position:
        """The end of all changes with this commit_ts."""
        return cls(commit_ts, _LAST_START_TS, _LAST_SEQ)

    @classmethod
    def from_text(cls, text: str) -> Position:
        """What `to_text` wrote."""
        return cls(*map(int, text.split("-")))

    def to_text(self) -> str:
        """As a sink records it."""
        return f"{self.commit_ts}-{self.start_ts}-{self.seq}"
