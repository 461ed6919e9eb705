"""Limits of a batch: its rows, the bytes of its text, and the largest packet that the server accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

MAX_STATEMENT_BYTES = 4 << 20
"""Limit of one statement's text: a quarter of MariaDB's default max_allowed_packet."""

PACKET_MARGIN = 1 << 10
"""A generous allowance for the bytes of a packet besides the statement's text."""


@dataclass(frozen=True)
class BatchLimits:
    """Most `rows` per batch; most `bytes` of its text, unless a single row has more; `packet`: the bytes that no
    statement may exceed (the server's max_allowed_packet; None = unknown).
    """

    rows: int = 100
    bytes: int = MAX_STATEMENT_BYTES
    packet: int | None = None

    @classmethod
    def of(cls, rows: int, packet: int) -> BatchLimits:
        """The limits for a server that accepts packets of `packet` bytes; half a packet is left for a statement's
        head."""
        return cls(rows, min(MAX_STATEMENT_BYTES, packet // 2), packet)

    def takes(self, statement: str) -> bool:
        """True if the server accepts `statement`."""
        # A character has at most four bytes, so most statements need not be encoded for this check.
        return self.takes_bytes(4 * len(statement)) or self.takes_bytes(len(statement.encode()))

    def takes_bytes(self, size: int) -> bool:
        """True if the server accepts a statement of `size` bytes."""
        return self.packet is None or size + PACKET_MARGIN <= self.packet

    def cut_by_texts(self, *texts: Any) -> Iterator[tuple[int, int]]:
        """(start, stop) of batches of rows; a row counts with the longest of its `texts` (Arrow columns) and a
        comma."""
        return self.cut_by_sizes([np.asarray(pc.binary_length(text)) + 1 for text in texts])

    def cut_by_sizes(self, sizes: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """(start, stop) of batches of rows; a row counts with the greatest of its `sizes` (numpy columns of bytes)."""
        ends = np.cumsum(np.max(sizes, axis=0))
        start, total = 0, len(ends)
        while start < total:
            before = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, before + self.bytes, side="right"))
            stop = min(start + self.rows, max(fits, start + 1), total)
            yield start, stop
            start = stop
