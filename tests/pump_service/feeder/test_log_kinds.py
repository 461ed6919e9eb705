"""Logs of every kind that a real server writes: compressed, tagged, without checksums, with less metadata, huge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest
from support.mariadb import MariaDb, MySql, execute, rows
from support.sourcelog import end_of, transactions_until_now

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.model import BinlogPosition, RowKind, RowsEvent, SourceTransaction

_LONG = "x" * 3000
_Server = TypeVar("_Server", bound=MariaDb)


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """Each server in turn, with an empty table `logkinds.t`."""
    source_server: MariaDb = request.getfixturevalue(request.param)
    yield from _prepared(source_server)


@pytest.fixture
def mysql_server(mysql: MySql) -> Iterator[MySql]:
    yield from _prepared(mysql)


@pytest.fixture
def mariadb_server(mariadb_source: MariaDb) -> Iterator[MariaDb]:
    yield from _prepared(mariadb_source)


def _prepared(server: _Server) -> Iterator[_Server]:
    execute(server, "CREATE DATABASE logkinds", "CREATE TABLE logkinds.t (id INT UNSIGNED PRIMARY KEY, v LONGTEXT)")
    yield server
    execute(server, "DROP DATABASE logkinds")


def _read(server: MariaDb, *statements: str) -> list[SourceTransaction]:
    """Run the statements and read the transactions that they log."""
    start = end_of(server)
    execute(server, *statements)
    return transactions_until_now(server, start)


def _changes(transactions: list[SourceTransaction]) -> list[RowsEvent]:
    return [change for transaction in transactions for change in transaction.changes]


def _insert(number: int, value: str = "REPEAT('x', 3000)") -> str:
    return f"INSERT INTO logkinds.t VALUES ({number}, {value})"


def _is_row(change: RowsEvent, number: int) -> bool:
    """Whether the row of the event is (number, 3000 times x)."""
    row = number.to_bytes(4, "little") + len(_LONG).to_bytes(4, "little") + _LONG.encode()
    return change.rows[1:] == row


def test_transactions_compressed_by_mysql_are_read(mysql_server: MySql) -> None:
    seen = _read(
        mysql_server, "SET binlog_transaction_compression = ON", _insert(1), "UPDATE logkinds.t SET id = 2", _insert(3)
    )
    assert [change.kind for change in _changes(seen)] == [RowKind.INSERT, RowKind.UPDATE, RowKind.INSERT]
    assert all(transaction.size < 600 for transaction in seen)
    assert _is_row(_changes(seen)[0], 1)
    assert _is_row(_changes(seen)[2], 3)


def test_events_compressed_by_mariadb_are_read(mariadb_server: MariaDb) -> None:
    long_comment = f"ALTER TABLE logkinds.t COMMENT '{'c' * 500}'"
    try:
        seen = _read(
            mariadb_server, "SET GLOBAL log_bin_compress = ON, log_bin_compress_min_len = 10",
            _insert(1), "UPDATE logkinds.t SET id = 2", long_comment, "DELETE FROM logkinds.t",
        )  # fmt: skip
    finally:
        execute(mariadb_server, "SET GLOBAL log_bin_compress = OFF")
    insert, update, delete = _changes(seen)
    assert [insert.kind, update.kind, delete.kind] == [RowKind.INSERT, RowKind.UPDATE, RowKind.DELETE]
    assert all(transaction.size < 400 for transaction in seen)
    assert _is_row(insert, 1)
    assert _is_row(delete, 2)
    assert [transaction.statement.text for transaction in seen if transaction.statement is not None] == [long_comment]


def test_gtids_with_tags_are_read(mysql_server: MySql) -> None:
    start = end_of(mysql_server)
    execute(mysql_server, "SET gtid_next = 'AUTOMATIC:blue'", _insert(1), _insert(2))
    execute(mysql_server, _insert(3))
    seen = transactions_until_now(mysql_server, start)
    uuid = str(rows(mysql_server, "SELECT @@server_uuid")[0][0])
    assert [transaction.id for transaction in seen[:2]] == [f"{uuid}:blue:1", f"{uuid}:blue:2"]
    assert f"{uuid}:blue:1-2" in seen[2].end.gtids
    # The server is asked to continue after the set with tags.
    (last,) = transactions_until_now(mysql_server, seen[1].end)
    assert _is_row(last.changes[0], 3)


def test_domains_and_server_ids_are_read(mariadb_server: MariaDb) -> None:
    start = end_of(mariadb_server)
    execute(mariadb_server, "SET gtid_domain_id = 7", _insert(1), "SET gtid_domain_id = 0, server_id = 9", _insert(2))
    execute(mariadb_server, _insert(3))
    seen = transactions_until_now(mariadb_server, start)
    assert [transaction.id.rpartition("-")[0] for transaction in seen] == ["7-1", "0-9", "0-1"]
    assert [transaction.id for transaction in transactions_until_now(mariadb_server, seen[0].end)] == [
        transaction.id for transaction in seen[1:]
    ]


@pytest.mark.soak_on("mariadb")
@pytest.mark.long
def test_events_longer_than_a_packet_are_read(server: MariaDb) -> None:
    # A packet holds 16 MiB less one byte: one event of exactly that much, and longer ones.
    (head,) = _changes(_read(server, "INSERT INTO logkinds.t VALUES (1, '')"))
    around = (1 << 24) - 1 - 1
    sizes = [around - 200 + shift for shift in range(0, 401, 100)] + [(1 << 25) + 5]
    seen = _read(server, *(_insert(n + 2, f"REPEAT('y', {size})") for n, size in enumerate(sizes)))
    assert [len(change.rows) - len(head.rows) for change in _changes(seen)] == sizes
    assert all(change.rows.endswith(b"yyyy") for change in _changes(seen))


def test_logs_are_read_with_checksums_off_and_on_again(server: MariaDb) -> None:
    start = end_of(server)
    try:
        execute(server, _insert(1), "SET GLOBAL binlog_checksum = NONE", _insert(2))
        without = transactions_until_now(server, start)
    finally:
        execute(server, "SET GLOBAL binlog_checksum = CRC32")
    execute(server, _insert(3))
    both = transactions_until_now(server, start)
    assert [_is_row(change, n + 1) for n, change in enumerate(_changes(without))] == [True, True]
    assert [_is_row(change, n + 1) for n, change in enumerate(_changes(both))] == [True, True, True]


def test_logs_are_read_with_full_minimal_and_no_row_metadata(server: MariaDb) -> None:
    levels = ("FULL", "MINIMAL", *(() if isinstance(server, MySql) else ("NO_LOG",)))
    tables = []
    try:
        for number, level in enumerate(levels):
            execute(server, f"SET GLOBAL binlog_row_metadata = {level}", "FLUSH TABLES")
            tables += [change.table for change in _changes(_read(server, _insert(number)))]
    finally:
        execute(server, "SET GLOBAL binlog_row_metadata = FULL", "FLUSH TABLES")
    collation = 46  # utf8mb4_bin, which the tests' servers have as default
    full, minimal, *no_log = tables
    assert (full.unsigned, full.charsets, full.names, full.primary_key) == (
        (True, False), (0, collation), ("id", "v"), (0,),
    )  # fmt: skip
    assert (minimal.unsigned, minimal.charsets, minimal.names) == ((True, False), (0, collation), None)
    assert [(table.unsigned, table.charsets, table.names) for table in no_log] == [(None, None, None)] * len(no_log)
    assert {table.types for table in tables} == {full.types}


_COLUMNS = (
    "y YEAR, s INT, u INT UNSIGNED, b BIT(3), d DECIMAL(5, 1) UNSIGNED",
    "c VARCHAR(10) CHARACTER SET ascii, g POINT, k CHAR(3) CHARACTER SET gbk",
    "e ENUM('a') CHARACTER SET latin1, v VARCHAR(5), s SET('b', 'c') CHARACTER SET ucs2, e2 ENUM('x', 'y')",
    "b BLOB, t TINYTEXT CHARACTER SET latin2, f FLOAT UNSIGNED, j JSON, bin BINARY(3), z TIMESTAMP(3) NULL",
)


def test_row_metadata_matches_information_schema(server: MariaDb) -> None:
    columns = [*_COLUMNS]
    if isinstance(server, MySql):
        columns.append("v VECTOR(3), c VARCHAR(10) CHARACTER SET ascii")
    start = end_of(server)
    for number, listed in enumerate(columns):
        execute(
            server, f"CREATE TABLE logkinds.m{number} (id INT UNSIGNED, {listed}, zz VARCHAR(10) CHARACTER SET latin2)",
            f"INSERT INTO logkinds.m{number} (id) VALUES (1)",
        )  # fmt: skip
    ids = {str(name): int(number) for name, number in rows(server, _COLLATIONS)}
    changes = _changes(transactions_until_now(server, start))
    assert len(changes) == len(columns)
    for change in changes:
        table = change.table
        known = rows(server, _OF_TABLE, (table.table,))
        assert table.names == tuple(name for name, *_ in known)
        assert table.nullable == (True,) * len(known)
        for index, (name, kind, collation) in enumerate(known):
            assert table.unsigned is not None
            assert table.unsigned[index] == ("unsigned" in kind or "year" in kind), name
            assert table.charsets is not None
            if collation is not None:
                assert table.charsets[index] == ids[collation], name


_COLLATIONS = "SELECT collation_name, id FROM information_schema.collations WHERE id IS NOT NULL"
_OF_TABLE = (
    "SELECT column_name, column_type, collation_name FROM information_schema.columns"
    " WHERE table_schema = 'logkinds' AND table_name = %s ORDER BY ordinal_position"
)


def test_partial_updates_of_json_are_read(mysql_server: MySql) -> None:
    seen = _read(
        mysql_server, "CREATE TABLE logkinds.j (id INT PRIMARY KEY, j JSON)",
        """INSERT INTO logkinds.j VALUES (1, '{"a": 1, "b": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}')""",
        "SET binlog_row_value_options = PARTIAL_JSON", "UPDATE logkinds.j SET j = JSON_SET(j, '$.a', 2)",
    )  # fmt: skip
    assert [change.kind for change in _changes(seen)] == [RowKind.INSERT, RowKind.PARTIAL_UPDATE]


def test_a_statement_instead_of_rows_is_refused(server: MariaDb) -> None:
    start = end_of(server)
    execute(server, "SET binlog_format = STATEMENT", "INSERT INTO logkinds.t VALUES (1, 'secret')")
    with pytest.raises(SourceRefused, match="binlog_format = ROW"):
        transactions_until_now(server, start)


def test_temporary_tables_and_the_text_of_row_changes_are_skipped(server: MariaDb) -> None:
    noted = "binlog_rows_query_log_events" if isinstance(server, MySql) else "binlog_annotate_row_events"
    seen = _read(
        server, f"SET {noted} = ON",
        "CREATE TEMPORARY TABLE logkinds.tmp (a INT)", "INSERT INTO logkinds.tmp VALUES (7)",
        "INSERT INTO logkinds.t (id) SELECT a FROM logkinds.tmp", "DROP TEMPORARY TABLE logkinds.tmp",
    )  # fmt: skip
    assert [change.table.table for change in _changes(seen)] == ["t"]


def test_mariadbs_two_phase_alter_is_read(mariadb_server: MariaDb) -> None:
    seen = _read(
        mariadb_server, "SET binlog_alter_two_phase = ON", "ALTER TABLE logkinds.t ADD w INT, ALGORITHM = COPY"
    )
    begun, done = seen
    assert (begun.statement, begun.changes) == (None, ())
    assert done.statement is not None
    assert done.statement.text == "ALTER TABLE logkinds.t ADD w INT, ALGORITHM = COPY"


def test_mysql_is_read_without_gtids(mysql_server: MySql) -> None:
    steps = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    try:
        execute(mysql_server, *(f"SET GLOBAL gtid_mode = {step}" for step in steps))
        start = end_of(mysql_server)
        execute(mysql_server, _insert(1), "ALTER TABLE logkinds.t ADD w INT", _insert(2, "'z', 3"))
        end = end_of(mysql_server)
        seen = transactions_until_now(mysql_server, start)
        assert (start.gtids, end.gtids, seen[-1].end) == ("", "", end)
        assert [transaction.id for transaction in seen] == [
            f"{start.file}:{at.offset}" for at in (start, *(transaction.end for transaction in seen[:-1]))
        ]
        assert [transaction.id for transaction in transactions_until_now(mysql_server, seen[0].end)] == [
            transaction.id for transaction in seen[1:]
        ]
        by_gtid = BinlogPosition(start.file, start.offset, str(rows(mysql_server, "SELECT @@gtid_executed")[0][0]))
        with pytest.raises(SourceRefused, match="gtid_mode"):
            transactions_until_now(mysql_server, by_gtid, end=end)
    finally:
        execute(mysql_server, *(f"SET GLOBAL gtid_mode = {step}" for step in [*reversed(steps[:-1]), "ON"]))
    execute(mysql_server, _insert(4, "'z', 3"))
    # After the end of a file without GTIDs the next file's header has the set; nothing before it is available now.
    (with_gtid,) = transactions_until_now(mysql_server, end)
    assert with_gtid.end == end_of(mysql_server)
    with pytest.raises(SourceRefused, match="ON_PERMISSIVE until"):
        transactions_until_now(mysql_server, seen[0].end)
