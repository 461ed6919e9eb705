"""A described table and its columns as TiDB's TableInfo, with stable ids: a column keeps its id as long as it exists.

An integer primary key of one column is the handle, as in TiDB's clustered tables; any other key is an index and rows
have a separate handle. `partitions` adds partitions. `source_create` of the TableInfo is the table's own CREATE TABLE
at the source, from which it can be recreated on a server of its family. Types that no TiDB has (geometry, UUID, INET6,
VECTOR) are refused by name: rows of such a table cannot be replicated.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from binlake.dialect.tokens import Token, TokenKind, find_closing, render, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.clausetexts import draws_from_sequence, read_column_definitions
from binlake.mysqlbinlog.definitions.descriptions import ColumnRow, IndexRow, TableDescription
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json, build_index_json, build_name_json, build_table_json, fold_name
from binlake.rows.schema.info import CREATE_KEY as CREATE_KEY

_TYPES = {
    "tinyint": t.TINY, "smallint": t.SHORT, "mediumint": t.INT24, "int": t.LONG, "integer": t.LONG,
    "bigint": t.LONGLONG, "decimal": t.NEWDECIMAL, "numeric": t.NEWDECIMAL, "float": t.FLOAT, "double": t.DOUBLE,
    "bit": t.BIT, "date": t.DATE, "time": t.DURATION, "datetime": t.DATETIME, "timestamp": t.TIMESTAMP,
    "year": t.YEAR, "char": t.STRING, "binary": t.STRING, "varchar": t.VARCHAR, "varbinary": t.VARCHAR,
    "tinyblob": t.TINYBLOB, "tinytext": t.TINYBLOB, "blob": t.BLOB, "text": t.BLOB, "mediumblob": t.MEDIUMBLOB,
    "mediumtext": t.MEDIUMBLOB, "longblob": t.LONGBLOB, "longtext": t.LONGBLOB, "enum": t.ENUM, "set": t.SET,
    "json": t.JSON,
}  # fmt: skip
_WIDTHS = {t.TINY: 4, t.SHORT: 6, t.INT24: 9, t.LONG: 11, t.LONGLONG: 20}
_LONG_TEXT = (1 << 32) - 1
_LENGTHS = {
    t.TINYBLOB: 255, t.BLOB: 65535, t.MEDIUMBLOB: (1 << 24) - 1, t.LONGBLOB: _LONG_TEXT, t.JSON: _LONG_TEXT,
    t.FLOAT: 12, t.DOUBLE: 22, t.YEAR: 4, t.BIT: 1, t.STRING: 1,
}  # fmt: skip
_CLOCK_WIDTHS = {t.DATE: 10, t.DURATION: 10, t.DATETIME: 19, t.TIMESTAMP: 19}
_HEX = re.compile(r"X'(?:[0-9A-F]{2})*'")
"""A binary default, as `describe_table` has it."""
_CURRENT = re.compile(r"(current_timestamp|now|localtimestamp|localtime)\b", re.IGNORECASE)
_NO_FRACTION = {t.FLOAT: -1, t.DOUBLE: -1}
_UNIQUE_TYPES = frozenset({"BTREE", "HASH"})


@dataclass(frozen=True)
class SqlType:
    """A parsed COLUMN_TYPE: `tp` and lengths as TiDB has them."""

    tp: int
    flen: int
    decimal: int
    unsigned: bool
    zerofill: bool
    elems: tuple[str, ...]


@dataclass(frozen=True)
class Default:
    """The default of a column: TiDB's text (None = none), whether it is an expression, and the bytes for a BIT or a
    binary type whose bytes are not UTF-8 (then the text has U+FFFD for them, as TiDB's has)."""

    text: str | None = None
    is_expr: bool = False
    bits: bytes | None = None


def read_type(text: str) -> SqlType | None:
    """The type of information_schema's COLUMN_TYPE; None for one that TiDB does not have."""
    tokens = [token for token in tokenize(text) if token.kind is not TokenKind.COMMENT]
    tp = _TYPES.get(tokens[0].text.lower())
    if tp is None:
        return None
    inside: Sequence[Token] = ()
    if len(tokens) > 1 and tokens[1].is_mark("("):
        inside = [token for token in tokens[2 : find_closing(tokens, 1)] if not token.is_mark(",")]
    unsigned = any(token.is_word("UNSIGNED") for token in tokens)
    zerofill = any(token.is_word("ZEROFILL") for token in tokens)
    if tp in (t.ENUM, t.SET):
        elems = tuple(token.value for token in inside)
        return SqlType(tp, _compute_elements_width(tp, elems), 0, unsigned, zerofill, elems)
    return SqlType(tp, *_compute_lengths(tp, [int(token.text) for token in inside], unsigned), unsigned, zerofill, ())


def _compute_elements_width(tp: int, elems: Sequence[str]) -> int:
    widths = [len(elem) for elem in elems] or [0]
    return max(widths) if tp == t.ENUM else sum(widths) + len(elems) - 1


def _compute_lengths(tp: int, numbers: Sequence[int], unsigned: bool) -> tuple[int, int]:
    """(Flen, Decimal) of a type with the `numbers` in its parentheses."""
    if tp in _CLOCK_WIDTHS:
        fsp = numbers[0] if numbers else 0
        return _CLOCK_WIDTHS[tp] + (fsp + 1 if fsp else 0), fsp
    if tp == t.NEWDECIMAL:
        return (numbers[0] if numbers else 10), (numbers[1] if len(numbers) > 1 else 0)
    if tp in _WIDTHS:
        # If the server shows no width, use the one that older servers and TiDB show.
        return (numbers[0] if numbers else _WIDTHS[tp] - (unsigned and tp != t.LONGLONG)), 0
    if tp in (t.FLOAT, t.DOUBLE) and len(numbers) == 2:
        return numbers[0], numbers[1]
    return (numbers[0] if numbers else _LENGTHS[tp]), _NO_FRACTION.get(tp, 0)


def build_column_info(
    row: ColumnRow, flavor: Flavor, table: str, id_and_offset: tuple[int, int], *, primary: bool, generated: str
) -> Json:
    """One element of TableInfo.cols; `id_and_offset`: its own, `generated`: the expression of a generated column.

    Raises SchemaError for a type or a default that is not supported.
    """
    kind = read_type(row.type)
    if kind is None:
        raise _build_unsupported_error(row, table, f"the type {row.type}")
    default = read_default(row, kind, flavor)
    charset, collate = _find_charset(row, kind)
    flags = _compute_flags(row, kind, primary=primary)
    return {
        "id": id_and_offset[0], "name": build_name_json(row.name), "offset": id_and_offset[1], "origin_default": None,
        "default": default.text, "default_bit": _encode_base64(default.bits), "default_is_expr": default.is_expr,
        "generated_expr_string": generated, "generated_stored": bool(generated) and not is_virtual(row), "state": 5,
        "comment": row.comment, "hidden": False, "version": 2,
        "type": {"Tp": kind.tp, "Flag": flags, "Flen": kind.flen, "Decimal": kind.decimal,
                 "Charset": charset, "Collate": collate, "Elems": list(kind.elems) or None},
    }  # fmt: skip


def is_virtual(row: ColumnRow) -> bool:
    """True for a generated column that is computed when it is read."""
    return "VIRTUAL" in row.extra.upper()


def read_default(row: ColumnRow, kind: SqlType, flavor: Flavor) -> Default:
    """The default as TiDB stores it. The families show it differently: MariaDB shows an SQL literal or expression."""
    text = row.default
    if text is None or (flavor is Flavor.MARIADB and text.upper() == "NULL"):
        return Default()
    if _CURRENT.match(text) and kind.tp in t.MOMENTS:
        return Default("CURRENT_TIMESTAMP")
    if kind.tp == t.BIT and text[:2].lower() == "b'":
        bits = int(text[2:-1] or "0", 2).to_bytes((kind.flen + 7) // 8, "big")
        return Default(bits.decode("latin-1"), bits=bits)
    if kind.tp in t.STRINGS and not row.charset and _HEX.fullmatch(text):
        return _build_bytes_default(bytes.fromhex(text[2:-1]))
    if flavor is Flavor.MARIADB:
        # The log has each value that a sequence gives, and no target has the sequence.
        return Default() if draws_from_sequence(tokenize(text)) else _read_literal_default(text)
    return Default(text, is_expr="DEFAULT_GENERATED" in row.extra.upper())


def _read_literal_default(text: str) -> Default:
    """The default from SQL text: one literal with or without a sign, else an expression."""
    tokens = tokenize(text)
    kinds = [token.kind for token in tokens]
    if kinds == [TokenKind.STRING] or kinds == [TokenKind.NUMBER]:
        return Default(tokens[0].value)
    if kinds == [TokenKind.MARK, TokenKind.NUMBER]:
        return Default(tokens[0].text + tokens[1].text)
    return Default(text, is_expr=True)


def _build_bytes_default(value: bytes) -> Default:
    try:
        return Default(value.decode())
    except UnicodeDecodeError:
        return Default(value.decode(errors="replace"), bits=value)


def _find_charset(row: ColumnRow, kind: SqlType) -> tuple[str, str]:
    """(character set, collation) in TiDB's names."""
    if kind.tp == t.JSON:
        return "binary", "binary"
    if not row.charset:
        return "binary", "binary"
    return to_tidb_charset(row.charset), to_tidb_charset(row.collate)


def to_tidb_charset(name: str) -> str:
    """TiDB's name of a character set or collation: it calls `utf8` what the servers call `utf8mb3`."""
    return "utf8" + name.removeprefix("utf8mb3") if name.startswith("utf8mb3") else name


def _compute_flags(row: ColumnRow, kind: SqlType, *, primary: bool) -> int:
    extra = row.extra.upper()
    binary = not row.charset and kind.tp not in (t.BIT,)
    return (
        primary * t.FLAG_PRIMARY
        | (not row.nullable) * t.FLAG_NOT_NULL
        | kind.unsigned * t.FLAG_UNSIGNED
        | kind.zerofill * t.FLAG_ZEROFILL
        | binary * t.FLAG_BINARY
        | ("AUTO_INCREMENT" in extra) * t.FLAG_AUTO_INCREMENT
        | ("ON UPDATE" in extra) * t.FLAG_ON_UPDATE_NOW
    )


def _encode_base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _build_unsupported_error(row: ColumnRow, table: str, what: str) -> SchemaError:
    return SchemaError(
        f"a column has {what}, which Binlake cannot replicate",
        hint="exclude the table (ignore-tables of the source in feeder.toml), or change the column at the source",
        where={"table": table, "column": row.name},
    )


def build_table_info(
    described: TableDescription,
    table_id: int,
    name: str,
    former: TableDef | None = None,
    names: Mapping[str, str | None] | None = None,
) -> Json:
    """The TableInfo of `described` under the name `name`.

    `former`: the previous definition, whose columns keep their ids. `names` maps a column's name to its name in
    `former` if that differs, and to None if `former` lacks the column; all names are folded. Raises SchemaError for
    what is not supported.
    """
    where = f"{described.db}.{described.name}"
    known = {fold_name(column.name): column for column in (former.all_columns if former is not None else ())}
    next_id = max((former.raw.get("max_col_id") or 0 if former is not None else 0, *(c.id for c in known.values())))
    primary = [row.column for row in described.indexes if row.index == "PRIMARY"]
    expressions = _read_generated_expressions(described)
    columns = []
    for offset, row in enumerate(described.columns):
        folded = fold_name(row.name)
        old = (names or {}).get(folded, folded)
        before = None if old is None else known.get(old)
        if before is None:
            next_id += 1
        id_and_offset = (before.id if before is not None else next_id, offset)
        column = build_column_info(
            row,
            described.flavor,
            where,
            id_and_offset,
            primary=row.name in primary,
            generated=expressions.get(row.name, ""),
        )
        columns.append(column if before is None else _add_origin(column, _preserve_origin(former, before)))
    handle = _is_handle(described, columns)
    indexes = _index_infos(described, former, drop_primary=handle)
    charset = to_tidb_charset(described.collate.partition("_")[0])
    return {
        **build_table_json(table_id, name, columns, indexes, pk_is_handle=handle),
        "charset": charset, "collate": to_tidb_charset(described.collate), "comment": described.comment,
        "max_col_id": next_id, "max_idx_id": max((index["id"] for index in indexes), default=0),
        CREATE_KEY: described.create,
    }  # fmt: skip


def with_origin_defaults(info: Json, former: TableDef, moment_of: Mapping[str, str]) -> Json:
    """`info`, in which each column that `former` lacks states the value that older rows have: its default.

    `moment_of`: the current time by the type's SQL keyword, if known. For a default that is an expression the value is
    NULL or zero, since an expression has no single value.
    Raises SchemaError if a time is needed but not known.
    """
    had = {column.id for column in former.all_columns}
    return {**info, "cols": [c if c["id"] in had else _with_origin(c, moment_of) for c in info["cols"]]}


def _with_origin(column: Json, moment_of: Mapping[str, str]) -> Json:
    default = column["default"]
    if default is None or column["default_is_expr"]:
        return column
    if default == "CURRENT_TIMESTAMP" and column["type"]["Tp"] in t.MOMENTS:
        text = moment_of.get(t.look_up_type_name(column["type"]["Tp"], binary=False))
        if text is None:
            raise SchemaError(
                "a new column is filled with the time in a zone that this machine does not know",
                hint="install the time zones (tzdata) where the feeder runs", where={"column": column["name"]["O"]},
            )  # fmt: skip
        fsp = column["type"]["Decimal"]
        default = text[: 20 + fsp] if fsp else text[:19]
    return {**column, "origin_default": default, "origin_default_bit": column["default_bit"]}


def _preserve_origin(former: TableDef | None, before: ColumnInfo) -> Json:
    raw = next(c for c in (former.raw["cols"] if former is not None else ()) if c["id"] == before.id)
    return {key: raw.get(key) for key in ("origin_default", "origin_default_bit") if raw.get(key) is not None}


def _add_origin(column: Json, origin: Json) -> Json:
    """`column` with its former `origin`; without it if that is not a value of the column's current type.

    The rows have been converted since, and converting a value can do more than reading a default does.
    """
    with_origin = {**column, **origin}
    try:
        derive_filled_text(ColumnInfo.from_json(with_origin))
    except SchemaError:
        return column
    return with_origin


def _is_handle(described: TableDescription, columns: Sequence[Json]) -> bool:
    primary = [row for row in described.indexes if row.index == "PRIMARY"]
    if len(primary) != 1 or primary[0].length is not None:
        return False
    column = next(c for c in columns if c["name"]["O"] == primary[0].column)
    return column["type"]["Tp"] in t.INTEGERS and not column["generated_expr_string"]


def _index_infos(described: TableDescription, former: TableDef | None, *, drop_primary: bool) -> list[Json]:
    """TableInfo.index_info without indexes on expressions: TiDB has a hidden column for those, rows do not."""
    offsets = {row.name: offset for offset, row in enumerate(described.columns)}
    known = {fold_name(index.name): index.id for index in (former.indexes if former is not None else ())}
    next_id = max((former.raw.get("max_idx_id") or 0 if former is not None else 0, *known.values()), default=0)
    infos = []
    for name, group in groupby(described.indexes, key=lambda row: row.index):
        rows = list(group)
        if (drop_primary and name == "PRIMARY") or any(row.column is None for row in rows):
            continue
        index_id = known.get(fold_name(name))
        if index_id is None:
            next_id += 1
            index_id = next_id
        infos.append(_index_info(index_id, name, rows, offsets))
    return infos


def _index_info(index_id: int, name: str, rows: Sequence[IndexRow], offsets: Mapping[str, int]) -> Json:
    parts = [(row.column or "", offsets[row.column or ""]) for row in rows]
    unique = rows[0].unique and rows[0].type in _UNIQUE_TYPES
    info = build_index_json(index_id, name, parts, unique=unique, primary=name == "PRIMARY")
    for part, row in zip(info["idx_cols"], rows, strict=True):
        part["length"] = -1 if row.length is None else row.length
    return {**info, "is_invisible": not rows[0].visible}


def _read_generated_expressions(described: TableDescription) -> dict[str, str]:
    """The expression of each generated column, by name."""
    names = {row.name for row in described.columns if is_virtual(row) or _is_stored(row)}
    if not names:
        return {}
    definitions = read_column_definitions(described.create)
    return {name: _read_expression(definitions[name]) for name in names}


def _is_stored(row: ColumnRow) -> bool:
    words = row.extra.upper().split()
    return "PERSISTENT" in words or ("STORED" in words and "GENERATED" in words)


def _read_expression(definition: Sequence[Token]) -> str:
    at = next(at for at, token in enumerate(definition) if token.is_word("AS"))
    return render(definition[at + 2 : find_closing(definition, at + 1)])
