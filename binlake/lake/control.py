"""A small append-only Delta table written without Spark, so that no JVM is needed to read or extend it.

delta-rs writes it on a disk, `storewrite` in a store. Spark may read these tables but never writes them (hazards
R-41). Appends do not conflict; a process that needs exclusion holds the lake's lock. The cost of an append and of a
read by range does not grow with the history: small files are joined up to `FILE_BYTES` and then not rewritten any more,
and there are statistics per file and per small row group.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import structlog
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from binlake.lake.access import is_remote
from binlake.lake.controlrows import ControlRows, read_control_rows, remember_rows
from binlake.lake.damage import name_damage, require_space
from binlake.lake.lease import find_term, require_leases
from binlake.lake.opentable import KnownTable, is_newest, is_table, open_fully, open_known
from binlake.lake.store import build_delta_options, choose_hooks
from binlake.lake.storetable import StoreTable
from binlake.lake.storewrite import StoreWriter, may_write
from binlake.lake.tables import LakeTable

log = structlog.get_logger(__name__)

COMPACT_EVERY = 64
"""Versions between two compactions. Each makes a checkpoint, so that a reader replays fewer commits than this."""
JOIN_ALL_EVERY = 16 * COMPACT_EVERY
"""The same where files are in a store, for those that are not in memory: each is read in three requests."""
TIDY_EVERY = 8
"""Versions of a table in a store between two checkpoints: a new process reads fewer commits and files than this."""
FILE_BYTES = 4 << 20
"""Compaction does not touch files of this size or larger, so that it does not rewrite the whole history each time."""
Row = Mapping[str, Any]


class ControlTable:
    """The table `definition` at `path`, created at the first append. Safe to share among threads.

    `pinned`: reads find the rows of the first one, until `refresh` or a write of this object; otherwise the newest.
    """

    def __init__(self, path: str, definition: LakeTable, *, pinned: bool = False) -> None:
        self.path = path
        self.schema = definition.build_arrow_schema()
        self._definition = definition
        self._writer = WriterProperties(max_row_group_size=definition.group_rows, compression="ZSTD")
        self._lock = threading.RLock()
        self._is_pinned = pinned
        self._pinned: ControlRows | None = None
        self._written: KnownTable | None = None
        self.views = 0
        """How often a pinned table's rows have become others: by a `refresh`, or a write of this object."""

    def refresh(self) -> None:
        """Let later reads of a pinned table find its present rows; without a newer commit they stay as they are."""
        stored, written = self._pinned, self._written
        table = stored.table if stored is not None else written
        version = stored.version if stored is not None else written.version() if written is not None else 0
        if table is None or not is_newest(self.path, table, version):
            self._discard()

    def _discard(self, written: KnownTable | None = None, rows: ControlRows | None = None) -> None:
        """Let later reads find other rows: those of `written` after a write (`rows`, if known), else the newest."""
        self.views += 1
        self._pinned, self._written = rows if self._is_pinned else None, written

    def append(self, rows: Sequence[Row]) -> None:
        """Append `rows` (missing columns become NULL) in one commit. Durable when this returns."""
        if rows:
            self._write(rows, "append")

    def replace(self, rows: Sequence[Row]) -> None:
        """Replace all rows by `rows` in one commit. The caller must exclude other writers."""
        self._write(rows, "overwrite")

    def read_rows(
        self, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> list[dict[str, Any]]:
        """The rows that match `where`; empty if the table does not exist."""
        result: list[dict[str, Any]] = self.read_arrow(columns, where).to_pylist()
        return result

    def read_arrow(self, columns: Sequence[str] | None = None, where: ds.Expression | None = None) -> pa.Table:
        """As `rows`, as an Arrow table. Files and row groups whose statistics exclude `where` are not read."""
        names = list(columns) if columns else self.schema.names
        with name_damage(self.path):
            stored = self._read_stored()
            return self.schema.empty_table().select(names) if stored is None else stored.read(names, where)

    def read_covering(
        self,
        columns: Sequence[str],
        bounds: tuple[str, str],
        moments: Sequence[int],
        where: ds.Expression | None = None,
    ) -> list[dict[str, Any]]:
        """As `read_rows`, only rows whose range (lo, hi], in the columns `bounds`, holds one of `moments`."""
        with name_damage(self.path):
            stored = self._read_stored() if moments else None
            rows = None if stored is None else stored.read_covering(columns, bounds, moments, where)
        result: list[dict[str, Any]] = [] if rows is None else rows.to_pylist()
        return result

    def find_greatest(self, column: str, where: ds.Expression | None = None) -> int | None:
        """The greatest value of a BIGINT `column` in rows that match `where`; reads the newest files first."""
        with name_damage(self.path):
            return self._find_greatest(column, where)

    def _find_greatest(self, column: str, where: ds.Expression | None) -> int | None:
        stored = self._read_stored()
        if stored is None:
            return None
        best: int | None = pc.max(stored.read_small([column], where).column(column)).as_py()
        for most, fragment in stored.iterate_newest_first(column, where):
            if best is not None and most <= best:
                break
            if fragment is None:
                continue
            values = stored.read_group(fragment, [column], where).column(column)
            best = max((value for value in (best, pc.max(values).as_py()) if value is not None), default=None)
        return best

    def read_newest(
        self, columns: Sequence[str], by: str, count: int, where: ds.Expression | None = None
    ) -> list[dict[str, Any]]:
        """The `count` rows with the greatest BIGINT `by` (one of `columns`), greatest first."""
        with name_damage(self.path):
            return self._read_newest(columns, by, count, where)

    def _read_newest(
        self, columns: Sequence[str], by: str, count: int, where: ds.Expression | None
    ) -> list[dict[str, Any]]:
        stored = self._read_stored()
        if stored is None:
            return []
        newest = _select_first_rows(stored.read_small(columns, where), by, count)
        for most, fragment in stored.iterate_newest_first(by, where):
            if newest.num_rows >= count and most < newest.column(by)[-1].as_py():
                break
            if fragment is None:
                continue
            rows = stored.read_group(fragment, columns, where)
            newest = _select_first_rows(pa.concat_tables([newest, rows.select(list(columns))]), by, count)
        rows_of_newest: list[dict[str, Any]] = newest.to_pylist()
        return rows_of_newest

    def clear(self) -> None:
        """Remove all rows. Does nothing if the table does not exist."""
        with self._lock:
            table = self._open()
            if table is not None:
                open_fully(table).delete()
            self._discard()

    def read_state(self) -> tuple[str, int] | None:
        """The table's id and version, which are equal only for equal rows; None if the table does not exist."""
        table = self._open()
        return None if table is None else (str(table.metadata().id), table.version())

    def read_id(self) -> str | None:
        """The table's id, which a table that is created again does not have; None if it does not exist."""
        stored = self._read_stored()
        return None if stored is None else str(stored.table.metadata().id)

    def exists(self) -> bool:
        """True when the table has been written."""
        return is_table(self.path)

    def tidy(self) -> dict[str, int]:
        """Join small files, write a checkpoint, and delete expired files. Returns the counts of files."""
        table = self._open()
        if table is None:
            return {"joined": 0, "dropped": 0}
        whole = open_fully(table)
        joined = self._compact(whole)
        # `full=False` goes by the log. A listing would treat files of a writer that has not committed yet as garbage.
        dropped = whole.vacuum(retention_hours=24 * self._definition.kept_days, dry_run=False, full=False)
        whole.create_checkpoint()
        whole.cleanup_metadata()
        return {"joined": joined, "dropped": len(dropped)}

    def _read_stored(self) -> ControlRows | None:
        """All rows, at the newest version unless they are pinned; None if the table does not exist."""
        pinned, views = self._pinned, self.views
        if pinned is not None:
            return pinned
        table = self._written if self._written is not None and self._is_pinned else self._open()
        stored = None if table is None else read_control_rows(self.path, table, self.schema)
        # Another thread may have written in between.
        if self._is_pinned and views == self.views:
            self._pinned = stored
        return stored

    def _write(self, rows: Sequence[Row], mode: Literal["append", "overwrite"]) -> None:
        require_space(self.path)
        require_leases()
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=self.schema)
        with self._lock:
            # An append finds what others have written since; a replacement must not, and opens the newest version. In a
            # store its commit is refused if that was not the newest.
            pinned = None if self._pinned is None else self._pinned.table
            table = pinned if mode == "append" or isinstance(pinned, StoreTable) else None
            table = self._open() if table is None else table
            if isinstance(table, StoreTable) and may_write(table, self._definition, data):
                writer = StoreWriter(table, self._definition, self.schema)
                self._tidy_after(table, (writer.append if mode == "append" else writer.replace)(data))
                extended = None
            else:
                self._write_by_delta(table.open_fully() if isinstance(table, StoreTable) else table, data, mode)
                extended = None if table is None else remember_rows(self.path, table, self.schema, data)
                if table is not None and table.version() % COMPACT_EVERY == 0:
                    self._compact(open_fully(table))
                    extended = None
            self._discard(table, extended)

    def _write_by_delta(self, table: DeltaTable | None, data: pa.Table, mode: Literal["append", "overwrite"]) -> None:
        write_deltalake(
            self.path if table is None else table,
            # An existing table may have an older version's comments; delta-rs refuses different ones.
            data if table is None else data.cast(_without_comments(self.schema)),
            mode=mode,
            partition_by=list(self._definition.partitioned_by) or None,
            description=self._definition.comment if table is None else None,
            configuration=self._definition.build_properties() if table is None else None,
            writer_properties=self._writer,
            storage_options=build_delta_options(self.path),
            post_commithook_properties=choose_hooks(self.path, -1 if table is None else table.version()),
        )
        _absent.pop(self.path, None)

    def _tidy_after(self, table: StoreTable, version: int) -> None:
        """What is due in a store after this process has committed `version`; mostly small files are joined unread."""
        if version % TIDY_EVERY:
            return
        writer = StoreWriter(table, self._definition, self.schema)
        if version % JOIN_ALL_EVERY == 0:
            self._compact(table.open_fully())
        elif version % COMPACT_EVERY == 0:
            try:
                writer.join()
            except CommitFailedError as error:
                self._log_left(error)
        writer.tidy_log()

    def _compact(self, table: DeltaTable) -> int:
        try:
            metrics = table.optimize.compact(target_size=FILE_BYTES, writer_properties=self._writer)
        except CommitFailedError as error:
            self._log_left(error)
            return 0
        return int(metrics["numFilesRemoved"])

    def _log_left(self, error: CommitFailedError) -> None:
        # Another process joined the same files first. The rows have not changed.
        log.info("compaction_left_to_another_process", table=self.path, reason=str(error))

    def _open(self) -> KnownTable | None:
        """The table at its newest version; the replayed log is cached."""
        term = find_term(self.path) if is_remote(self.path) else None
        if term is not None and _absent.get(self.path) is term:
            return None
        try:
            return open_known(self.path)
        except TableNotFoundError:
            if term is not None:
                _absent[self.path] = term
            return None


_absent: dict[str, object] = {}
"""Tables that did not exist, by path, and the term in which only this process could have made them."""


def _select_first_rows(rows: pa.Table, by: str, count: int) -> pa.Table:
    """The `count` rows with the greatest `by`, greatest first."""
    return rows.sort_by([(by, "descending")]).slice(0, count)


def _without_comments(schema: pa.Schema) -> pa.Schema:
    """`schema` without column comments."""
    return pa.schema([pa.field(kind.name, kind.type) for kind in schema])
