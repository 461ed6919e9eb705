"""A MODIFY COLUMN on a real MySQL leaves the values that TiDB leaves (R-29, S4-39)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from support.mariadb import MySql, execute
from support.tabledefs import col, primary, table
from support.windows import target_of

from binlake.dialect import DdlText, find_target_collation, map_ddl
from binlake.errors import TargetRefused
from binlake.rows.codec.casts import CastMoment, UnknownCast, cast_text
from binlake.rows.codec.datum import as_float32
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide
from binlake.statements.literal import choose_literal_kind, format_value_literal
from binlake.target import TargetSession
from binlake.target.ddl.execution import execute_ddl

pytestmark = pytest.mark.mariadb

CASTS = Path(__file__).resolve().parents[2] / "fixtures" / "casts.jsonl"
RECORDED = [json.loads(line) for line in CASTS.read_text().splitlines()]
Kind = dict[str, Any]
LENIENT = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
EAST = SourceSession("+08:00", "2021-06-01")


@pytest.fixture(scope="module")
def session(mysql_target: MySql) -> Iterator[TargetSession]:
    mysql_target.wipe()
    execute(mysql_target, "CREATE DATABASE app")
    found = TargetSession(target_of(mysql_target))
    found.execute("USE app")
    yield found
    found.close()


def define_table(kind: Kind) -> TableDef:
    raw = col("v", kind["Tp"])
    of = {**raw, "type": {**raw["type"], **kind, "Elems": kind.get("Elems")}}
    return table("q", col("id", not_null=True), of, col("w"), keys=(primary("id"),), db="app")


def type_sql(column: ColumnInfo) -> str:
    text = column.type_text
    if column.elems or (column.tp in t.STRINGS and not column.is_binary):
        collation = find_target_collation(column.collate or "utf8mb4_bin", "mysql")
        return f"{text} CHARACTER SET {column.charset or 'utf8mb4'} COLLATE {collation}"
    return f"{text} NULL DEFAULT NULL" if column.tp == t.TIMESTAMP else text


def list_statements(before: TableDef, after: TableDef, source: SourceSession) -> tuple[str, ...]:
    sides = DdlSide((), (before,)), DdlSide((), (after,), source)
    query = f"ALTER TABLE `q` MODIFY COLUMN `v` {type_sql(after.columns[1])}"
    return map_ddl(DdlText(7, "app", "q", query, *sides), "mysql").sql


def as_text(column: ColumnInfo) -> str:
    if column.tp == t.BIT:
        return f"LPAD(HEX(v), {(column.flen + 7) // 8 * 2}, '0')"
    if column.is_binary:
        return "HEX(v)"
    return "v + 0e0" if column.tp in (t.FLOAT, t.DOUBLE) else "CAST(v AS CHAR)"


def is_equal(column: ColumnInfo, found: object, text: str | None) -> bool:
    if text is None or found is None:
        return found is None and text is None
    if column.tp == t.JSON:
        return bool(json.loads(str(found)) == json.loads(text))
    if column.tp in (t.FLOAT, t.DOUBLE):
        return float(str(found)) == (as_float32(text) if column.tp == t.FLOAT else float(text))
    return (found.decode() if isinstance(found, bytes) else str(found)) == text


def wrong_values(
    session: TargetSession,
    before: TableDef,
    after: TableDef,
    pairs: list[tuple[str, str | None]],
    source: SourceSession,
) -> list[Any]:
    """The values that the target converts to something other than the pair's second. Raises TargetRefused."""
    ddl, (old, new) = list_statements(before, after, source), (before.columns[1], after.columns[1])
    session.execute("DROP TABLE IF EXISTS q")
    session.execute(f"CREATE TABLE q (id INT PRIMARY KEY, v {type_sql(old)}, w INT DEFAULT 1, KEY by_v (w))")
    values = ", ".join(
        f"({n}, {format_value_literal(text, choose_literal_kind(old))})" for n, (text, _) in enumerate(pairs)
    )
    session.execute(f"INSERT /*+ SET_VAR(sql_mode = '{LENIENT}') */ INTO q (id, v) VALUES {values}")
    # The first run stops before the last statement; the second run starts the conversion anew.
    shadows = [text for text in ddl if " ADD COLUMN " in text]
    if shadows:
        assert execute_ddl(session, [*ddl[:-2], ddl[-1]]) == []
    assert len(execute_ddl(session, ddl)) == len(shadows)
    rows = session.fetch_rows(f"SELECT {as_text(new)} FROM q ORDER BY id")
    return [(old.type_text, new.type_text, *pair, got) for pair, (got,) in zip(pairs, rows, strict=True)
            if not is_equal(new, got, pair[1])]  # fmt: skip


def test_alter_on_mysql_leaves_the_recorded_values(session: TargetSession) -> None:
    wrong = []
    for case in RECORDED:
        before, after = define_table(case["source"]), define_table(case["target"])
        source = SourceSession(case["zone"], case.get("day", ""))
        wrong += wrong_values(session, before, after, case["values"], source)
    assert not wrong
    assert session.fetch_rows("SELECT @@time_zone, LOCATE('STRICT_ALL_TABLES', @@sql_mode) > 0") == [("+00:00", 1)]


TEXT = {"Tp": t.VARCHAR, "Flen": 60, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
BYTES = {"Tp": t.VARCHAR, "Flen": 60, "Charset": "binary", "Collate": "binary"}
ELEMS = {"Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
DRAWN: list[tuple[Kind, list[str]]] = [
    ({"Tp": t.LONG, "Flen": 11}, ["0", "-1", "12", "127", "2021", "20210102", "-235959", "2147483647"]),
    ({"Tp": t.LONGLONG, "Flen": 20, "Flag": t.FLAG_UNSIGNED}, ["0", "20210102030405", "18446744073709551615"]),
    ({"Tp": t.NEWDECIMAL, "Flen": 20, "Decimal": 6}, ["0.500000", "-12.500000", "1.499999", "20210102.000000"]),
    ({"Tp": t.FLOAT}, ["0", "0.5", "-2.5", "123456.79", "1e15", "3.40282e38"]),
    ({"Tp": t.DOUBLE}, ["0.5", "2.5", "-2.5", "123456.789", "1e20", "-1.5e-7"]),
    ({"Tp": t.BIT, "Flen": 20}, ["000000", "0F0041"]),
    ({"Tp": t.YEAR, "Flen": 4}, ["0000", "1901", "2155"]),
    (TEXT, ["0", "-12.5", "12.6", "1e2", "2021", "2021-01-02", "2021-01-02 23:59:59.6", "a", "x,y", "12:34:56.5"]),
    (BYTES, ["30", "3132", "C3B6"]),
    ({"Tp": t.DATE}, ["2021-01-02", "0000-00-00"]),
    ({"Tp": t.DATETIME, "Decimal": 3}, ["2021-01-02 03:04:05.500", "1999-12-31 23:59:59.999"]),
    ({"Tp": t.TIMESTAMP, "Decimal": 3}, ["2021-01-02 03:04:05.500", "1999-12-31 15:59:59.999"]),
    ({"Tp": t.DURATION, "Decimal": 2}, ["00:00:00.50", "12:34:56.50", "-12:34:56.50", "-00:00:00.50"]),
    ({"Tp": t.ENUM, "Elems": ["12", "b", "a"], **ELEMS}, ["a", "b", "12"]),
    ({"Tp": t.SET, "Elems": ["y", "x"], **ELEMS}, ["x", "y,x", ""]),
    ({"Tp": t.JSON, "Charset": "binary", "Collate": "binary"}, ['{"a": 1}', "12"]),
]


def test_every_pair_of_types_on_mysql_is_converted_as_tidb_does(session: TargetSession) -> None:
    moment, done, wrong, refused = CastMoment(EAST.tz, date.fromisoformat(EAST.day)), 0, [], []
    for source, values in DRAWN:
        for target, _ in DRAWN:
            before, after = define_table(source), define_table(target)
            pairs = []
            for text in values if source is not target else ():
                try:
                    pairs.append((text, cast_text(before.columns[1], after.columns[1], text, moment)))
                except UnknownCast:
                    continue
            if not pairs:
                continue
            try:
                wrong += wrong_values(session, before, after, pairs, EAST)
                done += 1
            except TargetRefused as error:
                refused.append((before.columns[1].type_name, after.columns[1].type_name, error.message))
    assert not wrong
    # A strict session refuses what does not fit; at the source the session was strict too, so it was an error there.
    assert [message for _, _, message in refused if "Out of range" not in message and "too long" not in message] == []
    assert done > 150
