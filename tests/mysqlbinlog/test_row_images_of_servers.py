"""Rows of real servers: what is decoded from their logs' row images is what SELECT shows, for all types."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.examples import examples
from support.loggedrows import definition_of, events_of
from support.mariadb import MariaDb, execute
from support.sourcetypes import Kind, kinds

from binlake.mysqlbinlog.model import RowsEvent
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.rows.codec import RowChange, decode_transaction
from binlake.rows.schema import TableDef
from binlake.wire import binlog_pb2 as pb

pytestmark = [pytest.mark.mariadb, pytest.mark.long]

Shown = dict[int, list[Any]]
"""By id, what is seen of the values of a row."""


class OneTable:
    """A schema of one table."""

    def __init__(self, table: TableDef) -> None:
        self._table = table

    def table(self, _table_id: int) -> TableDef | None:
        """That table."""
        return self._table

    def is_gone(self, _table_id: int) -> bool:
        """It is not."""
        return False


@pytest.fixture(scope="module", params=["mariadb_source", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """A server with an empty database `images`."""
    server: MariaDb = request.getfixturevalue(request.param)
    execute(server, "DROP DATABASE IF EXISTS images", "CREATE DATABASE images")
    yield server
    execute(server, "DROP DATABASE images")


def _changes(table: TableDef, events: list[RowsEvent]) -> list[RowChange]:
    [value] = encode_transactions([events], lambda _: table, 1)
    payload = pb.Binlog(tp=pb.Commit, prewrite_value=value).SerializeToString()
    return list(decode_transaction(payload, 1, 1, OneTable(table)))


def _shown(server: MariaDb, table: str, columns: list[Kind]) -> Shown:
    """What SELECT shows."""
    expressions = ", ".join(kind.shown.format(f"c{n}") for n, kind in enumerate(columns))
    with server.connect(conv={}) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT id, {expressions} FROM images.{table}")
        return {int(row[0]): _seen(columns, row[1:]) for row in cursor.fetchall()}


def _seen(columns: list[Kind], texts: Any) -> list[Any]:
    return [None if text is None else kind.seen(text) for kind, text in zip(columns, texts, strict=True)]


def _image(columns: list[Kind], image: dict[str, str | None] | None) -> tuple[int, list[Any]]:
    assert image is not None
    return int(image["id"] or 0), _seen(columns, [image[f"c{n}"] for n in range(len(columns))])


def _differences(columns: list[Kind], decoded: Shown, shown: Shown) -> list[tuple[str, Any, Any]]:
    """(type, what is decoded, what is shown) of each value in which they differ."""
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
    """Drawn rows of `table` are written, changed and deleted."""
    wide = ", ".join(f"c{n} {kind.sql}" for n, kind in enumerate(columns))
    execute(server, f"DROP TABLE IF EXISTS images.{table}", f"CREATE TABLE images.{table} (id INT PRIMARY KEY, {wide})")
    definition = definition_of(server, "images", table, pk_is_handle=dice.random() < 0.5)
    inserts = [f"({n}, {', '.join(_literals(columns, dice))})" for n in range(rows)]
    inserted = events_of(server, [f"INSERT INTO images.{table} VALUES {', '.join(inserts)}"])
    first = _shown(server, table, columns)
    assert _differences(columns, dict(_image(columns, c.after) for c in _changes(definition, inserted)), first) == []
    places = [", ".join(f"c{n} = {literal}" for n, literal in enumerate(_literals(columns, dice))) for _ in range(rows)]
    updated = events_of(server, [f"UPDATE images.{table} SET {text} WHERE id = {n}" for n, text in enumerate(places)])
    second = _shown(server, table, columns)
    for change in _changes(definition, updated):
        number, image = _image(columns, change.before)
        assert _differences(columns, {number: image}, {number: first.pop(number)}) == []
        number, image = _image(columns, change.after)
        first[number] = image
    assert _differences(columns, first, second) == []
    deleted = _changes(definition, events_of(server, [f"DELETE FROM images.{table}"]))
    assert _differences(columns, dict(_image(columns, c.before) for c in deleted), second) == []


def test_all_types(source: MariaDb) -> None:
    for seed in range(examples(5)):
        _check(source, "wide", kinds(source.name), 40, random.Random(seed))
