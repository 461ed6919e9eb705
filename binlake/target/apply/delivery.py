"""A batch and its ledger row in one transaction of whichever connection has it, unless they are there (invariant 9)."""

from __future__ import annotations

from functools import partial

from binlake.statements.batch import StatementBatch
from binlake.target.apply.rows import SegmentCounts, run_batch
from binlake.target.claim.ledger import Ledger, Stored, is_done
from binlake.target.claim.passing import part_to_run
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.writer import FencedWriter
from binlake.target.session.session import Session


class Delivery:
    """The batches of one segment; shared by all connections. `counts`: what this run executed and stored."""

    def __init__(self, run: ApplyRun, segment: int) -> None:
        self.counts = SegmentCounts()
        self._run = run
        self._ledger = Ledger.of(run.schema, run.manifest)
        # Behind the claim: no transaction of an earlier holder is open any more.
        self._done = self._ledger.done(run.session, segment)

    def is_done(self, batch: StatementBatch) -> bool:
        """Whether an earlier run stored it. Raises what `ledger.is_done` raises for another text in its place."""
        return is_done(batch, self._done)

    def deliver(self, writer: FencedWriter, batch: StatementBatch) -> None:
        """Execute and store it. Raises what `FencedWriter.transact` and `run_batch` raise."""
        writer.transact(partial(self._body, batch), self._is_stored)
        part = self.part_of(batch)
        if part is not None:
            self.counts.add(part)
        if part is not batch:
            self.counts.pass_over()

    def part_of(self, batch: StatementBatch) -> StatementBatch | None:
        """What of `batch` is run; None when its table is set aside."""
        return part_to_run(batch, self._run.aside)

    def _body(self, batch: StatementBatch, session: Session) -> StatementBatch:
        part = self.part_of(batch)
        if part is not None:
            run_batch(session, part)
        self._ledger.write(session, [(batch, Stored.ALONE if part is batch else Stored.ASIDE)])
        self._run.passed("batch")
        return batch

    def _is_stored(self, session: Session, batch: StatementBatch) -> bool:
        return is_done(batch, self._ledger.done(session, batch.segment, (batch.phase, batch.batch)))
