"""Brings back a table that was set aside, once its definition and rows equal the source's at the checkpoint."""

from __future__ import annotations

from dataclasses import replace

import structlog

from binlake.audit.audit import Audit
from binlake.config import Replication
from binlake.ddl.targets import Naming
from binlake.dialect import derive_bytewise_table
from binlake.dialect.mapping import build_create_statements
from binlake.errors import ConfigError, Drift, IncompleteWindow
from binlake.lake.ddls import find_last_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.repair.lakeside import Name, list_tables_at
from binlake.repair.rangerepair import MOST_DIFFERENCES, find_touched_keys, hold_target
from binlake.repair.repairing import Repaired, group_keys_by_table, repair_keys
from binlake.repair.verify import VerifyOptions, verify
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules
from binlake.statements.literal import quote_name
from binlake.target.apply.settled import SettledTarget
from binlake.target.claim.checkpoint import AsideTable
from binlake.target.definitions.definitions import (
    ExpectedState,
    build_drift_error,
    compare_definitions,
    expect_tables,
    read_definitions,
)

log = structlog.get_logger(__name__)

_ROUNDS = 100
"""Maximum comparisons of a table: each round repairs up to MOST_DIFFERENCES rows."""


def bring_table_back(
    replication: Replication,
    name: Name,
    *,
    rows_are_there: bool = False,
    recreate: bool = False,
    wait_s: float = 0.0,
) -> tuple[AsideTable, Repaired]:
    """Bring back the table `name`. Returns its record from when it was set aside, and the totals of the repair.

    `rows_are_there`: rows that have not changed since it was set aside are known to be right. `recreate`: create the
    table if the target lacks it, from the lake's definition; its rows come from the lake. Raises ConfigError for a
    table that is not set aside or that the lake has only in part, Drift for a different definition, and what
    `hold_target` and `repair_keys` raise.
    """
    with hold_target(replication, wait_s) as target:
        aside = target.read_aside_tables().get(fold_pair(name))
        if aside is None:
            raise ConfigError(
                f"the table {'.'.join(name)} is not set aside", hint="`binlake table list` lists the tables that are"
            )
        ts = target.read_checkpoint().commit_ts
        merged = Audit(LakePaths.of(replication), Rules.of(replication)).read_merged_range()[1]
        if ts > merged:
            raise IncompleteWindow("the checkpoint is not merged in this lake", where={"ts": ts, "merged": merged})
        if recreate:
            _recreate(replication, aside, ts, target)
        _require_definition(replication, aside, ts, target)
        done = _repair_rows(replication, aside, ts, target, rows_are_there=rows_are_there)
        target.bring_back(aside, ts)
    log.info("table_back", table=f"{aside.db}.{aside.table}", since=aside.since, commit_ts=ts, rows=done.rows)
    return aside, done


def _recreate(replication: Replication, aside: AsideTable, ts: int, target: SettledTarget) -> None:
    """Create the table as the source has it at `ts`; does nothing if the target has it. Raises TargetRefused."""
    config, definition = replication.require_sql_target(), _find_definition_at(replication, aside, ts)
    if definition is None or definition.kind != "table":
        return
    found = read_definitions(target.session, [(aside.db, aside.table)], config.db_type)
    if any(form is not None for form in found.tables.values()):
        return
    target.session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(definition.db)}")
    for statement in build_create_statements(definition, config.db_type, ts):
        target.session.execute(statement)
    log.info("table_recreated", table=f"{aside.db}.{aside.table}", commit_ts=ts)


def _require_definition(replication: Replication, aside: AsideTable, ts: int, target: SettledTarget) -> None:
    """Raises Drift unless the target's table or view equals the source's at `ts`, or neither has it."""
    config = replication.require_sql_target()
    definition = _find_definition_at(replication, aside, ts)
    absent = (aside.db, aside.table)
    expected = expect_tables([definition], config.db_type) if definition else ExpectedState(tables={absent: None})
    differences = compare_definitions(expected, read_definitions(target.session, expected.names, config.db_type))
    if differences:
        error = build_drift_error(differences, {"target": target.session.place, "commit_ts": ts})
        shown = (
            "create or alter it at the target to match (--recreate creates a missing table)"
            if definition
            else "drop it at the target: the source does not have it"
        )
        raise Drift(error.message, where=error.where, hint=f"{shown}; then run this again")


def _find_definition_at(replication: Replication, aside: AsideTable, ts: int) -> TableDef | None:
    tables = read_target_tables_at(LakePaths.of(replication), Naming(Rules.of(replication)), ts)
    definition = tables.find(aside.db, aside.table)
    if definition is None or replication.source.new_collation:
        return definition
    return derive_bytewise_table(definition, replication.require_sql_target().db_type)


def _repair_rows(
    replication: Replication, aside: AsideTable, ts: int, target: SettledTarget, *, rows_are_there: bool
) -> Repaired:
    tables = {fold_pair(table.name): table for table in list_tables_at(replication, LakePaths.of(replication), ts)}
    table = tables.get(aside.name)
    if table is None:
        # It is a view, or no longer exists at the source, so it has no rows.
        return Repaired(ts)
    if rows_are_there:
        return _repair_changed_since(replication, table.name, aside, ts, target)
    return _repair_whole(replication, table.name, aside, ts, target)


def _repair_whole(replication: Replication, name: Name, aside: AsideTable, ts: int, target: SettledTarget) -> Repaired:
    """Compare every row with the lake and repair it, until nothing differs."""
    total = Repaired(ts)
    options = VerifyOptions(tables=(".".join(name),), max_differences=MOST_DIFFERENCES, fresh=True)
    for _ in range(_ROUNDS):
        compared = verify(replication, options)
        [table] = compared.tables
        if table.inexact:
            raise _build_incomplete_table_error(aside, table.inexact)
        if compared.equal:
            return replace(total, keys=compared.rows, looked={table.name: table.expected for table in compared.read})
        done = repair_keys(
            replication,
            group_keys_by_table(compared.differences, list_tables_at(replication, LakePaths.of(replication), ts)),
            target,
        )
        total = replace(total, different=total.different + done.different, rows=total.rows + done.rows,
                        written=total.written | done.written)  # fmt: skip
        if not done.rows:
            break
    raise Drift(
        "the table still differs from the lake",
        where={"table": ".".join(name), "repaired": total.rows},
        hint=f"`binlake verify --table {'.'.join(name)}` shows the differences",
    )


def _repair_changed_since(
    replication: Replication, name: Name, aside: AsideTable, ts: int, target: SettledTarget
) -> Repaired:
    """Repair the rows that changed since the table was set aside; an operator has confirmed the others."""
    paths = LakePaths.of(replication)
    tables = list_tables_at(replication, paths, ts)
    keys = find_touched_keys(replication, aside.since, ts, ts, tables)
    if name in keys.whole:
        raise _build_incomplete_table_error(aside, "its key has changed since")
    own = {table: table_keys for table, table_keys in keys.sort_keys().items() if table == name}
    # A DDL may have given rows values that no log has; the log has those of rows that changed after it.
    last_ddl = max(aside.since, find_last_ddls(paths, {name}, ts).get(name, 0))
    later = find_touched_keys(replication, last_ddl, ts, ts, tables).sort_keys().get(name, [])
    done = repair_keys(replication, own, target, are_known=len(later) == len(own.get(name, [])))
    if done.unknown:
        raise _build_incomplete_table_error(
            aside,
            "rows that changed between when it was set aside and its last DDL are not known, nor is the number of"
            " copies of rows without a key",
        )
    return done


def _build_incomplete_table_error(aside: AsideTable, why: str) -> ConfigError:
    return ConfigError(
        f"the lake has only part of this table, so not every row can be compared: {why}",
        where={"table": f"{aside.db}.{aside.table}", "since": aside.since},
        hint="load a copy of the source as of this commit_ts or later, or make sure that rows not changed since are"
        " right; then `binlake table back --rows-are-there` repairs those that have changed since",
    )
