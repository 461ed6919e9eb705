"""The CREATE TABLE of a definition, for a target's table that is gone together with its statements.

Rule: columns, keys, collations and comments are those of the definition. What no row depends on is left out:
partitions, foreign keys, checks, and indexes that are no keys and on an expression or on a whole TEXT or BLOB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from binlake.base.sql import Dialect
from binlake.dialect.defaults import format_default
from binlake.dialect.mapping import map_ddl
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.actions import PUBLIC
from binlake.rows.schema.delta import DdlSide
from binlake.statements.literal import quote, quote_name

_NOTHING = DdlSide((), ())


@dataclass(frozen=True)
class DdlText:
    """A `RoutedDdl`: `sql` has the target's names; `before` and `after` are empty unless the definitions are known."""

    commit_ts: int
    db: str
    table: str
    sql: str
    before: DdlSide = _NOTHING
    after: DdlSide = _NOTHING


def build_create_statements(table: TableDef, dialect: Dialect, commit_ts: int) -> tuple[str, ...]:
    """The statements that create `table` (the target's names). Raises TargetRefused for what `dialect` cannot have."""
    parts = [*map(_format_column, table.columns), *_format_indexes(table)]
    comment = f" COMMENT = {quote(table.comment)}" if table.comment else ""
    text = f"CREATE TABLE {quote_name(table.name)} ({', '.join(parts)}){comment}"
    return map_ddl(DdlText(commit_ts, table.db, table.name, text, after=DdlSide((), (table,))), dialect).sql


def _format_column(column: ColumnInfo) -> str:
    is_text = (column.tp in t.STRINGS and not column.is_binary) or column.tp in (t.ENUM, t.SET)
    words = [quote_name(column.name), column.type_text]
    if is_text:
        words.append(f"CHARACTER SET {column.charset} COLLATE {column.collate}")
    if column.is_generated:
        kind = "STORED" if column.generated_stored else "VIRTUAL"
        words.append(f"GENERATED ALWAYS AS ({column.generated_expr}) {kind}")
    words.append("NOT NULL" if column.not_null else "NULL")
    words += [] if column.is_generated else _list_defaults(column)
    return " ".join([*words, *([f"COMMENT {quote(column.comment)}"] if column.comment else [])])


def _list_defaults(column: ColumnInfo) -> Iterator[str]:
    clock = f"CURRENT_TIMESTAMP({column.fsp})" if column.fsp else "CURRENT_TIMESTAMP"
    literal = format_default(column)
    if literal is not None:
        yield f"DEFAULT {literal}"
    elif column.default is not None:
        is_clock = column.defaults_to_time and column.tp in t.MOMENTS
        yield f"DEFAULT {clock}" if is_clock else f"DEFAULT ({column.default})"
    if column.flag & t.FLAG_ON_UPDATE_NOW:
        yield f"ON UPDATE {clock}"
    if column.flag & t.FLAG_AUTO_INCREMENT:
        yield "AUTO_INCREMENT"


def _format_indexes(table: TableDef) -> Iterator[str]:
    keys = table.list_unique_keys()
    names = {index.name for index in keys}
    others = (index for index in table.indexes if index.state == PUBLIC and index.name not in names)
    for index in (*keys, *others):
        if index.primary:
            yield f"PRIMARY KEY ({_format_parts(index)})"
        elif index.unique or _is_plain(table, index):
            yield f"{'UNIQUE ' if index.unique else ''}INDEX {quote_name(index.name)} ({_format_parts(index)})"


def _format_parts(index: IndexInfo) -> str:
    return ", ".join(quote_name(part.name) + (f"({part.length})" if part.length > 0 else "") for part in index.columns)


def _is_plain(table: TableDef, index: IndexInfo) -> bool:
    """True for an index that every server can have: on visible columns, and on the beginning of a TEXT or BLOB."""
    columns = [table.find_column(part.name) for part in index.columns]
    return all(
        column is not None and column.tp != t.JSON and (column.tp not in t.BLOBS or part.length > 0)
        for column, part in zip(columns, index.columns, strict=True)
    )
