"""A new change that undoes a range of commit_ts, at the source or only on the target: planned, then executed.

At the source it is one transaction, which is then replicated; it may also be written to a file. Rows are read and
locked first, so exactly the checked rows are undone. A rollback only on the target makes the checkpoint inconsistent,
since the target then differs from the source (DESIGN 3.8).

Changes on which later changes depend are not undone: a key changed again after the range, or a row that differs from
the lake's, stops the rollback unless it is forced (DESIGN 4). A DDL after the start of the range always stops it,
because the rows have two definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from binlake.audit.audit import Audit
from binlake.changes.net.net import Undo, undo_changes
from binlake.common.redaction import redact_key
from binlake.common.sql import Dialect
from binlake.config import Replication
from binlake.ddl.definitions import WindowBase, derive_key_defaults
from binlake.ddl.targets import Naming
from binlake.errors import ConfigError, Permanent
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import RowVersion, read_changes
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.repair.chunks import AnyKey, ChunkPlan, Cuts
from binlake.repair.differences import Difference, FixFile, Row, RowsOfTable, build_fix_batches
from binlake.repair.repairing import require_no_own_columns
from binlake.repair.serverside import SqlTable
from binlake.repair.verify import require_source_server
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules
from binlake.statements import BatchLimits, StatementBatch
from binlake.target.apply.batches import PresenceChecks, require_present, run_batch
from binlake.target.apply.settled import SettledTarget
from binlake.target.session.session import TargetSession

Side = Literal["source", "target"]
Name = tuple[str, str]

MOST_CHANGES = 500_000
"""Row changes of one rollback: it is one transaction, held in memory."""
_SHOWN = 5


def rollback_target(
    replication: Replication, lo: int, hi: int, settled: SettledTarget, *, force: bool
) -> tuple[Rollback, int]:
    """Undo (lo, hi] on the held target. Returns the plan and the number of rows changed."""
    target = replication.require_sql_target()
    ts = settled.read_checkpoint().commit_ts
    plan = _plan_rollback(replication, lo, hi, ts, "target", force)
    batches = _build_undo_batches(plan.tables, settled.session, target.db_type, target.batch_rows, force=force)
    return plan, settled.apply(batches, ts, consistent=False)


def rollback_source(replication: Replication, lo: int, hi: int, *, force: bool) -> tuple[Rollback, int]:
    """Undo (lo, hi] at the source, by a transaction that is replicated like any other.

    Returns the plan and the number of rows changed.
    """
    known = Audit(LakePaths.of(replication), Rules.of(replication)).read_merged_range()[1]
    plan = _plan_rollback(replication, lo, hi, known, "source", force)
    source = require_source_server(replication)
    with closing(TargetSession(source)) as probe:
        dialect = read_dialect(probe)
    with closing(TargetSession(source.model_copy(update={"db_type": dialect}))) as session:
        session.begin()
        batches = _build_undo_batches(plan.tables, session, dialect, source.batch_rows, force=force, lock=True)
        with PresenceChecks() as presence:
            for batch in batches:
                run_batch(session, batch)
                presence.expect(batch)
            for checks in presence.group_checks(session.fetch_max_packet()):
                require_present(session, checks)
        # If the COMMIT's answer is lost, it is not retried: running the command again checks the rows again.
        session.commit()
    return plan, sum(batch.rows for batch in batches)


def rollback_file(
    replication: Replication, lo: int, hi: int, path: Path, ts: int, *, force: bool
) -> tuple[Rollback, int]:
    """Write the undo of (lo, hi] on the target at checkpoint `ts` to the file `path`. Changes nothing."""
    target = replication.require_sql_target()
    plan = _plan_rollback(replication, lo, hi, ts, "target", force)
    with closing(TargetSession(target)) as session:
        batches = _build_undo_batches(plan.tables, session, target.db_type, target.batch_rows, force=force)
    FixFile(replication.name, ts, tuple(batches), "rollback").write(path)
    return plan, sum(batch.rows for batch in batches)


def read_dialect(session: TargetSession) -> Dialect:
    """The dialect of the session's server, by its version."""
    version = str(session.fetch_rows("SELECT VERSION()")[0][0]).lower()
    if "tidb" in version:
        return "tidb"
    return "mariadb" if "mariadb" in version else "mysql"


def _plan_rollback(replication: Replication, lo: int, hi: int, known: int, side: str, force: bool) -> Rollback:
    plan = plan_rollback(replication, lo, hi, known, "source" if side == "source" else "target")
    if not force:
        require_no_later_changes(plan)
    return plan


def _build_undo_batches(
    tables: Sequence[TableUndo], session: TargetSession, dialect: Dialect, rows: int, *, force: bool, lock: bool = False
) -> list[StatementBatch]:
    differences: list[Difference] = []
    require_no_own_columns(session, [undo.table for undo in tables], dialect)
    for undo in tables:
        name = (undo.table.db, undo.table.name)
        current = SqlTable(session, ChunkPlan(undo.table, dialect, Cuts()), [name], lock=lock)
        differences += find_differences_to_undo(undo, current, force=force)
    limits = BatchLimits.of(rows, session.fetch_max_packet())
    return build_fix_batches([undo.table for undo in tables], differences, dialect, limits)


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
