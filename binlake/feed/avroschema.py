"""The Avro schemas of a table's messages, as TiCDC writes them (reference/data-migration-and-ticdc.md 2.2, 2.3).

Rule: only a definition and the options decide the text, byte for byte, so the same table always gives the same schema.
A default is the value that a row with it has in a message, or there is none.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from binlake.config.protocols import AvroOptions
from binlake.errors import ConfigError, SchemaError
from binlake.feed.encoding import convert_texts_to_zone
from binlake.feed.formats import find_row_key
from binlake.rows.codec.encode import derive_decimal_layout, derive_filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

Json = dict[str, Any]

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")
_EXTENSION = (("_tidb_op", "string", ""), ("_tidb_commit_ts", "long", 0), ("_tidb_commit_physical_time", "long", 0))
_CLOCK = re.compile(r"current_(timestamp|date)\b", re.IGNORECASE)
_NUMBERS = frozenset((*t.INTEGERS, t.YEAR, t.FLOAT, t.DOUBLE))
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", re.IGNORECASE)
_WORDS = {t.FLOAT: "FLOAT", t.DOUBLE: "DOUBLE", t.YEAR: "YEAR", t.BIT: "BIT", t.NEWDECIMAL: "DECIMAL", t.JSON: "JSON",
          t.DATE: "DATE", t.NEWDATE: "DATE", t.DATETIME: "DATETIME", t.TIMESTAMP: "TIMESTAMP", t.DURATION: "TIME",
          t.ENUM: "ENUM", t.SET: "SET"}  # fmt: skip


def build_legal_name(name: str) -> str:
    """`name` with `_` instead of each character that Avro refuses, and before a leading digit (S2-46)."""
    legal = _ILLEGAL.sub("_", name)
    return f"_{legal}" if legal[:1].isdigit() else legal


def require_key_columns(table: TableDef) -> tuple[ColumnInfo, ...]:
    """The columns of the key: those of the primary key, else of the first NOT NULL unique index (S2-15).

    Raises ConfigError for a table without either.
    """
    if table.find_identity().kind == "row":
        raise ConfigError(
            "a table without a primary key or a NOT NULL unique index cannot be sent as Avro",
            where={"table": f"{table.db}.{table.name}"},
            hint="add a key, or leave the table out of the feed by its filter",
        )
    return find_row_key(table)


def build_key_schema(table: TableDef, options: AvroOptions) -> str:
    """The schema of the keys of `table` as compact JSON. Raises ConfigError."""
    return _build_record(table, require_key_columns(table), options, [])


def build_value_schema(table: TableDef, options: AvroOptions) -> str:
    """The schema of the values of `table`: all columns of a row, then the extension. Raises ConfigError."""
    return _build_record(table, table.row_columns, options, _build_extension(options))


def choose_avro_type(column: ColumnInfo, options: AvroOptions) -> str:
    """The Avro type of the column's values, without a nullable column's union."""
    if column.tp == t.LONGLONG:
        return options.unsigned_bigints if column.unsigned else "long"
    if column.tp in t.INTEGERS:
        return "long" if column.unsigned and column.tp == t.LONG else "int"
    if column.tp == t.NEWDECIMAL:
        return "bytes" if options.decimals == "precise" else "string"
    simple = {t.YEAR: "int", t.FLOAT: options.floats, t.DOUBLE: "double"}.get(column.tp)
    return simple or ("bytes" if column.is_binary else "string")


def find_null_branch(column: ColumnInfo) -> int | None:
    """The index of `null` in the union of the column; None for a NOT NULL column."""
    if column.not_null:
        return None
    return 0 if _find_default(column) is None else 1


def _build_record(table: TableDef, columns: tuple[ColumnInfo, ...], options: AvroOptions, extension: list[Json]) -> str:
    fields = [_build_field(column, options) for column in columns] + extension
    names = [field["name"] for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            "columns of a table get the same name in Avro, where only letters, digits and _ are allowed",
            where={"table": f"{table.db}.{table.name}", "names": ",".join(twice)},
            hint="rename one of the columns, or leave the table out of the feed by its filter",
        )
    namespace = f"{build_legal_name(options.namespace)}.{build_legal_name(table.db)}"
    record = {"type": "record", "name": build_legal_name(table.name), "namespace": namespace, "fields": fields}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def _build_extension(options: AvroOptions) -> list[Json]:
    if not options.extension:
        return []
    if options.extension_defaults:
        return [{"default": default, "name": name, "type": kind} for name, kind, default in _EXTENSION]
    return [{"name": name, "type": kind} for name, kind, _ in _EXTENSION]


def _build_field(column: ColumnInfo, options: AvroOptions) -> Json:
    """The column's block, with keys sorted alphabetically, as in TiCDC."""
    kind, name, default = (
        _build_block(column, options),
        build_legal_name(column.name),
        _convert_default(column, options),
    )
    branch = find_null_branch(column)
    if branch is None:
        return ({} if default is None else {"default": default}) | {"name": name, "type": kind}
    union: list[Json | str] = ["null", kind] if branch == 0 else [kind, "null"]
    return {"default": default, "name": name, "type": union}


def _build_block(column: ColumnInfo, options: AvroOptions) -> Json:
    parameters = {"tidb_type": format_tidb_type(column)}
    if column.tp == t.BIT:
        parameters = {"length": str(max(column.flen, 1)), **parameters}
    if column.tp in (t.ENUM, t.SET):
        parameters = {"allowed": ",".join(elem.replace(",", r"\,") for elem in column.elems), **parameters}
    block: Json = {"type": choose_avro_type(column, options), "connect.parameters": parameters}
    if column.tp == t.NEWDECIMAL and options.decimals == "precise":
        precision, scale = derive_decimal_layout(column)
        block |= {"logicalType": "decimal", "precision": precision, "scale": scale}
    return block


def format_tidb_type(column: ColumnInfo) -> str:
    """The type's name in schemas, such as `INT UNSIGNED` (S2-20)."""
    if column.tp in t.INTEGERS:
        return ("BIGINT" if column.tp == t.LONGLONG else "INT") + (" UNSIGNED" if column.unsigned else "")
    return _WORDS.get(column.tp) or ("BLOB" if column.is_binary else "TEXT")


def _find_default(column: ColumnInfo) -> str | None:
    """The canonical text of the default in the schema; None if TiCDC writes none, or it is no constant value."""
    if column.default_is_expr or column.is_generated or column.tp in (t.NEWDECIMAL, t.BIT) or column.is_binary:
        return None
    if column.default is None or (column.tp in (*t.MOMENTS, *t.DATES) and _CLOCK.match(column.default)):
        return None
    if column.tp in _NUMBERS and not _NUMBER.fullmatch(column.default):
        return None  # a cast would give 0
    try:
        return derive_filled_text(replace(column, origin_default=column.default))
    except SchemaError:
        return None


def _convert_default(column: ColumnInfo, options: AvroOptions) -> object:
    """The default as the message of a row with that value has it."""
    text = _find_default(column)
    if text is None:
        return None
    kind = choose_avro_type(column, options)
    if kind in ("int", "long"):
        number = int(text)
        # Numbers beyond a long wrap around, as values do (S2-22).
        return number - (1 << 64) if number >= 1 << 63 else number
    if kind in ("double", "float"):
        return float(np.float32(text)) if column.tp == t.FLOAT else float(text)
    return convert_texts_to_zone(column, pa.array([text]), options.time_zone)[0].as_py()
