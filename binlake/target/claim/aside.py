"""Tables that are set aside. They are recorded at the target next to the checkpoint, so the decision is durable (U-16).

Changes to such a table stay in the lake. At the target they are skipped, but recorded in the ledger, and the checkpoint
has `consistent=false` until `binlake table back` has made the table equal to the source's again (invariants 8, 11).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from binlake.errors import TargetRefused
from binlake.rows.schema.forms import fold_pair
from binlake.statements.batch import StatementBatch, parse_statement_table
from binlake.statements.literal import quote_qualified_name
from binlake.target.claim.checkpointrow import Checkpoint
from binlake.target.claim.progress import TargetProgress
from binlake.target.definitions.forms import Name
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession

_REASON = 4000
"""How many characters of a reason are stored."""


@dataclass(frozen=True)
class AsideTable:
    """A table of the target that is set aside. Its changes at or below commit_ts `since` are downstream.

    `by`: `command`, or the `policy` of `target.on-table-error`. `at`: when, UTC, as the server writes it.
    """

    db: str
    table: str
    since: int
    by: Literal["command", "policy"]
    reason: str
    at: str = ""

    @property
    def name(self) -> Name:
        """(database, table) in lower case, as names are compared."""
        return fold_pair((self.db, self.table))

    def to_dict(self) -> dict[str, str]:
        """For JSON; the commit_ts as text."""
        return {"table": f"{self.db}.{self.table}", "since": str(self.since), "by": self.by, "reason": self.reason,
                "at": self.at}  # fmt: skip


AsideTables = Mapping[Name, AsideTable]
"""By `AsideTable.name`."""


def may_pass_refused(names: Iterable[Name], policy: str, aside: Collection[Name]) -> bool:
    """Whether finalize passes over a DDL of the tables `names` that the target cannot run, or sets its tables aside.

    `policy`: `target.on-table-error`; `aside`: the tables that are set aside.
    """
    return policy == "set-aside" or any(is_aside(aside, name) for name in names)


def is_aside(aside: Collection[Name], name: Name) -> bool:
    """True when the table is set aside."""
    return fold_pair(name) in aside


def read_aside(session: TargetSession, schema: str, cluster_id: int) -> dict[Name, AsideTable]:
    """The tables set aside for `cluster_id` (0: for any), by name; empty if the target has no table for them."""
    where, arguments = (" WHERE clusterID = %s", (cluster_id,)) if cluster_id else ("", ())
    table = quote_qualified_name(schema, "binlake_aside")
    sql = f"SELECT db, tbl, since, by_whom, reason, CONCAT(at) FROM {table}{where}"
    try:
        tables = session.fetch_records(AsideTable, f"{sql} ORDER BY db, tbl", arguments)
    except TargetRefused as error:
        if get_error_code(error) in MISSING:
            return {}
        raise
    return {table.name: table for table in tables}


def write_aside(
    session: TargetSession, schema: str, cluster_id: int, replication: str, tables: Iterable[AsideTable]
) -> None:
    """Record `tables` in the open transaction; the caller has proved the fence and sets `consistent=false`.

    A table that is set aside already keeps its row, because its gap begins where it was first set aside.
    """
    for table in tables:
        session.write(
            f"INSERT IGNORE INTO {quote_qualified_name(schema, 'binlake_aside')}"
            " (clusterID, db, tbl, task, since, by_whom, reason) VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (cluster_id, table.db, table.table, replication, table.since, table.by, table.reason[:_REASON]),
        )


def remove_aside(session: TargetSession, schema: str, cluster_id: int, table: AsideTable) -> None:
    """Delete the table's row, in the open transaction."""
    session.write(
        f"DELETE FROM {quote_qualified_name(schema, 'binlake_aside')} WHERE clusterID = %s AND db = %s AND tbl = %s",
        (cluster_id, table.db, table.table),
    )


def is_settled(checkpoint: Checkpoint, progress: TargetProgress | None, aside: Collection[Name]) -> bool:
    """True when the target equals the source at the checkpoint, except for the tables that are set aside.

    `progress`: that of the window last opened by the writer of this checkpoint.
    """
    if checkpoint.consistent:
        return True
    if not aside or progress is None:
        return False
    return not progress.is_open and progress.exit_ts <= checkpoint.commit_ts


def select_part_to_run(batch: StatementBatch, aside: Collection[Name]) -> StatementBatch | None:
    """The part of `batch` to run: all of it, its statements on other tables (mode ordered), or None."""
    if not aside:
        return batch
    if batch.table:
        return None if is_aside(aside, (batch.db, batch.table)) else batch
    numbers = [n for n, sql in enumerate(batch.sql) if not is_aside(aside, parse_statement_table(sql))]
    if len(numbers) == len(batch.sql):
        return batch
    if not numbers:
        return None
    # A batch counts its rows as a whole, so skipped rows are counted too.
    return replace(batch, sql=tuple(batch.sql[n] for n in numbers), expect=tuple(batch.expect[n] for n in numbers))
