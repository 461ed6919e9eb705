"""What the lake says of some rows at a checkpoint, from their own row changes: it costs what the windows changed.

The last change of a row leaves it as it is. Where a DDL of the table lies among the changes, the mirror is asked, which
has the DDL behind it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow.dataset as ds

from binlake.audit.audit import Audit
from binlake.base.lakecolumns import Mutation
from binlake.changes.net import net_changes
from binlake.errors import LostRange
from binlake.lake.ddls import landed_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import read_changes, where_keys, where_table
from binlake.mirror.versions import IN_PART
from binlake.repair.verify.differences import Row
from binlake.repair.verify.keyorder import AnyKey
from binlake.repair.verify.laketable import LakeTable
from binlake.repair.verify.tables import VerifiedTable
from binlake.rows.codec import key_text
from binlake.rows.schema.actions import Action
from binlake.window.definitions import key_defaults_of

_FEW = 100
"""Keys that are looked for one by one in the files' statistics; more are a set."""


@dataclass(frozen=True)
class LakeRows:
    """`rows` with one of the keys; `changed`: the commit_ts of the last change of each key that has one."""

    rows: list[Row]
    changed: Mapping[str, int]


def read_lake_rows(
    audit: Audit, paths: LakePaths, one: VerifiedTable, keys: Collection[AnyKey], lo: int, ts: int, *, mirrored: bool
) -> LakeRows:
    """The rows at `ts` with one of `keys`, each of which changed in (`lo`, `ts`].

    Raises LostRange where a DDL lies among the changes and no mirror has it behind it.
    """
    db, table = one.name
    texts = {key_text(list(key)) for key in keys}
    changes = read_changes(paths, lo, ts, where_table(db, table) & _where(texts))
    changed: dict[str, int] = {}
    for change in changes:
        for key in {change.key, change.new_key or change.key}:
            changed[key] = change.commit_ts
    ddls = landed_ddls(paths, lo, ts, one.name)
    if all(ddl.action == Action.CREATE_TABLE for ddl in ddls):
        net = net_changes([change.event() for change in changes], one.table.identity(), key_defaults_of(one.table))
        rows: list[Row] = [found.after for found in net if found.after is not None and found.key in texts]
        return LakeRows(rows, changed)
    if not mirrored:
        raise LostRange("a DDL of the table lies among its row changes, and the lake keeps no mirrors")
    lake = LakeTable(audit, paths, one.table, ts)
    if lake.inexact not in ("", IN_PART):
        raise LostRange(lake.inexact)
    return LakeRows(lake.rows_of_keys(list(keys)), changed)


def _where(texts: Collection[str]) -> ds.Expression:
    if len(texts) <= _FEW:
        return where_keys(texts)
    terms = [ds.field(name).isin(sorted(texts)) for name in (Mutation.KEY, Mutation.NEW_KEY)]
    return functools.reduce(operator.or_, terms)
