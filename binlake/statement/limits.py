"""How large a batch may be: by rows, by the bytes of its text, and never above what the server takes in one packet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

MAX_STATEMENT_BYTES = 4 << 20
"""Bound of one statement's text: a quarter of MariaDB's default max_allowed_packet."""

PACKET_MARGIN = 1 << 10
"""Bytes of a packet that are not the statement's text, generously."""


@dataclass(frozen=True)
class BatchLimits:
    """`rows` a batch; `bytes` of its text, unless one row alone has more; `packet`: bytes no statement may pass
    (the server's max_allowed_packet; None = not known).
    """

    rows: int = 100
    bytes: int = MAX_STATEMENT_BYTES
    packet: int | None = None

    @classmethod
    def of(cls, rows: int, packet: int) -> BatchLimits:
        """The limits for a server that takes packets of `packet` bytes: half of one is left for a statement's head."""
        return cls(rows, min(MAX_STATEMENT_BYTES, packet // 2), packet)

    def takes(self, statement: str) -> bool:
        """True when the server takes `statement`."""
        # No character has more than four bytes: most statements need no encoding to know.
        if self.packet is None or 4 * len(statement) + PACKET_MARGIN <= self.packet:
            return True
        return len(statement.encode()) + PACKET_MARGIN <= self.packet

    def cuts(self, *texts: Any, times: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
        """(start, stop) of batches of rows; the longest of a row's `texts` (Arrow columns) counts, and a comma.

        `times`: how often each of them stands in its statement (once).
        """
        counts = times or [1] * len(texts)
        sizes = [(np.asarray(pc.binary_length(text)) + 1) * count for text, count in zip(texts, counts, strict=True)]
        ends = np.cumsum(np.max(sizes, axis=0))
        start, total = 0, len(ends)
        while start < total:
            before = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, before + self.bytes, side="right"))
            stop = min(start + self.rows, max(fits, start + 1), total)
            yield start, stop
            start = stop
