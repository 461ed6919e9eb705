"""Upstream's daily tests on types and keys (tidb-binlog 7.2, cases 5, 7, 8, 9, 14, 16, 20, 21)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daily import DB, Daily, daily_source
from support.mariadb import MariaDb, execute, rows

pytestmark = pytest.mark.mariadb

INTEGERS = {"BIGINT": 63, "INT": 31, "SMALLINT": 15, "TINYINT": 7}
KEYS = {"no pk": ("", True), "nonclustered": (" PRIMARY KEY", False), "clustered": (" PRIMARY KEY", True)}


def test_case_05_integer_pk(daily: Daily) -> None:  # S4-28: the upper half of an unsigned key comes from the handle
    seen = []
    for (kind, bits), unsigned in ((one, u) for one in INTEGERS.items() for u in (False, True)):
        for place, (key, clustered) in KEYS.items():
            name = f"{kind}_{unsigned}_{place.replace(' ', '')}".lower()
            daily.create(name, f"id {kind}{' UNSIGNED' * unsigned}{key}", clustered=clustered)
            most = 2 ** (bits + unsigned) - 1
            txn = daily.begin().insert(name, id=most)
            if not key:
                txn.insert(name, id=None)
            txn.commit()
            daily.begin().update(name, {"id": str(most)}, id=most - 1).commit()
            seen.append((name, most - 1))
    daily.check()
    assert len(seen) == 24
    assert (str(2**64 - 2),) in daily.target_rows("bigint_true_clustered")
    for name, value in seen:
        daily.begin().delete(name, id=str(value)).commit()
    daily.check()
    assert daily.target_rows("tinyint_false_clustered") == []


def test_case_07_auto_random(daily: Daily) -> None:
    daily.create("t", "id BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5) */, v INT")
    for shard in (0, 7, 31):
        daily.begin().insert("t", id=(shard << 58) + 1, v=shard).commit()
    daily.begin().update("t", daily.rows("t")[1], v=100).delete("t", **daily.rows("t")[0]).commit()
    daily.check()
    assert len(daily.target_rows("t")) == 2


CLUSTERED = {
    "t1": ("c", "a INT, b INT, c VARCHAR(20) COLLATE utf8mb4_general_ci"),
    "t2": ("c, b", "a INT, b INT, c VARCHAR(20) COLLATE utf8mb4_general_ci"),
    "t3": ("c, a, b", "a VARCHAR(20) COLLATE utf8mb4_general_ci, b INT, c VARCHAR(20) COLLATE utf8mb4_general_ci"),
    "t4": ("c(1)", "a INT, b INT, c VARCHAR(20) COLLATE utf8mb4_general_ci"),
    "t5": ("c, b(1)", "a INT, b VARCHAR(20), c VARCHAR(20) COLLATE utf8mb4_general_ci"),
    "t6": ("c(1), a(1), b", "a VARCHAR(20), b INT, c VARCHAR(20) COLLATE utf8mb4_general_ci"),
    "t7": ("a, b, c", "a TIMESTAMP(3) NOT NULL DEFAULT '2000-01-01', b DATETIME, c INT"),
    "t8": ("a, b, c, d, e", "a FLOAT, b ENUM('x','y'), c BIT(9), d SET('p','q'), e TIME(2)"),
    "t9": ("a", "a CHAR(64) COLLATE utf8mb4_unicode_ci, b INT, c INT"),
}


def test_case_08_clustered_pk(daily: Daily) -> None:  # S0-22
    given = {
        "t7": ({"a": "2021-03-04 05:06:07.890", "b": "9999-12-31 23:59:59", "c": 1}, {"b": "1000-01-01 00:00:00"}),
        "t8": ({"a": "1.5", "b": "y", "c": "01FF", "d": "p,q", "e": "-838:59:59.00"}, {"b": "x", "a": "0.25"}),
        "t9": ({"a": "Äpfel", "b": 1, "c": 2}, {"a": "Birnen"}),
    }
    for name, (key, columns) in CLUSTERED.items():
        # A key on a whole text uses its collation; each prefix key has one row per first letter.
        daily.create(name, f"{columns}, v INT DEFAULT 0, PRIMARY KEY ({key})")
        text = {c.name: "aa" if c.type_name in ("varchar", "char") else 3 for c in daily.table(name).columns}
        row, moved = given.get(name, ({**text, "c": "中文"}, {"c": "Zed"}))
        daily.begin().insert(name, **{"v": 0, **row}).commit()
        daily.begin().update(name, daily.rows(name)[0], v=5).commit()
    daily.check()
    for name in CLUSTERED:
        moved = given.get(name, ({}, {"c": "Zed"}))[1]
        daily.begin().update(name, daily.rows(name)[0], **moved).commit()
    daily.check()
    for name in CLUSTERED:
        daily.begin().delete(name, **daily.rows(name)[0]).commit()
    daily.check()
    assert all(daily.target_rows(name) == [] for name in CLUSTERED)


EVERY = """id INT PRIMARY KEY, t_boolean TINYINT(1), t_bigint BIGINT, t_double DOUBLE, t_decimal DECIMAL(38,19),
    t_bit BIT(64), t_date DATE, t_datetime DATETIME, t_timestamp TIMESTAMP NULL, t_time TIME, t_year YEAR,
    t_char CHAR(30), t_varchar VARCHAR(30), t_blob BLOB, t_text TEXT, t_enum ENUM('enum1','enum2','enum3'),
    t_set SET('a','b','c'), t_json JSON"""
FULL = {
    "t_boolean": 1, "t_bigint": 9223372036854775807, "t_double": "123.125", "t_decimal": "12.1000000000000000012",
    "t_bit": "FFFFFFFFFFFFFFFF", "t_date": "1000-01-01", "t_datetime": "9999-12-31 23:59:59",
    "t_timestamp": "1973-12-30 15:30:00", "t_time": "23:59:59", "t_year": 1970, "t_char": "测试",
    "t_varchar": "测试 text", "t_blob": "00FF10", "t_text": "测试\n'\\\"", "t_enum": "enum2", "t_set": "a,b",
    "t_json": '{"key1": "value1", "key2": [1, null, true]}',
}  # fmt: skip


def test_case_09_multi_data_type(daily: Daily) -> None:  # S4-28, S0-22
    daily.create("t", EVERY, options=" CHARSET=utf8 COLLATE=utf8_bin")
    daily.begin().insert("t", id=1, **FULL).insert("t", id=2, t_bigint=-(2**63)).insert("t", id=3).commit()
    daily.check()
    daily.begin().update("t", daily.rows("t")[2], **FULL).update(
        "t", daily.rows("t")[0], **dict.fromkeys(FULL)
    ).commit()
    daily.check()
    assert {row[1] for row in daily.target_rows("t")} == {None, "1"}


def test_case_14_bit_not_null(daily: Daily) -> None:
    daily.create("t", "id INT PRIMARY KEY, b BIT(1) NOT NULL")
    daily.begin().insert("t", id=1, b="01").commit()
    daily.begin().update("t", daily.rows("t")[0], b="00").insert("t", id=2, b="00").commit()
    daily.check()
    assert daily.target_rows("t") == [("1", "00"), ("2", "00")]


def test_case_16_generated_columns(daily: Daily) -> None:
    daily.create(
        "t", "a INT PRIMARY KEY, b INT, virt INT AS (a + b) VIRTUAL, `stored` INT AS (a * b) STORED, KEY(`stored`)"
    )

    def whole(a: int, b: int) -> dict[str, object]:
        return {"a": a, "b": b, "virt": a + b, "stored": a * b}

    txn = daily.begin()
    for n in range(64):
        txn.insert("t", **whole(n, n + 1))
    txn.commit()
    daily.check()
    txn = daily.begin()
    for n in range(0, 64, 2):
        txn.update("t", whole(n, n + 1), **whole(n, n * 2))
    txn.commit()
    txn = daily.begin()
    for n in range(1, 64, 4):
        txn.delete("t", **whole(n, n + 1))
    txn.commit()
    daily.check()
    assert len(daily.target_rows("t")) == 48


def test_case_20_large_rows(daily: Daily) -> None:
    daily.create("t", "id INT PRIMARY KEY, v LONGTEXT")
    txn = daily.begin()
    for n in range(5):
        txn.insert("t", id=n, v=chr(97 + n) * (1 << 20))
    txn.commit()
    daily.check()
    assert daily.session.fetch_rows(f"SELECT SUM(LENGTH(v)) FROM {DB}.t")[0][0] == 5 << 20


MOMENTS = {
    "TIMESTAMP": ("2021-03-28 01:30:00", "2021-10-31 01:30:00"),
    "DATETIME": ("1000-01-01 00:00:00", "9999-12-31 23:59:59"),
    "DATE": ("2000-02-29", "1000-01-01"), "TIME": ("-838:59:59", "00:00:01"), "YEAR": ("1901", "2155"),
}  # fmt: skip


@pytest.fixture
def eastern(server: MariaDb) -> Iterator[None]:
    """A server in another time zone, with which its sessions start."""
    before = rows(server, "SELECT @@GLOBAL.time_zone")[0][0]
    execute(server, "SET GLOBAL time_zone = '+05:30'")
    yield
    execute(server, f"SET GLOBAL time_zone = '{before}'")


@pytest.mark.usefixtures("eastern")
def test_case_21_time_zones(server: MariaDb) -> None:  # tidb-binlog 5.5 (#839), U-09
    # Sessions start in that zone, but the instants are the source's (UTC).
    with daily_source(server) as daily:
        for kind, (first, second) in MOMENTS.items():
            for place, (key, clustered) in KEYS.items():
                name = f"{kind}_{place.replace(' ', '')}".lower()
                null = " NULL" if not key else " NOT NULL DEFAULT '2001-01-01'" if kind == "TIMESTAMP" else " NOT NULL"
                daily.create(name, f"id INT, v {kind}{null}" + (", PRIMARY KEY (v)" if key else ""),
                             clustered=clustered)  # fmt: skip
                txn = daily.begin().insert(name, id=1, v=first)
                if not key:
                    txn.insert(name, id=2, v=None)
                txn.commit()
                daily.begin().update(name, daily.rows(name)[0], v=second).commit()
        daily.check()
        (utc,) = rows(server, f"SELECT UNIX_TIMESTAMP(v) FROM {DB}.timestamp_clustered")[0]
        assert utc == 1635643800
        for name in list(daily.tables):
            daily.begin().delete(name, **next(row for row in daily.rows(name) if row["id"] == "1")).commit()
        daily.check()
