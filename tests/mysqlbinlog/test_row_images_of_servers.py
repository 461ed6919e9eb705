"""Rows of real servers: for all types, values decoded from row images equal those that SELECT shows."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.examples import examples
from support.loggedrows import definition_of, events_of
from support.mariadb import MariaDb, MySql, empty_database, execute, rows
from support.sourcetypes import Kind, drawn_json, kinds, text_literal

from binlake.errors import SchemaError, SourceRefused
from binlake.mysqlbinlog.model import RowKind, RowsEvent
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.mysqlbinlog.rowimage.jsonbinary import convert_to_tidb_json, decode_json
from binlake.rows.codec import RowChange, decode_transaction
from binlake.rows.codec.jsons import encode_json
from binlake.rows.schema import TableDef
from binlake.wire import binlog_pb2 as pb

pytestmark = [pytest.mark.mariadb, pytest.mark.long]

Shown = dict[int, list[Any]]
"""By id, the visible values of a row."""


class OneTable:
    """A schema of one table."""

    def __init__(self, table: TableDef) -> None:
        self._table = table

    def find_table(self, _table_id: int) -> TableDef | None:
        """The only table."""
        return self._table

    def is_gone(self, _table_id: int) -> bool:
        """Never called."""
        return False


@pytest.fixture(scope="module", params=["mariadb_source", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """A server with an empty database `images`."""
    with empty_database(request.getfixturevalue(request.param), "images") as server:
        yield server


def _changes(table: TableDef, events: list[RowsEvent]) -> list[RowChange]:
    [value] = encode_transactions([events], lambda _: table, 1)
    payload = pb.Binlog(tp=pb.Commit, prewrite_value=value).SerializeToString()
    return list(decode_transaction(payload, 1, 1, OneTable(table)))


def _shown(server: MariaDb, table: str, columns: list[Kind]) -> Shown:
    """The values that SELECT shows."""
    expressions = ", ".join(kind.shown.format(f"c{n}") for n, kind in enumerate(columns))
    with server.connect(conv={}) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT id, {expressions} FROM images.{table}")
        return {int(row[0]): _normalize(columns, row[1:]) for row in cursor.fetchall()}


def _normalize(columns: list[Kind], texts: Any) -> list[Any]:
    return [None if text is None else kind.seen(text) for kind, text in zip(columns, texts, strict=True)]


def _image(columns: list[Kind], image: dict[str, str | None] | None) -> tuple[int, list[Any]]:
    assert image is not None
    return int(image["id"] or 0), _normalize(columns, [image[f"c{n}"] for n in range(len(columns))])


def _differences(columns: list[Kind], decoded: Shown, shown: Shown) -> list[tuple[str, Any, Any]]:
    """(type, decoded value, shown value) of each value in which they differ."""
    assert decoded.keys() == shown.keys()
    return [
        (kind.sql, one, other)
        for number, values in decoded.items()
        for kind, one, other in zip(columns, values, shown[number], strict=True)
        if one != other
    ]


def _literals(columns: list[Kind], dice: random.Random) -> list[str]:
    return ["NULL" if dice.random() < 0.1 else kind.draw(dice) for kind in columns]


def _check(server: MariaDb, table: str, columns: list[Kind], rows: int, dice: random.Random) -> None:
    """Insert, update and delete random rows of `table`, and compare all decoded values."""
    wide = ", ".join(f"c{n} {kind.sql}" for n, kind in enumerate(columns))
    execute(server, f"DROP TABLE IF EXISTS images.{table}", f"CREATE TABLE images.{table} (id INT PRIMARY KEY, {wide})")
    definition = definition_of(server, "images", table, pk_is_handle=dice.random() < 0.5)
    inserts = [f"({n}, {', '.join(_literals(columns, dice))})" for n in range(rows)]
    inserted = events_of(server, [f"INSERT INTO images.{table} VALUES {', '.join(inserts)}"])
    first = _shown(server, table, columns)
    assert _differences(columns, dict(_image(columns, c.after) for c in _changes(definition, inserted)), first) == []
    row_values = [
        ", ".join(f"c{n} = {literal}" for n, literal in enumerate(_literals(columns, dice))) for _ in range(rows)
    ]
    updated = events_of(
        server, [f"UPDATE images.{table} SET {text} WHERE id = {n}" for n, text in enumerate(row_values)]
    )
    second = _shown(server, table, columns)
    for change in _changes(definition, updated):
        number, image = _image(columns, change.before)
        assert _differences(columns, {number: image}, {number: first.pop(number)}) == []
        number, image = _image(columns, change.after)
        first[number] = image
    assert _differences(columns, first, second) == []
    deleted = _changes(definition, events_of(server, [f"DELETE FROM images.{table}"]))
    assert _differences(columns, dict(_image(columns, c.before) for c in deleted), second) == []


@pytest.mark.drawn
def test_values_of_all_types(source: MariaDb) -> None:
    for seed in range(examples(5)):
        _check(source, "wide", kinds(source.name), 40, random.Random(seed))


def _read_column(server: MariaDb, columns: str, statements: list[str], shown: str) -> tuple[list[Any], list[Any]]:
    """Column `c` as decoded after each of `statements`, and as SELECT shows it after all of them, by id."""
    execute(server, "DROP TABLE IF EXISTS images.t", f"CREATE TABLE images.t (id INT PRIMARY KEY, {columns})")
    definition = definition_of(server, "images", "t", pk_is_handle=True)
    latest: dict[str | None, str | None] = {}
    for change in _changes(definition, events_of(server, statements)):
        assert change.after is not None
        latest[change.after["id"]] = change.after["c"]
    shown_rows = rows(server, f"SELECT {shown} FROM images.t ORDER BY id")
    return [latest[number] for number in sorted(latest, key=lambda text: int(text or 0))], [
        text for (text,) in shown_rows
    ]


_PATHS = (
    "$.a", "$.b[1]", '$."odd key \\" 1".x', "$.b[0]", "$.n", "$.b[last]", "$.deep.er[2].most", "$.a[0]", "$.n[last]",
    "$.a[1]", "$.b[last-1]", "$.b[99]",
)  # fmt: skip


def test_partial_documents(mysql: MySql) -> None:
    execute(mysql, "CREATE DATABASE IF NOT EXISTS images")
    dice = random.Random(1)
    document = {"a": "x" * 300, "b": [1, 2, {"c": "y" * 100}], 'odd key " 1': {"x": 1}, "deep": {"er": [0, 1, {}]}}
    statements = ["SET binlog_row_value_options = PARTIAL_JSON"]
    statements += [f"INSERT INTO images.t VALUES ({n}, 0, {text_literal(json.dumps(document))})" for n in range(20)]
    for _ in range(200):
        value = f"CAST({text_literal(json.dumps(drawn_json(dice, 3)))} AS JSON)"
        path, number = f"'{dice.choice(_PATHS)}'".replace("\\", "\\\\"), dice.randrange(20)
        change = dice.choice((f"SET(c, {path}, {value}", f"REMOVE(c, {path}", f"REPLACE(c, {path}, {value}"))
        statements.append(f"UPDATE images.t SET v = v + 1, c = JSON_{change}) WHERE id = {number}")
    decoded, shown = _read_column(mysql, "v INT, c JSON", statements, "CAST(c AS CHAR)")
    assert [json.loads(text) for text in decoded] == [json.loads(text) for text in shown]
    kinds_logged = {event.kind for event in events_of(mysql, [*statements[:1], *statements[-20:]])}
    assert RowKind.PARTIAL_UPDATE in kinds_logged


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("CAST(1.50 AS JSON)", "1.5"),
        ("CAST(-12345678901234567890.5 AS JSON)", "-12345678901234567000.0"),
        ("CAST(DATE'2026-02-03' AS JSON)", '"2026-02-03"'),
        ("CAST(TIMESTAMP'2026-02-03 04:05:06.789' AS JSON)", '"2026-02-03 04:05:06.789000"'),
        ("CAST(TIME'-12:34:56.5' AS JSON)", '"-12:34:56.500000"'),
        ("JSON_ARRAY(X'01FF', b'101')", '["base64:type15:Af8=", "base64:type15:BQ=="]'),
        ("CAST(18446744073709551615 AS JSON)", "18446744073709551615"),
        ("JSON_OBJECT('bb', 1, 'a', 2)", '{"a": 2, "bb": 1}'),
    ],
)
def test_documents_with_values_that_json_text_lacks(mysql: MySql, value: str, text: str) -> None:
    execute(mysql, "CREATE DATABASE IF NOT EXISTS images")
    decoded, _ = _read_column(mysql, "c JSON", [f"INSERT INTO images.t VALUES (1, {value})"], "CAST(c AS CHAR)")
    assert decoded == [text]


def test_documents_byte_by_byte(mysql: MySql) -> None:
    """Direct conversion equals decoding by values; a damaged document raises one of the expected errors."""
    execute(mysql, "CREATE DATABASE IF NOT EXISTS images", "DROP TABLE IF EXISTS images.t")
    execute(mysql, "CREATE TABLE images.t (c JSON)")
    dice = random.Random(2)
    drawn = [drawn_json(dice) for _ in range(150)] + [{f"k{n}": n for n in range(7000)}, list(range(70_000))]
    rows_of = ", ".join(f"({text_literal(json.dumps(document))})" for document in drawn)
    documents = [
        row[5:] if row[0] == 0 else b""
        for event in events_of(mysql, [f"INSERT INTO images.t VALUES {rows_of}"])
        for row in _rows_of(event.rows)
    ]
    assert len(documents) == len(drawn)
    for raw in documents:
        assert convert_to_tidb_json(raw) == encode_json(decode_json(raw))
        for size in {*range(1, min(len(raw), 40)), len(raw) - 1} - {0}:
            with contextlib.suppress(ValueError, IndexError):
                convert_to_tidb_json(raw[:size])


def _rows_of(data: bytes) -> Iterator[bytes]:
    """The rows of a table with one JSON column."""
    while data:
        size = 5 + int.from_bytes(data[1:5], "little")
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize("fsp", range(7))
@pytest.mark.parametrize("kind", ["TIME", "DATETIME", "TIMESTAMP"])
def test_old_temporal_types_of_mariadb(mariadb_source: MariaDb, kind: str, fsp: int) -> None:
    server = mariadb_source
    execute(server, "CREATE DATABASE IF NOT EXISTS images")
    before = "" if kind == "TIME" else "2026-02-03 "
    texts = [f"{before}04:05:06.123456", f"{before}23:59:59.999999", f"{before}00:00:00"]
    texts += ["-838:59:59", "838:59:59", "-00:00:01.5"] if kind == "TIME" else ["2001-12-31 23:59:59"]
    values = ", ".join(f"({n}, {text_literal(text)})" for n, text in enumerate(texts))
    execute(server, "SET GLOBAL mysql56_temporal_format = OFF")
    try:
        decoded, shown = _read_column(
            server, f"c {kind}({fsp}) NULL", [f"INSERT INTO images.t VALUES {values}"], "CONCAT(c)"
        )
    finally:
        execute(server, "SET GLOBAL mysql56_temporal_format = ON")
    assert decoded == shown


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_partial_images_are_refused(source: MariaDb, image: str) -> None:
    execute(source, "DROP TABLE IF EXISTS images.t", "CREATE TABLE images.t (id INT PRIMARY KEY, v INT, b TEXT)")
    statements = ["INSERT INTO images.t VALUES (1, 2, 'x')", "UPDATE images.t SET v = 3"]
    events = events_of(source, [f"SET binlog_row_image = {image}", *statements])
    with pytest.raises(SourceRefused, match=r"the source does not log whole rows .*table=images\.t.*binlog_row_image"):
        _changes(definition_of(source, "images", "t"), events)


def test_unsupported_types_are_refused(source: MariaDb) -> None:
    execute(source, "DROP TABLE IF EXISTS images.t", "CREATE TABLE images.t (id INT PRIMARY KEY, g TEXT)")
    definition = definition_of(source, "images", "t")
    execute(source, "ALTER TABLE images.t MODIFY g GEOMETRY")
    events = events_of(source, ["INSERT INTO images.t VALUES (1, POINT(1, 2))"])
    with pytest.raises(SchemaError, match="column g has a type that cannot be replicated: geometry"):
        _changes(definition, events)


def test_virtual_and_stored_columns(source: MariaDb) -> None:
    columns = (
        "c VARCHAR(9), v INT AS (id + 1) VIRTUAL, s INT AS (id + 2) STORED, w VARCHAR(9) AS (CONCAT(c, 'x')) VIRTUAL"
    )
    execute(source, "DROP TABLE IF EXISTS images.t", f"CREATE TABLE images.t (id INT PRIMARY KEY, {columns})")
    statements = [
        "INSERT INTO images.t (id, c) VALUES (1, 'a')",
        "UPDATE images.t SET c = NULL",
        "DELETE FROM images.t",
    ]
    changes = _changes(definition_of(source, "images", "t"), events_of(source, statements))
    first, second = {"id": "1", "c": "a", "s": "3"}, {"id": "1", "c": None, "s": "3"}
    assert [(c.before, c.after) for c in changes] == [(None, first), (first, second), (second, None)]
