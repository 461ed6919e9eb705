"""Render batches for one table: multi-row writes and DELETE by key; for tables without a key, exact DELETE and INSERT.

Sources: DESIGN 3.6, 4; hazards R-12, R-44. A column that the target computes is never written. The limits of a batch
(`limits`) keep it below the server's max_allowed_packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.redaction import redact_key
from binlake.base.sql import Dialect
from binlake.errors import Permanent, SchemaError
from binlake.rows.codec import format_key_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.statements.batch import UNCHECKED, Phase, StatementBatch, compute_statement_digest
from binlake.statements.columns import JoinedTexts, join_value_tuples
from binlake.statements.counts import KeyCounts
from binlake.statements.keyconditions import KeyConditions
from binlake.statements.keyless import format_image_conditions
from binlake.statements.lenient import find_rows_with_error_values, render_lenient
from binlake.statements.limits import BatchLimits
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.statements.writtencolumns import list_key_columns, list_written_columns

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
