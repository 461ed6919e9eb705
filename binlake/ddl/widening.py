"""Writes the ALTER TABLE that changes a shared target from one joined definition to the next (`ddl.joined`).

It is used only if the source's statement does not fit: if it adds something that the target already has, or uses a type
other than the joined one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlake.dialect.defaults import format_default
from binlake.errors import SchemaError
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC
from binlake.statements.literal import quote, quote_name, quote_qualified_name

_CURRENT = "CURRENT_TIMESTAMP"
_TEXTS = t.STRINGS | {t.ENUM, t.SET}


def write_alter(was: TableDef, now: TableDef) -> str:
    """The ALTER TABLE for `now.db`.`now.name`; empty = no change. Raises SchemaError if it is impossible."""
    specs = [*_render_dropped_indexes(was, now), *_alter_columns(was, now), *_render_added_indexes(was, now)]
    return f"ALTER TABLE {quote_qualified_name(now.db, now.name)} {', '.join(specs)}" if specs else ""


def _alter_columns(was: TableDef, now: TableDef) -> Iterator[str]:
    for column in was.columns:
        if now.find_column(column.name) is None:
            yield f"DROP COLUMN {quote_name(column.name)}"
    for column in now.columns:
        former = was.find_column(column.name)
        if former is None:
            yield f"ADD COLUMN {render_column(column)}"
        elif _build_column_form(former) != _build_column_form(column):
            yield f"MODIFY COLUMN {render_column(column)}"


def _build_column_form(column: ColumnInfo) -> tuple[object, ...]:
    return column.type_text, column.not_null, column.collate, column.generated_expr


def render_column(column: ColumnInfo) -> str:
    """The column's text as in CREATE TABLE. Raises SchemaError if its value is an expression."""
    if column.is_generated or column.default_is_expr:
        raise SchemaError(f"the column {column.name} has an expression")
    words = [quote_name(column.name), column.type_text]
    if column.tp in _TEXTS and not column.is_binary:
        words.append(f"CHARACTER SET {column.charset} COLLATE {column.collate}")
    words.append("NOT NULL" if column.not_null else "NULL")
    words += _render_default(column)
    if column.flag & t.FLAG_AUTO_INCREMENT:
        words.append("AUTO_INCREMENT")
    if column.comment:
        words.append(f"COMMENT {quote(column.comment)}")
    return " ".join(words)


def _render_default(column: ColumnInfo) -> Iterator[str]:
    fraction = f"({column.fsp})" if column.fsp else ""
    if column.defaults_to_time:
        yield f"DEFAULT {_CURRENT}{fraction}"
    elif (literal := format_default(column)) is not None:
        yield f"DEFAULT {literal}"
    if column.flag & t.FLAG_ON_UPDATE_NOW:
        yield f"ON UPDATE {_CURRENT}{fraction}"


def _render_dropped_indexes(was: TableDef, now: TableDef) -> Iterator[str]:
    left = {_list_index_parts(index) for index in _list_indexes(now)}
    for index in _list_indexes(was):
        if _list_index_parts(index) not in left:
            yield "DROP PRIMARY KEY" if index.primary else f"DROP INDEX {quote_name(index.name)}"


def _render_added_indexes(was: TableDef, now: TableDef) -> Iterator[str]:
    existing = {_list_index_parts(index) for index in _list_indexes(was)}
    for index in _list_indexes(now):
        if _list_index_parts(index) in existing:
            continue
        columns = ", ".join(
            quote_name(part.name) + (f"({part.length})" if part.length >= 0 else "") for part in index.columns
        )
        kind = "PRIMARY KEY" if index.primary else f"{'UNIQUE ' * index.unique}INDEX {quote_name(index.name)}"
        yield f"ADD {kind} ({columns})"


def _list_indexes(table: TableDef) -> Sequence[IndexInfo]:
    return [*table.list_unique_keys(), *(i for i in table.indexes if not i.unique and i.state == PUBLIC)]


def _list_index_parts(index: IndexInfo) -> tuple[bool, tuple[tuple[str, int], ...]]:
    return index.unique, tuple((fold_name(part.name), part.length) for part in index.columns)
