"""Render batches for one table: multi-row writes and DELETE by key; for tables without a key, exact DELETE and INSERT.

Sources: DESIGN 3.6, 4; hazards R-12, R-44. A column that the target computes is never written. `BatchLimits` keeps a
batch below the server's max_allowed_packet.

Values of columns that only the target has are copied before a segment's first write and restored last. The copy is a
table with the target table's column types, in the ledger's database, so values keep their types and never leave the
server (docs/understand/apply-shapes.md proves that this is exact).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.redaction import redact_key
from binlake.common.sql import Dialect
from binlake.errors import Permanent, SchemaError
from binlake.rows.codec import format_key_text
from binlake.rows.codec.values import name_error_value
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.batch import UNCHECKED, BatchLimits, Phase, StatementBatch, compute_statement_digest
from binlake.statements.conditions import KeyConditions, KeyCounts, format_image_conditions
from binlake.statements.generation import list_key_columns, list_written_columns
from binlake.statements.literal import JoinedTexts, join_value_tuples, quote_name, quote_qualified_name

_MODE = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
Images = Mapping[str, Any]
"""Column name -> Arrow array of canonical text, all of one length."""
Kind = Literal["delete", "replace", "upsert", "insert"]
_SHOWN = 200


class TableStatements:
    """Renders the batches of `table` (its definition after routing, valid at `segment`).

    Batch numbers count from `first_batch` on, in call order. Raises SchemaError if a column of the table is missing in
    the images, Permanent for a row that does not fit into a packet of the server. `plain`: outside safe mode; `alike`:
    the target's key certainly has the source's type.
    """

    def __init__(
        self,
        table: TableDef,
        segment: int,
        *,
        dialect: Dialect = "mariadb",
        limits: BatchLimits | None = None,
        first_batch: int = 0,
        plain: bool = False,
        alike: bool = False,
    ) -> None:
        self._table = table
        self._segment = segment
        self._dialect: Dialect = dialect
        self._limits = limits or BatchLimits()
        self._next = first_batch
        # With one unique key a row conflicts at most with the row that it replaces. Then REPLACE and INSERT … ON
        # DUPLICATE KEY UPDATE have the same result (docs/understand/apply.md), but INSERT leaves columns that it does
        # not name unchanged.
        self._updates = (plain or bool(table.kept)) and len(table.list_unique_keys()) == 1
        self._name = quote_qualified_name(table.db, table.name)
        self._columns = list_written_columns(table, dialect)
        self._keys = list_key_columns(table)
        self._alike = alike

    @property
    def next_batch(self) -> int:
        """The number that the next batch will get."""
        return self._next

    def render_writes(self, images: Images, *, anew: bool = False) -> Iterator[StatementBatch]:
        """Write full final images; after phase 2 each key must exist once. Only for tables with a key.

        Uses REPLACE. If the identity is the only unique key, uses INSERT … ON DUPLICATE KEY UPDATE outside safe mode
        and for tables with target-only columns, except for rows written `anew`: those that originate from another row.
        """
        updates = self._updates and not anew
        kind: Kind = "upsert" if updates else "replace"
        self._require_key(kind)
        verb, tail = ("INSERT", self._format_duplicate_clause()) if updates else ("REPLACE", "")
        heads = self._build_statement_heads(verb, images)
        values = JoinedTexts(self._format_value_tuples(images))
        counts = KeyCounts(self._table, self._require_keys(images), dialect=self._dialect, alike=self._alike)
        for start, stop in self._limits.cut_by_sizes([values.sizes, counts.sizes]):
            sql = b"".join((heads.choose_head(slice(start, stop)), values.join_rows(start, stop), tail.encode()))
            self._require_fits_packet(sql, images, start)
            yield self._build_batch(
                Phase.WRITE, kind, (sql,), (UNCHECKED,), stop - start, counts.format_query(start, stop)
            )

    def render_deletes(self, images: Images, *, exact: bool = False) -> Iterator[StatementBatch]:
        """DELETE by key; `images` need only the key columns. Only for tables with a key. `exact`: each row is there."""
        self._require_key("delete")
        keys = KeyConditions(self._keys, self._require_keys(images), self._dialect, alike=self._alike)
        head = f"DELETE FROM {self._name} WHERE "
        for start, stop in self._limits.cut_by_sizes([keys.sizes]):
            conditions = list(keys.format_conditions(start, stop))
            sql = tuple((head + condition).encode() for condition, _ in conditions)
            for statement in sql:
                self._require_fits_packet(statement, images, start)
            expect = tuple(count if exact else UNCHECKED for _, count in conditions)
            yield self._build_batch(Phase.DELETE, "delete", sql, expect, stop - start)

    def render_inserts(self, images: Images, copies: Sequence[int]) -> Iterator[StatementBatch]:
        """INSERT images, each `copies[i]` times; the server must report every row as affected."""
        heads = self._build_statement_heads("INSERT", images)
        repeated = np.repeat(np.arange(len(copies)), np.asarray(copies, dtype=np.int64))
        values = JoinedTexts(self._format_value_tuples(images).take(pa.array(repeated)))
        for start, stop in self._limits.cut_by_sizes([values.sizes]):
            sql = heads.choose_head(repeated[start:stop]) + values.join_rows(start, stop)
            self._require_fits_packet(sql, images, int(repeated[start]))
            yield self._build_batch(Phase.WRITE, "insert", (sql,), (stop - start,), stop - start)

    def render_image_deletes(self, images: Images, copies: Sequence[int]) -> Iterator[StatementBatch]:
        """DELETE by the whole image, one statement per image; it must remove exactly `copies[i]` rows (hazards
        R-44)."""
        conditions = self._format_conditions(images)
        limits = pa.array([str(n) for n in copies], pa.large_string())
        head, empty = pa.scalar(f"DELETE FROM {self._name} WHERE ", pa.large_string()), pa.scalar("", pa.large_string())
        limit = pa.scalar(" LIMIT ", pa.large_string())
        statements = pc.binary_join_element_wise(head, conditions, limit, limits, empty)
        for start, stop in self._limits.cut_by_texts(statements):
            sql = tuple(text.encode() for text in statements.slice(start, stop - start).to_pylist())
            for row, statement in enumerate(sql, start):
                self._require_fits_packet(statement, images, row)
            expect = tuple(int(n) for n in copies[start:stop])
            yield self._build_batch(Phase.DELETE, "delete", sql, expect, sum(expect))

    def _build_batch(
        self,
        phase: Phase,
        kind: Kind,
        sql: tuple[bytes, ...],
        expect: tuple[int, ...],
        rows: int,
        verify_sql: str = "",
    ) -> StatementBatch:
        number, self._next = self._next, self._next + 1
        verify_rows = rows if verify_sql else 0
        identity = (self._segment, phase, number, self._table.db, self._table.name)
        texts = tuple(text.decode() for text in sql)
        return StatementBatch(
            *identity, kind, texts, expect, verify_sql, verify_rows, rows, compute_statement_digest(sql)
        )

    def _build_statement_heads(self, verb: str, images: Images) -> _Heads:
        head = f"{verb} INTO {self._name} ({_format_names(self._columns)}) VALUES "
        return _Heads(head, images, self._columns, self._dialect)

    def _format_duplicate_clause(self) -> str:
        # The key is set too, because a collation may treat a different text as the same key.
        names = [quote_name(column.name) for column in self._columns]
        return " ON DUPLICATE KEY UPDATE " + ",".join(f"{name}=VALUES({name})" for name in names)

    def _format_value_tuples(self, images: Images) -> Any:
        return join_value_tuples([(self._require_image(images, column.name), column) for column in self._columns])

    def _require_keys(self, images: Images) -> list[Any]:
        return [self._require_image(images, column.name) for column in self._keys]

    def _format_conditions(self, images: Images) -> Any:
        parts = [format_image_conditions(self._require_image(images, c.name), c, self._dialect) for c in self._columns]
        return (
            parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(" AND ", pa.large_string()))
        )

    def _require_image(self, images: Images, name: str) -> Any:
        if name not in images:
            where = {"table": f"{self._table.db}.{self._table.name}", "column": name}
            raise SchemaError("the image of a row lacks a column of its table", where=where)
        return images[name]

    def _require_fits_packet(self, sql: bytes, images: Images, row: int) -> None:
        """Raise Permanent if the packet limit refuses `sql`. Only a single row can be too long: its index is `row`."""
        if self._limits.takes_bytes(len(sql)):
            return
        key = format_key_text([self._require_image(images, column.name)[row].as_py() for column in self._keys])
        raise Permanent(
            f"a row needs a statement of {len(sql)} bytes, and the target accepts packets of {self._limits.packet} "
            "bytes",
            where={"table": f"{self._table.db}.{self._table.name}", "key": redact_key(key)[:_SHOWN]},
            hint="raise max_allowed_packet on the target, then run the window again"
            " (show-row-values = true names the row)",
        )

    def _require_key(self, kind: Kind) -> None:
        if self._table.find_identity().kind == "row":
            where = {"table": f"{self._table.db}.{self._table.name}"}
            raise SchemaError(f"{kind} by key needs a table with a primary or unique key", where=where)


def _format_names(columns: Sequence[ColumnInfo]) -> str:
    return ",".join(quote_name(column.name) for column in columns)


class _Heads:
    """The beginning `head` of a statement on rows of `images`, in lenient mode if the rows need it."""

    def __init__(self, head: str, images: Images, columns: Sequence[ColumnInfo], dialect: Dialect) -> None:
        self._odd = find_rows_with_error_values(images, columns)
        self._strict, self._lenient = head.encode(), render_lenient(head, dialect).encode()

    def choose_head(self, rows: Any) -> bytes:
        """The beginning for `rows` (a slice or row numbers)."""
        return self._lenient if self._odd is not None and self._odd[rows].any() else self._strict


def find_rows_with_error_values(images: Mapping[str, Any], columns: Sequence[ColumnInfo]) -> Any:
    """A numpy mask of the rows that contain an ENUM's error value; None if no row does."""
    masks = [
        np.asarray(pc.fill_null(pc.equal(images[column.name], name_error_value(column.elems)), fill_value=False))
        for column in columns
        if has_error_value(column)
    ]
    any_mask = np.logical_or.reduce(masks) if masks else np.zeros(1, dtype=bool)
    return any_mask if any_mask.any() else None


def has_error_value(column: ColumnInfo) -> bool:
    """True if `column` can have the error value of an ENUM."""
    return column.tp == t.ENUM


def render_lenient(sql: str, dialect: Dialect) -> str:
    """`sql` with a prefix that makes the session lenient for this statement only.

    TiDB stores an ENUM's error value (ordinal 0) if the source's session was lenient. No literal stores it in a strict
    session (measured on MariaDB 10.11). All other statements stay strict, because there a value that is too long must
    fail and not be cut.
    """
    if dialect == "mariadb":
        return f"SET STATEMENT sql_mode = '{_MODE}' FOR {sql}"
    verb, _, rest = sql.partition(" ")
    return f"{verb} /*+ SET_VAR(sql_mode = '{_MODE}') */ {rest}"


def format_copy_prefix(replication: str) -> str:
    """The prefix of the names of all copies of a replication."""
    return f"binlake_kept_{_hash_text(replication)[:8]}_"


def format_copy_name(replication: str, window: str, segment: int, db: str, table: str) -> str:
    """The name of the copy for a table in a segment of a window, in the checkpoint's database."""
    return format_copy_prefix(replication) + _hash_text("\0".join((window, str(segment), db, table)))[:16]


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class PreserveStatements:
    """Batches of `table` that copy rows into `copy` (quoted) and restore their target-only columns.

    Batch numbers count from `first_batch` on, in call order.
    """

    def __init__(
        self,
        table: TableDef,
        segment: int,
        copy: str,
        *,
        dialect: Dialect = "mariadb",
        limits: BatchLimits | None = None,
        first_batch: int = 0,
    ) -> None:
        self._table = table
        self._segment = segment
        self._copy = copy
        self._dialect: Dialect = dialect
        self._limits = limits or BatchLimits()
        self._next = first_batch
        self._name = quote_qualified_name(table.db, table.name)
        self._keys = list_key_columns(table)
        self._written = [column.name for column in list_written_columns(table, dialect)]
        self._copied = [*self._written, *table.kept]

    @property
    def next_batch(self) -> int:
        """The number that the next batch will get."""
        return self._next

    def keeps(self, keys: Images) -> Iterator[StatementBatch]:
        """Copy the rows with `keys`; they stay locked until the transaction ends."""
        names = ",".join(map(quote_name, self._copied))
        head = f"INSERT INTO {self._copy} ({names}) SELECT {names} FROM {self._name} WHERE "
        yield from self._cut_batches(Phase.KEEP, "keep", head, self._find_keys(keys), " FOR UPDATE")

    def build_restores(self, keys: Images) -> Iterator[StatementBatch]:
        """Restore the values of rows whose key did not change."""
        pairs = " AND ".join(f"t.{quote_name(c.name)}=k.{quote_name(c.name)}" for c in self._keys)
        head = f"UPDATE {self._name} t JOIN {self._copy} k ON {pairs} SET {self._format_sets()} WHERE "
        yield from self._cut_batches(Phase.RESTORE, "restore", head, self._find_keys(keys, "t."))

    def build_moved_restores(self, keys: Images, origins: Images) -> Iterator[StatementBatch]:
        """Give each row of `keys` the values of the row that had its key in `origins`; one statement per row."""
        head = f"UPDATE {self._name} t JOIN {self._copy} k SET {self._format_sets()} WHERE "
        to, origin = self._find_keys(keys, "t."), self._find_keys(origins, "k.")
        count = len(keys[self._keys[0].name])
        statements = [f"{head}{to.format_single(row)} AND {origin.format_single(row)}" for row in range(count)]
        for start in range(0, count, self._limits.rows):
            yield self._build_batch(Phase.RESTORE, "restore", statements[start : start + self._limits.rows])

    def _cut_batches(
        self, phase: Phase, kind: Any, head: str, keys: KeyConditions, tail: str = ""
    ) -> Iterator[StatementBatch]:
        for start, stop in self._limits.cut_by_sizes([keys.sizes]):
            conditions = keys.format_conditions(start, stop)
            yield self._build_batch(phase, kind, [f"{head}({condition}){tail}" for condition, _ in conditions])

    def _find_keys(self, keys: Images, prefix: str = "") -> KeyConditions:
        return KeyConditions(self._keys, [keys[c.name] for c in self._keys], self._dialect, prefix=prefix)

    def _format_sets(self) -> str:
        sets = [f"t.{quote_name(name)}=k.{quote_name(name)}" for name in self._table.kept]
        # Naming a column keeps its value; otherwise ON UPDATE CURRENT_TIMESTAMP would change the source's value.
        same = [f"t.{name}=t.{name}" for name in map(quote_name, self._written)]
        return ",".join([*sets, *same])

    def _build_batch(self, phase: Phase, kind: Any, sql: Sequence[str]) -> StatementBatch:
        # These are not row changes of the source, so the batch counts no rows.
        number, self._next = self._next, self._next + 1
        identity = (self._segment, phase, number, self._table.db, self._table.name, kind)
        return StatementBatch(*identity, tuple(sql), (UNCHECKED,) * len(sql), "", 0, 0, compute_statement_digest(sql))
