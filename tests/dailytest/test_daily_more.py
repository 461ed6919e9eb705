"""Cases that upstream's tests lack (tidb-binlog 7.4); docs/understand/schema.md lists those about pumps."""

from __future__ import annotations

from typing import Any

import pytest
from daily import DB, Daily

from binlake.errors import Drift, SchemaError
from binlake.rows.schema import Action, TableDef

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


def with_raw(daily: Daily, table: TableDef, **more: Any) -> TableDef:
    """`table` with changed parts of its TableInfo."""
    return TableDef.from_json({**table.raw, **more}, daily._db)


def test_more_1_exchange_partition(daily: Daily) -> None:  # tidb-binlog 1.14 point 5
    parts = " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))"
    daily.create("p", "id INT PRIMARY KEY, v INT", options=parts)
    daily.create("plain", "id INT PRIMARY KEY, v INT")
    daily.tables["p"].definition = with_raw(daily, daily.table("p"), partition=definitions(501, 502))
    daily.run(Action.TABLE_COMMENT, "ALTER TABLE `p` COMMENT = 'parts'", "p", daily.table("p"))
    txn = daily.begin().insert("p", id=1, v=1).insert("p", id=150, v=2)
    txn.insert("plain", id=2, v=3).commit()
    daily.check()
    plain = daily.table("plain")
    p = with_raw(daily, daily.table("p"), partition=definitions(plain.id, 502))

    def effect() -> None:
        # The rows of p0 and of the plain table are exchanged, without row changes in the binlog.
        inside, outside = daily.tables["p"].rows, daily.tables["plain"].rows
        moved = [row for row in inside if int(row[1] or 0) < 100]
        daily.tables["p"].rows = [row for row in inside if row not in moved] + outside
        daily.tables["plain"].rows = moved
        daily.tables["plain"].definition = with_raw(daily, plain, id=501)

    query = "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `plain` WITH VALIDATION"
    daily.run(Action.EXCHANGE_PARTITION, query, "p", p, table_id=plain.id, effect=effect)
    daily.tables["p"].definition = p
    daily.begin().insert("plain", id=9, v=9).insert("p", id=151, v=8).commit()
    daily.check()
    assert daily.target_rows("plain") == [("1", "1"), ("9", "9")]


def definitions(*ids: int) -> dict[str, object]:
    """The `partition` of a TableInfo."""
    return {"definitions": [{"id": i, "name": {"O": f"p{n}", "L": f"p{n}"}} for n, i in enumerate(ids)]}


def test_more_2_rename_tables_swap(daily: Daily) -> None:  # R-28, tidb-binlog 1.14 point 4
    for name, value in (("a", 1), ("b", 2)):
        daily.create(name, "id INT PRIMARY KEY, v INT")
        daily.begin().insert(name, id=value, v=value).commit()
    a, b = daily.table("a"), daily.table("b")
    new_a, new_b = (with_raw(daily, b, name={"O": "a", "L": "a"}), with_raw(daily, a, name={"O": "b", "L": "b"}))

    def effect() -> None:
        first, second = daily.tables["a"], daily.tables["b"]
        first.definition, second.definition = new_b, new_a
        daily.tables = {"a": second, "b": first}

    late = daily.begin().insert("a", id=7, v=7)
    infos = (dict(new_b.raw), dict(new_a.raw), dict(new_b.raw))
    query = "RENAME TABLE `a` TO `tmp`, `b` TO `a`, `tmp` TO `b`"
    daily.run(Action.RENAME_TABLES, query, "a", new_b, many=infos, effect=effect)
    late.commit()  # this is the table that is called b now
    daily.begin().insert("a", id=8, v=8).commit()
    daily.check()
    assert daily.target_rows("a") == [("2", "2"), ("8", "8")]
    assert daily.target_rows("b") == [("1", "1"), ("7", "7")]


def test_more_3_multi_schema_change(daily: Daily) -> None:  # rows run ahead of the binlog by one step
    daily.create("t", "id INT PRIMARY KEY, a INT, b INT")
    daily.begin().insert("t", id=1, a=1, b=1).commit()
    changing = daily.altering(
        "t", "ADD COLUMN `c` INT DEFAULT 3, DROP COLUMN `a`, ADD UNIQUE INDEX `u`(`b`)", Action.MULTI_SCHEMA_CHANGE
    )
    # The writer has already seen the last step: the new column is public, the old one is gone.
    early = daily.begin().insert("t", changing.definition, id=2, b=2, c=33)
    old = daily.begin().insert("t", id=3, a=9, b=3)
    daily.version += 1
    early.commit()
    daily.version -= 1
    changing.commit()
    daily.tables["t"].rows[1][next(c.id for c in daily.table("t").columns if c.name == "c")] = "33"
    old.commit()
    daily.check()
    assert daily.target_rows("t") == [("1", "1", "3"), ("2", "2", "33"), ("3", "3", "3")]


def test_more_4_keyless_duplicates_with_float_and_json(daily: Daily) -> None:
    daily.create("t", "f FLOAT, j JSON, v VARCHAR(9)")
    row = {"f": "1.1", "j": '{"a": [1, 2]}', "v": "x"}
    txn = daily.begin()
    for _ in range(3):
        txn.insert("t", **row)
    txn.insert("t", f=None, j=None, v="X").commit()
    daily.check()
    daily.begin().delete("t", **row).update("t", row, v="X").commit()
    daily.check()
    assert sorted(str(one[2]) for one in daily.target_rows("t")) == ["X", "X", "x"]


def test_more_5_unsigned_clustered_pk_above_the_signed_range(daily: Daily) -> None:  # S4-28
    daily.create("t", "id BIGINT UNSIGNED PRIMARY KEY, v INT")
    daily.begin().insert("t", id=2**64 - 1, v=1).insert("t", id=2**63, v=2).insert("t", id=1, v=3).commit()
    daily.begin().delete("t", id=str(2**63), v="2").update("t", {"id": str(2**64 - 1), "v": "1"}, v=4).commit()
    daily.check()
    assert daily.target_rows("t") == [("1", "3"), ("18446744073709551615", "4")]


def test_more_6_keys_that_differ_in_case(daily: Daily) -> None:
    daily.create("bin", "k VARCHAR(9) PRIMARY KEY, v INT")
    daily.create("ci", "k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT")
    daily.begin().insert("bin", k="a", v=1).insert("bin", k="A", v=2).insert("ci", k="a", v=1).commit()
    daily.check()
    # One key in two spellings: an update changes only the spelling.
    daily.begin().update("ci", {"k": "a", "v": "1"}, k="A").delete("bin", k="a", v="1").commit()
    daily.check()
    assert (daily.target_rows("bin"), daily.target_rows("ci")) == ([("A", "2")], [("A", "1")])


def test_more_7_timestamps_across_a_clock_change(daily: Daily) -> None:  # tidb-binlog 5.5 (#839)
    daily.create("t", "at TIMESTAMP(6) NOT NULL DEFAULT '2001-01-01', v INT, PRIMARY KEY (at)")
    # In Berlin, 02:30 occurs twice in October and not at all in March; in UTC, all timestamps are different and exist.
    moments = ["2021-10-31 00:30:00.000000", "2021-10-31 01:30:00.000000", "2021-03-28 01:30:00.000000"]
    txn = daily.begin()
    for n, moment in enumerate(moments):
        txn.insert("t", at=moment, v=n)
    txn.commit()
    daily.check()
    assert [at for at, _ in daily.target_rows("t")] == sorted(moments)


def test_more_8_drop_of_two_tables_in_one_statement(daily: Daily) -> None:  # R-28, U-17
    for name in ("a", "b"):
        daily.create(name, "id INT PRIMARY KEY")
        daily.begin().insert(name, id=1).commit()
    daily.drop("a", "DROP TABLE `a`, `b`")
    daily.begin().insert("b", id=2).commit()  # between the two jobs
    daily.advance()
    assert daily.target_rows("b") == [("1",), ("2",)]
    daily.drop("b", "DROP TABLE `a`, `b`")
    daily.check()


def test_primary_key_added_in_the_window_identifies_later_rows(daily: Daily) -> None:  # S4-22, R-18
    daily.create("t", "a INT NOT NULL, b INT NOT NULL, v INT, UNIQUE KEY u (a)", clustered=False)
    daily.begin().insert("t", a=1, b=10, v=0).insert("t", a=2, b=20, v=0).commit()
    daily.alter("t", "DROP INDEX `u`, ADD PRIMARY KEY (`b`)", Action.ADD_PRIMARY_KEY)
    # Two rows that the former key could not hold together, and a change of the former key only.
    daily.begin().insert("t", a=1, b=30, v=1).update("t", {"a": "2", "b": "20", "v": "0"}, a=1, v=2).commit()
    daily.check()
    assert daily.target_rows("t") == [("1", "10", "0"), ("1", "20", "2"), ("1", "30", "1")]


def test_target_with_another_definition_stops_before_rows_are_written(daily: Daily) -> None:  # S4-22, R-18
    daily.create("t", "id INT PRIMARY KEY, v INT")
    daily.check()
    daily.session.execute(f"ALTER TABLE {DB}.t ADD COLUMN mine INT")
    daily.begin().insert("t", id=1, v=1).commit()
    with pytest.raises(Drift, match="column mine is the target's own"):
        daily.advance()


def test_unknown_table_is_reported_with_its_position_and_remedies(daily: Daily) -> None:
    daily.create("t", "id INT PRIMARY KEY")
    unknown = with_raw(daily, daily.table("t"), id=4711)
    commit_ts = daily.begin().insert("t", unknown, id=1).commit()
    with pytest.raises(
        SchemaError, match=rf"table_id=4711 commit_ts={commit_ts}.*reload the DDL history.*start the task"
    ):
        daily.advance()
