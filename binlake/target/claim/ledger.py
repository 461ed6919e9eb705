"""Which batches are downstream: rows written in the transaction that they record (invariant 9, hazards R-17)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from binlake.errors import CheckpointConflict
from binlake.statements.batch import StatementBatch
from binlake.statements.literal import qualified
from binlake.target.session.session import Session
from binlake.window.manifest import ApplyManifest

_ROWS_A_STATEMENT = 500


class Stored(IntEnum):
    """How a batch got its row, the column `atomic`; ASIDE: it was passed over, since its table is set aside."""

    ALONE = 0
    WHOLE_SEGMENT = 1
    ASIDE = 2


class Ledger:
    """The ledger of the window (lo, hi] of `task`: `write` puts rows at once; `add` gathers them for `flush`."""

    def __init__(self, schema: str, task: str, lo: int, hi: int) -> None:
        self._schema = schema
        self._key = (task, lo, hi)
        self._pending: list[tuple[StatementBatch, Stored]] = []

    @classmethod
    def of(cls, schema: str, manifest: ApplyManifest) -> Ledger:
        """The ledger of the manifest's window."""
        return cls(schema, manifest.replication, manifest.lo, manifest.hi)

    def done(self, session: Session, segment: int, one: tuple[int, int] | None = None) -> dict[tuple[int, int], str]:
        """(phase, batch) -> digest of the segment's batches of rows that have a row here; of `one` only, if given."""
        sql = (
            f"SELECT phase, batch, digest FROM {qualified(self._schema, 'binlake_ledger')}"
            " WHERE task = %s AND lo = %s AND hi = %s AND segment = %s AND phase <> 0"
        )
        sql += " AND phase = %s AND batch = %s" if one else ""
        rows = session.rows(sql, (*self._key, segment, *(one or ())))
        return {(int(phase), int(batch)): str(digest) for phase, batch, digest in rows}

    def add(self, session: Session, batch: StatementBatch, stored: Stored) -> None:
        """Remember a batch executed, or passed over, in the open transaction."""
        self._pending.append((batch, stored))
        if len(self._pending) >= _ROWS_A_STATEMENT:
            self.flush(session)

    def flush(self, session: Session) -> None:
        """Write what was added. In the same transaction, so a few statements serve all its batches."""
        if self._pending:
            self.write(session, self._pending)
            self._pending.clear()

    def write(self, session: Session, batches: Sequence[tuple[StatementBatch, Stored]]) -> None:
        """Rows of `batches`, executed or passed over in the open transaction."""
        values = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s, %s)"] * len(batches))
        arguments = [
            part
            for b, stored in batches
            for part in (*self._key, b.segment, int(b.phase), b.batch, b.digest, b.rows, int(stored))
        ]
        session.write(
            f"INSERT INTO {qualified(self._schema, 'binlake_ledger')}"
            f" (task, lo, hi, segment, phase, batch, digest, row_count, atomic) VALUES {values}",
            arguments,
        )

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
