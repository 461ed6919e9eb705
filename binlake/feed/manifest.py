"""The manifest that encode seals for publish: a feed's window, the schemas of its messages, and positions in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from binlake.errors import DamagedManifest
from binlake.window.manifest import OfWindow, seal, unseal


@dataclass(frozen=True)
class EncodeManifest(OfWindow):
    """Sealed by encode for the feed's window (lo, hi].

    `messages`: number of messages; `ddls`: number of DDL without a message in the feed; `digest`: that of the messages;
    `schemas`: texts by fingerprint; `config`: `FeedSection.compute_data_hash` of the section with which it was encoded;
    `tables`: for a feed that writes files, the versions of its tables.
    """

    VERSION: ClassVar[int] = 1

    replication: str
    feed: str
    lo: int
    hi: int
    messages: int
    ddls: int
    digest: str
    schemas: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    tables: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> str:
        """The sealed text."""
        lists = {"schemas": dict(self.schemas), "tables": [dict(table) for table in self.tables]}
        return seal("encode", self.VERSION, {**vars(self), **lists})

    @classmethod
    def from_json(cls, text: str) -> EncodeManifest:
        """Parse what `to_json` wrote. Raises DamagedManifest."""
        raw: Mapping[str, Any] = unseal(text, "encode", cls.VERSION)
        try:
            return cls(**raw)
        except TypeError as error:
            raise DamagedManifest(f"the encode manifest lacks a value, or has a wrong one: {error}") from None


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
