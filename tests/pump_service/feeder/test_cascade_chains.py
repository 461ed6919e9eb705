"""Chains of foreign keys through tables that are left out, and keys whose tables get other names (real servers).

Only the change of the first table is in the log: rows of a followed table at the end of the chain change without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.mariadb import MariaDb, execute, rows
from support.sourcelog import end_of, source_of, transactions_until_now

from binlake.errors import SchemaError
from binlake.mysqlbinlog.model import Flavor
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.pump_service.feeder.catalog import Catalog, SourceNames
from binlake.pump_service.feeder.server import connect
from binlake.pump_service.feeder.snapshot.structures import describe_source
from binlake.pump_service.feeder.tracker import ScratchServer

TABLES = (
    "CREATE TABLE a (id INT PRIMARY KEY, code INT UNIQUE, v INT)",
    "CREATE TABLE out_b (id INT PRIMARY KEY, a INT, code INT UNIQUE,"
    " FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE, FOREIGN KEY (code) REFERENCES a (code) ON UPDATE CASCADE)",
    "CREATE TABLE far.d (id INT PRIMARY KEY, b INT, FOREIGN KEY (b) REFERENCES casc.out_b (id) ON DELETE CASCADE)",
    "CREATE TABLE c (id INT PRIMARY KEY, b INT, FOREIGN KEY (b) REFERENCES out_b (id) ON DELETE SET NULL)",
    "CREATE TABLE e (id INT PRIMARY KEY, d INT, FOREIGN KEY (d) REFERENCES far.d (id) ON DELETE CASCADE)",
    "CREATE TABLE f (id INT PRIMARY KEY, code INT, FOREIGN KEY (code) REFERENCES out_b (code) ON UPDATE CASCADE)",
    "CREATE TABLE out_g (id INT PRIMARY KEY, h INT UNIQUE, FOREIGN KEY (h) REFERENCES a (id) ON DELETE SET NULL)",
    "CREATE TABLE i (id INT PRIMARY KEY, g INT, FOREIGN KEY (g) REFERENCES out_g (id) ON UPDATE CASCADE)",
    "CREATE TABLE out_new (id INT PRIMARY KEY, a INT)",
    "CREATE TABLE j (id INT PRIMARY KEY, n INT, FOREIGN KEY (n) REFERENCES out_new (id) ON DELETE CASCADE)",
    "INSERT INTO a VALUES (1, 10, 0), (2, 20, 0), (3, NULL, 0), (4, NULL, 0)",
    "INSERT INTO out_b VALUES (1, 1, NULL), (2, NULL, 20)",
    "INSERT INTO far.d VALUES (1, 1)",
    "INSERT INTO c VALUES (1, 1)",
    "INSERT INTO e VALUES (1, 1)",
    "INSERT INTO f VALUES (1, 20)",
    "INSERT INTO out_g VALUES (1, 3)",
    "INSERT INTO i VALUES (1, 1)",
    "INSERT INTO out_new VALUES (4, 4)",
    "INSERT INTO j VALUES (1, 4)",
)
FAR = "SELECT COUNT(*) FROM casc.c WHERE b IS NOT NULL UNION ALL SELECT COUNT(*) FROM casc.e"
LINK = "ALTER TABLE out_new ADD FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE"


@pytest.fixture
def server(mariadb_source: MariaDb) -> Iterator[MariaDb]:
    """A server that does not log what its foreign keys change."""
    execute(mariadb_source, "CREATE DATABASE casc", "CREATE DATABASE far", "USE casc", *TABLES)
    yield mariadb_source
    execute(mariadb_source, "SET foreign_key_checks = 0", "DROP DATABASE casc", "DROP DATABASE IF EXISTS far")


@pytest.fixture
def feeder(server: MariaDb) -> Iterator[Feeder]:
    with closing(Feeder(server)) as made:
        yield made


def is_ignored(db: str, table: str) -> bool:
    """ignore-tables = ["casc.out_*", "far.*"]."""
    return db != "casc" or table.startswith("out_")


class Feeder:
    """A catalog that begins now, and is made again from its jobs after each statement and each row."""

    def __init__(self, server: MariaDb) -> None:
        self.server, self.jobs = server, list[dict[str, Any]]()
        self.names = SourceNames("s1", Flavor.MARIADB, ignores=is_ignored)
        arguments = {"host": server.host, "port": server.port, "user": server.user}
        self._tracker = ScratchServer("s1", Flavor.MARIADB, arguments)
        self.position = end_of(server)
        link = connect(source_of(server))
        try:
            found = [database for database in describe_source(link) if database.name in ("casc", "far")]
        finally:
            link.close()
        catalog = self.restart()
        self.jobs += [change.build_job(1, 1) for change in catalog.adopt("s1", found)]

    def restart(self) -> Catalog:
        return Catalog([self.names], {"s1": self._tracker}, self.jobs)

    def close(self) -> None:
        self._tracker.close()

    def read(self, *statements: str) -> list[bytes]:
        """Run the statements; returns the values of the rows that they logged. Raises what the feeder would."""
        execute(self.server, "USE casc", *statements)
        values = list[bytes]()
        catalog = self.restart()
        for transaction in transactions_until_now(self.server, self.position):
            if transaction.statement is not None:
                changes = catalog.follow_all("s1", [transaction.statement])
                self.jobs += [change.build_job(1, 1) for change in changes]
                continue
            for now in (catalog, self.restart()):
                guard = now.build_cascade_guard("s1")
                definition_of = lambda event, now=now: now.find_definition("s1", event)  # noqa: E731
                values += encode_transactions([transaction.changes], definition_of, 1, guard=guard)
        return values


@pytest.mark.parametrize(
    ("statement", "child", "through"),
    [
        ("DELETE FROM a WHERE id = 1", "casc.c", "casc.out_b"),
        ("DELETE FROM a WHERE id = 1", "casc.e", "casc.out_b, far.d"),
        ("UPDATE a SET code = 21 WHERE id = 2", "casc.f", "casc.out_b"),
        ("DELETE FROM out_b WHERE id = 1", "casc.e", "far.d"),
        ("DELETE FROM out_b WHERE id = 1", "casc.c", ""),
        ("REPLACE INTO a VALUES (1, 10, 5)", "casc.c", "casc.out_b"),
    ],
)
def test_change_that_may_cascade_through_tables_left_out_is_refused(
    server: MariaDb, feeder: Feeder, statement: str, child: str, through: str
) -> None:
    """R-11. Each child alone: the others have no such key."""
    others = {"casc.c", "casc.e", "casc.f"} - {child}
    drop = [f"DROP TABLE {other}" for other in sorted(others)]
    before = rows(server, FAR)
    with pytest.raises(SchemaError, match="may have changed rows that are not in the log") as refused:
        feeder.read(*drop, statement)
    assert (refused.value.where["rows_of"], refused.value.where.get("through", "")) == (child, through)
    assert before == [(1,), (1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE a SET v = 5",
        "DELETE FROM a WHERE id = 3",
        "INSERT INTO a VALUES (9, 90, 0)",
        "DELETE FROM a WHERE id = 4",
    ],
)
def test_change_that_cannot_cascade_so_far_is_published(feeder: Feeder, statement: str) -> None:
    """SET NULL changes a column of out_g to which no key of a followed table refers; out_new has no key."""
    drop = "DROP TABLE c", "DROP TABLE e", "DROP TABLE f"
    assert any(feeder.read("SET foreign_key_checks = 1", *drop, "DROP TABLE far.d", statement))


@pytest.mark.parametrize(
    ("ddl", "statement", "child"),
    [
        ([LINK], "DELETE FROM a WHERE id = 4", "casc.j"),
        (["ALTER TABLE out_new ADD (w INT, CONSTRAINT k FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE)"],
         "DELETE FROM a WHERE id = 4", "casc.j"),
        (["ALTER TABLE out_new ADD COLUMN b INT REFERENCES a (id) ON DELETE CASCADE", "UPDATE out_new SET b = 4"],
         "DELETE FROM a WHERE id = 4", "casc.j"),
        (["CREATE TABLE out_k (id INT PRIMARY KEY, a INT REFERENCES a (id) ON DELETE CASCADE)",
          "CREATE TABLE l (id INT PRIMARY KEY, k INT, FOREIGN KEY (k) REFERENCES out_k (id) ON DELETE CASCADE)"],
         "DELETE FROM a WHERE id = 4", "casc.l"),
        ([LINK, "RENAME TABLE out_new TO far.other"], "DELETE FROM a WHERE id = 4", "casc.j"),
        ([LINK, "RENAME TABLE a TO a2"], "DELETE FROM a2 WHERE id = 4", "casc.j"),
        ([LINK, "ALTER TABLE a RENAME TO a2", "RENAME TABLE a2 TO a3"], "DELETE FROM a3 WHERE id = 4", "casc.j"),
        (["RENAME TABLE a TO a2", "ALTER TABLE out_new ADD FOREIGN KEY (a) REFERENCES a2 (id) ON DELETE CASCADE"],
         "DELETE FROM a2 WHERE id = 4", "casc.j"),
        (["ALTER TABLE a CHANGE code code2 INT"], "UPDATE a SET code2 = 21 WHERE id = 2", "casc.f"),
        (["ALTER TABLE out_b CHANGE code code2 INT"], "UPDATE a SET code = 21 WHERE id = 2", "casc.f"),
        (["ALTER TABLE out_b RENAME COLUMN code TO code2"], "UPDATE a SET code = 21 WHERE id = 2", "casc.f"),
    ],
)  # fmt: skip
def test_keys_of_tables_left_out_are_followed_in_the_log(
    feeder: Feeder, ddl: list[str], statement: str, child: str
) -> None:
    rest = ["ALTER TABLE out_b DROP FOREIGN KEY out_b_ibfk_1"] if "DELETE" in statement else []
    with pytest.raises(SchemaError, match="may have changed rows that are not in the log") as refused:
        feeder.read(*rest, *ddl, statement)
    assert refused.value.where["rows_of"] == child


@pytest.mark.parametrize(
    "ddl",
    [
        ["ALTER TABLE out_new DROP FOREIGN KEY out_new_ibfk_1"],
        ["ALTER TABLE out_new DROP CONSTRAINT IF EXISTS out_new_ibfk_1, DROP COLUMN a"],
        ["SET foreign_key_checks = 0", "DROP TABLE out_new", "SET foreign_key_checks = 1"],
        ["SET foreign_key_checks = 0", "CREATE OR REPLACE TABLE out_new (id INT PRIMARY KEY)",
         "SET foreign_key_checks = 1"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_first", [True, False], ids=["adopted", "logged"])
def test_a_key_that_is_gone_changes_nothing(server: MariaDb, ddl: list[str], is_first: bool) -> None:
    execute(server, "USE casc", "DROP TABLE c, e, f", "DROP TABLE far.d", *([LINK] if is_first else []))
    with closing(Feeder(server)) as feeder:
        assert any(feeder.read(*([] if is_first else [LINK]), *ddl, "DELETE FROM a WHERE id = 4"))


def test_a_direct_key_follows_the_new_name_of_its_parent(server: MariaDb) -> None:
    execute(
        server, "USE casc", "DROP TABLE c, e, f, i, j", "DROP TABLE far.d", "DROP TABLE out_b, out_g",
        "CREATE TABLE k (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE)",
    )  # fmt: skip
    with closing(Feeder(server)) as feeder, pytest.raises(SchemaError, match="may have changed rows") as refused:
        feeder.read("RENAME TABLE a TO a2", "CREATE TABLE a (id INT PRIMARY KEY)", "DELETE FROM a2 WHERE id = 4")
    assert refused.value.where["rows_of"] == "casc.k"
