"""The presence of keys is checked by the target's own comparison of values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.mariadb import MariaDb, execute
from support.tabledefs import col, primary, table

from binlake.config.servers import TargetSection
from binlake.rows.schema import mysqltypes as t
from binlake.target.apply.batches import find_present_keys
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb

PAIR = table(
    "pair",
    col("id", t.LONGLONG, not_null=True),
    col("name", t.VARCHAR, flen=20, not_null=True),
    col("v"),
    keys=(primary("id", "name"),),
    db="app",
)
RAW = table("raw", col("k", t.VARCHAR, flen=8, not_null=True, charset="binary"), keys=(primary("k"),), db="app")


@pytest.fixture
def session(server: MariaDb, target: TargetSection) -> Iterator[TargetSession]:
    execute(
        server,
        "CREATE TABLE app.pair (id BIGINT, name VARCHAR(20), v INT, PRIMARY KEY (id, name))",
        "CREATE TABLE app.raw (k VARBINARY(8) PRIMARY KEY)",
        "INSERT INTO app.pair VALUES (1, 'a', 0), (2, 'it''s', 0), (3, 'ö', 0)",
        "INSERT INTO app.raw VALUES (x'00FF')",
    )
    opened = TargetSession(target)
    yield opened
    opened.close()


def test_indexes_of_present_keys_are_returned(session: TargetSession) -> None:
    asked = [("1", "a"), ("1", "b"), ("2", "it's"), ("3", "ö"), ("3", "Ö")]
    assert find_present_keys(session, PAIR, asked) == [0, 2, 3]
    assert find_present_keys(session, RAW, [("00FF",), ("00FE",)]) == [0]
    assert find_present_keys(session, PAIR, []) == []


def test_keys_are_checked_in_several_queries(session: TargetSession) -> None:
    asked = [(str(number), "a") for number in range(1000, 2, -1)] + [("1", "a")]
    assert find_present_keys(session, PAIR, asked) == [len(asked) - 1]


@pytest.mark.parametrize("gone", ["DROP TABLE app.pair", "ALTER TABLE app.pair CHANGE name other VARCHAR(20)"])
def test_missing_table_or_key_column_has_no_present_keys(session: TargetSession, gone: str) -> None:
    session.execute(gone)
    assert find_present_keys(session, PAIR, [("1", "a")]) == []
