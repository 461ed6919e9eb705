"""MySQL and MariaDB convert alike what Binlake says they convert alike (R-29): measured on both servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.mariadb import MariaDb, MySql, execute

from binlake.dialect.families import ALIKE

pytestmark = pytest.mark.mariadb

TYPES = {
    "integer": ["INT", "BIGINT UNSIGNED", "TINYINT"],
    "decimal": ["DECIMAL(12,3)", "DECIMAL(5,1)"],
    "real": ["DOUBLE", "FLOAT"],
    "bit": ["BIT(8)", "BIT(64)"],
    "year": ["YEAR"],
    "text": ["VARCHAR(40)", "TEXT"],
    "binary": ["VARBINARY(40)", "BLOB"],
    "timestamp": ["TIMESTAMP(3) NULL", "TIMESTAMP NULL"],
    "datetime": ["DATETIME(3)", "DATETIME"],
    "date": ["DATE"],
    "time": ["TIME(3)", "TIME"],
    "enum": ["ENUM('a','b','2020','')", "ENUM('1','x')"],
    "set": ["SET('a','b','c')"],
    "json": ["JSON"],
}
MOMENTS = ["'2020-01-02 03:04:05.678'", "'1999-12-31 23:59:59.999'", "'2020-06-01 12:00:00.500'"]
VALUES = {
    "integer": ["0", "1", "-1", "70", "99", "127", "255", "2020", "20200102", "2147483647", "1901"],
    "decimal": ["0", "1.5", "2.5", "-0.5", "-1.5", "70.4", "2020.5", "123.456", "12345.678", "20"],
    "real": ["0", "1.5", "2.5", "-0.5", "-1.5", "0.1", "1e10", "1e15", "1e16", "123456.789", "2020", "70", "1e-5"],
    "bit": ["0", "1", "5", "70", "200", "255"],
    "year": ["0", "1970", "2020", "2155"],
    "text": ["'0'", "'1'", "'1.5'", "'-1.5'", "'12.6'", "'1e2'", "'2020'", "'70'", "'2020-01-02'", "'a'", "'b'", "'ö'",
             "'2020-01-02 03:04:05.678'", "'[1, 2.50]'", "'{\"b\":1,\"a\": 2.0}'", "' 5'", "'1,2'", "''"],
    "binary": ["'0'", "'1'", "'1.5'", "'abc'", "X'31'", "'2020-01-02'"],
    "timestamp": MOMENTS,
    "datetime": [*MOMENTS, "'1001-01-01 00:00:00'"],
    "date": ["'2020-01-02'", "'1999-12-31'", "'1001-01-01'"],
    "time": ["'03:04:05.678'", "'-03:04:05.678'", "'00:00:00.500'", "'838:59:59'", "'23:59:59.999'"],
    "enum": ["1", "2", "'x'"],
    "set": ["0", "1", "3", "7"],
}  # fmt: skip
SETTINGS = {
    "mariadb": "NO_ENGINE_SUBSTITUTION,TIME_ROUND_FRACTIONAL",
    "mysql": "NO_ENGINE_SUBSTITUTION",
}


def show(name: str, kind: str) -> str:
    if kind in ("FLOAT", "DOUBLE"):
        return f"{name} + 0e0"
    if kind.startswith("BIT"):
        return f"HEX({name} + 0)"
    return f"HEX({name})" if "BINARY" in kind or kind == "BLOB" else f"CAST({name} AS CHAR)"


def convert(server: MariaDb, former: str, nows: list[str], values: list[str]) -> dict[tuple[str, str], list[Any]]:
    """What the server makes of each value, by the type that the column gets; each value is a row of its own table."""
    columns = [f"c{n}" for n in range(len(nows))]
    inserts = [
        f"INSERT IGNORE INTO f.t VALUES ({n}, {', '.join([value] * len(nows))})" for n, value in enumerate(values)
    ]
    found: dict[tuple[str, str], list[Any]] = {}
    with server.connect() as link, link.cursor() as cursor:
        cursor.execute(f"SET sql_mode = '{SETTINGS[server.name]}', time_zone = '+00:00', timestamp = 1700000000")
        cursor.execute("DROP TABLE IF EXISTS f.t")
        cursor.execute(f"CREATE TABLE f.t (id INT PRIMARY KEY, {', '.join(f'{c} {former}' for c in columns)})")
        for insert in inserts:
            cursor.execute(insert)
        for column, now in zip(columns, nows, strict=True):
            if now == "JSON" and former in TYPES["text"]:
                cursor.execute(f"UPDATE f.t SET {column} = NULL WHERE NOT JSON_VALID({column})")
        cursor.execute(f"ALTER TABLE f.t {', '.join(f'MODIFY {c} {k}' for c, k in zip(columns, nows, strict=True))}")
        for column, now in zip(columns, nows, strict=True):
            cursor.execute(f"SELECT {show(column, now)} FROM f.t ORDER BY id")
            texts = [value for (value,) in cursor.fetchall()]
            found[former, now] = [json.loads(text) for text in texts if text] if now == "JSON" else texts
    return found


@pytest.mark.parametrize("group", ALIKE)
def test_pairs_that_count_as_alike_give_equal_values(mariadb: MariaDb, mysql_target: MySql, group: str) -> None:
    fraction = group in ("timestamp", "datetime", "time")
    for former in TYPES[group]:
        whole = not fraction or "(3)" not in former
        alike = [now for now in ALIKE[group].split() if whole or now not in ("integer", "date")]
        nows = [kind for now in alike for kind in TYPES[now] if kind != former]
        results = []
        for server in (mariadb, mysql_target):
            execute(server, "CREATE DATABASE IF NOT EXISTS f CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            results.append(convert(server, former, nows, VALUES[group]))
        assert results[0] == results[1]
        assert all(any(value is not None for value in values) for values in results[0].values())


def test_pairs_that_differ_are_not_among_them(mariadb: MariaDb, mysql_target: MySql) -> None:
    # The differences by which the table was made: a text that becomes an integer, a datetime that becomes a date.
    for former, now, value in (("VARCHAR(40)", "INT", "'12.6'"), ("DATETIME(3)", "DATE", "'1999-12-31 23:59:59.999'")):
        found = []
        for server in (mariadb, mysql_target):
            execute(server, "CREATE DATABASE IF NOT EXISTS f")
            found.append(convert(server, former, [now], [value]))
        assert found[0] != found[1]
