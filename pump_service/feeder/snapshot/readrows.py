"""Encodes changes of the log without those of rows that a load has not read yet: these include their changes already.

Whether a row has been read is decided by the range of its key: the source compares (`keysnapshots`), and the change is
passed on, dropped or turned into an insert or a delete (`changefilter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from binlake.errors import SchemaError
from binlake.mysqlbinlog.model import RowKind, RowsEvent, SourceTransaction, TableMap
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.mysqlbinlog.rowimage.shape import Shape, derive_shape
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.mysqlbinlog.tablerows.chunks import cut_column
from binlake.mysqlbinlog.tablerows.link import Link, Name
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.changefilter import (
    IsRead,
    PartlyReadTable,
    filter_read_rows,
    iterate_changed_keys,
)
from binlake.pump_service.feeder.snapshot.keysnapshots import KeySnapshots
from binlake.pump_service.feeder.snapshot.tableload import TableLoad
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.wire import binlog_pb2 as pb

log = structlog.get_logger()


class ReadRows:
    """What has been read of `tables`, as it is now. `has_others`: whether the source's other tables are complete; if
    not, none of their changes is passed on. `names`: the tables' names by their folded ones."""

    def __init__(
        self, source: SourceFile, catalog: Catalog, tables: Mapping[Name, TableLoad], *, has_others: bool = False
    ) -> None:
        self._source, self._catalog, self._has_others = source, catalog, has_others
        self.names = {fold_pair(name): name for name in tables}
        self._stored = {fold_pair(name): table.ranges.store() for name, table in tables.items()}
        self._keys: dict[int, KeySnapshots] = {}

    def list_read_until(self, key: tuple[str, str], snapshot: int) -> list[int]:
        """The snapshots up to `snapshot` in which ranges of a table were read, one entry for each range."""
        return [number for _, _, number in self._stored.get(key, []) if 0 <= number <= snapshot]

    def encode(
        self,
        transactions: Sequence[SourceTransaction],
        snapshot: int,
        link: Link,
        version: int,
        guard: Guard | None,
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> list[bytes]:
        """The PrewriteValue of each transaction that follows `snapshot`; b"" = nothing of it was read before.

        `link`: a session (`opening`) to compare keys with; `version`: the SchemaVersion of the rows. Raises what
        `encode_transactions` raises, and pymysql's errors.
        """
        parts: dict[int, PartlyReadTable] = {}

        def find_definition(event: TableMap) -> TableDef | None:
            key = fold_pair((event.db, event.table))
            if key not in self._stored and self._has_others:
                return self._catalog.find_definition(self._source.name, event)
            read = self.list_read_until(key, snapshot)
            if not read:
                return None
            table = self._catalog.find_definition(self._source.name, event)
            if table is not None and len(read) < len(self._stored[key]):
                parts[table.id] = self._build_partly_read_table(link, table, key)
            return table

        values = encode_transactions(
            [transaction.changes for transaction in transactions],
            find_definition,
            version,
            on_rows,
            None if guard is None else self._extend_guard(guard),
            self._source.invalid_text,
        )
        return self._filter_values(values, parts, snapshot) if parts else values

    def _extend_guard(self, guard: Guard) -> Guard:
        # Also for tables that are not read yet: rows of another one, which was read, may depend on them.
        return lambda event, shape: guard(event, shape or self._find_unread_shape(event))

    def _find_unread_shape(self, event: RowsEvent) -> Shape | None:
        """The shape of an UPDATE in a table that is not read; None if its definition has changed since."""
        if event.kind in (RowKind.INSERT, RowKind.DELETE):
            return None
        try:
            table = self._catalog.find_definition(self._source.name, event.table)
            return None if table is None else derive_shape(event, table, self._source.invalid_text)
        except SchemaError as error:
            log.debug("unread_table_changed", table=f"{event.table.db}.{event.table.table}", reason=str(error))
            return None

    def _build_partly_read_table(self, link: Link, table: TableDef, key: tuple[str, str]) -> PartlyReadTable:
        column = cut_column(table)
        assert column is not None, "a table without ranges is read at once"
        if table.id not in self._keys:
            self._keys[table.id] = KeySnapshots(link, self.names[key], column, self._stored[key])
        return PartlyReadTable(table, column)

    def _filter_values(
        self, values: Sequence[bytes], parts: Mapping[int, PartlyReadTable], snapshot: int
    ) -> list[bytes]:
        parsed = [pb.PrewriteValue.FromString(value) if value else None for value in values]
        keys: dict[int, set[str]] = {table_id: set() for table_id in parts}
        for value in parsed:
            for table_id, text in iterate_changed_keys(value, parts) if value is not None else ():
                keys[table_id].add(text)
        snapshots = {table_id: self._keys[table_id].find_snapshots(texts) for table_id, texts in keys.items()}
        is_read: dict[int, IsRead] = {table_id: _is_read(of, snapshot) for table_id, of in snapshots.items()}
        return [b"" if value is None else filter_read_rows(value, parts, is_read) for value in parsed]


def _is_read(snapshots: Mapping[str, int], until: int) -> IsRead:
    # -1: not read yet.
    return lambda text: 0 <= snapshots[text] <= until
