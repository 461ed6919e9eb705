"""Rows that a foreign key changes without logging: refused before damage, with ways on that work (real servers)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.mariadb import MariaDb, execute, rows
from support.sourcelog import end_of, source_of, transactions_until_now

from binlake.errors import SchemaError
from binlake.mysqlbinlog.cascades import find_cascades
from binlake.mysqlbinlog.model import Flavor
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.pump_service.feeder.catalog import Catalog, SourceNames
from binlake.pump_service.feeder.server import connect, read_logs_cascades
from binlake.pump_service.feeder.snapshot.structures import describe_source
from binlake.pump_service.feeder.tracker import ScratchServer

TABLES = (
    "CREATE TABLE casc.p (id INT PRIMARY KEY, code INT NOT NULL UNIQUE, v INT)",
    "CREATE TABLE casc.kept (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
    "CREATE TABLE casc.gone (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    "CREATE TABLE casc.moved (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES p (code) ON UPDATE SET NULL)",
    "CREATE TABLE casc.own (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES own (id) ON DELETE SET NULL)",
    "INSERT INTO casc.p VALUES (1, 10, 0), (2, 20, 0)",
    "INSERT INTO casc.gone VALUES (1, 1)",
    "INSERT INTO casc.moved VALUES (1, 20)",
    "INSERT INTO casc.own VALUES (1, NULL), (2, 1)",
)


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    source: MariaDb = request.getfixturevalue(request.param)
    execute(source, "CREATE DATABASE casc", *TABLES)
    yield source
    execute(source, "DROP DATABASE casc")


@pytest.fixture
def unlogged(mariadb_source: MariaDb) -> Iterator[MariaDb]:
    """A server that does not log what its foreign keys change."""
    execute(mariadb_source, "CREATE DATABASE casc", *TABLES)
    yield mariadb_source
    execute(mariadb_source, "DROP DATABASE casc")


def build_catalog(server: MariaDb, ignored: tuple[str, ...] = ()) -> Catalog:
    flavor = Flavor.MARIADB if server.name == "mariadb" else Flavor.MYSQL
    names = SourceNames("s1", flavor, ignores=lambda db, table: db != "casc" or table in ignored)
    tracker = ScratchServer("s1", flavor, {"host": server.host, "port": server.port, "user": server.user})
    catalog = Catalog([names], {"s1": tracker}, [])
    link = connect(source_of(server))
    try:
        catalog.adopt("s1", [database for database in describe_source(link) if database.name == "casc"])
    finally:
        link.close()
        tracker.close()
    return catalog


def publish(server: MariaDb, statement: str, ignored: tuple[str, ...] = ()) -> list[bytes]:
    """Run the statement and encode what it logged, as the feeder does."""
    catalog, start = build_catalog(server, ignored), end_of(server)
    execute(server, *statement.split(";"))
    changes = [transaction.changes for transaction in transactions_until_now(server, start)]
    guard = catalog.build_cascade_guard("s1")
    return encode_transactions(changes, lambda event: catalog.find_definition("s1", event), 1, guard=guard)


UNLOGGED = [
    ("DELETE FROM casc.p WHERE id = 1", "casc.gone", "DELETE"),
    ("UPDATE casc.p SET code = 21 WHERE id = 2", "casc.moved", "UPDATE of its key"),
    ("UPDATE casc.p SET v = 1, code = code + (id = 2)", "casc.moved", "UPDATE of its key"),
    ("REPLACE INTO casc.p VALUES (1, 10, 5)", "casc.gone", "DELETE"),
    ("DELETE FROM casc.own WHERE id = 1", "casc.own", "DELETE"),
]


@pytest.mark.parametrize(("statement", "child", "change"), UNLOGGED)
def test_change_that_may_cascade_is_refused(unlogged: MariaDb, statement: str, child: str, change: str) -> None:
    with pytest.raises(SchemaError, match="may have changed rows that are not in the log") as refused:
        publish(unlogged, statement)
    assert (refused.value.where["rows_of"], refused.value.where["change"]) == (child, change)
    assert "unlogged-cascades" in refused.value.hint


@pytest.mark.parametrize(
    ("statement", "child"),
    [("DELETE FROM casc.p WHERE id = 1", "casc.gone"), ("UPDATE casc.p SET v = 1", "casc.moved")],
)
def test_change_in_a_parent_that_is_left_out_is_refused_too(unlogged: MariaDb, statement: str, child: str) -> None:
    """Which columns of it changed is not known: it has no definition here."""
    with pytest.raises(SchemaError, match="may have changed rows that are not in the log") as refused:
        publish(unlogged, statement, ("p",))
    assert refused.value.where["rows_of"] == child


@pytest.mark.parametrize(
    ("statement", "ignored"),
    [
        ("INSERT INTO casc.p VALUES (9, 90, 0); INSERT INTO casc.own VALUES (9, 1)", ("p",)),
        ("UPDATE casc.p SET v = v + 1", ()),
        ("UPDATE casc.p SET id = 3 WHERE id = 2", ()),
        ("INSERT INTO casc.p VALUES (9, 90, 0)", ()),
        ("DELETE FROM casc.gone", ()),
        ("SET foreign_key_checks = 0; DELETE FROM casc.p", ()),
        ("DELETE FROM casc.p WHERE id = 1", ("gone",)),
    ],
)
def test_change_that_cannot_cascade_is_published(unlogged: MariaDb, statement: str, ignored: tuple[str, ...]) -> None:
    assert any(publish(unlogged, statement, ignored))


def test_server_that_logs_cascades_says_so(server: MariaDb) -> None:
    # The log's own answer: whether the row that the foreign key deletes is in it.
    start = end_of(server)
    execute(server, "DELETE FROM casc.p WHERE id = 1")
    changes = [change for transaction in transactions_until_now(server, start) for change in transaction.changes]
    assert rows(server, "SELECT * FROM casc.gone") == []
    assert ("gone" in {change.table.table for change in changes}) == logs_cascades(server)


def logs_cascades(server: MariaDb) -> bool:
    link = connect(source_of(server))
    try:
        return read_logs_cascades(link)
    finally:
        link.close()


def test_foreign_keys_are_read_from_the_definition() -> None:
    create = (
        "CREATE TABLE `c` (`a` int, `REFERENCES` int COMMENT 'FOREIGN KEY (a) REFERENCES x (b) ON DELETE CASCADE',"
        " KEY `k` (`a`), CONSTRAINT `one` FOREIGN KEY (`a`, `b`) REFERENCES `other`.`Par``ent` (`X`, `y`) ON DELETE"
        " CASCADE ON UPDATE NO ACTION, CONSTRAINT `two` FOREIGN KEY (`a`) REFERENCES `p` (`x`) ON UPDATE SET NULL,"
        " CONSTRAINT `three` FOREIGN KEY (`a`) REFERENCES `p` (`x`)) ENGINE=InnoDB"
    )
    first, second = find_cascades(("d", "c"), create)
    assert (first.parent, first.on_delete, first.on_update, first.columns) == (
        ("other", "Par`ent"),
        True,
        False,
        ("x", "y"),
    )
    assert (second.parent, second.child, second.on_delete, second.on_update) == (("d", "p"), ("d", "c"), False, True)
