"""Prewrites the values of a snapshot as they are read, and records each chunk once all of it is acknowledged.

A chunk is committed in the same step, so that windows carry it while others are read. If the name of its table may have
moved, it stays open: the log must be read first (`catchup`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.journal import Batch
from binlake.pump_service.feeder.publisher import Outgoing, SourcePublisher, UncommittedBatches
from binlake.pump_service.feeder.snapshot.loadstate import LoadState
from binlake.pump_service.feeder.snapshot.opening import build_id_prefix
from binlake.pump_service.feeder.snapshot.reading import Value

_PREWRITE_BYTES = 4 << 20
"""Bytes of values that are prewritten together."""
_FLUSH_S = 2.0
"""Seconds after which fewer bytes are prewritten: a load that is limited, or of small tables, goes on to be seen."""


@dataclass
class PrewrittenChunk:
    """A chunk being read: values still to be prewritten, batches of those that are; `end`: its last value."""

    values: list[Value] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    end: Value | None = None


class ChunkPrewriter:
    """Prewrites the chunks of one snapshot. `began_ms`: the time of its transactions; `build_id`: gives the identity of
    the next one; `finish`: called with the chunks of which the last value is prewritten."""

    def __init__(
        self,
        publisher: SourcePublisher,
        source: str,
        began_ms: int,
        build_id: Callable[[], str],
        finish: Callable[[list[PrewrittenChunk]], None],
    ) -> None:
        self._publisher, self._source, self._began_ms = publisher, source, began_ms
        self._build_id, self._finish = build_id, finish
        self._chunks: dict[tuple[Name, str], PrewrittenChunk] = {}
        self._bytes = 0
        self._due = time.monotonic() + _FLUSH_S

    def add(self, value: Value) -> None:
        """Add the next value; it is prewritten together with others."""
        chunk = self._chunks.setdefault((value.name, value.chunk.low), PrewrittenChunk())
        if value.rows:
            chunk.values.append(value)
            chunk.rows += value.rows
            chunk.bytes += len(value.value)
        if value.is_last:
            chunk.end = value
        self._bytes += len(value.value)
        if self._bytes >= _PREWRITE_BYTES:
            self.flush()
        else:
            self.flush_if_due()

    def flush_if_due(self) -> None:
        """`flush` what has waited for long."""
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Prewrite the added values, and finish the complete chunks."""
        self._due = time.monotonic() + _FLUSH_S
        with_values = [chunk for chunk in self._chunks.values() if chunk.values]
        outgoing = [
            Outgoing(self._build_id(), self._began_ms, value.value) for chunk in with_values for value in chunk.values
        ]
        counts = [len(chunk.values) for chunk in with_values]
        batches = self._publisher.prewrite(UncommittedBatches(self._source), outgoing, counts)
        for chunk, batch in zip(with_values, batches, strict=True):
            chunk.batches.append(batch)
            chunk.values.clear()
        self._bytes = 0
        whole = {key: chunk for key, chunk in self._chunks.items() if chunk.end is not None}
        self._finish(list(whole.values()))
        for key in whole:
            del self._chunks[key]

    def abandon(self) -> None:
        """Roll back the incomplete chunks."""
        for chunk in self._chunks.values():
            self._publisher.abandon(UncommittedBatches(self._source, chunk.batches))


class ChunkWriter(ChunkPrewriter):
    """Writes the chunks of one snapshot of `load`, and records those that are complete."""

    def __init__(self, publisher: SourcePublisher, source: str, load: LoadState, began_ms: int) -> None:
        super().__init__(publisher, source, began_ms, self._build_next_id, self._record_whole)
        self._load = load
        self._number = 0

    def _record_whole(self, whole: Sequence[PrewrittenChunk]) -> None:
        for is_visible in (True, False):
            if chunks := [chunk for chunk in whole if self._is_final(chunk) == is_visible]:
                self.record(chunks, is_visible=is_visible)

    def _is_final(self, chunk: PrewrittenChunk) -> bool:
        return self._load.has_one_position and chunk.end is not None and not chunk.end.may_have_moved

    def record(self, chunks: Sequence[PrewrittenChunk], *, is_visible: bool) -> None:
        """Record complete chunks, in one durable step, and commit them if they become visible."""
        finished = [
            self._load.finish_chunk(chunk.end, chunk.rows, chunk.batches, is_visible=is_visible, size=chunk.bytes)
            for chunk in chunks
            if chunk.end is not None
        ]
        batches = [batch for chunk in chunks for batch in chunk.batches]
        if is_visible and batches:
            uncommitted = UncommittedBatches(self._source, batches)
            self._publisher.commit(uncommitted, self._load.snapshots[-1].position, chunks=finished)
        else:
            self._load.store_chunks(finished)

    def _build_next_id(self) -> str:
        """The identity of the next transaction, distinct from those of the log and of other snapshots."""
        snapshots = self._load.snapshots
        self._number += 1
        return f"{build_id_prefix(snapshots[-1].position)}-{len(snapshots) - 1}-{self._number}"
