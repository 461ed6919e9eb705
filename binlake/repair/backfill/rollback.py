"""Plans a new change that undoes a range of commit_ts: on the source, which then replicates it, or only on the target.

Changes on which later changes depend are not undone: a key changed again after the range, or a row that differs from
the lake's, stops the rollback unless it is forced (DESIGN 4). A DDL after the start of the range always stops it,
because the rows have two definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from binlake.audit.audit import Audit
from binlake.base.redaction import redact_key
from binlake.changes.net.net import Undo, undo_changes
from binlake.config import Replication
from binlake.ddl.definitions import WindowBase, derive_key_defaults
from binlake.ddl.targets import Naming
from binlake.errors import ConfigError, Permanent
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import RowVersion, read_changes
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.repair.verify.differences import Difference, Row, RowsOfTable
from binlake.repair.verify.keyorder import AnyKey
from binlake.repair.verify.sqltable import SqlTable
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules

Side = Literal["source", "target"]
Name = tuple[str, str]

MOST_CHANGES = 500_000
"""Row changes of one rollback: it is one transaction, held in memory."""
_SHOWN = 5


@dataclass(frozen=True)
class TableUndo:
    """The changes to undo in one table, whose current definition is `table` (with that side's name)."""

    table: TableDef
    undos: tuple[Undo, ...]


@dataclass(frozen=True)
class Rollback:
    """The undo of (lo, hi], planned with all changes up to `known`. `later`: keys that were changed after hi."""

    lo: int
    hi: int
    known: int
    side: Side
    tables: tuple[TableUndo, ...]
    later: tuple[str, ...] = field(default=())

    @property
    def keys(self) -> int:
        """Number of keys that are restored."""
        return sum(len(table.undos) for table in self.tables)


def plan_rollback(replication: Replication, lo: int, hi: int, known: int, side: Side) -> Rollback:
    """Plan the undo of (lo, hi] on `side`, considering changes up to `known`.

    Raises ConfigError (an empty or too large range, rows hidden by filters), Permanent (a DDL since lo), LostRange.
    """
    _require_no_row_filters(replication)
    paths = LakePaths.of(replication)
    first, merged = Audit(paths).read_merged_range()
    if not first <= lo < hi <= min(known, merged):
        raise ConfigError(
            "the range cannot be undone: it must be within the range that the lake has and that has been applied",
            where={"from": lo, "to": hi, "lake": f"{first}-{merged}", "applied": known},
        )
    at_source = side == "source"
    inside, behind = (
        read_changes(paths, lo, hi, at_source=at_source),
        read_changes(paths, hi, known, at_source=at_source),
    )
    if len(inside) > MOST_CHANGES:
        raise ConfigError(f"{len(inside)} row changes are more than one rollback accepts", hint="use a smaller range")
    state = SchemaHistory(paths).read_state_at(known)
    base: WindowBase = state if at_source else read_target_tables_at(paths, Naming(Rules.of(replication)), known, state)
    own, later = _group_by_table(inside), _group_by_table(behind)
    naming = Naming(Rules.of(replication))
    shown = [naming.map_table(*name) if at_source else name for name in own]
    _require_no_ddl(paths, lo, known, shown, at_source=at_source)
    undone, again = [], []
    for name, rows in sorted(own.items()):
        table = _find_definition(base, name)
        identity, filled = table.find_identity(), derive_key_defaults(table)
        undos = undo_changes([row.to_event() for row in rows], identity, filled)
        undone.append(TableUndo(table, tuple(undos)))
        # A change that does not alter a row's values still counts as a later change.
        touched = {key for row in later.get(name, ()) for key in (row.key, row.new_key)}
        again += [f"{'.'.join(name)} {redact_key(undo.key)}" for undo in undos if undo.key in touched]
    return Rollback(lo, hi, known, side, tuple(undone), tuple(again))


def require_no_later_changes(plan: Rollback) -> None:
    """Raises Permanent if a key was changed again after the range."""
    if plan.later:
        shown = ", ".join(plan.later[:_SHOWN]) + (", ..." if len(plan.later) > _SHOWN else "")
        raise Permanent(
            f"{len(plan.later)} keys were changed again after the range: {shown}",
            where={"from": plan.lo, "to": plan.hi},
            hint="undo the later changes too (a later --to), or use --force: the later values of these keys are lost",
        )


def find_differences_to_undo(undo: TableUndo, current: SqlTable, *, force: bool) -> list[Difference]:
    """The differences to repair at `current`'s server. Raises Permanent for rows that differ from the lake's.

    With `force` such rows are restored too.
    """
    if undo.table.find_identity().kind == "row":
        return [_build_keyless_difference(undo.table, row_undo) for row_undo in undo.undos]
    columns = undo.table.find_identity().columns
    keys: list[AnyKey] = [
        [image[name] for name in columns] for row_undo in undo.undos for image in [_choose_expected_image(row_undo)]
    ]
    current_rows = current.read_rows_by_key(keys)
    if not force:
        _require_unchanged_since(undo, current_rows)
    return RowsOfTable(
        undo.table, _complete_row(undo.table, (row_undo.before for row_undo in undo.undos)), current_rows
    ).list_differences()


def _require_unchanged_since(undo: TableUndo, current_rows: Sequence[Row]) -> None:
    strange = RowsOfTable(
        undo.table, _complete_row(undo.table, (row_undo.after for row_undo in undo.undos)), list(current_rows)
    ).list_differences()
    if strange:
        raise Permanent(
            f"{len(strange)} rows differ from their state after the range, such as {strange[0]}",
            where={"table": f"{undo.table.db}.{undo.table.name}"},
            hint="they have been changed since: check them, or use --force",
        )


def _choose_expected_image(undo: Undo) -> Row:
    image = undo.before if undo.before is not None else undo.after
    assert image is not None
    return image


def _complete_row(table: TableDef, rows: Iterable[Row | None]) -> list[Row]:
    names = dict.fromkeys(column.name for column in table.row_columns)
    return [{**names, **row} for row in rows if row is not None]


def _build_keyless_difference(table: TableDef, undo: Undo) -> Difference:
    kind: Literal["missing", "extra"] = "missing" if undo.before is not None else "extra"
    return Difference(table.db, table.name, undo.key, kind, (), undo.before, undo.after, undo.copies)


def _group_by_table(rows: Iterable[RowVersion]) -> dict[Name, list[RowVersion]]:
    by_table: dict[Name, list[RowVersion]] = {}
    for row in rows:
        by_table.setdefault((row.db, row.table), []).append(row)
    return by_table


def _find_definition(base: WindowBase, name: Name) -> TableDef:
    table = base.find(*name)
    if table is None:
        raise Permanent("a table of the range no longer exists", where={"table": ".".join(name)})
    return table


def _require_no_ddl(paths: LakePaths, lo: int, known: int, own: Iterable[Name], *, at_source: bool) -> None:
    names = {fold_pair(name) for name in own}
    for ddl in read_landed_ddls(paths, lo, known):
        # The source does not know DDL that was injected at the target.
        touched = () if at_source and ddl.decision == "injected" else sorted(ddl.tables)
        for db, table in touched:
            if fold_pair((db, table)) in names:
                text = (ddl.query or ddl.sql)[:200]
                raise Permanent(
                    "a DDL has changed a table since the start of the range: its rows cannot be restored",
                    where={"table": f"{db}.{table}", "ddl": text, "commit_ts": ddl.commit_ts},
                    hint="restore the state at a point in time elsewhere: `binlake backfill replay`,"
                    " `binlake audit table`",
                )


def _require_no_row_filters(replication: Replication) -> None:
    rules = {
        "filters": replication.filters,
        "expression-filter": replication.expression_filter,
        "filter.ignore-txn-commit-ts": replication.filter.ignore_txn_commit_ts,
    }
    hidden = [key for key, value in rules.items() if value]
    if hidden:
        raise ConfigError(
            f"with {hidden[0]} the lake does not have every change of a row, so none can be undone",
            hint="undo it at the source by other means; `binlake audit` shows what the lake has",
        )
