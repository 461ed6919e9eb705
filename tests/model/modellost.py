"""Losses at the target: a row, which plain statements of mode `ordered` must notice (R-44), or the checkpoint.

If the window first touches the row by an UPDATE or DELETE, it is refused with the row's table and commit_ts until the
row is restored. If it does not touch the row, the target equals the source once the row is restored. An earlier
checkpoint is replayed in safe mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelerrors import SCHEMA, Wrong
from modelwindow import CLUSTER, NAME, Statements
from simulator.faults.kinds import Kind

from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.statements import Phase
from binlake.statements.literal import quote_qualified_name
from binlake.target import read_position
from binlake.target.claim.checkpoint import Checkpoint

if TYPE_CHECKING:
    from modelrun import Scenario

_KEPT = f"{SCHEMA}.kept_row"


def set_back(scenario: Scenario, _found: Statements) -> None:
    """Restore an earlier checkpoint, as from a copy: replaying does no harm (S3-20, S4-40)."""
    checkpoint, progress = scenario.standing()
    if checkpoint is None or progress is None or progress.is_open or not checkpoint.consistent:
        return
    ddls = [ts for ts, _ in scenario.source.jobs if ts <= checkpoint.commit_ts]
    earlier = [ts for ts in scenario.ends if max(ddls, default=0) <= ts < checkpoint.commit_ts]
    # Rows that ran ahead of a DROP INDEX are replayed after it, when the table may no longer have a key.
    following = next((ts for ts, _ in scenario.source.jobs if ts > checkpoint.commit_ts), checkpoint.commit_ts)
    tables = (one for ts in (checkpoint.commit_ts, following) for one in scenario.converter.tables(ts))
    keyless = any(table.find_identity().kind == "row" for table in tables)
    if not earlier or keyless:
        return
    back = scenario.random.choice(earlier)
    with scenario.model.reader.cursor() as cursor:
        text = Checkpoint(back, True, {}, checkpoint.schema_version).to_json()
        cursor.execute(f"UPDATE {SCHEMA}.checkpoint SET checkPoint = %s", (text,))
        cursor.execute(f"UPDATE {SCHEMA}.binlake_position SET commitTS = %s", (back,))
    scenario.model.happened[Kind.CHECKPOINT_SET_BACK] += 1
    _replay(scenario, progress.exit_ts)


def _replay(scenario: Scenario, exit_ts: int) -> None:
    """Apply windows in safe mode until the exit point is passed; `never` would be wrong here."""
    while (position := read_position(scenario.model.target, NAME, CLUSTER)).commit_ts < exit_ts:  # type: ignore[operator]
        target = scenario.target().model_copy(update={"safe_mode": scenario.random.choice(("always", "auto"))})
        later = [ts for ts in scenario.ends if ts > (position.commit_ts or 0)]
        hi = later[min(int(scenario.random.expovariate(0.3)), len(later) - 1)]
        forms = read_position(target, NAME, CLUSTER).forms
        if forms != "safe":
            raise Wrong("plain forms below the exit point")
        statements = scenario.converted(position.commit_ts or 0, hi, target, forms)
        scenario.apply(statements, target=target)
        scenario.check()


def lose_row(scenario: Scenario, statements: Statements) -> None:
    """Lose a row before a window of mode `ordered` in plain forms, and restore it after the window or its refusal."""
    # A merged UPDATE writes the complete missing row: the target is right, and the loss need not be noticed.
    plain = {"mode": "ordered", "safe_mode": "never", "multiple_rows": False}
    target = scenario.target().model_copy(update=plain)
    position = read_position(target, NAME, CLUSTER)
    if position.opened is not None or position.forms != "plain" or not position.commit_ts or scenario.shape.bytewise:
        scenario.apply(statements)
        return
    window = scenario.converter.convert(position.commit_ts, statements.manifest.hi, target, position.forms)
    tables = [t for t in scenario.converter.tables(position.commit_ts) if t.find_identity().kind != "row"]
    if not tables or any(batch.phase == Phase.DDL for batch in window.written):
        scenario.apply(statements)
        return
    scenario.pinned[window.manifest.compute_digest()] = window
    table = scenario.random.choice(tables)
    with scenario.model.reader.cursor() as cursor:
        lost = _remove(cursor, table, scenario.random.choice(("", " DESC")))
        try:
            scenario.apply(window, target=target)
            _put_back(cursor, table)
            scenario.model.happened[Kind.ROW_LOST] += lost
        except TargetRefused as error:
            if not lost or error.where.get("table") != f"{table.db}.{table.name}" or "commit_ts" not in error.where:
                raise
            _put_back(cursor, table)
            scenario.model.happened["row missed"] += 1
            scenario.apply(window, target=target)


def _remove(cursor: Any, table: TableDef, way: str) -> int:
    first = ", ".join(f"`{name}`{way}" for name in table.find_identity().columns)
    cursor.execute(f"DROP TABLE IF EXISTS {_KEPT}")
    cursor.execute(
        f"CREATE TABLE {_KEPT} AS SELECT * FROM {quote_qualified_name(table.db, table.name)} ORDER BY {first} LIMIT 1"
    )
    return int(cursor.execute(f"DELETE FROM {quote_qualified_name(table.db, table.name)} ORDER BY {first} LIMIT 1"))


def _put_back(cursor: Any, table: TableDef) -> None:
    cursor.execute(f"INSERT IGNORE INTO {quote_qualified_name(table.db, table.name)} SELECT * FROM {_KEPT}")
    cursor.execute(f"DROP TABLE {_KEPT}")
