"""The table `mirror_version`: which Delta version of a mirror holds the source's state at which commit_ts (R-33)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.dataset as ds

from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths

SCHEMA = pa.schema(
    [
        ("db", pa.string()),
        ("table", pa.string()),
        ("delta_version", pa.int64()),
        ("lo", pa.int64()),
        ("hi", pa.int64()),
        ("dropped", pa.bool_()),
        ("inexact", pa.string()),
    ]
)


@dataclass(frozen=True)
class MirrorVersion:
    """`delta_version` of `db`.`table` is the state at commit_ts `hi`; it was made from changes in (lo, hi].

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

    def __init__(self, paths: LakePaths) -> None:
        self._table = ControlTable(paths.table("mirror_version"), SCHEMA, "Delta version of each mirror by commit_ts")

    def record(self, versions: Sequence[MirrorVersion]) -> None:
        """Append; rows of a window recorded twice by a rerun are harmless: the newest of a hi counts."""
        self._table.append([asdict(version) for version in versions])

    def at(self, db: str, table: str, ts: int) -> MirrorVersion | None:
        """The newest version whose hi is at or below `ts`; None when there is none yet."""
        where = (ds.field("db") == db) & (ds.field("table") == table) & (ds.field("hi") <= ts)
        rows = self._table.rows(where=where)
        return MirrorVersion(**max(rows, key=lambda row: (row["hi"], row["delta_version"]))) if rows else None

    def latest(self) -> dict[tuple[str, str], MirrorVersion]:
        """The newest version of each table."""
        newest: dict[tuple[str, str], MirrorVersion] = {}
        for row in sorted(self._table.rows(), key=lambda row: (row["hi"], row["delta_version"])):
            newest[row["db"], row["table"]] = MirrorVersion(**row)
        return newest
