"""What publish has sent, counted as it sends: messages, bytes, and the topics that they went to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Message

MOST_TOPICS = 200
"""Topics that a result names; of a window that went to more, none: XCom and events are for small things."""


@dataclass
class Sent:
    """Messages, and bytes of their keys and values with what stands before them."""

    messages: int = 0
    bytes: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, messages: pa.Table) -> None:
        """Count `messages` as they were sent."""
        self.messages += messages.num_rows
        self.bytes += sum(_length(messages.column(name)) for name in (Message.KEY, Message.VALUE))
        self.topics.update(pc.unique(messages.column(Message.TOPIC)).to_pylist())

    def include(self, other: Sent) -> None:
        """What was sent of another window."""
        self.messages, self.bytes = self.messages + other.messages, self.bytes + other.bytes
        self.topics |= other.topics

    def detail(self) -> Mapping[str, Any]:
        """For an event and a result."""
        return {"bytes": self.bytes, "topics": sorted(self.topics) if len(self.topics) <= MOST_TOPICS else []}


def _length(column: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
