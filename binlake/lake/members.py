"""The table `pump_member`: every pump ever seen, so that none vanishes unnoticed (DESIGN 3.3, hazards R-05, R-06)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from binlake.base.lakecolumns import PumpMember
from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths
from binlake.lake.tables import PUMP_MEMBER
from binlake.window.membership import RememberedMember


class MemberTable:
    """Reads and extends `pump_member`; `pinned`: as of ControlTable."""

    def __init__(self, paths: LakePaths, *, pinned: bool = False) -> None:
        self._table = ControlTable(paths.locate_table(PUMP_MEMBER.name), PUMP_MEMBER, pinned=pinned)

    def refresh(self) -> None:
        """Let later reads of a pinned table find the present records."""
        self._table.refresh()

    def remember(self, members: Sequence[RememberedMember]) -> None:
        """Replace the records of these members; others stay. The caller must hold the lake's lock `landing`."""
        now = time.time_ns() // 1_000_000
        rows = self._read_rows() | {member.node_id: {**vars(member), PumpMember.AT_MS: now} for member in members}
        # One row per node, replaced in one commit. With a row per window, each window would read all earlier rows.
        self._table.replace(list(rows.values()))

    def read_all(self) -> dict[str, RememberedMember]:
        """The last record of each node."""
        rows = self._read_rows().items()
        return {node: RememberedMember(**{k: v for k, v in row.items() if k != PumpMember.AT_MS}) for node, row in rows}

    def tidy(self) -> dict[str, int]:
        """As ControlTable.tidy."""
        return self._table.tidy()

    def _read_rows(self) -> dict[str, dict[str, Any]]:
        # Older lakes have several rows per node; the newest one is valid.
        rows = sorted(self._table.read_rows(), key=lambda row: (row[PumpMember.LANDED_TS], row[PumpMember.AT_MS]))
        return {row[PumpMember.NODE_ID]: row for row in rows}
