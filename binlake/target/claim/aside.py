"""Tables that are set aside: known at the target, beside the checkpoint, so that each decision is durable (U-16).

What the source does to such a table stays in the lake; at the target it is passed over with rows of the ledger, and the
checkpoint says `consistent=false`, until `binlake table back` has made the table the source's again (invariants 8, 11).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from binlake.errors import TargetRefused
from binlake.rows.schema.names import fold_pair
from binlake.statements.literal import qualified
from binlake.target.claim.checkpoint import Checkpoint
from binlake.target.claim.progress import Progress
from binlake.target.definitions.definitions import Name
from binlake.target.session.failures import MISSING, code_of
from binlake.target.session.session import Session

_REASON = 4000
"""Characters of a reason that are kept."""


@dataclass(frozen=True)
class AsideTable:
    """A table of the target that is set aside: everything of it at or below commit_ts `since` is downstream.

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
        """(database, table), in lower case: how names are compared."""
        return folded((self.db, self.table))

    def to_dict(self) -> dict[str, str]:
        """For JSON; the commit_ts as text."""
        return {"table": f"{self.db}.{self.table}", "since": str(self.since), "by": self.by, "reason": self.reason,
                "at": self.at}  # fmt: skip


AsideTables = Mapping[Name, AsideTable]
"""By `AsideTable.name`."""


def folded(name: Name) -> Name:
    """`name` as it is looked up."""
    return fold_pair(name)


def is_aside(aside: Collection[Name], name: Name) -> bool:
    """True when the table is set aside."""
    return folded(name) in aside


def read_aside(session: Session, schema: str, cluster_id: int) -> dict[Name, AsideTable]:
    """The tables that are set aside for `cluster_id` (0: for any), by name; none on a target without the table."""
    where, arguments = (" WHERE clusterID = %s", (cluster_id,)) if cluster_id else ("", ())
    sql = f"SELECT db, tbl, since, by_whom, reason, CONCAT(at) FROM {qualified(schema, 'binlake_aside')}{where}"
    try:
        rows = session.rows(f"{sql} ORDER BY db, tbl", arguments)
    except TargetRefused as error:
        if code_of(error) in MISSING:
            return {}
        raise
    found = [AsideTable(db, table, int(since), by, reason, at) for db, table, since, by, reason, at in rows]
    return {table.name: table for table in found}


def write_aside(session: Session, schema: str, cluster_id: int, task: str, tables: Iterable[AsideTable]) -> None:
    """Put their rows into the open transaction; the caller proved the fence and sets `consistent=false`.

    A table that is set aside already keeps its row: what it lacks begins where it was set aside first.
    """
    for one in tables:
        session.write(
            f"INSERT IGNORE INTO {qualified(schema, 'binlake_aside')}"
            " (clusterID, db, tbl, task, since, by_whom, reason) VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (cluster_id, one.db, one.table, task, one.since, one.by, one.reason[:_REASON]),
        )


def remove_aside(session: Session, schema: str, cluster_id: int, table: AsideTable) -> None:
    """Take the table's row away, in the open transaction."""
    session.write(
        f"DELETE FROM {qualified(schema, 'binlake_aside')} WHERE clusterID = %s AND db = %s AND tbl = %s",
        (cluster_id, table.db, table.table),
    )


def is_settled(checkpoint: Checkpoint, progress: Progress | None, aside: Collection[Name]) -> bool:
    """True when the target equals the source at the checkpoint, but for the tables that are set aside.

    `progress`: of the window that was opened last by the writer of this checkpoint.
    """
    if checkpoint.consistent:
        return True
    if not aside or progress is None:
        return False
    return not progress.is_open and progress.exit_ts <= checkpoint.commit_ts
