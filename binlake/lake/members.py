"""The table `pump_member`: every pump ever seen, so that none can vanish unnoticed (DESIGN 3.3, hazards R-05, R-06)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths

SCHEMA = pa.schema(
    [
        ("node_id", pa.string()),
        ("store_uuid", pa.string()),
        ("state", pa.string()),
        ("watermark", pa.int64()),
        ("landed_ts", pa.int64()),
        ("at_ms", pa.int64()),
    ]
)


FORGOTTEN = "forgotten"
"""State of a pump that a person gave up: windows go on without it, until it serves again."""


@dataclass(frozen=True)
class RememberedMember:
    """What the last landed window knew of a pump: `store_uuid` (empty for an original pump), `state`, `landed_ts`."""

    node_id: str
    store_uuid: str
    state: str
    watermark: int
    landed_ts: int


class MemberTable:
    """Reads and extends `pump_member`."""

    def __init__(self, paths: LakePaths) -> None:
        self._table = ControlTable(paths.table("pump_member"), SCHEMA, "Every pump ever seen")

    def remember(self, members: Sequence[RememberedMember]) -> None:
        """Append what is known now; the newest row of a node counts."""
        now = time.time_ns() // 1_000_000
        self._table.append([{**vars(member), "at_ms": now} for member in members])

    def known(self) -> dict[str, RememberedMember]:
        """The newest row of each node."""
        newest: dict[str, RememberedMember] = {}
        for row in sorted(self._table.rows(), key=lambda row: (row["landed_ts"], row["at_ms"])):
            row.pop("at_ms")
            newest[row["node_id"]] = RememberedMember(**row)
        return newest
