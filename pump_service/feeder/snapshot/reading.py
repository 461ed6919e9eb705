"""Reads all tables of a snapshot, with one thread per session, into values that fit into a P.

After each chunk the table's structure is checked again: a snapshot shows old rows with the current columns, and only
some servers report that. A difference ends the reading: the table is read again in a new snapshot. Moved names show in
no structure: if the server has run such statements, the log must show whether they named the table.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pymysql import err
from pymysql.constants import ER

from binlake.errors import SourceRefused, Transient
from binlake.mysqlbinlog.charsets import InvalidText
from binlake.mysqlbinlog.definitions.descriptions import mask_four_byte_characters
from binlake.mysqlbinlog.rowimage.transactions import encode_inserts
from binlake.mysqlbinlog.tablerows.link import Name, query_rows
from binlake.mysqlbinlog.tablerows.ranges import Chunk, Chunks, KeyRanges
from binlake.mysqlbinlog.tablerows.rowblocks import COLUMN_BLOCK_BYTES as BLOCK_BYTES
from binlake.mysqlbinlog.tablerows.rowblocks import COLUMN_BLOCK_ROWS as BLOCK_ROWS
from binlake.mysqlbinlog.tablerows.rowblocks import BlockWriter, ColumnWriter, group_into_blocks
from binlake.mysqlbinlog.tablerows.rowtexts import select_columns
from binlake.pump_service.feeder.server import Link, ask
from binlake.pump_service.feeder.snapshot.control import Throttle
from binlake.pump_service.feeder.snapshot.opening import SourceSnapshots
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.snapshot.structures import count_moves, read_create_text
from binlake.rows.schema import TableDef
from binlake.statements.literal import quote_qualified_name

CHUNK_ROWS = 50_000
MOST_ROWS, MOST_BYTES = 10_000, 1 << 20
"""Limits of one value: about those of a small transaction of the source."""
Form = Literal["rows", "columns"]
_WAITING = 4
"""Values that each reader may queue."""
_CHANGED = (ER.TABLE_DEF_CHANGED, ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.BAD_FIELD_ERROR)
_POLL_S = 0.2


class SnapshotChanged(Transient):
    """The definition of `table` changed while its rows were read: it must be read in a new snapshot."""

    def __init__(self, table: Name) -> None:
        super().__init__(
            "a table's definition changed while its snapshot was read",
            where={"table": ".".join(table)},
            hint="it is read again in a new snapshot; run no DDL at the source until the load is done",
        )
        self.table = table


@dataclass(frozen=True, slots=True)
class Value:
    """A serialised PrewriteValue with `rows` inserts of one table. `is_last`: the last one of `chunk`; it is empty for
    a chunk without rows. `may_have_moved`: with the last one, whether the table's name may have moved since the
    snapshot was taken, so that these may be rows of another table."""

    name: Name
    rows: int
    value: bytes
    chunk: Chunk
    is_last: bool = False
    may_have_moved: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table to read: its `name` at the source, `definition`, CREATE statement (`text`), and `ranges` left to read."""

    name: Name
    definition: TableDef
    text: str
    ranges: KeyRanges = field(default_factory=KeyRanges)


class SnapshotReader:
    """Reads `tables` of `snapshot` as rows of schema version `schema_version`.

    `moves`: the result of `count_moves` before the snapshot was opened. `maybe_moved`: tables whose name may have moved
    by their last chunk; complete once everything is read. `form`: whether values have rows as TiDB's, or columns.
    `throttle`: None = no limit. `idle`: called by the thread that takes the values, while it waits for one. `is_over`:
    whether no further chunk is to be begun.
    """

    def __init__(
        self,
        snapshot: SourceSnapshots,
        tables: Sequence[SnapshotTable],
        schema_version: int,
        progress: SnapshotProgress,
        *,
        chunk_rows: int = CHUNK_ROWS,
        most_rows: int = MOST_ROWS,
        moves: tuple[int, ...] = (),
        invalid_text: InvalidText = "refuse",
        form: Form = "rows",
        throttle: Throttle | None = None,
        idle: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._snapshot, self._idle, self._is_over = snapshot, idle, is_over
        self._throttle = throttle or Throttle(0)
        self._form = form
        self._version = schema_version
        self._progress = progress
        self._most_rows = most_rows
        self._moves, self._invalid_text = moves, invalid_text
        self.maybe_moved: set[Name] = set()
        # The largest first: small ones fill the gap at the end.
        tables = sorted(tables, key=lambda table: progress.tables[table.name].estimated, reverse=True)
        self._work = [_TableWork(table, chunk_rows) for table in tables]
        self._ready: queue.Queue[Value | BaseException | None] = queue.Queue(_WAITING * len(snapshot.sessions))
        self._stopped = threading.Event()

    def read_values(self) -> Generator[Value]:
        """All rows, chunks in any order. Raises SnapshotChanged, SourceUnavailable, and pymysql's other errors."""
        threads = [
            threading.Thread(target=self._read_all, args=(link,), name=f"snapshot-{number}", daemon=True)
            for number, link in enumerate(self._snapshot.sessions)
        ]
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            while running:
                try:
                    item = self._ready.get(timeout=_POLL_S)
                except queue.Empty:
                    self._idle()
                    continue
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def _read_all(self, link: Link) -> None:
        try:
            for work in self._work:
                self._read_table(link, work)
            self._hand_over(None)
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - carried to values(), which raises it
            with contextlib.suppress(_Stopped):
                self._hand_over(error)

    def _read_table(self, link: Link, work: _TableWork) -> None:
        while not self._is_over():
            # A statement, also the one that finds the bound, keeps its lock against DDL until the transaction ends,
            # or until a rollback to a savepoint (MySQL; MariaDB keeps the lock).
            self._wait_for_throttle()
            ask(link, "SAVEPOINT chunk")
            chunk = work.begin_chunk(link)
            if chunk is None:
                return
            self._read_chunk(link, work.table, chunk)
            ask(link, "ROLLBACK TO SAVEPOINT chunk")
            self._progress.add_chunk(work.table.name)
            if work.end_chunk():
                if self._may_have_moved(link):
                    self.maybe_moved.add(work.table.name)
                self._progress.finish(work.table.name)

    def _wait_for_throttle(self) -> None:
        while wait_s := self._throttle.find_wait_s():
            if self._stopped.wait(min(wait_s, _POLL_S)):
                raise _Stopped

    def _may_have_moved(self, link: Link) -> bool:
        return not self._moves or count_moves(link) != self._moves

    def _read_chunk(self, link: Link, table: SnapshotTable, chunk: Chunk) -> None:
        last = Value(table.name, 0, b"", chunk)
        try:
            for value in self._read_values_of_chunk(link, table, chunk):
                if last.rows:
                    self._hand_over(last)
                last = value
        except err.MySQLError as error:
            if error.args[0] in _CHANGED:
                raise SnapshotChanged(table.name) from error
            raise
        if read_create_text(link, table.name) != mask_four_byte_characters(table.text):
            raise SnapshotChanged(table.name)
        self._hand_over(replace(last, is_last=True, may_have_moved=self._may_have_moved(link)))

    def _read_values_of_chunk(self, link: Link, table: SnapshotTable, chunk: Chunk) -> Iterator[Value]:
        packets = query_rows(link, build_chunk_query(table, chunk, self._invalid_text))
        try:
            write = self._write_columns if self._form == "columns" else self._write_rows
            for rows, value in write(table.definition, packets):
                yield Value(table.name, rows, value, chunk)
                self._progress.add_rows(table.name, rows, len(value))
                self._throttle.add_rows(rows)
        except SourceRefused as error:
            error.where.setdefault("table", ".".join(table.name))
            raise

    def _write_rows(self, table: TableDef, packets: Iterable[list[bytes]]) -> Iterator[tuple[int, bytes]]:
        """(rows, PrewriteValue) of values with the rows as TiDB has them."""
        writer = BlockWriter(table, self._invalid_text)
        for block in group_into_blocks(packets):
            for rows, entries in writer.write(block).split_into_parts(self._most_rows, MOST_BYTES):
                yield rows, encode_inserts(self._version, table.id, entries, rows)

    def _write_columns(self, table: TableDef, packets: Iterable[list[bytes]]) -> Iterator[tuple[int, bytes]]:
        """As `_write_rows`, with columns wherever the rows have the usual form."""
        writer, most = ColumnWriter(table, self._invalid_text), min(BLOCK_ROWS, self._most_rows)
        by_row = BlockWriter(table, self._invalid_text)
        for block in group_into_blocks(packets, most, BLOCK_BYTES):
            for rows in (block[first : first + most] for first in range(0, len(block), most)):
                if (entry := writer.write(rows)) is not None:
                    yield len(rows), encode_inserts(self._version, table.id, entry, 1)
                    continue
                for count, entries in by_row.write(rows).split_into_parts(self._most_rows, MOST_BYTES):
                    yield count, encode_inserts(self._version, table.id, entries, count)

    def _hand_over(self, item: Value | BaseException | None) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=_POLL_S)
                return
        raise _Stopped


class _Stopped(Exception):
    """Nobody reads the values any more."""


class _TableWork:
    """A table's chunks: those still to be assigned, and the number being read."""

    def __init__(self, table: SnapshotTable, chunk_rows: int) -> None:
        self.table = table
        self._chunks = Chunks(table.name, table.definition, chunk_rows, ranges=table.ranges)
        self._open = 0
        self._lock = threading.Lock()

    def begin_chunk(self, link: Link) -> Chunk | None:
        """The next chunk; None when all are assigned."""
        with self._lock:
            chunk = self._chunks.take(link)
            self._open += chunk is not None
            return chunk

    def end_chunk(self) -> bool:
        """Call when a chunk is read; returns whether the whole table is."""
        with self._lock:
            self._open -= 1
            return not self._open and self._chunks.ranges.find_next() is None


def build_chunk_query(table: SnapshotTable, chunk: Chunk, invalid_text: InvalidText) -> str:
    """The SELECT of a chunk's rows, for `RowWriter`."""
    where = f" WHERE {chunk.where}" if chunk.where else ""
    columns = select_columns(table.definition, invalid_text)
    return f"SELECT {columns} FROM {quote_qualified_name(*table.name)}{where}"
