"""A full load from real servers: one position for all sessions, each row once, no rows read by a changed definition."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from support import tabledefs as d
from support.mariadb import MariaDb, MySql, execute, rows
from support.snapshots import images, opened, reader_of

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, mask_four_byte_characters
from binlake.mysqlbinlog.model import Flavor
from binlake.mysqlbinlog.tablerows.ranges import Chunks
from binlake.pump_service.feeder.server import Link, ask
from binlake.pump_service.feeder.snapshot.opening import SourceSnapshots, open_snapshot
from binlake.pump_service.feeder.snapshot.reading import SnapshotChanged
from binlake.pump_service.feeder.snapshot.structures import describe_source, estimate_rows, read_create_text
from binlake.rows.schema import mysqltypes as t

pytestmark = pytest.mark.mariadb

DB = "snap"


@pytest.fixture(params=["mariadb_source", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """A server of each family with an empty database."""
    server: MariaDb = request.getfixturevalue(request.param)
    execute(server, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    yield server
    execute(server, f"DROP DATABASE {DB}")


def test_all_sessions_see_the_rows_of_one_position(source: MariaDb) -> None:
    """The GTID counts the transactions; each session has as many rows, whatever is written meanwhile."""
    execute(source, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY AUTO_INCREMENT, n INT)")
    with opened(source, 1) as snapshot:
        before = _transactions(snapshot)
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        with source.connect() as link:
            while not stop.is_set():
                ask(link, f"INSERT INTO {DB}.t (n) VALUES (1)")
                wrote.set()

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        assert wrote.wait(30)
        seen = []
        for _ in range(3):
            with opened(source, 3, [(DB, "t")]) as snapshot:
                counts = {ask(session, f"SELECT COUNT(*) FROM {DB}.t")[0][0] for session in snapshot.sessions}
                assert len(snapshot.sessions) == 3
                assert counts == {_transactions(snapshot) - before}
                seen.append(counts.pop())
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert seen == sorted(seen)
    assert seen[0] > 0


def _transactions(snapshot: SourceSnapshots) -> int:
    return int(snapshot.position.gtids.replace(":", "-").rsplit("-", 1)[1])


def test_without_reload_the_tables_are_locked_instead_of_the_server(mysql: MySql) -> None:
    """As in most clouds, where users have no RELOAD."""
    execute(
        mysql,
        f"DROP DATABASE IF EXISTS {DB}",
        f"CREATE DATABASE {DB}",
        f"CREATE TABLE {DB}.t (id INT PRIMARY KEY)",
        "DROP USER IF EXISTS reader",
        "CREATE USER reader IDENTIFIED BY ''",
        "GRANT SELECT, LOCK TABLES, REPLICATION CLIENT ON *.* TO reader",
    )
    locks: list[str] = []

    def connect() -> Link:
        link = mysql.connect(user="reader")
        query = link.query

        def noted(sql: str, unbuffered: bool = False) -> int:
            locks.extend([str(sql)] * str(sql).startswith(("FLUSH", "LOCK")))
            return query(sql, unbuffered)

        link.query = noted  # type: ignore[method-assign]
        return link

    with open_snapshot(connect, Flavor.MYSQL, 2, [(DB, "t")]) as snapshot:
        assert [lock.split()[0] for lock in locks] == ["FLUSH", "LOCK"]
        assert snapshot.position.gtids
        execute(mysql, f"INSERT INTO {DB}.t VALUES (1)")  # the lock is released
        assert [ask(session, f"SELECT COUNT(*) FROM {DB}.t")[0][0] for session in snapshot.sessions] == [0, 0]
    execute(mysql, f"DROP DATABASE {DB}", "DROP USER reader")


def test_a_server_without_a_log_is_refused(mariadb: MariaDb) -> None:
    with pytest.raises(SourceRefused, match=r"no binary log.*--log-bin"):
        opened(mariadb)


KEYS = {
    "int with holes": ("id INT PRIMARY KEY", d.col("id", t.LONG, not_null=True), "seq * seq"),
    "negative": ("id BIGINT PRIMARY KEY", d.col("id", t.LONGLONG, not_null=True), "seq * 977 - 500000"),
    "text of a collation": (
        "id VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY",
        d.col("id", t.VARCHAR, not_null=True, flen=20),
        "CONCAT(IF(seq % 2, 'Ä''\\\\', 'b'), seq)",
    ),
    "bytes": (
        "id BINARY(8) PRIMARY KEY",
        d.col("id", t.STRING, not_null=True, flen=8, charset="binary"),
        "UNHEX(LPAD(HEX(seq * 7919), 16, '0'))",
    ),
    "decimal": (
        "id DECIMAL(12,3) PRIMARY KEY",
        d.col("id", t.NEWDECIMAL, not_null=True, flen=12, decimal=3),
        "seq / 8",
    ),
    "moment": (
        "id DATETIME(3) PRIMARY KEY",
        d.col("id", t.DATETIME, not_null=True, decimal=3),
        "'2024-01-01' + INTERVAL seq * 1.25 SECOND",
    ),
    "no order in SQL": ("id DOUBLE PRIMARY KEY", d.col("id", t.DOUBLE, not_null=True), "seq * 2e0"),
    "no key": ("id INT", d.col("id", t.LONG), "seq % 10"),
}
"""Column, definition, value of the row number `seq`."""


@pytest.mark.parametrize("kind", KEYS)
def test_chunks_have_each_row_once(source: MariaDb, kind: str) -> None:
    column, definition, expression = KEYS[kind]
    handle, keyed = definition["type"]["Tp"] in t.INTEGERS, "PRIMARY" in column
    flag = definition["type"]["Flag"] | (t.FLAG_PRIMARY if keyed else 0)
    definition = {**definition, "type": {**definition["type"], "Flag": flag}}
    keys = (d.primary("id"),) if keyed and not handle else ()
    table = d.table("t", definition, keys=keys, db=DB, pk_is_handle=handle and keyed)
    numbers = "WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < 700) SELECT seq FROM n"
    execute(source, f"CREATE TABLE {DB}.t ({column})", f"INSERT INTO {DB}.t SELECT {expression} FROM ({numbers}) s")
    with opened(source) as snapshot:
        reader, progress = reader_of(source, snapshot, table, chunk_rows=64, most_rows=40)
        read = Counter(str(row["id"]) for row in images(reader, table))
    shown = "HEX(id)" if kind == "bytes" else "CAST(id AS CHAR)"
    assert read == Counter(text for (text,) in rows(source, f"SELECT {shown} FROM {DB}.t"))
    state = progress.to_json()
    assert state["rows"] == 700
    assert state["by_table"][f"{DB}.t"]["chunks"] == (1 if kind.startswith("no ") else 11)
    assert state["tables_done"] == 1


def test_ranges_of_a_table_are_bounded_by_the_first_column_of_its_key(source: MariaDb) -> None:
    execute(source, f"CREATE TABLE {DB}.t (a INT, b INT, PRIMARY KEY (a, b))")
    execute(source, f"INSERT INTO {DB}.t VALUES (1,1),(1,2),(1,3),(2,1),(2,2),(3,1)")
    keyed = d.table("t", d.col("a"), d.col("b"), keys=(d.primary("a", "b"),), db=DB)
    chunks = Chunks((DB, "t"), keyed, 2)
    with source.connect() as link:
        ranges = [chunk.where for chunk in iter(lambda: chunks.take(link), None) if chunk]
    assert ranges == ["`a` <= 1", "`a` > 1 AND `a` <= 2", "`a` > 2"]


@pytest.mark.parametrize("ddl", ["ADD COLUMN z INT DEFAULT 5", "DROP COLUMN n", "MODIFY n VARCHAR(30)"])
def test_a_definition_that_changes_during_the_snapshot_ends_the_reading(source: MariaDb, ddl: str) -> None:
    """MariaDB shows the old rows with the new columns, without any error."""
    execute(source, f"CREATE TABLE {DB}.t (id INT, n INT)", f"INSERT INTO {DB}.t VALUES (1, 1)")
    table = d.table("t", d.col("id"), d.col("n"), db=DB)
    with opened(source, 2) as snapshot:
        reader, _ = reader_of(source, snapshot, table)
        execute(source, f"ALTER TABLE {DB}.t {ddl}")
        with pytest.raises(SnapshotChanged, match=rf"changed.*table={DB}\.t"):
            list(reader.read_values())


def test_elements_that_the_server_cannot_show_do_not_change_the_definition(source: MariaDb) -> None:
    """Servers show `?` for four-byte characters: the definition has the characters, its current text does not."""
    execute(source, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, e ENUM('🐬', 'b'))")
    with source.connect() as link:
        table_info = next(database for database in describe_source(link) if database.name == DB).tables[0]
        assert "'🐬','b'" in table_info.create
        assert read_create_text(link, (DB, "t")) == mask_four_byte_characters(table_info.create)


def test_structures_are_compared_without_the_next_auto_increment(source: MariaDb) -> None:
    execute(source, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY AUTO_INCREMENT)", f"CREATE VIEW {DB}.v AS SELECT 1")

    def read() -> DatabaseDescription:
        with source.connect() as link:
            return next(database for database in describe_source(link) if database.name == DB)

    first = read()
    assert [table.name for table in first.tables] == ["t"]
    execute(source, f"INSERT INTO {DB}.t VALUES (41)")
    assert first == read()
    execute(source, f"ALTER TABLE {DB}.t ADD COLUMN b INT")
    assert first != read()


def test_a_table_without_consistent_snapshots_is_refused_and_named(source: MariaDb) -> None:
    execute(source, f"CREATE TABLE {DB}.t (id INT) ENGINE = MyISAM")
    with source.connect() as link, pytest.raises(SourceRefused, match=rf"{DB}\.t.*InnoDB"):
        estimate_rows(link, [(DB, "t")])
