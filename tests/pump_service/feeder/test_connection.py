"""The log of real servers, read as a replica: every transaction once, in order, from every position."""

from __future__ import annotations

import pytest
from support.mariadb import MariaDb, execute
from support.sourcelog import end_of, transactions_until_now

from binlake.mysqlbinlog.model import RowKind, SourceTransaction

_STATEMENTS = (
    "CREATE DATABASE logread",
    "CREATE TABLE logread.t (id INT UNSIGNED PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1, e ENUM('a', 'ä'))",
    "INSERT INTO logread.t VALUES (1, 'ä', 'ä'), (2, NULL, NULL)",
    "UPDATE logread.t SET v = 'b' WHERE id = 1",
    "BEGIN",
    "INSERT INTO logread.t (id) VALUES (3)",
    "SAVEPOINT a",
    "INSERT INTO logread.t (id) VALUES (4)",
    "ROLLBACK TO SAVEPOINT a",
    "DELETE FROM logread.t WHERE id = 2",
    "COMMIT",
    "CREATE TABLE logread.copied AS SELECT id FROM logread.t",
    "CREATE TABLE logread.plain (a INT) ENGINE = MyISAM",
    "INSERT INTO logread.plain VALUES (1)",
    "XA START 'x1'",
    "INSERT INTO logread.t (id) VALUES (10)",
    "XA END 'x1'",
    "XA PREPARE 'x1'",
    "XA COMMIT 'x1'",
    "XA START 'x2'",
    "INSERT INTO logread.t (id) VALUES (11)",
    "XA END 'x2'",
    "XA PREPARE 'x2'",
    "XA ROLLBACK 'x2'",
    "DROP TABLE logread.plain",
    "DROP DATABASE logread",
)
_I, _U, _D = RowKind.INSERT, RowKind.UPDATE, RowKind.DELETE
_EXPECTED: list[str | list[tuple[RowKind, str]]] = [
    "CREATE DATABASE",
    "CREATE TABLE",
    [(_I, "t")],
    [(_U, "t")],
    [(_I, "t"), (_D, "t")],
    "CREATE TABLE",
    [(_I, "copied")],
    "CREATE TABLE",
    [(_I, "plain")],
    [],  # prepared
    [(_I, "t")],  # committed
    [],  # prepared
    [],  # rolled back
    "DROP TABLE",
    "DROP DATABASE",
]


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> MariaDb:
    source_server: MariaDb = request.getfixturevalue(request.param)
    return source_server


def _seen(transaction: SourceTransaction) -> str | list[tuple[RowKind, str]]:
    if transaction.statement is not None:
        assert transaction.changes == ()
        return " ".join(transaction.statement.text.split()[:2])
    return [(change.kind, change.table.table) for change in transaction.changes]


def test_every_transaction_comes_once_and_in_order_from_every_position(server: MariaDb) -> None:
    start = end_of(server)
    execute(server, *_STATEMENTS)
    everything = transactions_until_now(server, start)
    assert [_seen(transaction) for transaction in everything] == _EXPECTED
    assert len({transaction.id for transaction in everything}) == len(everything)
    end = end_of(server)
    assert everything[-1].end == end
    for index, transaction in enumerate(everything[:-1]):
        later = transactions_until_now(server, transaction.end)
        # A definition and its rows are one transaction of the source: both come again.
        expected = everything[index + (0 if transaction.id.endswith("/ddl") else 1) :]
        assert [(each.id, each.changes, each.end) for each in later] == [
            (each.id, each.changes, each.end) for each in expected
        ]
