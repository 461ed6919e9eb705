"""Counts what publish sends: messages, bytes, and their topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Message

MOST_TOPICS = 200
"""The maximum number of topics in a result. With more it names none, as XCom and events must stay small."""


@dataclass
class SentCounts:
    """The number of messages, and the bytes of their keys and values including headers."""

    messages: int = 0
    bytes: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, messages: pa.Table) -> None:
        """Count `messages`."""
        self.messages += messages.num_rows
        self.bytes += sum(_count_bytes(messages.column(name)) for name in (Message.KEY, Message.VALUE))
        self.topics.update(pc.unique(messages.column(Message.TOPIC)).to_pylist())

    def include(self, other: SentCounts) -> None:
        """Add the counts of another window."""
        self.messages, self.bytes = self.messages + other.messages, self.bytes + other.bytes
        self.topics |= other.topics

    def build_detail(self) -> Mapping[str, Any]:
        """The counts for an event and a result."""
        return {"bytes": self.bytes, "topics": sorted(self.topics) if len(self.topics) <= MOST_TOPICS else []}


def _count_bytes(column: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
