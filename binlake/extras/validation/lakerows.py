"""Some rows as the lake has them at a checkpoint, derived from their row changes: the cost depends on these changes.

The last change of a row gives its state. If a DDL of the table came after that change, the mirror is read, which
includes the DDL.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.dataset as ds

from binlake.audit.audit import Audit
from binlake.base.lakecolumns import Mutation
from binlake.changes.net import compute_net_changes
from binlake.ddl.definitions import derive_key_defaults
from binlake.errors import LostRange
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import RowVersion, match_keys, match_table, read_changes
from binlake.lake.paths import LakePaths
from binlake.mirror.versions import IN_PART
from binlake.repair.chunks import AnyKey
from binlake.repair.differences import Row
from binlake.repair.lakeside import VerifiedLakeTable, VerifiedTable
from binlake.rows.codec import format_key_text
from binlake.rows.schema import TableDef
from binlake.rows.schema.job import Action

_FEW = 100
"""Up to this many keys are searched one by one using the files' statistics; more are matched as a set."""


@dataclass(frozen=True)
class LakeRows:
    """`rows` with one of the keys. `changed`: the commit_ts of the last change of each key that has one.

    `unknown`: keys whose current row the lake cannot give; `why`: the reason.
    """

    rows: list[Row]
    changed: Mapping[str, int]
    unknown: frozenset[str] = frozenset()
    why: str = ""


def read_lake_rows(
    audit: Audit,
    paths: LakePaths,
    verified: VerifiedTable,
    keys: Collection[AnyKey],
    lo: int,
    ts: int,
    *,
    mirrored: bool,
) -> LakeRows:
    """The rows at `ts` with one of `keys`, each of which changed in (`lo`, `ts`]."""
    texts = {format_key_text(list(key)): key for key in keys}
    changes = read_changes(paths, lo, ts, match_table(*verified.name) & _build_key_filter(texts))
    changed: dict[str, int] = {}
    for change in changes:
        for key in {change.key, change.new_key or change.key}:
            changed[key] = change.commit_ts
    ddls = [ddl for ddl in read_landed_ddls(paths, lo, ts, verified.name) if ddl.action != Action.CREATE_TABLE]
    cut = max((ddl.commit_ts for ddl in ddls), default=lo)
    rows = _compute_net_rows(verified.table, [change for change in changes if change.commit_ts > cut])
    before = {text: key for text, key in texts.items() if changed.get(text, lo) <= cut}
    known = [row for key, row in rows.items() if key in texts and key not in before]
    if not before:
        return LakeRows(known, changed)
    try:
        return LakeRows(
            [*known, *_read_mirror_rows(audit, paths, verified, list(before.values()), ts, mirrored)], changed
        )
    except LostRange as error:
        return LakeRows(known, changed, frozenset(before), error.message)


def join_lake_rows(parts: Sequence[LakeRows]) -> LakeRows:
    """The combined rows of `parts`, which have no keys in common."""
    changed: dict[str, int] = {}
    for part in parts:
        changed |= part.changed
    unknown = frozenset[str]().union(*(part.unknown for part in parts))
    return LakeRows(
        [row for part in parts for row in part.rows], changed, unknown, next((p.why for p in parts if p.why), "")
    )


def _compute_net_rows(table: TableDef, changes: Sequence[RowVersion]) -> dict[str, Row]:
    """The rows after all changes that follow the last DDL, by key."""
    # If a table shares its target with wider ones, its rows do not have all columns.
    lacking: dict[str, str | None] = dict.fromkeys(column.name for column in table.row_columns)
    net = compute_net_changes(
        [change.to_event() for change in changes], table.find_identity(), derive_key_defaults(table)
    )
    return {change.key: {**lacking, **change.after} for change in net if change.after is not None}


def _read_mirror_rows(
    audit: Audit, paths: LakePaths, verified: VerifiedTable, keys: Sequence[AnyKey], ts: int, mirrored: bool
) -> list[Row]:
    """The mirror's rows, for keys that changed before a DDL of their table. Raises LostRange."""
    if not mirrored:
        raise LostRange("rows changed before a DDL of the table, and the lake keeps no mirrors")
    lake = VerifiedLakeTable(audit, paths, verified.table, ts)
    if lake.inexact not in ("", IN_PART):
        raise LostRange(lake.inexact)
    return lake.read_rows_by_key(keys)


def _build_key_filter(texts: Collection[str]) -> ds.Expression:
    if len(texts) <= _FEW:
        return match_keys(texts)
    terms = [ds.field(name).isin(sorted(texts)) for name in (Mutation.KEY, Mutation.NEW_KEY)]
    return functools.reduce(operator.or_, terms)
