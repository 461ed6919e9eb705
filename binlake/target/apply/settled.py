"""Changes to the target between two windows, under the same claim and ledger as a window.

A change is valid at one checkpoint only: each transaction locks and checks the checkpoint row (hazards R-01, R-02).
Meanwhile no window is applied: finalize waits as for any other holder of the lease.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ConfigError, Transient
from binlake.statements.batch import StatementBatch
from binlake.statements.literal import quote_qualified_name
from binlake.target.apply.batches import PresenceChecks, require_present, run_batch
from binlake.target.claim.checkpoint import (
    AsideTable,
    Checkpoint,
    CheckpointTable,
    is_settled,
    read_aside,
    remove_aside,
)
from binlake.target.claim.claim import TargetClaim
from binlake.target.claim.progress import AppliedAs, WindowLedger, read_open_progress, read_progress, require_owner
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.definitions.forms import Name
from binlake.target.segments import Hook
from binlake.target.session.session import StopFlag, TargetSession
from binlake.target.session.tables import create_tables

_FIRST_FREE = 1 << 31
"""From this number on, ledger segments are numbered consecutively; lower numbers are derived from the content."""


@dataclass(frozen=True)
class _Recorded:
    """A transaction's segment in the ledger; `newly` False: it was recorded before."""

    segment: int
    newly: bool


class SettledTarget:
    """The target between two windows, claimed for `replication` while the context is open.

    Raises LeaseHeld while another process applies, Transient while a window is open, CheckpointConflict when the
    checkpoint belongs to another replication.
    """

    def __init__(
        self,
        target: TargetSection,
        replication: str,
        cluster_id: int,
        *,
        marks: LoopbackMarks | None = None,
        hook: Hook | None = None,
    ) -> None:
        self._target, self._replication, self._cluster_id = target, replication, cluster_id
        self._schema = target.checkpoint_schema
        self._checkpoints = CheckpointTable(self._schema, cluster_id)
        self._marks = marks
        self._stop = StopFlag()
        self._first = TargetSession(target)
        self._claim = TargetClaim(self._first, target, replication, stop=self._stop, hook=hook, marks=marks)
        self._opened = ExitStack()

    def __enter__(self) -> SettledTarget:
        with ExitStack() as opened:
            opened.callback(self._first.close)
            create_tables(self._first, self._schema)
            if self._marks is not None:
                self._marks.create_table(self._first)
            opened.enter_context(self._claim)
            opened.enter_context(self._stop)
            self.read_checkpoint()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def session(self) -> TargetSession:
        """The connection that writes; a new one after a lost COMMIT."""
        return self._claim.session

    def read_checkpoint(self) -> Checkpoint:
        """The checkpoint. Raises CheckpointConflict if another replication owns it, Transient if a window is open."""
        checkpoint = self._checkpoints.read(self.session)
        if checkpoint is None:
            raise ConfigError("the target has no checkpoint: nothing was applied to it")
        require_owner(self.session, self._schema, self._cluster_id, self._replication)
        opened = read_open_progress(self.session, self._schema, self._cluster_id, self._replication)
        progress = read_progress(self.session, self._schema, self._replication)
        window = opened and f"{opened.open_lo}-{opened.open_hi}"
        if opened is not None or not is_settled(checkpoint, progress, self.read_aside_tables()):
            raise Transient(
                "the target is inside a window: it does not equal the source at any commit_ts",
                where={
                    "commit_ts": checkpoint.commit_ts,
                    "open_window": window,
                },
                hint="let its window finish (`binlake stage finalize`, or the schedule), then run this again",
            )
        return checkpoint

    def read_aside_tables(self) -> dict[Name, AsideTable]:
        """The tables that are set aside, by name in lower case."""
        return read_aside(self.session, self._schema, self._cluster_id)

    def bring_back(self, table: AsideTable, ts: int) -> None:
        """Stop setting `table` aside: it equals the source's table at checkpoint `ts`.

        Once no table is set aside, the target equals the source again and `consistent` is true. Raises as `apply`.
        """

        def remove_table(session: TargetSession) -> AsideTable:
            checkpoint = self._lock_checkpoint_at(session, ts)
            remove_aside(session, self._schema, self._cluster_id, table)
            left = read_aside(session, self._schema, self._cluster_id)
            self._checkpoints.write(session, checkpoint.with_consistent(consistent=not left))
            return table

        def is_stored(session: TargetSession, gone: AsideTable) -> bool:
            return gone.name not in read_aside(session, self._schema, self._cluster_id)

        self._claim.transact(remove_table, is_stored)

    def apply(self, batches: Sequence[StatementBatch], ts: int, *, once: bool = False, consistent: bool = True) -> int:
        """Run `batches` at checkpoint `ts`, each transaction with its ledger rows; returns the rows they touched.

        A transaction has at most `target.max-segment-rows` rows unless one batch has more. `once`: skip what the ledger
        has at this checkpoint. `consistent` False: from then on the target does not equal the source at its checkpoint.
        Raises CheckpointConflict when the checkpoint is not at `ts`, and what applying rows raises.
        """
        done = 0
        for group in _group_batches(batches, self._target.max_segment_rows):
            self._claim.check()
            done += self._run_transaction(group, ts, once=once, consistent=consistent)
        return done

    def _run_transaction(self, group: list[StatementBatch], ts: int, *, once: bool, consistent: bool) -> int:
        ledger = WindowLedger(self._schema, self._replication, ts, ts)

        def run_group(session: TargetSession) -> _Recorded:
            checkpoint = self._lock_checkpoint_at(session, ts)
            if not consistent and self.read_aside_tables():
                raise CheckpointConflict(
                    "tables are set aside: the target could not record why the checkpoint is not consistent",
                    where={"commit_ts": ts, "tables": len(self.read_aside_tables())},
                    hint="bring them back first (`binlake table back`), or write to the source or a file",
                )
            segment = _number_by_content(group) if once else self._find_free_segment(session, ts)
            if once and ledger.read_digests(session, segment):
                return _Recorded(segment, newly=False)
            self._run_batches(session, group)
            ledger.write(session, [(replace(batch, segment=segment), AppliedAs.WHOLE_SEGMENT) for batch in group])
            if not consistent:
                self._checkpoints.write(session, checkpoint.with_consistent(consistent=False))
            return _Recorded(segment, newly=True)

        def is_stored(session: TargetSession, recorded: _Recorded) -> bool:
            return bool(ledger.read_digests(session, recorded.segment))

        recorded = self._claim.transact(run_group, is_stored)
        return sum(batch.rows for batch in group) if recorded.newly else 0

    def _run_batches(self, session: TargetSession, group: Sequence[StatementBatch]) -> None:
        with PresenceChecks() as presence:
            for batch in group:
                self._claim.check()
                run_batch(session, batch)
                presence.expect(batch)
                self._claim.notify("batch")
            for checks in presence.group_checks(session.fetch_max_packet()):
                require_present(session, checks)

    def _lock_checkpoint_at(self, session: TargetSession, ts: int) -> Checkpoint:
        checkpoint = self._checkpoints.read(session, lock=True)
        if checkpoint is None or checkpoint.commit_ts != ts:
            raise CheckpointConflict(
                "the target is not at the checkpoint that this change was made for: older rows must never overwrite "
                "newer ones",
                where={"made_for": ts, "checkpoint": checkpoint.commit_ts if checkpoint else "none"},
                hint="run verify again: it checks again what still differs",
            )
        return checkpoint

    def _find_free_segment(self, session: TargetSession, ts: int) -> int:
        table = quote_qualified_name(self._schema, "binlake_ledger")
        sql = f"SELECT MAX(segment) FROM {table} WHERE task = %s AND lo = %s AND hi = %s"
        last = session.fetch_value(sql, (self._replication, ts, ts))
        return max(_FIRST_FREE, int(last or 0) + 1)


def _group_batches(batches: Sequence[StatementBatch], most: int) -> Iterator[list[StatementBatch]]:
    group: list[StatementBatch] = []
    rows = 0
    for batch in batches:
        if group and rows + batch.rows > most:
            yield group
            group, rows = [], 0
        group.append(batch)
        rows += batch.rows
    if group:
        yield group


def _number_by_content(group: Sequence[StatementBatch]) -> int:
    digest = hashlib.sha256("".join(batch.digest for batch in group).encode()).digest()
    return int.from_bytes(digest[:4], "big") % _FIRST_FREE
