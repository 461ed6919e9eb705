"""The table `mirror_version`: which Delta version of a mirror has the source's state at which commit_ts (R-33)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow.dataset as ds

from binlake.common.lakecolumns import MirrorHead
from binlake.common.lakecolumns import MirrorVersion as Columns
from binlake.lake.control import ControlTable
from binlake.lake.controltables import MIRROR_HEAD, MIRROR_VERSION
from binlake.lake.paths import LakePaths

IN_PART = "known in part: what it held when this lake began to follow it is not known, unless it was changed since"
"""Why a table is inexact that existed before the lake, until it is emptied or created again (R-34)."""

HEAD_EVERY = 512
"""Rows of mirror_version after which heads are rewritten. It limits what one window reads, however old the lake is."""


@dataclass(frozen=True)
class MirrorState:
    """`delta_version` of `db`.`table` has the state at commit_ts `hi`, after the changes in (lo, hi].

    It stays the state until the next change of the table, which has its own row. `dropped`: the table does not exist
    from hi on. `inexact` says why the mirror may differ from the source since some point; empty = exact.
    """

    db: str
    table: str
    delta_version: int
    lo: int
    hi: int
    dropped: bool = False
    inexact: str = ""


class MirrorVersions:
    """Reads and extends `mirror_version`."""

    def __init__(self, paths: LakePaths, *, pinned: bool = False) -> None:
        """`pinned`: the caller holds the lake's lock `mirror`, so that only this object changes what it has read."""
        self._table = ControlTable(paths.locate_table(MIRROR_VERSION.name), MIRROR_VERSION, pinned=pinned)
        self._heads = ControlTable(paths.locate_table(MIRROR_HEAD.name), MIRROR_HEAD, pinned=pinned)

    def record(self, versions: Sequence[MirrorState]) -> None:
        """Append `versions`. Rows recorded twice by a rerun are harmless, because the newest row of a hi is valid.

        The caller must hold the lake's lock `mirror` and record in ascending order of hi. A crash after the append is
        harmless: heads are derived from the rows and only speed up reads.
        """
        if not versions:
            return
        self._table.append([asdict(version) for version in versions])
        upto = max(version.hi for version in versions)
        heads = self._heads.read_rows()
        seen = max((head[MirrorHead.UPTO] for head in heads), default=-1)
        newer = self._table.read_arrow((Columns.HI,), ds.field(Columns.HI) > seen).num_rows
        if newer > HEAD_EVERY + len(heads):
            self._heads.replace([{**asdict(version), MirrorHead.UPTO: upto} for version in self.read_latest().values()])

    def find_at(self, db: str, table: str, ts: int) -> MirrorState | None:
        """The newest version whose hi is at or below `ts`, or None."""
        where = _match_table(db, table) & (ds.field(Columns.HI) <= ts)
        hi = self._table.find_greatest(Columns.HI, where)
        if hi is None:
            return None
        rows = self._table.read_rows(where=where & (ds.field(Columns.HI) == hi))
        return MirrorState(**max(rows, key=lambda row: row[Columns.DELTA_VERSION]))

    def find_after(self, db: str, table: str, ts: int) -> MirrorState | None:
        """The oldest version whose hi is above `ts`, or None."""
        where = _match_table(db, table) & (ds.field(Columns.HI) > ts)
        rows = self._table.read_arrow(where=where).sort_by(Columns.HI)
        return MirrorState(**rows.slice(0, 1).to_pylist()[0]) if rows.num_rows else None

    def read_versions(self, db: str, table: str) -> list[MirrorState]:
        """All versions of the table, oldest first, except those after which it was dropped."""
        where = _match_table(db, table) & ~ds.field(Columns.DROPPED)
        return [MirrorState(**row) for row in self._table.read_arrow(where=where).sort_by(Columns.HI).to_pylist()]

    def read_latest(self, ts: int | None = None) -> dict[tuple[str, str], MirrorState]:
        """The newest version of each table; if `ts` is given, of those whose hi is at or below it."""
        heads = [head for head in self._heads.read_rows() if ts is None or head[MirrorHead.UPTO] <= ts]
        upto = max((head.pop(MirrorHead.UPTO) for head in heads), default=-1)
        newest = {(head[Columns.DB], head[Columns.TABLE]): MirrorState(**head) for head in heads}
        where = ds.field(Columns.HI) >= upto
        rows = self._table.read_rows(where=where if ts is None else where & (ds.field(Columns.HI) <= ts))
        for row in sorted(rows, key=lambda row: (row[Columns.HI], row[Columns.DELTA_VERSION])):
            newest[row[Columns.DB], row[Columns.TABLE]] = MirrorState(**row)
        return newest

    def tidy(self) -> dict[str, int]:
        """As ControlTable.tidy, for both tables."""
        heads, rows = self._heads.tidy(), self._table.tidy()
        return {name: heads[name] + rows[name] for name in rows}


def _match_table(db: str, table: str) -> ds.Expression:
    return (ds.field(Columns.DB) == db) & (ds.field(Columns.TABLE) == table)
