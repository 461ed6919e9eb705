"""Tables of a MariaDB or MySQL in TiDB's JSON form, so that tests can let a real server define what they log.

Column ids are the ordinal positions, the table's id is 0.
"""

from __future__ import annotations

import re
from typing import Any

from binlake.common.sql import Dialect
from binlake.errors import SchemaError
from binlake.rows.schema import mysqltypes as t
from binlake.target.definitions.forms import Name
from binlake.target.session.session import TargetSession

Json = dict[str, Any]

_TYPES = {
    "tinyint": t.TINY, "smallint": t.SHORT, "mediumint": t.INT24, "int": t.LONG, "bigint": t.LONGLONG,
    "decimal": t.NEWDECIMAL, "float": t.FLOAT, "double": t.DOUBLE, "bit": t.BIT, "year": t.YEAR, "date": t.DATE,
    "time": t.DURATION, "datetime": t.DATETIME, "timestamp": t.TIMESTAMP, "char": t.STRING, "varchar": t.VARCHAR,
    "binary": t.STRING, "varbinary": t.VARCHAR, "tinytext": t.TINYBLOB, "text": t.BLOB, "mediumtext": t.MEDIUMBLOB,
    "longtext": t.LONGBLOB, "tinyblob": t.TINYBLOB, "blob": t.BLOB, "mediumblob": t.MEDIUMBLOB,
    "longblob": t.LONGBLOB, "enum": t.ENUM, "set": t.SET, "json": t.JSON,
}  # fmt: skip

_COLUMNS = (
    "SELECT ORDINAL_POSITION, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY, EXTRA, COLUMN_DEFAULT,"
    " CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, CHARACTER_SET_NAME,"
    " COLLATION_NAME, GENERATION_EXPRESSION FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)


def table_info_of(session: TargetSession, name: Name, dialect: Dialect = "mariadb") -> Json | None:
    """The TableInfo of a table on the target, with id 0; None if the table does not exist."""
    json_columns = _json_columns(session, name) if dialect == "mariadb" else frozenset()
    columns = [
        _column(dialect, position, column, "json" if column in json_columns else kind, *rest)
        for position, column, kind, *rest in session.fetch_rows(_COLUMNS, name)
    ]
    if not columns:
        return None
    collation = session.fetch_rows(
        "SELECT TABLE_COLLATION FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", name
    )[0][0]
    collate = str(collation or "")
    return {
        "id": 0, "name": _name(name[1]), "charset": collate.partition("_")[0], "collate": collate, "cols": columns,
        "index_info": _indexes(session, name, columns), "state": 5, "pk_is_handle": False, "is_common_handle": False,
        "partition": None, "view": None, "sequence": None,
    }  # fmt: skip


def _json_columns(session: TargetSession, name: Name) -> frozenset[str]:
    """The JSON columns; MariaDB's JSON is a LONGTEXT that is recognized by its check."""
    rows = session.fetch_rows(
        "SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS"
        " WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s",
        name,
    )
    found = (re.fullmatch(r"json_valid\(`((?:[^`]|``)+)`\)", str(clause)) for (clause,) in rows)
    return frozenset(match[1].replace("``", "`") for match in found if match)


def _column(
    dialect: Dialect, position: int, name: str, kind: str,
    full: str, nullable: str, key: str, extra: str, default: str | None,
    length: int | None, precision: int | None, scale: int | None, fsp: int | None, charset: str | None,
    collate: str | None, expression: str | None,
) -> Json:  # fmt: skip
    number = _TYPES.get(kind)
    if number is None:
        raise SchemaError(f"a column of the target has the type {kind}, which no TiDB has", where={"column": name})
    extra = extra.lower()
    flag = (nullable != "YES") * t.FLAG_NOT_NULL | (key == "PRI") * t.FLAG_PRIMARY
    flag |= ("unsigned" in full) * t.FLAG_UNSIGNED | ("auto_increment" in extra) * t.FLAG_AUTO_INCREMENT
    decimals = scale if kind == "decimal" else fsp
    text, is_expr = _default(default, extra, dialect)
    return {
        "id": position, "name": _name(name), "offset": position - 1, "state": 5, "hidden": False, "comment": "",
        "origin_default": None, "default": text, "default_is_expr": is_expr,
        "generated_expr_string": expression or "", "generated_stored": "stored" in extra,
        "type": {
            "Tp": number, "Flag": flag, "Flen": _size(kind, full, length, precision),
            "Decimal": -1 if decimals is None else int(decimals), "Charset": charset or "binary",
            "Collate": collate or "binary", "Elems": _elements(full) or None,
        },
    }  # fmt: skip


def _default(text: str | None, extra: str, dialect: Dialect) -> tuple[str | None, bool]:
    """(default, whether it is an expression). MariaDB shows SQL text, the others show the value."""
    if text is None or (dialect == "mariadb" and text == "NULL"):
        return None, False
    if dialect != "mariadb":
        return text, "default_generated" in extra
    if text.startswith("'"):
        return text[1:-1].replace("''", "'").replace("\\\\", "\\"), False
    return text, re.fullmatch(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?|b'[01]*'", text) is None


def _size(kind: str, full: str, length: int | None, precision: int | None) -> int:
    if kind in ("enum", "set"):
        return -1
    if length is not None:
        return int(length)
    shown = re.match(r"\w+\((\d+)", full)
    return int(shown[1]) if shown else int(precision or -1)


def _elements(full: str) -> list[str]:
    if not full.startswith(("enum(", "set(")):
        return []
    return [part.replace("''", "'").replace("\\\\", "\\") for part in re.findall(r"'((?:[^']|'')*)'", full)]


def _indexes(session: TargetSession, name: Name, columns: list[Json]) -> list[Json]:
    rows = session.fetch_rows(
        "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY INDEX_NAME, SEQ_IN_INDEX",
        name,
    )
    offsets = {column["name"]["L"]: column["offset"] for column in columns}
    found: dict[str, Json] = {}
    for index, non_unique, column, length in rows:
        entry = found.setdefault(index, {
            "id": len(found) + 1, "idx_name": _name(index), "idx_cols": [], "state": 5,
            "is_unique": not int(non_unique), "is_primary": index == "PRIMARY",
        })  # fmt: skip
        part = {"name": _name(column), "offset": offsets[column.lower()], "length": int(length or -1)}
        entry["idx_cols"].append(part)
    return list(found.values())


def _name(text: str) -> Json:
    return {"O": text, "L": text.lower()}
