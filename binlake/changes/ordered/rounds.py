"""Plan rounds, worker queues and batches of row changes so that every timing of the workers equals serial execution.

Sources: data-migration 1.1, 1.4, 1.5 (DM's job kinds), tidb-binlog 5.10; S0-68 to S0-72, S4-13 to S4-16, S3-01.

Changes of one group of keys go to one queue, in order; the queues of a round run in parallel. A round ends with a
barrier: at a *conflict* (a change links two groups), at a *flush* (the end of a transaction once the round is long),
and before and after a change with unknown collisions. A round has a `whole_ts`: when the round starts, every
transaction up to `whole_ts` is applied, so the checkpoint may move there.

Which changes may run in parallel is decided by DM's groups of linked keys (causality.go), or by the drainer's flush on
any known key (data-migration 6.4; S0-68, S0-69, hazards R-36). DM keeps its keys in generations, because its workers
continue during a flush. Here a flush is a barrier of the plan, so it removes all earlier keys at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from binlake.changes.ordered.merger import Merger, OrderedChange
from binlake.errors import Permanent
from binlake.statements.batch import BatchLimits, Phase, StatementBatch, compute_statement_digest

Strategy = Literal["causality", "flush"]


@dataclass(frozen=True)
class GroupDecision:
    """`flush`: all changes dispatched before must be applied first. `group`: the changes of a group keep their
    order."""

    flush: bool
    group: Hashable


class Detector(Protocol):
    """Decides for one change after another, in commit order."""

    def add(self, keys: Sequence[Hashable]) -> GroupDecision:
        """The decision for a change with `keys` (at least one); from now on these keys are in flight."""

    def clear(self) -> None:
        """Forget all keys, because all added changes are applied."""


class Causality:
    """DM's rule: keys that occur in one change form a group; a change whose keys are in two groups causes a flush.

    `groups`: key -> the key that represents its group.
    """

    def __init__(self) -> None:
        self.groups: dict[Hashable, Hashable] = {}

    def add(self, keys: Sequence[Hashable]) -> GroupDecision:
        """See Detector."""
        known = [self.groups[key] for key in keys if key in self.groups]
        flush = len(set(known)) > 1
        if flush:
            self.clear()
            known = []
        group = known[-1] if known else keys[0]
        self.groups.update(dict.fromkeys(keys, group))
        return GroupDecision(flush, group)

    def clear(self) -> None:
        """See Detector."""
        self.groups.clear()


class FlushAll:
    """The drainer's rule: a change that touches any key in flight waits until all earlier changes are applied."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()

    def add(self, keys: Sequence[Hashable]) -> GroupDecision:
        """See Detector."""
        flush = not self.keys.isdisjoint(keys)
        if flush:
            self.clear()
        self.keys.update(keys)
        return GroupDecision(flush, keys[0])

    def clear(self) -> None:
        """See Detector."""
        self.keys.clear()


def build_detector(strategy: Strategy) -> Detector:
    """The detector of `target.conflict-strategy`."""
    return Causality() if strategy == "causality" else FlushAll()


ROUND_ROWS = 20_000
"""After this many changes, a round ends with the transaction, and the checkpoint can move (DM flushes every 30 s)."""

_LONGEST = 4
"""A round is cut inside a transaction at this many times `round_rows`, to bound the memory for the keys."""


@dataclass(frozen=True)
class PlanOptions:
    """`workers`: the number of queues; `limits.rows`: changes per target transaction; names as in DM and the
    drainer."""

    workers: int = 16
    limits: BatchLimits = field(default_factory=BatchLimits)
    multiple_rows: bool = False
    strategy: Strategy = "causality"
    round_rows: int = ROUND_ROWS


class OrderedPlan:
    """Takes the changes of `segment` in commit order and yields full batches; `flush` yields the rest.

    Batches are numbered in the order in which they are yielded: by round, and by order in a queue.
    """

    def __init__(self, segment: int, options: PlanOptions) -> None:
        self._segment = segment
        self._options = options
        self._merger = Merger(options.multiple_rows, options.limits)
        self._detector: Detector = build_detector(options.strategy)
        self._queues: dict[int, _Queue] = {}
        self._next = 0
        self._round = 0
        self._rows = 0
        self._alone = False
        self._commit_ts = 0
        self._whole_ts = 0
        self._round_whole_ts = 0

    def add(self, change: OrderedChange) -> Iterator[StatementBatch]:
        """Add one change. Raises Permanent if its commit_ts is below the last one's."""
        self._advance(change.event.commit_ts)
        if change.alone or self._alone or self._is_flush_due(change.event.commit_ts):
            self._detector.clear()
            yield from self._end_round()
        decision = self._detector.add(change.keys)
        if decision.flush:
            yield from self._end_round()
        self._alone = change.alone
        self._commit_ts = change.event.commit_ts
        yield from self._dispatch(change, decision)

    def flush(self) -> Iterator[StatementBatch]:
        """The batches left in the queues."""
        for queue in sorted(self._queues):
            yield self._build_batch(queue)

    def _advance(self, commit_ts: int) -> None:
        if commit_ts < self._commit_ts:
            raise Permanent(
                "row changes are not in commit order", where={"commit_ts": commit_ts, "behind": self._commit_ts}
            )
        if commit_ts > self._commit_ts:
            # This is the end of a transaction, DM's job xid.
            self._whole_ts = self._commit_ts

    def _is_flush_due(self, commit_ts: int) -> bool:
        return self._rows >= self._options.round_rows * (1 if commit_ts > self._commit_ts else _LONGEST)

    def _end_round(self) -> Iterator[StatementBatch]:
        yield from self.flush()
        self._round += 1
        self._rows = 0
        self._round_whole_ts = self._whole_ts

    def _dispatch(self, change: OrderedChange, decision: GroupDecision) -> Iterator[StatementBatch]:
        number = choose_queue(decision.group, self._options.workers)
        queue = self._queues.setdefault(number, _Queue())
        queue.put(change)
        self._rows += 1
        if len(queue.changes) >= self._options.limits.rows or queue.bytes >= self._options.limits.bytes:
            yield self._build_batch(number)

    def _build_batch(self, number: int) -> StatementBatch:
        changes = self._queues.pop(number).changes
        statements = self._merger.render_statements(changes)
        sql = tuple(statement.text for statement in statements)
        tables = {(change.forms.table.db, change.forms.table.name) for change in changes}
        db, table = tables.pop() if len(tables) == 1 else ("", "")
        batch, self._next = self._next, self._next + 1
        return StatementBatch(
            self._segment,
            Phase.ORDERED,
            batch,
            db,
            table,
            "ordered",
            sql,
            tuple(statement.expect for statement in statements),
            "",
            0,
            len(changes),
            compute_statement_digest(sql),
            self._round,
            number,
            self._round_whole_ts,
        )


@dataclass
class _Queue:
    """The changes of one worker, and the approximate bytes of their images."""

    changes: list[OrderedChange] = field(default_factory=list)
    bytes: int = 0

    def put(self, change: OrderedChange) -> None:
        self.changes.append(change)
        images = (image for image in change.event.require_images() if image is not None)
        self.bytes += sum(len(text) for image in images for text in image.values() if text is not None)


def choose_queue(group: Hashable, workers: int) -> int:
    """The number of a group's worker queue: CRC-32 of its key's text, as in the drainer."""
    return zlib.crc32(str(group).encode()) % workers
