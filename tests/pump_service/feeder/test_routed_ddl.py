"""DDL of a MySQL source under DM's lists and routes: DM's test vectors (data-migration 6.11), from statement to text.

The session's database is `test`; only s1 is replicated, as xs1. DM refuses parts of a statement by names alone; here
the definitions are known, so a copy of a table that is left out keeps its columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.followed import COPY, Followed
from support.mariadb import MariaDb

from binlake.config.model import Replication
from binlake.ddl.ddls import plan_ddls
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema import DdlJob, SchemaState, WindowDdl
from binlake.rules import Rules

pytestmark = pytest.mark.mariadb

RULES = Rules.of(
    Replication.model_validate({
        "name": "vectors", "lake": {"path": "/x"}, "block-allow-list": {"do-dbs": [f"{COPY}s1"]},
        "routes": [{"schema-pattern": f"{COPY}s1", "target-schema": "xs1"}],
    })
)  # fmt: skip
BASE = (
    "CREATE DATABASE s2",
    "CREATE DATABASE xx",
    "CREATE TABLE s1.t1 (id INT PRIMARY KEY, c2 INT)",
    "CREATE TABLE s1.t2 (id INT PRIMARY KEY)",
    "CREATE TABLE s2.t2 (id INT PRIMARY KEY)",
    "CREATE TABLE test.t2 (id INT PRIMARY KEY)",
    "CREATE TABLE test.xx (id INT PRIMARY KEY)",
)


@pytest.fixture
def followed(empty_mariadb: MariaDb) -> Iterator[Followed]:
    copy = Followed(empty_mariadb, Flavor.MARIADB, published=False)
    copy.run("CREATE DATABASE test", "CREATE DATABASE s1", db="")
    yield copy
    copy.close()


def applied(followed: Followed, skip: int) -> list[str]:
    """The texts that run at the target for the changes after the first `skip`, stripped."""
    state, texts = SchemaState(), []
    for number, raw in enumerate(followed.jobs):
        job, change = DdlJob.from_dict(raw), followed.changes[number]
        ts = job.finished_ts
        binlog = WindowDdl(ts, ts - 5, job.id, change.schema_state, change.query)
        planned = plan_ddls(state, [binlog], [(ts, job)], RULES)
        state = state.apply(job, ts)
        if number >= skip:
            texts += [ddl.sql.strip() for ddl in planned if ddl.decision == "apply"]
    return texts


def test_a_database_gets_its_routed_name_at_the_target(followed: Followed) -> None:  # S4-05
    (text,) = applied(followed, 1)
    assert text.startswith("CREATE DATABASE `xs1` ")


@pytest.mark.parametrize(
    ("statement", "texts"),
    [
        ("DROP TABLE s1.t1, s2.t2, xx", ["DROP TABLE `xs1`.`t1`"]),
        ("CREATE TABLE t1 (id INT)", []),
        ("CREATE TABLE s1.t3 LIKE s1.t2", ["CREATE TABLE `xs1`.`t3` ("]),
        ("CREATE TABLE s1.t3 LIKE t2", ["CREATE TABLE `xs1`.`t3` ("]),
        ("RENAME TABLE s1.t1 TO s2.t3", []),
        ("RENAME TABLE t2 TO t9, s1.t1 TO s1.t9", ["RENAME TABLE `xs1`.`t1` TO `xs1`.`t9`"]),
        (
            "ALTER TABLE s1.t1 ADD COLUMN c1 INT, RENAME TO xx.t2, DROP COLUMN c2",
            ["ALTER TABLE `xs1`.`t1` ADD COLUMN `c1`"],
        ),
        ("DROP DATABASE s2", []),
        ("TRUNCATE s1.t1", ["TRUNCATE TABLE `xs1`.`t1`"]),
    ],
)
def test_statements_match_the_vectors_of_dm(
    followed: Followed, statement: str, texts: list[str]
) -> None:  # S4-04 S4-05 R-28
    followed.run(*BASE, db="test")
    skip = len(followed.jobs)
    followed.run(statement, db="test")
    actual = applied(followed, skip)
    assert [text[: len(start)] for text, start in zip(actual, texts, strict=True)] == texts, actual
