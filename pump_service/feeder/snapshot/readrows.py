"""Encodes changes of the log without those of rows that a load has not read yet: these include their changes already.

Whether a row has been read is decided by the first column of its key. The ranges of a table have literals as bounds.
Collations differ by server and version, so only the server's own comparison shows on which side of a bound a key lies:
the source compares, as it did when the row was read (`KeySnapshots`). The change is then passed on, dropped or turned
into an insert or a delete (`changefilter`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from binlake.errors import SchemaError, SourceRefused
from binlake.mysqlbinlog.model import RowKind, RowsEvent, SourceTransaction, TableMap
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.mysqlbinlog.rowimage.shape import Shape, derive_shape
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.mysqlbinlog.tablerows.link import Link, Name, ask
from binlake.mysqlbinlog.tablerows.ranges import build_key_formatter, cut_column
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.changefilter import (
    IsRead,
    PartlyReadTable,
    filter_read_rows,
    iterate_changed_keys,
)
from binlake.pump_service.feeder.snapshot.progress import TableLoad
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_pair
from binlake.wire import binlog_pb2 as pb

log = structlog.get_logger()


_AT_ONCE = 500
"""Keys in one query."""


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


class KeySnapshots:
    """Keys of table `name`, whose ranges are `stored` and split by `column`; `link` is a session of `opening`."""

    def __init__(self, link: Link, name: Name, column: ColumnInfo, stored: Sequence[tuple[str, str, int]]) -> None:
        self._link = link
        self._typed = _build_typed_literal(link, name, column)
        self._literal = build_key_formatter(column)
        cases = [f"WHEN v <= {high} THEN {snapshot}" for _, high, snapshot in stored if high]
        self._case = f"CASE WHEN v IS NULL THEN NULL {' '.join(cases)} ELSE {stored[-1][2]} END"
        self._known: dict[str, int] = {}

    def find_snapshots(self, texts: Iterable[str]) -> dict[str, int]:
        """The snapshot of each key, by its canonical text; -1: not read yet. Raises SourceRefused, pymysql's errors."""
        wanted = set(texts)
        new = sorted(wanted - self._known.keys())
        for first in range(0, len(new), _AT_ONCE):
            self._ask(new[first : first + _AT_ONCE])
        snapshots = {text: self._known[text] for text in wanted}
        if len(self._known) > 100 * _AT_ONCE:
            self._known.clear()
        return snapshots

    def _ask(self, texts: Sequence[str]) -> None:
        values = (self._typed.format(self._literal(text)) for text in texts)
        rows = " UNION ALL ".join(f"SELECT {n} AS n, {value} AS v" for n, value in enumerate(values))
        for number, snapshot in ask(self._link, f"SELECT n, {self._case} FROM ({rows}) AS k"):
            if snapshot is None:
                raise SourceRefused("the source reads a key from its log as NULL", where={"key": texts[int(number)]})
            self._known[texts[int(number)]] = int(snapshot)


def _build_typed_literal(link: Link, name: Name, column: ColumnInfo) -> str:
    """A template that converts a literal to the column's own type."""
    if column.is_binary or column.tp not in t.STRINGS:
        casts = {t.DURATION: "TIME(6)", t.DATE: "DATE", t.NEWDATE: "DATE"}
        moment = "DATETIME(6)" if column.tp in t.MOMENTS else ""
        cast = casts.get(column.tp, moment)
        return f"CAST({{}} AS {cast})" if cast else "{}"
    query = (
        "SELECT character_set_name, collation_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND column_name = %s"
    )
    rows = ask(link, query, (*name, column.name))
    if not rows:
        raise SourceRefused("the source no longer has this column", where={"column": ".".join((*name, column.name))})
    charset, collation = rows[0]
    return f"CONVERT({{}} USING {charset}) COLLATE {collation}"
