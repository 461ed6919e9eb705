"""Restores rows of the target to their state at its checkpoint, never to an older one (DESIGN 4, repair; R-01).

The rows are compared again under the lease, so changes since the request are taken into account. Correct rows are not
written, so a killed repair resumes where it stopped. Tables with columns of their own are refused, because fixes and
undos write whole rows (hazards R-12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from binlake.audit.audit import Audit
from binlake.common.sql import Dialect
from binlake.config import Replication
from binlake.errors import CheckpointConflict, Drift
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.mirror.versions import IN_PART
from binlake.repair.chunks import AnyKey, ChunkPlan, Cuts
from binlake.repair.differences import Difference, FixFile, RowsOfTable, build_fix_batches
from binlake.repair.lakeside import Name, VerifiedLakeTable, VerifiedTable, list_tables_at, read_cluster_id
from binlake.repair.serverside import SqlTable
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name
from binlake.rules import Rules
from binlake.statements import BatchLimits
from binlake.target.apply.settled import SettledTarget
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.definitions.definitions import (
    build_drift_error,
    compare_definitions,
    expect_tables,
    read_definitions,
)
from binlake.target.session.session import TargetSession

KEYS_AT_ONCE = 5_000
Keys = Mapping[Name, Sequence[AnyKey]]
"""Keys (texts of the identity at the checkpoint) by table of the target."""


@dataclass
class Repaired:
    """The result of a repair at checkpoint `commit_ts`.

    `keys`: keys compared; `different`: those that were wrong; `rows`: rows written or deleted; `gone`: tables that do
    not exist at the checkpoint; `unknown`: tables of which the lake does not have all rows; `aside`: skipped tables
    that are set aside. `looked`: definitions of the tables compared with the lake; `written`: the changed ones of
    these.
    """

    commit_ts: int
    keys: int = 0
    different: int = 0
    rows: int = 0
    gone: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    looked: dict[Name, TableDef] = field(default_factory=dict)
    written: set[Name] = field(default_factory=set)
    aside: list[str] = field(default_factory=list)


def build_settled_target(replication: Replication, *, hook: Callable[[str], None] | None = None) -> SettledTarget:
    """The replication's target, not claimed yet. Raises ConfigError without a target or with an empty lake."""
    target = replication.require_sql_target()
    cluster_id = read_cluster_id(WindowLog(LakePaths.of(replication)))
    marks = LoopbackMarks.of(replication.loopback, replication.name)
    return SettledTarget(target, replication.name, cluster_id, marks=marks, hook=hook)


def repair_keys(replication: Replication, keys: Keys, settled: SettledTarget, *, are_known: bool = False) -> Repaired:
    """Restore the rows with `keys`, which changed in the lake, to their state at the checkpoint.

    `are_known`: they changed after the last DDL of their tables, so the lake has them, whatever it lacks of others.
    Raises what SettledTarget raises, LostRange, Drift.
    """
    ts, paths = settled.read_checkpoint().commit_ts, LakePaths.of(replication)
    done = Repaired(ts)
    audit = Audit(paths, Rules.of(replication))
    audit.clip_range(-1, ts)
    tables = {verified.name: verified for verified in list_tables_at(replication, paths, ts)}
    for name, wanted in keys.items():
        if name in tables:
            _repair_table(replication, audit, tables[name], wanted, settled, done, are_known=are_known)
        else:
            done.gone.append(".".join(name))
    return done


def _repair_table(
    replication: Replication,
    audit: Audit,
    verified: VerifiedTable,
    keys: Sequence[AnyKey],
    settled: SettledTarget,
    done: Repaired,
    *,
    are_known: bool,
) -> None:
    target, paths = replication.require_sql_target(), LakePaths.of(replication)
    expected = expect_tables([verified.expected], target.db_type)
    # The definition must match exactly, whatever `target.tables` accepts, because whole rows are written.
    differing = compare_definitions(expected, read_definitions(settled.session, expected.names, target.db_type))
    if differing:
        raise build_drift_error(differing, {"target": settled.session.place})
    lake = VerifiedLakeTable(audit, paths, verified.table, done.commit_ts)
    # The lake knows every key that changed in it. For rows without a key, it does not know copies from before the lake.
    keyless = verified.table.find_identity().kind == "row"
    is_exact = are_known or lake.inexact in ("", IN_PART)
    if (keyless and (verified.begun_before or lake.inexact)) or not is_exact:
        done.unknown.append(".".join(verified.name))
        return
    done.looked[verified.name] = verified.expected
    limits = BatchLimits.of(target.batch_rows, settled.session.fetch_max_packet())
    for batch in _split_keys(keys):
        target_table = SqlTable(settled.session, ChunkPlan(verified.expected, target.db_type, Cuts()), [verified.name])
        rows = RowsOfTable(verified.expected, lake.read_rows_by_key(batch), target_table.read_rows_by_key(batch))
        differences = rows.list_differences()
        done.keys += len(batch)
        done.different += len(differences)
        written = settled.apply(
            build_fix_batches([verified.expected], differences, target.db_type, limits), done.commit_ts
        )
        done.rows += written
        if written:
            done.written.add(verified.name)


def apply_file(replication: Replication, path: Path, settled: SettledTarget) -> Repaired:
    """Run the statements of a fix file, once. Raises CheckpointConflict unless the target is at its checkpoint."""
    fixes = FixFile.read(path)
    if (fixes.replication, fixes.purpose) != (replication.name, "fix"):
        raise CheckpointConflict(
            "the file does not contain fixes for this replication",
            where={
                "file": path,
                "made_for": fixes.replication,
                "purpose": fixes.purpose,
                "replication": replication.name,
            },
        )
    target = replication.require_sql_target()
    written = {(batch.db, batch.table) for batch in fixes.batches}
    tables = list_tables_at(replication, LakePaths.of(replication), fixes.commit_ts)
    require_no_own_columns(
        settled.session, [verified.expected for verified in tables if verified.name in written], target.db_type
    )
    rows = settled.apply(fixes.batches, fixes.commit_ts, once=True)
    return Repaired(fixes.commit_ts, rows=rows, different=sum(batch.rows for batch in fixes.batches))


def group_keys_by_table(differences: Sequence[Difference], tables: Sequence[VerifiedTable]) -> Keys:
    """The differing keys by table."""
    names = {verified.name: verified.table.find_identity().columns for verified in tables}
    by_table: dict[Name, list[AnyKey]] = {}
    for difference in differences:
        row = difference.expected or difference.found or {}
        by_table.setdefault((difference.db, difference.table), []).append(
            [row[column] for column in names[difference.db, difference.table]]
        )
    return by_table


def _split_keys(keys: Sequence[AnyKey]) -> Iterator[Sequence[AnyKey]]:
    for start in range(0, len(keys), KEYS_AT_ONCE):
        yield keys[start : start + KEYS_AT_ONCE]


def require_no_own_columns(session: TargetSession, tables: Iterable[TableDef], dialect: Dialect) -> None:
    """Raises Drift for a table with columns that are not in `tables`: whole rows would reset them to defaults."""
    known = {(table.db, table.name): {fold_name(column.name) for column in table.columns} for table in tables}
    actual = read_definitions(session, known, dialect)
    for name, definition in actual.tables.items():
        own = sorted(
            {column.name for column in definition.columns if fold_name(column.name) not in known[name]}
            if definition
            else ()
        )
        if own:
            raise Drift(
                f"the table has columns of its own, whose values whole rows would overwrite: {', '.join(own)}",
                where={"table": ".".join(name), "target": session.place},
                hint="repair its rows by hand, column by column; name the other tables to repair those",
            )
