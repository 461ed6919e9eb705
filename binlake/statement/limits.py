"""How large a batch may be: by rows, by the bytes of its text, and never above what the server takes in one packet."""

from __future__ import annotations

from dataclasses import dataclass

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
