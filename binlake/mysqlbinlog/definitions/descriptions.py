"""A table as a server describes it: its rows in information_schema, and its SHOW CREATE TABLE.

The session that reads them has time_zone '+00:00', an sql_mode without ANSI_QUOTES and NO_BACKSLASH_ESCAPES, and
uses utf8mb4 (`SESSION`): so literals are standard and times are in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from binlake.dialect.tokens import Token, TokenKind, render, tokenize
from binlake.errors import SourceUnavailable
from binlake.mysqlbinlog.definitions.clausetexts import read_column_definitions, read_default_value
from binlake.mysqlbinlog.model import Flavor
from binlake.statements.literal import quote, quote_name, quote_qualified_name

SESSION = (
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00', sql_mode = 'NO_ENGINE_SUBSTITUTION', sql_quote_show_create = 1",
)
"""Statements that a session sends before it reads definitions."""

SCRATCH_PREFIX = "binlake_tracker_"
"""Prefix of the names of all databases that a tracker owns."""

SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
"""Databases of the server itself: their tables are not replicated."""


def is_user_database(db: str) -> bool:
    """False for a database of the server itself or of a tracker."""
    return db.lower() not in SYSTEM_DATABASES and not db.lower().startswith(SCRATCH_PREFIX)


Query = Callable[[str, Sequence[object]], Iterable[Mapping[str, Any]]]
"""Runs a statement with its arguments; each row by (upper-case) column name."""


@dataclass(frozen=True)
class ColumnRow:
    """A column; texts as information_schema.COLUMNS has them, `default` None where it has NULL."""

    name: str
    type: str
    nullable: bool
    default: str | None
    charset: str
    collate: str
    extra: str
    comment: str


@dataclass(frozen=True)
class IndexRow:
    """A column of an index (information_schema.STATISTICS); `column` None = expression, `length` None = whole."""

    index: str
    unique: bool
    column: str | None
    length: int | None
    type: str
    visible: bool


@dataclass(frozen=True)
class TableDescription:
    """A base table of a server of `flavor`; `create`: its SHOW CREATE TABLE."""

    flavor: Flavor
    db: str
    name: str
    collate: str
    comment: str
    columns: tuple[ColumnRow, ...]
    indexes: tuple[IndexRow, ...]
    create: str

    @classmethod
    def of_text(cls, flavor: Flavor, db: str, name: str, create: str) -> TableDescription:
        """A table of which only its CREATE is known: enough to recreate it."""
        return cls(flavor, db, name, "", "", (), (), create)


@dataclass(frozen=True)
class DatabaseDescription:
    """A database and its base tables."""

    name: str
    charset: str
    collate: str
    tables: tuple[TableDescription, ...] = ()


def describe_databases(query: Query) -> list[DatabaseDescription]:
    """All databases of users and trackers, without tables."""
    rows = query(
        "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA"
        " ORDER BY SCHEMA_NAME",
        (),
    )
    databases = [
        DatabaseDescription(row["SCHEMA_NAME"], row["DEFAULT_CHARACTER_SET_NAME"], row["DEFAULT_COLLATION_NAME"])
        for row in rows
    ]
    return [database for database in databases if database.name.lower() not in SYSTEM_DATABASES]


def describe_database(query: Query, name: str) -> DatabaseDescription | None:
    """One database, without tables; None if there is none."""
    return next((database for database in describe_databases(query) if database.name == name), None)


def list_tables(query: Query, db: str) -> list[str]:
    """The names of the base tables of `db`."""
    sql = (
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
        " AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_NAME"
    )
    return [row["TABLE_NAME"] for row in query(sql, (db,))]


class _Altered(Exception):
    """A table was altered between two reads: SHOW CREATE TABLE lacks what information_schema has."""


def describe_table(query: Query, flavor: Flavor, db: str, table: str, visibility: str) -> TableDescription | None:
    """One base table; None if there is none. `visibility`: the SQL from `build_visibility_sql`.

    Raises SourceUnavailable if it is altered each time while it is read.
    """
    for _ in range(_TRIES):
        try:
            return _describe_table_once(query, flavor, (db, table), visibility)
        except _Altered:
            continue
    where = {"table": f"{db}.{table}", "tries": _TRIES}
    raise SourceUnavailable("a table was altered each time while its definition was read", where=where)


def _describe_table_once(
    query: Query, flavor: Flavor, name: tuple[str, str], visibility: str
) -> TableDescription | None:
    rows = list(query(_TABLE, name))
    if not rows:
        return None
    indexes = tuple(map(_read_index, query(_INDEXES.format(visible=visibility), name)))
    create = write_bytes_in_hex(
        next(iter(query(f"SHOW CREATE TABLE {quote_qualified_name(*name)}", ())))["CREATE TABLE"]
    )
    columns = tuple(
        _restore_binary_default(_restore_mysql_default(_read_column(row), create, flavor), create, flavor)
        for row in query(_COLUMNS, name)
    )
    for column in columns:
        columns, create = _restore_elements(query, name, column, columns, create)
    whole = list[ColumnRow]()
    for column in columns:
        known, create = _restore_default(query, flavor, name, column, create)
        whole.append(known)
    row = rows[0]
    return TableDescription(
        flavor, name[0], row["TABLE_NAME"], row["TABLE_COLLATION"], row["TABLE_COMMENT"], tuple(whole), indexes,
        strip_auto_increment(create),
    )  # fmt: skip


def strip_auto_increment(create: str) -> str:
    """SHOW CREATE TABLE without AUTO_INCREMENT=N, the next number: it depends on the rows and changes with them."""
    return _NEXT_NUMBER.sub(r"\1", create)


def describe_all(query: Query, flavor: Flavor) -> list[DatabaseDescription]:
    """All databases of users with their base tables, without those of the server and of trackers."""
    visibility, databases = build_visibility_sql(query), list[DatabaseDescription]()
    for database in describe_databases(query):
        if is_user_database(database.name):
            names = list_tables(query, database.name)
            tables = [describe_table(query, flavor, database.name, name, visibility) for name in names]
            databases.append(replace(database, tables=tuple(table for table in tables if table is not None)))
    return databases


def build_visibility_sql(query: Query) -> str:
    """SQL for index visibility in this server's STATISTICS: the column's name differs by family and version."""
    sql = (
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'"
        " AND TABLE_NAME = 'STATISTICS'"
    )
    names = {row["COLUMN_NAME"].upper() for row in query(sql, ())}
    if "IS_VISIBLE" in names:
        return "IS_VISIBLE = 'YES'"
    return "IGNORED = 'NO'" if "IGNORED" in names else "1"


def _find_definition(create: str, column: ColumnRow) -> list[Token]:
    found = read_column_definitions(create).get(column.name)
    if found is None:
        raise _Altered
    return found


def _restore_mysql_default(column: ColumnRow, create: str, flavor: Flavor) -> ColumnRow:
    """`column` with its default from `create`: MySQL's information_schema has a TIMESTAMP's in the time zone of the
    session that last changed the table, and an expression with escaped quotes and other characters."""
    is_moment = column.type.startswith("timestamp") and (column.default or "")[:1].isdigit()
    if flavor is not Flavor.MYSQL or not (is_moment or "DEFAULT_GENERATED" in column.extra.upper()):
        return column
    value = read_default_value(_find_definition(create, column))
    if not value:
        raise _Altered
    if value[0].is_mark("("):
        return replace(column, default=render(value[1:-1]))
    return replace(column, default=value[0].value) if is_moment else column


def write_bytes_in_hex(create: str) -> str:
    """`create` with X'...' for each literal whose bytes are not UTF-8, which a link shows as lone surrogates: MariaDB
    shows the default of a binary column as its bytes."""
    if not _NOT_TEXT.search(create):
        return create
    for token in tokenize(create):
        if token.kind is TokenKind.STRING and _NOT_TEXT.search(token.text):
            create = create.replace(token.text, f"X'{_encode_bytes(token.value).hex().upper()}'")
    return create


def _restore_binary_default(column: ColumnRow, create: str, flavor: Flavor) -> ColumnRow:
    """`column` with a binary type's literal default from `create`, as X'...': information_schema has it as text, which
    MySQL cuts at a NUL and where MariaDB has `?` for bytes that are no characters."""
    is_literal = column.default is not None and "DEFAULT_GENERATED" not in column.extra.upper()
    if not is_literal or not _BINARY.match(column.type) or column.charset not in ("", "binary"):
        return column
    definition = _find_definition(create, column)
    at = next((at for at, token in enumerate(definition) if token.is_word("DEFAULT")), len(definition))
    value = _read_bytes(definition[at + 1 : at + 3])
    if value is None:
        return column
    if column.type.startswith(("enum", "set")):
        text = value.decode()
        return replace(column, default=text if flavor is Flavor.MYSQL else quote(text))
    return replace(column, default=f"X'{value.hex().upper()}'")


def _read_bytes(literal: Sequence[Token]) -> bytes | None:
    """The bytes of a literal that `literal` begins with; None for anything else."""
    first = literal[0] if literal else None
    if first is None:
        return None
    if first.kind is TokenKind.STRING:
        return _encode_bytes(first.value)
    if first.kind is TokenKind.WORD and first.text[:2].lower() == "0x":
        return bytes.fromhex(first.text[2:])
    if first.is_word("X") and len(literal) > 1 and literal[1].kind is TokenKind.STRING:
        return bytes.fromhex(literal[1].value)
    return None


def _encode_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def mask_four_byte_characters(create: str) -> str:
    """`create`, or a part of one, as MySQL and MariaDB show it: with `?` for four-byte characters."""
    return _FOUR_BYTES.sub("?", create)


def _restore_elements(
    query: Query, table: tuple[str, str], column: ColumnRow, columns: tuple[ColumnRow, ...], create: str
) -> tuple[tuple[ColumnRow, ...], str]:
    """`columns` and `create` with the real elements of an ENUM or SET, read from the values of a copied column."""
    kind, _, rest = column.type.partition("(")
    if kind not in ("enum", "set") or "?" not in rest:
        return columns, create
    elements = [token.value for token in tokenize(column.type)[2:] if token.kind is TokenKind.STRING]
    name, copy = quote_name(column.name), quote_qualified_name(table[0], "binlake_elements")
    numbers = [1 << at if kind == "set" else at + 1 for at in range(len(elements))]
    query(f"CREATE TEMPORARY TABLE {copy} SELECT {name} FROM {quote_qualified_name(*table)} LIMIT 0", ())
    try:
        query(f"INSERT INTO {copy} VALUES {', '.join(f'({number})' for number in numbers)}", ())
        shown = {int(row["NUMBER"]): row["ELEMENT"] for row in query(
            f"SELECT {name} + 0 AS NUMBER, {name} AS ELEMENT FROM {copy}", ()
        )}  # fmt: skip
    finally:
        query(f"DROP TEMPORARY TABLE {copy}", ())
    quoted = ",".join(quote(str(shown[number])) for number in numbers)
    whole = f"{kind}({quoted}{rest[rest.rindex(')') :]}"
    own = tuple(replace(other, type=whole) if other is column else other for other in columns)
    return own, create.replace(f"{name} {column.type}", f"{name} {whole}", 1)


def _restore_default(
    query: Query, flavor: Flavor, table: tuple[str, str], column: ColumnRow, create: str
) -> tuple[ColumnRow, str]:
    """`column` and `create` with the real default of a text column, read from a row that has it."""
    shown = _read_default_text(column, flavor)
    if not column.charset or "?" not in shown:
        return column, create
    name = quote_name(column.name)
    value = _read_default(query, table, name)
    if value == shown:
        return column, create
    default = value if flavor is Flavor.MYSQL else quote(value)
    return replace(column, default=default), _replace_default(create, name, quote(value))


def _read_default(query: Query, table: tuple[str, str], name: str) -> str:
    """The default of a column of `table`. For a NOT NULL column of an empty table only a copied table shows it."""
    there, copy = quote_qualified_name(*table), quote_qualified_name(table[0], "binlake_default")
    for rows in (f"(SELECT 1 AS one) AS x LEFT JOIN {there} AS t ON FALSE", f"{there} AS t LIMIT 1"):
        for row in query(f"SELECT DEFAULT(t.{name}) AS FILLED FROM {rows}", ()):
            if row["FILLED"] is not None:
                return str(row["FILLED"])
    query(f"CREATE TEMPORARY TABLE {copy} SELECT {name} FROM {there} LIMIT 0", ())
    try:
        query(f"INSERT INTO {copy} VALUES (DEFAULT)", ())
        return str(next(iter(query(f"SELECT {name} AS FILLED FROM {copy}", ())))["FILLED"])
    finally:
        query(f"DROP TEMPORARY TABLE {copy}", ())


def _replace_default(create: str, name: str, literal: str) -> str:
    lines = create.split("\n")
    at = next((at for at, line in enumerate(lines) if line.startswith(f"  {name} ")), None)
    tokens = [] if at is None else tokenize(lines[at])
    written = next((value.text for word, value in pairwise(tokens) if word.is_word("DEFAULT")), None)
    if at is None or written is None:
        raise _Altered
    lines[at] = lines[at].replace(f"DEFAULT {written}", f"DEFAULT {literal}", 1)
    return "\n".join(lines)


def _read_default_text(column: ColumnRow, flavor: Flavor) -> str:
    """The default if it is a literal: MySQL has its text, MariaDB the literal; "" otherwise."""
    default = column.default or ""
    if flavor is Flavor.MYSQL:
        return "" if "DEFAULT_GENERATED" in column.extra.upper() else default
    tokens = tokenize(default)
    return tokens[0].value if len(tokens) == 1 and tokens[0].kind is TokenKind.STRING else ""


_TRIES = 5
_NOT_TEXT = re.compile("[\udc80-\udcff]")
_BINARY = re.compile(r"(var)?binary\b|(tiny|medium|long)?blob\b|enum\(|set\(")
_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")
_NEXT_NUMBER = re.compile(r"^(\) ENGINE=\w+) AUTO_INCREMENT=\d+", re.MULTILINE)
_TABLE = (
    "SELECT TABLE_NAME, TABLE_COLLATION, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
    " AND TABLE_NAME = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
)
_COLUMNS = (
    "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA,"
    " COLUMN_COMMENT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    " ORDER BY ORDINAL_POSITION"
)
_INDEXES = (
    "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART, INDEX_TYPE, {visible} AS VISIBLE"
    " FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY INDEX_NAME, SEQ_IN_INDEX"
)


def _read_column(row: Mapping[str, Any]) -> ColumnRow:
    return ColumnRow(
        name=row["COLUMN_NAME"],
        type=_decode_text(row["COLUMN_TYPE"]),
        nullable=row["IS_NULLABLE"] == "YES",
        default=None if row["COLUMN_DEFAULT"] is None else _decode_text(row["COLUMN_DEFAULT"]),
        charset=row["CHARACTER_SET_NAME"] or "",
        collate=row["COLLATION_NAME"] or "",
        extra=row["EXTRA"] or "",
        comment=row["COLUMN_COMMENT"] or "",
    )


def _read_index(row: Mapping[str, Any]) -> IndexRow:
    return IndexRow(
        index=row["INDEX_NAME"],
        unique=int(row["NON_UNIQUE"]) == 0,
        column=row["COLUMN_NAME"],
        length=None if row["SUB_PART"] is None else int(row["SUB_PART"]),
        type=row["INDEX_TYPE"],
        visible=bool(int(row["VISIBLE"])),
    )


def _decode_text(value: str | bytes) -> str:
    # MySQL returns some of these as a binary string.
    return value.decode() if isinstance(value, bytes) else value
