"""Decodes payloads to rows of `mutation` and writes them to files, in the workers.

merge does it. Where a job is dear (`Engine.fuses`), land's tasks decode what they have just pulled with the schema at
the window's start, and merge uses it if it would decode in the same way; nothing of it counts before merge commits the
files. It is a module of its own because the imports of a stage would cost each worker more than its work.

A transaction that `binlog` holds in chunks is read chunk by chunk, so no more than a few are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from binlake.common.lakecolumns import Binlog
from binlake.config import Replication
from binlake.ddl.shardlocks import Locks
from binlake.ddl.sharedrows import Extra, add_columns, list_extras
from binlake.ddl.targets import Naming
from binlake.errors import BinlakeError, WireError
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.payloads import COLUMNS, PayloadRange, join_chunks
from binlake.lake.store import delete_file
from binlake.lake.tables import MUTATION
from binlake.rows.codec import MUTATION_SCHEMA, DecodeStats, MutationBatch
from binlake.rows.codec.columnblocks import find_column_blocks
from binlake.rows.codec.largerows import LargeBinlog, list_mutations, read_field
from binlake.rows.codec.splits import MOST_BYTES
from binlake.rows.schema import SchemaState, WindowSchemas
from binlake.rules import Rules
from binlake.rules.expressions import RowFilter
from binlake.rules.rules import build_row_filter
from binlake.spark_jobs.engine.engine import Keeper
from binlake.spark_jobs.engine.rows import MemoryRows, Rows, list_written_rows
from binlake.wire import binlog_pb2 as pb

PIECE_BYTES = 8 << 20
"""Bytes of a piece; chunks of older versions have 64 MiB."""
_PLACES = (Binlog.COMMIT_TS, Binlog.START_TS, Binlog.CHUNK)
log = structlog.get_logger(__name__)

"""Average payload bytes of a piece that is decoded at a time."""
PIECE_ROWS = 8192
"""Most transactions of such a piece, so that its data stays in the processor's caches."""
EXPRESSION = "expression_filter"
REASONS = ("table_filter", "event_filter", "loopback", "gone")
"""What decoding leaves out and counts, besides rows dropped by an expression: rows of filtered tables, rows of filtered
kinds, whole transactions that our own side wrote, rows of tables dropped meanwhile."""
LATIN1, ONCE, AWAY = "latin1:", "taken-once:", "taken-away:"
"""Prefixes of the names of three counts, followed by the source's `db.table`: texts read as latin1, transactions whose
second writes are uncertain, and transactions with rows that may have gone with their partition."""
BY_TABLE = (LATIN1, ONCE, AWAY)
BASE = "base"
"""Name of the count of rows, not left out, that came in blocks of a full load."""


@dataclass(frozen=True)
class Decoder:
    """Decodes payloads to rows of `mutation` with the window's schemas, the rules, expressions and added columns."""

    schemas: WindowSchemas
    rules: Rules
    expressions: RowFilter = field(default_factory=RowFilter)
    added: tuple[Extra, ...] = ()

    @classmethod
    def of_window(cls, schemas: WindowSchemas, rules: Rules, locks: Locks, lo: int) -> Decoder:
        """The decoder of a window above `lo` with the holds `locks`. Raises ConfigError."""
        added = tuple(list_extras(schemas, Naming(rules), locks, lo))
        return cls(schemas, rules, build_row_filter(schemas, rules), added)

    def decode_rows(self, batches: Iterable[pa.RecordBatch], left_out: Counter[str]) -> Iterator[pa.RecordBatch]:
        """Decode batches of (commit_ts, start_ts, payload) to batches of `mutation`.

        After the last batch `left_out` has the counts by reason, those of BY_TABLE, and BASE. Raises WireError,
        SchemaError, ConfigError, Permanent.
        """
        yield from self._finish(self._decode(batches, left_out), left_out)

    def decode_chunks(self, payload: ChunkedPayload, left_out: Counter[str]) -> Iterator[pa.RecordBatch]:
        """As `decode_rows`, for a transaction in chunks, of which a few are in memory at a time.

        It is read whole if its fields are unusual, or a rule needs all of it.
        """
        commit_ts, start_ts = payload.commit_ts, payload.start_ts
        tables, decoded = self.schemas.find_schema_at(commit_ts), self._build_batch()
        large = list_mutations(payload.open_pieces)
        if large is None or not decoded.may_add_large(large, tables):
            yield from self.decode_rows([payload.join()], left_out)
            return
        if self.rules.marks is not None:
            marked = self._read_marked(large, payload, tables)
            if self.rules.marks.is_ours(marked, commit_ts, start_ts, tables):
                left_out.update(_build_counts(decoded.stats, 1))
                return

        def decode() -> Iterator[tuple[pa.RecordBatch, bool]]:
            for _ in decoded.add_large(large, payload.open_pieces, commit_ts, start_ts, tables):
                yield from ((rows, False) for rows in decoded.take_batches())
            yield from ((rows, False) for rows in decoded.take_batches())
            left_out.update(_build_counts(decoded.stats, 0))

        yield from self._finish(decode(), left_out)

    def _read_marked(self, large: LargeBinlog, payload: ChunkedPayload, tables: SchemaState) -> bytes:
        """A binlog with those mutations of `payload` that may show who wrote it."""
        marks = self.rules.marks
        fields: list[bytes] = []
        for mutation in large.mutations:
            table = tables.find_table(mutation.table_id)
            if table is not None and marks is not None and marks.is_mark(table.db, table.name):
                fields.append(read_field(payload.open_pieces, mutation))
        value = pb.PrewriteValue(schema_version=large.version).SerializeToString() + b"".join(fields)
        return pb.Binlog(prewrite_value=value).SerializeToString()

    def _finish(
        self, decoded: Iterable[tuple[pa.RecordBatch, bool]], left_out: Counter[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch, is_block in decoded:
            remaining = self.expressions.filter_rows(batch) if self.expressions.places else batch
            if remaining.num_rows < batch.num_rows:
                left_out[EXPRESSION] += batch.num_rows - remaining.num_rows
            if is_block:
                left_out[BASE] += remaining.num_rows
            yield add_columns(remaining, self.added) if self.added else remaining

    def _decode(
        self, batches: Iterable[pa.RecordBatch], left_out: Counter[str]
    ) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """(rows, whether they were a block of columns), in the order of the transactions."""
        decoded, own = self._build_batch(), 0
        for batch in batches:
            for piece in _split_batch(batch):
                at = 0
                for block, value in find_column_blocks(piece.column(Binlog.PAYLOAD)):
                    own += yield from self._decode_piece(decoded, piece.slice(at, block - at))
                    yield from ((rows, False) for rows in decoded.take_batches())
                    own += yield from self._read_block(decoded, piece.slice(block, 1), value)
                    at = block + 1
                own += yield from self._decode_piece(decoded, piece.slice(at))
        yield from ((rows, False) for rows in decoded.take_batches())
        left_out.update(_build_counts(decoded.stats, own))

    def _decode_piece(
        self, decoded: MutationBatch, piece: pa.RecordBatch
    ) -> Generator[tuple[pa.RecordBatch, bool], None, int]:
        """Add transactions to `decoded`, and take its rows when it is full. Returns how many our own side wrote."""
        own = 0
        if not piece.num_rows:
            return own
        payloads, commits, starts = (piece.column(name) for name in (Binlog.PAYLOAD, Binlog.COMMIT_TS, Binlog.START_TS))
        if self.rules.marks is None and payloads.nbytes <= MOST_BYTES * len(payloads):
            decoded.add_all(payloads, commits.to_numpy(), starts.to_numpy(), self.schemas.find_schemas_at)
        else:
            for row in zip(payloads, commits.to_pylist(), starts.to_pylist(), strict=True):
                own += self._add(decoded, row[0].as_py(), *row[1:])
                if decoded.is_full:
                    yield from ((rows, False) for rows in decoded.take_batches())
        if decoded.is_full:
            yield from ((rows, False) for rows in decoded.take_batches())
        return own

    def _read_block(
        self, decoded: MutationBatch, piece: pa.RecordBatch, value: pb.PrewriteValue
    ) -> Generator[tuple[pa.RecordBatch, bool], None, int]:
        """The rows of the only transaction of `piece`, a block. Returns 1 if our own side wrote it, else 0.

        `value`: the transaction's, which is parsed only once.
        """
        commit_ts, start_ts = (piece.column(name)[0].as_py() for name in (Binlog.COMMIT_TS, Binlog.START_TS))
        tables = self.schemas.find_schema_at(commit_ts)
        if self.rules.marks is not None:
            payload = piece.column(Binlog.PAYLOAD)[0].as_py()
            if self.rules.marks.is_ours(payload, commit_ts, start_ts, tables):
                return 1
        yield from ((rows, True) for rows in decoded.read_block(value, commit_ts, start_ts, tables))
        return 0

    def _build_batch(self) -> MutationBatch:
        rules = self.rules
        return MutationBatch(
            rules.route, rules.list_passed_kinds, rules.invalid_text, rules.second_writes, rules.partition_rows
        )

    def _add(self, decoded: MutationBatch, payload: bytes, commit_ts: int, start_ts: int) -> bool:
        """Add a transaction. Returns True, without adding it, if our own side wrote it."""
        tables = self.schemas.find_schema_at(commit_ts)
        if self.rules.marks is not None and self.rules.marks.is_ours(payload, commit_ts, start_ts, tables):
            return True
        decoded.add(payload, commit_ts, start_ts, tables)
        return False


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in slices of some MiB; Spark's batch already holds all payloads."""
    step = min(PIECE_ROWS, max(1, PIECE_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


def _build_counts(stats: DecodeStats, own: int) -> dict[str, int]:
    counts = (stats.table_rows, stats.event_rows, own, sum(stats.gone_rows.values()))
    by_reason = {reason: count for reason, count in zip(REASONS, counts, strict=True) if count}
    by_reason |= {LATIN1 + table: count for table, count in stats.latin1_texts.items()}
    by_reason |= {ONCE + table: count for table, count in stats.taken_once.items()}
    return by_reason | {AWAY + table: count for table, count in stats.taken_away.items()}


@dataclass(frozen=True)
class DecodedFiles:
    """The result of a task: its files in `folder`, the bytes of their rows, counts of what was left out, by reason, the
    rows if it holds them, and how many came in blocks of a full load (`base`)."""

    folder: str
    parts: list[TablePart]
    bytes: int
    left_out: dict[str, int]
    kept: MemoryRows | None
    base: int = 0

    def list_rows(self) -> list[Rows]:
        """The rows of `mutation`, to be read."""
        return [self.kept] if self.kept is not None else [*list_written_rows(self.folder, self.parts, self.bytes)]


@dataclass(frozen=True)
class Payloads:
    """The input of a task: rows of `binlog`; with `joined`, only the chunks of the transaction of that commit_ts."""

    rows: tuple[Rows, ...]
    joined: int | None = None


@dataclass(frozen=True)
class MergeTask:
    """Decodes payloads and writes files of `mutation` in `folder`."""

    range: PayloadRange
    decoder: Decoder
    folder: str
    keeper: Keeper

    def __call__(self, payloads: Payloads) -> DecodedFiles:
        """Raises what a Decoder raises, OSError, LostRange."""
        left_out: Counter[str] = Counter()
        kept: list[pa.RecordBatch] = []
        sizes: list[int] = []

        def decode() -> Iterator[pa.RecordBatch]:
            for batch in self._decode(payloads, left_out):
                sizes.append(batch.nbytes)
                yield batch

        parts = write_parts(self.folder, MUTATION, self.keeper.keep(decode(), kept))
        table = pa.Table.from_batches(kept, MUTATION_SCHEMA)
        whole = table.num_rows == sum(part.rows for part in parts)
        base = left_out.pop(BASE, 0)
        return DecodedFiles(self.folder, parts, sum(sizes), dict(left_out), MemoryRows(table) if whole else None, base)

    def _decode(self, payloads: Payloads, left_out: Counter[str]) -> Iterator[pa.RecordBatch]:
        if payloads.joined is not None:
            return self.decoder.decode_chunks(ChunkedPayload(payloads.rows, payloads.joined), left_out)
        return self.decoder.decode_rows(self._read(payloads), left_out)

    def _read(self, payloads: Payloads) -> Iterator[pa.RecordBatch]:
        yield from (self.range.select_wanted(batch) for rows in payloads.rows for batch in rows.read(COLUMNS))


@dataclass(frozen=True)
class DecodeAhead:
    """Decodes the pulled rows of a range with the schema `base`, if they show no newer one."""

    task: MergeTask
    base: SchemaState

    def __call__(self, rows: pa.Table) -> DecodedFiles | None:
        """The result for `rows` of `binlog`; None if they have DDL, a newer schema or chunks, or cannot be decoded."""
        versions, chunks = pc.max(rows[Binlog.SCHEMA_VERSION]).as_py(), pc.max(rows[Binlog.CHUNK]).as_py()
        if (versions or 0) > self.base.version or chunks or pc.any(pc.equal(rows[Binlog.KIND], "ddl")).as_py():
            return None
        try:
            return self.task(Payloads((MemoryRows(rows),)))
        except BinlakeError as error:
            # merge will meet it again, where it says what to do.
            log.info("range_not_decoded_ahead", error=type(error).__name__, reason=str(error))
            return None


@dataclass(frozen=True)
class DecodedAhead:
    """What land's tasks decoded of a whole window with the schema `base` and the rules of `replication`."""

    base: SchemaState
    replication: Replication
    written: tuple[DecodedFiles, ...]

    def discard(self) -> None:
        """Delete the files, which nothing refers to."""
        for one in self.written:
            for part in one.parts:
                delete_file(f"{one.folder}/{part.path}")


class ChunkedPayload:
    """The payload of the transaction `commit_ts` among `rows` of `binlog`. Raises WireError if a chunk is missing."""

    def __init__(self, rows: Sequence[Rows], commit_ts: int) -> None:
        self.commit_ts = commit_ts
        self.start_ts = 0
        self._rows = rows
        self._places: dict[int, Rows] = {}
        self._sizes: dict[int, int] = {}
        for run in (run for one in rows for run in one.list_runs()):
            if run.least <= commit_ts <= run.greatest:
                for batch in run.rows.read(_PLACES):
                    self._note_places(batch, run.rows)
        if sorted(self._places) != list(range(len(self._places))) or not self._places:
            raise WireError("chunks of a transaction are missing", where={"commit_ts": commit_ts})

    def open_pieces(self, begin: int) -> Iterator[bytes]:
        """The bytes from offset `begin` on, in pieces of at most PIECE_BYTES."""
        at = 0
        for number in range(len(self._places)):
            if number in self._sizes and at + self._sizes[number] <= begin:
                at += self._sizes[number]
                continue
            chunk = self._read_chunk(number)
            for first in range(max(begin - at, 0), len(chunk), PIECE_BYTES):
                yield chunk.slice(first, min(PIECE_BYTES, len(chunk) - first)).to_pybytes()
            at += len(chunk)

    def join(self) -> pa.RecordBatch:
        """The whole payload, as `join_chunks`."""
        return join_chunks((batch for rows in self._rows for batch in rows.read(COLUMNS)), self.commit_ts)

    def _note_places(self, batch: pa.RecordBatch, rows: Rows) -> None:
        own = np.asarray(batch.column(Binlog.COMMIT_TS)) == self.commit_ts
        for place in np.flatnonzero(own).tolist():
            self._places[batch.column(Binlog.CHUNK)[place].as_py()] = rows
            self.start_ts = batch.column(Binlog.START_TS)[place].as_py()

    def _read_chunk(self, number: int) -> pa.Buffer:
        for batch in self._places[number].read((*_PLACES, Binlog.PAYLOAD)):
            own = np.asarray(batch.column(Binlog.COMMIT_TS)) == self.commit_ts
            own &= np.asarray(batch.column(Binlog.CHUNK)) == number
            for place in np.flatnonzero(own).tolist():
                chunk = batch.column(Binlog.PAYLOAD)[place].as_buffer()
                self._sizes[number] = len(chunk)
                return chunk
        raise WireError("a chunk of a transaction is missing", where={"commit_ts": self.commit_ts, "chunk": number})
