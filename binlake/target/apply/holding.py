"""The target held between two windows: for changes that are not a window, under the same lease, fence and ledger.

A change is applied at one checkpoint only: the row is locked and looked at in each transaction (hazards R-01, R-02).
While the target is held no window is applied; finalize waits as for any other holder of the lease.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from binlake.config.model import Target
from binlake.errors import BinlakeError, CheckpointConflict, ConfigError, Fenced, Transient
from binlake.statements.batch import StatementBatch
from binlake.statements.literal import qualified
from binlake.target.apply.presence import Presence, verify
from binlake.target.apply.rows import run_batch
from binlake.target.claim.aside import AsideTable, is_settled, read_aside, remove_aside
from binlake.target.claim.checkpoint import Checkpoint, CheckpointTable
from binlake.target.claim.confirmed import Confirmed
from binlake.target.claim.fence import LeaseKeeper, claim
from binlake.target.claim.ledger import Ledger, Stored
from binlake.target.claim.marks import Marks
from binlake.target.claim.progress import open_progress, owner_of, read_progress
from binlake.target.claim.writer import FencedWriter
from binlake.target.definitions.definitions import Name
from binlake.target.session.session import Session
from binlake.target.session.stopping import StopFlag
from binlake.target.session.tables import create_tables

log = structlog.get_logger()

_FIRST_FREE = 1 << 31
"""Segments of the ledger from here on are numbered one by one; below they are told by what they hold."""


@dataclass(frozen=True)
class _Stored:
    """A transaction's place in the ledger; `batch` None: it was there before."""

    segment: int
    batch: StatementBatch | None


class TargetHold:
    """Use as a context manager: it claims the target for the replication `task` and lets go at the end.

    Raises LeaseHeld while another process applies, Transient while a window is open, CheckpointConflict when the row is
    another replication's.
    """

    def __init__(
        self,
        target: Target,
        task: str,
        cluster_id: int,
        *,
        marks: Marks | None = None,
        hook: Callable[[str], None] | None = None,
    ) -> None:
        self._target, self._task, self._cluster_id = target, task, cluster_id
        self._schema = target.checkpoint_schema
        self._checkpoints = CheckpointTable(self._schema, cluster_id)
        self._marks = marks
        self._hook = hook
        self._stop = StopFlag()
        self._first = Session(target)
        self._writer: FencedWriter | None = None
        self._keeper: LeaseKeeper | None = None

    def __enter__(self) -> TargetHold:
        try:
            create_tables(self.session, self._schema)
            if self._marks is not None:
                self._marks.prepare(self.session)
            fence = claim(self._first, self._target, self._task)
            self._stop.__enter__()
            self._keeper = LeaseKeeper(self._target, fence)
            self._keeper.__enter__()
            self._writer = FencedWriter(
                self._target, self._first, fence, check=self._check, passed=self._passed, alone=threading.Lock(),
                confirmed=Confirmed(self._first, self._target), marks=self._marks,
            )  # fmt: skip
            self.checkpoint()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    @property
    def session(self) -> Session:
        """The connection that writes; another one after a COMMIT that was lost."""
        return self._first if self._writer is None else self._writer.session

    def checkpoint(self) -> Checkpoint:
        """The checkpoint. Raises CheckpointConflict for another's, Transient unless it is between two windows."""
        found = self._checkpoints.read(self.session)
        if found is None:
            raise ConfigError("the target has no checkpoint: nothing was applied to it")
        owner = owner_of(self.session, self._schema, self._cluster_id)
        if owner not in (None, self._task):
            raise CheckpointConflict(
                f"the checkpoint row belongs to the replication {owner}",
                where={"cluster": self._cluster_id, "schema": self._schema, "task": self._task},
                hint="run it for that replication",
            )
        opened = open_progress(self.session, self._schema, self._cluster_id, self._task)
        progress = read_progress(self.session, self._schema, self._task)
        if opened is not None or not is_settled(found, progress, self.aside()):
            raise Transient(
                "the target is inside a window: it does not equal the source at any commit_ts",
                where={"commit_ts": found.commit_ts, "open_window": opened and f"{opened.open_lo}-{opened.open_hi}"},
                hint="let its window end (`binlake stage finalize`, or the schedule), then run this again",
            )
        return found

    def aside(self) -> dict[Name, AsideTable]:
        """The tables that are set aside, by name in lower case."""
        return read_aside(self.session, self._schema, self._cluster_id)

    def bring_back(self, table: AsideTable, ts: int) -> None:
        """Take `table`, which is the source's at checkpoint `ts`, out of those that are set aside.

        With the last of them the target equals the source again: `consistent` is true. Raises as `apply`.
        """

        def body(session: Session) -> AsideTable:
            found = self._locked_at(session, ts)
            remove_aside(session, self._schema, self._cluster_id, table)
            left = read_aside(session, self._schema, self._cluster_id)
            self._checkpoints.write(session, found.marked(consistent=not left))
            return table

        def is_stored(session: Session, gone: AsideTable) -> bool:
            return gone.name not in read_aside(session, self._schema, self._cluster_id)

        self._held.transact(body, is_stored)

    def apply(self, batches: Sequence[StatementBatch], ts: int, *, once: bool = False, consistent: bool = True) -> int:
        """Run `batches` at checkpoint `ts`, each transaction with its rows of the ledger; rows that they touched.

        One transaction as far as `target.max-segment-rows` allows. `once`: what the ledger has at this checkpoint is
        not run again. `consistent` False: the target is from then on not the source at its checkpoint.
        Raises CheckpointConflict when the checkpoint is another, what a window's rows raise.
        """
        done = 0
        for group in _groups(batches, self._target.max_segment_rows):
            self._check()
            done += self._transaction(group, ts, once=once, consistent=consistent)
        return done

    def _transaction(self, group: list[StatementBatch], ts: int, *, once: bool, consistent: bool) -> int:
        ledger = Ledger(self._schema, self._task, ts, ts)

        def body(session: Session) -> _Stored:
            found = self._locked_at(session, ts)
            if not consistent and self.aside():
                raise CheckpointConflict(
                    "tables are set aside: the target could not record why the checkpoint is not consistent",
                    where={"commit_ts": ts, "tables": len(self.aside())},
                    hint="bring them back first (`binlake table back`), or write to the source or a file",
                )
            segment = _told_by(group) if once else self._free_segment(session, ts)
            if once and ledger.done(session, segment):
                return _Stored(segment, None)
            self._run(session, group)
            ledger.write(session, [(replace(batch, segment=segment), Stored.WHOLE_SEGMENT) for batch in group])
            if not consistent:
                self._checkpoints.write(session, found.marked(consistent=False))
            return _Stored(segment, group[-1])

        def is_stored(session: Session, stored: _Stored) -> bool:
            return bool(ledger.done(session, stored.segment))

        stored = self._held.transact(body, is_stored)
        return sum(batch.rows for batch in group) if stored.batch is not None else 0

    def _run(self, session: Session, group: Sequence[StatementBatch]) -> None:
        with Presence() as presence:
            for batch in group:
                self._check()
                run_batch(session, batch)
                presence.expect(batch)
                self._passed("batch")
            for checks in presence.groups(session.max_packet()):
                verify(session, checks)

    def _locked_at(self, session: Session, ts: int) -> Checkpoint:
        found = self._checkpoints.read(session, lock=True)
        if found is None or found.commit_ts != ts:
            raise CheckpointConflict(
                "the target is not at the checkpoint that this was made for: older rows must never overwrite newer "
                "ones",
                where={"made_for": ts, "checkpoint": found.commit_ts if found else "none"},
                hint="run verify again: it checks again what still differs",
            )
        return found

    def _free_segment(self, session: Session, ts: int) -> int:
        table = qualified(self._schema, "binlake_ledger")
        sql = f"SELECT MAX(segment) FROM {table} WHERE task = %s AND lo = %s AND hi = %s"
        last = session.rows(sql, (self._task, ts, ts))[0][0]
        return max(_FIRST_FREE, int(last or 0) + 1)

    @property
    def _held(self) -> FencedWriter:
        if self._writer is None:
            raise Fenced("nothing was claimed", where={"task": self._task})
        return self._writer

    def _check(self) -> None:
        self._stop.check()
        if self._keeper is not None:
            self._keeper.require_kept()

    def _passed(self, step: str) -> None:
        if self._hook is not None:
            self._hook(step)

    def _release(self) -> None:
        """Never raises: the error before it is what matters."""
        if self._keeper is not None:
            self._keeper.__exit__()
        self._stop.__exit__()
        try:
            self.session.rollback()
            if self._writer is not None:
                self._writer.fence.release(self.session)
        except BinlakeError as error:
            log.warning("lease_not_released", task=self._task, error=str(error))
        finally:
            if self._writer is not None:
                self._writer.fence.abandon()
            self.session.close()


def _groups(batches: Sequence[StatementBatch], most: int) -> Iterator[list[StatementBatch]]:
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


def _told_by(group: Sequence[StatementBatch]) -> int:
    digest = hashlib.sha256("".join(batch.digest for batch in group).encode()).digest()
    return int.from_bytes(digest[:4], "big") % _FIRST_FREE
