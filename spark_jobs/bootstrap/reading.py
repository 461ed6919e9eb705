"""Reads the ranges of all tables into files of `binlog`, by threads which each have a session at the snapshot.

A range becomes complete transactions of inserts, as a pump would deliver them, with commit_ts values reserved for it.
Ranges are handed out in the order of their commit_ts, so everything below the lowest range still being read is
complete. One that an earlier attempt read is recognized by its bounds and skipped. The files become part of the table
only when the window that holds them is sealed; `read_range` can run anywhere that can write the files.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from binlake import tso
from binlake.common import rowhash
from binlake.common.lakecolumns import Binlog
from binlake.common.rowhash import Fold
from binlake.errors import Permanent
from binlake.lake.baseload import BaseLoad, LoadedRange
from binlake.lake.baseload import LoadedRange as ReadChunk
from binlake.lake.parts import write_parts
from binlake.lake.tables import BINLOG, parse_schema
from binlake.mysqlbinlog.rowimage.transactions import encode_inserts
from binlake.mysqlbinlog.tablerows.link import Link, query_rows
from binlake.mysqlbinlog.tablerows.ranges import Chunks
from binlake.mysqlbinlog.tablerows.rowblocks import BlockWriter, group_into_blocks
from binlake.mysqlbinlog.tablerows.rowtexts import select_columns
from binlake.rows.codec.encode import encode_commit_binlog
from binlake.spark_jobs.bootstrap.source import BootstrapTable, SnapshotSource
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.land.binlogfiles import DIGEST_COLUMNS
from binlake.statements.literal import quote_qualified_name

WHOLE_ROOM = 1 << 24
"""commit_ts values reserved for a table read as a single range: one for each transaction of 1 MiB."""
PUMP = "full load"
"""The value of the column `pump`, in place of a pump's node id."""
MOST_ROWS, MOST_BYTES = 10_000, 1 << 20
"""Limits of one transaction: the size of an ordinary transaction at a source."""
_BATCH_BYTES = 32 << 20
_SCHEMA = parse_schema(BINLOG.build_spark_schema())
_WAITING = 2
"""Finished ranges per reader that may wait to be recorded."""
_POLL_S = 0.2


@dataclass(frozen=True)
class BootstrapRange:
    """A range of `table` to read; `where`: its SQL condition. Its transactions get `first_ts` to `last_ts`."""

    table: BootstrapTable
    where: str
    low: str
    high: str
    first_ts: int
    last_ts: int


Read: TypeAlias = tuple[BootstrapRange, LoadedRange]


class _Stopped(Exception):
    """The consumer has stopped, so readers stop too."""


class Readers:
    """`source.snapshot.threads` threads that read `ranges`; a context manager, which ends them."""

    def __init__(self, source: SnapshotSource, ranges: BootstrapRanges, version: int, ctx: StageContext) -> None:
        self._source = source
        self._ranges = ranges
        self._version = version
        self._folder = ctx.paths.locate_table(BINLOG.name)
        count = ctx.replication.source.snapshot.threads
        self._ready: queue.Queue[Read | BaseException | None] = queue.Queue(_WAITING * count)
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"load-{number}") for number in range(count)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def iterate_results(self) -> Iterator[list[Read]]:
        """The ranges that have been read, in batches, until all are read. Raises what a reader raised."""
        running = len(self._threads)
        while running:
            items = [self._ready.get()]
            while not self._ready.empty():
                items.append(self._ready.get_nowait())
            read = [item for item in items if isinstance(item, tuple)]
            if read:
                yield read
            for item in items:
                if isinstance(item, BaseException):
                    raise item
            running -= sum(item is None for item in items)

    def _run(self) -> None:
        try:
            with self._source.open_session() as link:
                self._read(link)
            self._put(None)
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - carried to iterate_results(), which raises it
            with suppress(_Stopped):
                self._put(error)

    def _read(self, link: Link) -> None:
        while not self._stopped.is_set() and (given := self._ranges.take(link)) is not None:
            self._put((given, read_range(link, given, self._version, self._folder)))

    def _put(self, item: Read | BaseException | None) -> None:
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._ready.put(item, timeout=_POLL_S)
                return
        raise _Stopped


class BootstrapRanges:
    """The ranges of `tables`, without those in `known`, which have been read. Thread-safe.

    `row_id`: as in `Chunks`, for tables without a key.
    """

    def __init__(
        self, load: BaseLoad, tables: Sequence[BootstrapTable], first_ts: int, known: Sequence[ReadChunk], row_id: str
    ) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._next_ts = max([first_ts, *(chunk.last_ts + 1 for chunk in known)])
        self._known = {(chunk.table_id, chunk.low): chunk for chunk in known}
        # The largest tables first, so that small ones keep all readers busy at the end.
        ordered = sorted(tables, key=lambda table: table.estimated, reverse=True)
        self._left = [(table, _build_chunks(table, load.chunk_rows, row_id)) for table in ordered]
        self._chunks = {table.definition.id: chunks for table, chunks in self._left}
        self._open: set[int] = set()
        self._unread: dict[int, int] = {}
        self.tables_read = 0

    def take(self, link: Link) -> BootstrapRange | None:
        """The next range, its upper bound read through `link`; None when no range is left. Raises Permanent."""
        with self._lock:
            while self._left:
                table, chunks = self._left[0]
                taken = self._take_from(table, chunks, link)
                if taken is not None:
                    return taken
                self._left.pop(0)
                self._note_if_read(table.definition.id)
            return None

    def end(self, given: BootstrapRange) -> None:
        """Mark `given` as read and recorded."""
        with self._lock:
            self._open.discard(given.first_ts)
            table_id = given.table.definition.id
            self._chunks[table_id].ranges.finish(given.low, given.high, 0)
            self._unread[table_id] -= 1
            if all(table.definition.id != table_id for table, _ in self._left):
                self._note_if_read(table_id)

    def complete_below(self) -> int:
        """The commit_ts below which all ranges are read."""
        with self._lock:
            return min(self._open, default=self._next_ts)

    def _note_if_read(self, table_id: int) -> None:
        self.tables_read += not self._unread.get(table_id, 0)

    def _take_from(self, table: BootstrapTable, chunks: Chunks, link: Link) -> BootstrapRange | None:
        table_id = table.definition.id
        while (before := self._known.pop((table_id, chunks.low), None)) is not None:
            chunks.pass_over(before.high)
            chunks.ranges.finish(before.low, before.high, 0)
        chunk = chunks.take(link)
        if chunk is None:
            return None
        first = self._next_ts
        # A transaction has at least one row, so a range never has more transactions than rows.
        self._next_ts += self._load.chunk_rows if chunks.is_cut else WHOLE_ROOM
        if self._next_ts > self._load.base_ts:
            raise Permanent(
                "the tables have more ranges than the commit_ts reserved for the load allow",
                where={"table": ".".join(table.name), "chunk_rows": self._load.chunk_rows},
                hint="load with a smaller source.snapshot.chunk-rows into a new lake folder, or fewer tables at once",
            )
        self._open.add(first)
        self._unread[table_id] = self._unread.get(table_id, 0) + 1
        return BootstrapRange(table, chunk.where, chunk.low, chunk.high, first, self._next_ts - 1)


def _build_chunks(table: BootstrapTable, rows: int, row_id: str) -> Chunks:
    own = table.definition.pk_is_handle or table.definition.is_common_handle
    return Chunks(table.name, table.definition, rows, "" if own else row_id)


@dataclass
class _RangeTotals:
    """Totals of what has been written of a range so far."""

    rows: int = 0
    transactions: int = 0
    bytes: int = 0
    folds: list[Fold] = field(default_factory=list)


def read_range(link: Link, given: BootstrapRange, version: int, folder: str) -> LoadedRange:
    """Write the rows of `given` into `folder`, that of the table `binlog`, with the schema version `version`.

    Raises pymysql's errors, SourceUnavailable, Permanent, OSError; after an error no file is left.
    """
    counted = _RangeTotals()
    parts = write_parts(folder, BINLOG, _read_batches(link, given, version, counted))
    definition = given.table.definition
    return LoadedRange(
        definition.id, definition.db, definition.name, given.low, given.high, given.first_ts, given.last_ts,
        counted.rows, counted.transactions, counted.bytes, rowhash.merge_folds(counted.folds), tuple(parts),
    )  # fmt: skip


def build_binlog_table(rows: list[tuple[int, int, bytes]], kind: str, version: int) -> pa.Table:
    """Rows of `binlog` from (commit_ts, job id, payload); each is one complete transaction or DDL."""
    count = len(rows)
    columns = {
        Binlog.COMMIT_TS: [ts for ts, _, _ in rows],
        Binlog.START_TS: [ts - 1 for ts, _, _ in rows],
        Binlog.CHUNK: [0] * count,
        Binlog.COMMIT_DATE: [tso.to_datetime(ts).date() for ts, _, _ in rows],
        Binlog.PUMP: [PUMP] * count,
        Binlog.KIND: [kind] * count,
        Binlog.SCHEMA_VERSION: [version] * count,
        Binlog.JOB_ID: [job_id for _, job_id, _ in rows],
        Binlog.SCHEMA_STATE: [5 if job_id else 0 for _, job_id, _ in rows],
        Binlog.PAYLOAD: [payload for _, _, payload in rows],
    }
    return pa.Table.from_arrays([pa.array(columns[kind.name], kind.type) for kind in _SCHEMA], schema=_SCHEMA)


def _read_batches(link: Link, given: BootstrapRange, version: int, counted: _RangeTotals) -> Iterator[pa.Table]:
    gathered: list[tuple[int, int, bytes]] = []
    size = 0
    for commit_ts, payload in _read_transactions(link, given, version, counted):
        gathered.append((commit_ts, 0, payload))
        size += len(payload)
        if size >= _BATCH_BYTES:
            yield _build_table(gathered, version, counted)
            gathered, size = [], 0
    if gathered:
        yield _build_table(gathered, version, counted)


def _build_table(rows: list[tuple[int, int, bytes]], version: int, counted: _RangeTotals) -> pa.Table:
    table = build_binlog_table(rows, "dml", version)
    counted.transactions += len(rows)
    counted.bytes += sum(len(payload) for _, _, payload in rows)
    counted.folds.append(rowhash.fold(rowhash.hash_rows(table, DIGEST_COLUMNS)))
    return table


def _read_transactions(
    link: Link, given: BootstrapRange, version: int, counted: _RangeTotals
) -> Iterator[tuple[int, bytes]]:
    """(commit_ts, payload) of each transaction of the range."""
    definition, commit_ts = given.table.definition, given.first_ts
    writer = BlockWriter(definition)
    where = f" WHERE {given.where}" if given.where else ""
    query = f"SELECT {select_columns(definition)} FROM {quote_qualified_name(*given.table.name)}{where}"
    for packets in group_into_blocks(query_rows(link, query)):
        counted.rows += len(packets)
        for rows, entries in writer.write(packets).split_into_parts(MOST_ROWS, MOST_BYTES):
            if commit_ts > given.last_ts:
                raise Permanent(
                    "a range has more transactions than commit_ts reserved for it",
                    where={"table": ".".join(given.table.name)},
                    hint="give the table a primary key whose columns SQL can order, or load it by other means",
                )
            value = encode_inserts(version, definition.id, entries, rows)
            yield commit_ts, encode_commit_binlog(commit_ts - 1, commit_ts, b"", value)
            commit_ts += 1
