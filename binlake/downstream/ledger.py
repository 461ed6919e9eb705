"""Which batches are downstream: rows written in the transaction of what they tell about (invariant 9, hazards R-17)."""

from __future__ import annotations

from binlake.downstream.session import Session
from binlake.errors import CheckpointConflict
from binlake.statement.batch import StatementBatch
from binlake.statement.literal import qualified

_ROWS_A_STATEMENT = 500


class Ledger:
    """The ledger of the window (lo, hi] of `task`. Rows are gathered by `add` and written by `flush`."""

    def __init__(self, schema: str, task: str, lo: int, hi: int) -> None:
        self._schema = schema
        self._key = (task, lo, hi)
        self._pending: list[StatementBatch] = []

    def done(self, session: Session, segment: int) -> dict[tuple[int, int], str]:
        """(phase, batch) -> digest of the segment's batches that are downstream."""
        rows = session.rows(
            f"SELECT phase, batch, digest FROM {qualified(self._schema, 'binlake_ledger')}"
            " WHERE task = %s AND lo = %s AND hi = %s AND segment = %s",
            (*self._key, segment),
        )
        return {(int(phase), int(batch)): str(digest) for phase, batch, digest in rows}

    def add(self, session: Session, batch: StatementBatch) -> None:
        """Remember a batch executed in the open transaction."""
        self._pending.append(batch)
        if len(self._pending) >= _ROWS_A_STATEMENT:
            self.flush(session)

    def flush(self, session: Session) -> None:
        """Write what was added. In the same transaction, so a few statements serve all its batches."""
        if not self._pending:
            return
        values = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s, 1)"] * len(self._pending))
        arguments = [
            part for b in self._pending for part in (*self._key, b.segment, int(b.phase), b.batch, b.digest, b.rows)
        ]
        session.write(
            f"INSERT INTO {qualified(self._schema, 'binlake_ledger')}"
            f" (task, lo, hi, segment, phase, batch, digest, row_count, atomic) VALUES {values}",
            arguments,
        )
        self._pending.clear()

    def prune(self, session: Session) -> None:
        """Remove rows of the windows before the one that ended at our lo, and of any above it.

        A window that is opened, not resumed, starts at the checkpoint: nothing above lo is downstream, whatever a
        ledger says that was not restored together with the data.
        """
        task, lo, _ = self._key
        table = qualified(self._schema, "binlake_ledger")
        session.write(f"DELETE FROM {table} WHERE task = %s AND (hi < %s OR hi > %s)", (task, lo, lo))


def is_done(batch: StatementBatch, done: dict[tuple[int, int], str]) -> bool:
    """True when the ledger has the batch. Raises CheckpointConflict when it has another one in its place."""
    digest = done.get((batch.phase, batch.batch))
    if digest is not None and digest != batch.digest:
        raise CheckpointConflict(
            "the ledger has another batch in this place: the statements changed after they were applied",
            where={"table": f"{batch.db}.{batch.table}", "segment": batch.segment, "batch": batch.batch},
            hint="restore the lake's statement table; a window is applied as it was pinned",
        )
    return digest is not None
