"""Reads the lake's table `ddl` without Spark: the DDL of a range of commit_ts, across any number of windows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow.dataset as ds
from deltalake.exceptions import TableNotFoundError

from binlake import tso
from binlake.common.lakecolumns import Ddl, Statement
from binlake.ddl.definitions import LandedDdl
from binlake.lake.damage import name_damage
from binlake.lake.opentable import open_once, read_matching
from binlake.lake.paths import LakePaths
from binlake.lake.tables import DDL, STATEMENT, LakeTable
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.state import DdlSide

_PLAIN = (
    Ddl.COMMIT_TS, Ddl.SINCE, Ddl.START_TS, Ddl.SCHEMA_VERSION, Ddl.JOB_ID, Ddl.ACTION, Ddl.DB, Ddl.TABLE, Ddl.QUERY,
    Ddl.SQL, Ddl.DECISION, Ddl.REASON, Ddl.SEGMENT,
)  # fmt: skip


def read_landed_ddls(paths: LakePaths, lo: int, hi: int, touching: tuple[str, str] | None = None) -> list[LandedDdl]:
    """The DDL with lo < commit_ts <= hi, including skipped DDL, in the order in which targets get them.

    That is the commit order, except for a DDL that takes effect before its commit_ts (`since`). Raises SchemaError.

    `touching`: only DDL that touches this (db, table) of the target, case-insensitive.
    """
    if hi <= lo:
        return []
    where = (ds.field(Ddl.COMMIT_TS) > lo) & (ds.field(Ddl.COMMIT_TS) <= hi)
    if touching is not None:
        where &= ds.field(Ddl.COMMIT_TS).isin(_find_touching(paths, where, fold_name(".".join(touching))))
    rows = _read(paths, DDL, [*_PLAIN, Ddl.BEFORE, Ddl.AFTER], where)
    # Rows with the same commit_ts keep merge's order, because segment numbers ascend within a window.
    rows.sort(key=lambda row: (row[Ddl.SINCE], row[Ddl.COMMIT_TS], row[Ddl.SEGMENT], row[Ddl.SCHEMA_VERSION]))
    return [_decode_ddl(row) for row in rows]


def find_last_ddls(paths: LakePaths, tables: Collection[tuple[str, str]], upto: int) -> dict[tuple[str, str], int]:
    """By target table of `tables`, the commit_ts of the last DDL at or below `upto` that touches it, if any."""
    names = {fold_name(".".join(table)): table for table in tables}
    last: dict[tuple[str, str], int] = {}
    rows = _read(paths, DDL, [Ddl.COMMIT_TS, Ddl.TABLES], ds.field(Ddl.COMMIT_TS) <= upto)
    for row in rows:
        for table in {names[name] for name in map(fold_name, row[Ddl.TABLES]) if name in names}:
            last[table] = max(last.get(table, 0), row[Ddl.COMMIT_TS])
    return last


def read_injections_at(paths: LakePaths, moments: Collection[int]) -> set[tuple[int, str]]:
    """(commit_ts, statement) of the merged injections at these commit_ts."""
    where = ds.field(Ddl.COMMIT_TS).isin(sorted(moments)) & (ds.field(Ddl.DECISION) == "injected")
    rows = _read(paths, DDL, [Ddl.COMMIT_TS, Ddl.SQL], where)
    return {(row[Ddl.COMMIT_TS], row[Ddl.SQL]) for row in rows}


def find_statement_kind(paths: LakePaths, window: str, segment: int) -> str:
    """The kind of the DDL that convert wrote for this segment: ddl, replaced or injected; empty if unknown.

    `window`: its name, `lo-hi`.
    """
    where = (
        (ds.field(Statement.WINDOW) == window)
        & (ds.field(Statement.SEGMENT) == segment)
        & (ds.field(Statement.PHASE) == 0)
    )
    rows = _read(paths, STATEMENT, [Statement.KIND], where)
    return str(rows[0][Statement.KIND]) if rows else ""


@dataclass(frozen=True)
class DdlLine:
    """A DDL in a list: commit_ts (TSO), the texts before and after routing, the decision and its reason."""

    commit_ts: int
    schema_version: int
    job_id: int
    db: str
    table: str
    query: str
    sql: str
    decision: str
    reason: str


def read_newest_ddls(paths: LakePaths, count: int, upto: int | None = None) -> list[DdlLine]:
    """The last `count` DDL with commit_ts <= `upto` (and all others at the oldest commit_ts), newest first."""
    where = ds.field(Ddl.COMMIT_TS) <= (tso.MAX_TS if upto is None else upto)
    moments = sorted(row[Ddl.COMMIT_TS] for row in _read(paths, DDL, [Ddl.COMMIT_TS], where))
    if not moments:
        return []
    where &= ds.field(Ddl.COMMIT_TS) >= moments[-count:][0]
    rows = _read(paths, DDL, [field.name for field in fields(DdlLine)], where)
    return sorted((DdlLine(**row) for row in rows), key=lambda line: (-line.commit_ts, -line.schema_version))


def _find_touching(paths: LakePaths, where: ds.Expression, name: str) -> list[int]:
    rows = _read(paths, DDL, [Ddl.COMMIT_TS, Ddl.TABLES], where)
    return [row[Ddl.COMMIT_TS] for row in rows if name in (fold_name(touched) for touched in row[Ddl.TABLES])]


def _read(paths: LakePaths, table: LakeTable, columns: Sequence[str], where: ds.Expression) -> list[dict[str, Any]]:
    """`columns` of the matching rows; none if the table does not exist."""
    path = paths.locate_table(table.name)
    try:
        with name_damage(path):
            rows = read_matching(open_once(path), columns, where)
    except TableNotFoundError:
        return []
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def _decode_ddl(row: dict[str, object]) -> LandedDdl:
    before, after = DdlSide.from_json(str(row[Ddl.BEFORE])), DdlSide.from_json(str(row[Ddl.AFTER]))
    return LandedDdl(**{name: row[name] for name in _PLAIN}, before=before, after=after)  # type: ignore[arg-type]
