"""Compare a recorded state with a target: table list, columns, types, keys, collations, and rows as a multiset.

The target is read by plain SQL. Shapes are compared except for the documented mapping of types and collations; each
exempted difference is counted under its name (docs/understand/equality.md). All other differences are texts for people;
the first few of each state are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.converters import conversions
from pymysql.cursors import SSCursor

from binlake.common.sql import Dialect
from binlake.common.sqllink import SqlLink
from binlake.compare import (
    EXPRESSION,
    ColumnStructure,
    KeyStructure,
    Raw,
    TableStructure,
    as_latin1,
    build_canonical_converter,
    decode_captured_value,
    list_exemptions,
    normalize_collation,
    normalize_type,
    parse_base_type,
    parse_create,
)
from binlake.dialect import choose_bytewise_collation
from binlake.dialect.collations import find_target_collation
from binlake.errors import TargetUnavailable, WireError
from binlake.testkit.captures.capture import Json, StateAt

SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")
_COLUMNS = """
SELECT column_name, column_type, is_nullable, collation_name, extra
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_KEYS = """
SELECT index_name, non_unique, column_name, sub_part
FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s ORDER BY index_name, seq_in_index
"""
JSON_TYPE = "JSON column: LONGTEXT on the target"
COLLATION = "collation mapped: {} is {} on the target"
LOST_DEFAULT = "latin1 column with U+FFFD as default, which latin1 lacks: utf8mb4 on the target"
GENERATED_NULL = "generated column: NOT NULL not compared"
FLOAT_BOUNDS = "FLOAT or DOUBLE: (M,D) not on the target"
BEYOND_BMP = "ENUM or SET element beyond the BMP: servers show it as ?"
EXPRESSION_KEY = "expression key: not on the target"
_MOST_DIFFERENCES = 20
SEQUENCES = "sequence: the target has none"
Row = tuple[str | None, ...]


def connect(
    host: str, port: int, user: str, password: str = "", *, unix_socket: str | None = None, timeout_s: float = 10.0
) -> Connection[Any]:
    """A connection that returns every value as the server's text (bytes for binary types). Raises TargetUnavailable."""
    try:
        return SqlLink(
            host=host,
            port=port,
            user=user,
            password=password,
            unix_socket=unix_socket,
            charset="utf8mb4",
            # Use only the encoders: without decoders the server's text stays unchanged.
            conv={kind: encode for kind, encode in conversions.items() if not isinstance(kind, int)},
            cursorclass=SSCursor,
            connect_timeout=int(max(1, timeout_s)),
            autocommit=True,
        )
    except pymysql.err.OperationalError as error:
        raise TargetUnavailable(
            f"the target cannot be compared: {error}", where={"host": host, "port": port}
        ) from error


class TargetView:
    """Reads a target through a connection made by `connect`.

    `dialect`: mariadb, mysql or tidb; `ignored`: databases that are not the source's.
    """

    def __init__(self, connection: Connection[Any], dialect: str, ignored: Sequence[str]) -> None:
        self._connection = connection
        self._dialect = dialect
        self._ignored = {*SYSTEM_DATABASES, *ignored}

    def list_databases(self) -> set[str]:
        """User databases."""
        rows = self._fetch_rows("SELECT schema_name FROM information_schema.schemata")
        return {str(name) for (name,) in rows if str(name).lower() not in self._ignored}

    def list_tables(self) -> set[tuple[str, str, str]]:
        """(database, name, BASE TABLE | VIEW | SEQUENCE) of the user databases."""
        rows = self._fetch_rows("SELECT table_schema, table_name, table_type FROM information_schema.tables")
        return {(str(db), str(name), str(kind)) for db, name, kind in rows if str(db).lower() not in self._ignored}

    def read_structure(self, db: str, name: str) -> TableStructure:
        """Columns and keys of a table."""
        columns = tuple(
            ColumnStructure(
                str(column),
                normalize_type(str(kind), backslash_escapes=self._dialect != "tidb"),
                nullable == "YES",
                normalize_collation(str(collation or "")),
                "GENERATED" in str(extra).upper(),
            )
            for column, kind, nullable, collation, extra in self._fetch_rows(_COLUMNS, (db, name))
        )
        return TableStructure(columns, frozenset(self._read_keys(db, name)))

    def read_rows(self, db: str, name: str, columns: Sequence[str], types: Sequence[str]) -> Iterator[tuple[Raw, ...]]:
        """Every row, with `columns` in this order, each as the server's text."""
        shown = ", ".join(_select_expression(column, kind) for column, kind in zip(columns, types, strict=True))
        return self._fetch_rows(f"SELECT {shown} FROM {_quote(db)}.{_quote(name)}")

    def _read_keys(self, db: str, name: str) -> Iterator[KeyStructure]:
        keys: dict[str, tuple[bool, list[tuple[str, int]]]] = {}
        for key, non_unique, column, prefix in self._fetch_rows(_KEYS, (db, name)):
            keys.setdefault(str(key), (non_unique == "0", []))[1].append((str(column), int(prefix or 0)))
        for key, (unique, columns) in keys.items():
            yield KeyStructure(key.lower(), unique, tuple(columns))

    def _fetch_rows(self, sql: str, args: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            # Without arguments pymysql formats nothing, so a % in a name stays unchanged.
            cursor.execute(sql, args or None)
            yield from cursor


def _select_expression(column: str, kind: str) -> str:
    # The text of a FLOAT is cut to 6 digits; as a DOUBLE it shows all of them.
    return f"{_quote(column)} + 0e0" if parse_base_type(kind) == "float" else _quote(column)


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class CaptureRules:
    """The rules for a target of `dialect` (mariadb, mysql, tidb); `new_collation` as in `compare_state`."""

    dialect: Dialect
    new_collation: bool = True

    def find_differences(
        self, expected: TableStructure, found: TableStructure, exempted: Counter[str]
    ) -> Iterator[str]:
        """The differences as texts; exempted ones are counted in `exempted`."""
        names = [column.name for column in expected.columns]
        found_names = [column.name for column in found.columns]
        if names != found_names:
            yield f"columns {', '.join(found_names)} instead of {', '.join(names)}"
        columns = {column.name: column for column in found.columns}
        for column in expected.columns:
            if column.name in columns:
                yield from self._compare_columns(column, columns[column.name], exempted)
        yield from self._compare_keys(expected.keys, found.keys, exempted)

    def _compare_columns(
        self, expected: ColumnStructure, found: ColumnStructure, exempted: Counter[str]
    ) -> Iterator[str]:
        if self.dialect == "mariadb" and expected.type == "json" and found.type == "longtext":
            exempted[JSON_TYPE] += 1
        elif expected.type != found.type and _replace_beyond_bmp(expected.type) == found.type:
            exempted[BEYOND_BMP] += 1
        elif expected.type != found.type and _drop_float_bounds(expected.type) == found.type:
            exempted[FLOAT_BOUNDS] += 1
        elif expected.type != found.type:
            yield f"column {expected.name} is {found.type} instead of {expected.type}"
        elif expected.collation != found.collation:
            yield from self._compare_collations(expected, found, exempted)
        if expected.nullable != found.nullable:
            if expected.generated and found.nullable:
                exempted[GENERATED_NULL] += 1
            else:
                is_now, should_be = _format_nullability(found), _format_nullability(expected)
                yield f"column {expected.name} is {is_now} instead of {should_be}"

    def _compare_collations(
        self, expected: ColumnStructure, found: ColumnStructure, exempted: Counter[str]
    ) -> Iterator[str]:
        name = expected.collation if self.new_collation else choose_bytewise_collation(expected.collation, self.dialect)
        mapped = normalize_collation(find_target_collation(name, self.dialect))
        if expected.lost_default and name.startswith("latin1_") and found.collation == "utf8mb4_bin":
            exempted[LOST_DEFAULT] += 1
        elif mapped == found.collation:
            exempted[COLLATION.format(expected.collation, found.collation)] += 1
        else:
            yield f"column {expected.name} has collation {found.collation} instead of {mapped}"

    def _compare_keys(
        self, expected: frozenset[KeyStructure], found: frozenset[KeyStructure], exempted: Counter[str]
    ) -> Iterator[str]:
        names = {key.name for key in found}
        for key in sorted(expected - found, key=str):
            if any(column == EXPRESSION for column, _ in key.columns) and key.name not in names:
                exempted[EXPRESSION_KEY] += 1
            else:
                yield f"{key} missing"
        for key in sorted(found - expected, key=str):
            yield f"{key} only on the target"


def _drop_float_bounds(type_: str) -> str:
    return re.sub(r"^(float|double)\(\d+,\d+\)", r"\1", type_)


def _replace_beyond_bmp(kind: str) -> str:
    return re.sub("[^\u0000-\uffff]", "?", kind) if kind.startswith(("enum[", "set[")) else kind


def _format_nullability(column: ColumnStructure) -> str:
    return "nullable" if column.nullable else "NOT NULL"


@dataclass
class Comparison:
    """The result for one state: compared `tables` and `rows`, `exemptions` by kind, and the first `differences`."""

    commit_ts: int
    step: str
    tables: int = 0
    rows: int = 0
    exemptions: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    @property
    def first_difference(self) -> str:
        """The first difference, or an empty text."""
        return self.differences[0] if self.differences else ""


def compare_state(
    state: StateAt,
    connection: Connection[Any],
    *,
    dialect: Dialect = "mariadb",
    ignored: Sequence[str] = ("tidb_binlog",),
    new_collation: bool = True,
) -> Comparison:
    """Compare the target of `connection` (see `connect`) with `state`; `ignored`: databases to leave out on the target.

    `new_collation`: the setting of the source cluster (a capture's meta.json has it).

    Raises WireError for an unreadable state, pymysql's errors if the target fails.
    """
    target = TargetView(connection, dialect, ignored)
    result = Comparison(state.commit_ts, state.step)
    present = target.list_tables()
    for difference in _find_differences(state, target, present, CaptureRules(dialect, new_collation), result):
        if len(result.differences) < _MOST_DIFFERENCES:
            result.differences.append(difference)
    return result


def _find_differences(
    state: StateAt, target: TargetView, present: set[tuple[str, str, str]], rules: CaptureRules, result: Comparison
) -> Iterator[str]:
    yield from _compare_lists(state, target, present, result)
    names = {(db, name) for db, name, _ in present}
    for table in state.contents:
        name_pair = (table["schema"], table["name"])
        if table.get("absent"):
            if name_pair in names:
                yield f"{table['table']}: is on the target, although the capture dropped it"
        elif table.get("kind") == "BASE TABLE" and name_pair in names:
            result.tables += 1
            yield from _compare_table(table, target, rules, result)
        elif table.get("kind") == "BASE TABLE" and state.tables is None:
            yield f"{table['table']}: missing on the target"


def _compare_lists(
    state: StateAt, target: TargetView, present: set[tuple[str, str, str]], result: Comparison
) -> Iterator[str]:
    if state.databases is not None:
        found = target.list_databases()
        yield from (f"database {name}: missing on the target" for name in sorted(set(state.databases) - found))
        yield from (f"database {name}: only on the target" for name in sorted(found - set(state.databases)))
    if state.tables is None:
        return
    has_sequences = any(kind == "SEQUENCE" for _, _, kind in present)
    for db, name, kind in sorted(set(state.tables) - present):
        if kind == "SEQUENCE" and not has_sequences:
            result.exemptions[SEQUENCES] += 1
        else:
            yield f"{db}.{name}: {kind.lower()} missing on the target"
    for db, name, kind in sorted(present - set(state.tables)):
        yield f"{db}.{name}: {kind.lower()} only on the target"


def _compare_table(table: Json, target: TargetView, rules: CaptureRules, result: Comparison) -> Iterator[str]:
    expected = parse_create(table["create"], table["types"])
    found = target.read_structure(table["schema"], table["name"])
    shape_differences = list(rules.find_differences(expected, found, result.exemptions))
    yield from (f"{table['table']}: {text}" for text in shape_differences)
    names = [column.name for column in expected.columns]
    if names != [column.name for column in found.columns]:
        # Rows of different columns cannot be compared; the difference of the columns is reported above.
        return
    yield from _compare_rows(table, target, rules.dialect, result)


def _compare_rows(table: Json, target: TargetView, dialect: Dialect, result: Comparison) -> Iterator[str]:
    columns, types = table["columns"], table["types"]
    rules = [build_canonical_converter(kind) for kind in types]
    expected = Counter(_read_expected_rows(table, rules, dialect, result))
    seen: Counter[Row] = Counter()
    for raw in target.read_rows(table["schema"], table["name"], columns, types):
        seen[tuple(rule(value) for rule, value in zip(rules, raw, strict=True))] += 1
    result.rows += expected.total()
    missing, extra = expected - seen, seen - expected
    if missing or extra:
        yield f"{table['table']}: {_describe_differences(columns, table.get('order_by') or columns, missing, extra)}"


def _read_expected_rows(table: Json, rules: Sequence[object], dialect: Dialect, result: Comparison) -> Iterator[Row]:
    for row in table["rows"]:
        if len(row) != len(rules):
            raise WireError("a row of a state has another number of columns", where={"table": table["table"]})
        raw = [decode_captured_value(value) for value in row]
        for kind, value in zip(table["types"], raw, strict=True):
            if value is not None:
                result.exemptions.update(list_exemptions(kind, value, dialect))
        texts = map(as_latin1, table["types"], raw)
        yield tuple(rule(value) for rule, value in zip(rules, texts, strict=True))  # type: ignore[operator]


def _describe_differences(
    columns: Sequence[str], key: Sequence[str], missing: Counter[Row], extra: Counter[Row]
) -> str:
    head = f"{missing.total()} rows missing, {extra.total()} too many; "
    at = [columns.index(name) for name in key if name in columns]
    if missing:
        first = min(missing, key=_sort_key)
        other = next((row for row in extra if [row[n] for n in at] == [first[n] for n in at]), None)
        if other is not None:
            where = ", ".join(f"{columns[n]}={_shorten(first[n])}" for n in at)
            cells = [f"{c}: {_shorten(t)} instead of {_shorten(e)}" for c, e, t in zip(columns, first, other) if e != t]  # noqa: B905
            return head + f"first at {where}: " + ", ".join(cells)
        return head + "first missing: " + _describe_row(columns, first)
    return head + "first too many: " + _describe_row(columns, min(extra, key=_sort_key))


def _describe_row(columns: Sequence[str], row: Row) -> str:
    return ", ".join(f"{name}={_shorten(value)}" for name, value in zip(columns, row, strict=True))


def _shorten(value: str | None) -> str:
    if value is None:
        return "NULL"
    return repr(value if len(value) <= 60 else f"{value[:57]}...")


def _sort_key(row: Row) -> tuple[tuple[bool, str], ...]:
    return tuple((value is not None, value or "") for value in row)
