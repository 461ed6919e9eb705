"""Every condition that finds rows by key finds all of them: each type and character set of a key, on each server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from support.mariadb import MariaDb, execute
from support.tabledefs import col, primary, table

from binlake.config.servers import TargetSection
from binlake.repair.chunks import ChunkPlan, Cuts
from binlake.repair.serverside import SqlTable
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements import BatchLimits, PreserveStatements, TableStatements
from binlake.statements.conditions import KeyConditions, KeyCounts, list_deleted_keys
from binlake.target import TargetSession
from binlake.target.apply.batches import find_present_keys

E_ACUTE, HAN, SMILE = "\u00e9", "\u4e2d", "\U0001f600"


class KeyType(NamedTuple):
    """A type as a column of a key: its SQL, its definition, and two canonical texts."""

    sql: str
    column: dict[str, Any]
    values: tuple[str, str]


def make(sql: str, tp: int, *values: str, **more: Any) -> KeyType:
    return KeyType(sql, col("x", tp, not_null=True, **more), (values[0], values[1]))


def build_text(charset: str, collate: str, value: str) -> KeyType:
    sql = f"VARCHAR(20) CHARACTER SET {charset} COLLATE {collate}"
    return make(sql, t.VARCHAR, value, "a", flen=20, charset=charset, collate=collate)


TYPES = {
    "int": make("INT", t.LONG, "-5", "7"),
    "bigint unsigned": make("BIGINT UNSIGNED", t.LONGLONG, str(2**64 - 1), "3", unsigned=True),
    "decimal": make("DECIMAL(30,10)", t.NEWDECIMAL, "12345678901234567890.0000000001", "0.0000000000"),
    "float": make("FLOAT", t.FLOAT, "1.1", "-0.5"),
    "double": make("DOUBLE", t.DOUBLE, "1.1", "1e300"),
    "bit 9": make("BIT(9)", t.BIT, "01FF", "0000", flen=9),
    "bit 64": make("BIT(64)", t.BIT, "8000000000000000", "0000000000000001", flen=64),
    "year": make("YEAR", t.YEAR, "2024", "1901"),
    "date": make("DATE", t.DATE, "2024-02-31", "0000-00-00"),
    "datetime": make("DATETIME(6)", t.DATETIME, "2024-01-01 00:00:01.123456", "0000-00-00 00:00:00.000000", decimal=6),
    "timestamp": make("TIMESTAMP(3)", t.TIMESTAMP, "2024-01-01 00:00:01.123", "1970-01-01 00:00:01.000", decimal=3),
    "time": make("TIME(3)", t.DURATION, "-838:59:59.000", "00:00:00.001", decimal=3),
    "binary": make("BINARY(3)", t.STRING, "00FF00", "610000", flen=3, charset="binary"),
    "varbinary": make("VARBINARY(10)", t.VARCHAR, "E9", "", flen=10, charset="binary"),
    "enum": make(f"ENUM('a','{E_ACUTE}')", t.ENUM, "a", E_ACUTE, elems=("a", E_ACUTE)),
    "enum latin1": make(
        f"ENUM('a','{E_ACUTE}') CHARACTER SET latin1", t.ENUM, "a", E_ACUTE, elems=("a", E_ACUTE), charset="latin1"
    ),
    "set latin1": make(
        f"SET('a','{E_ACUTE}') CHARACTER SET latin1", t.SET, f"a,{E_ACUTE}", "", elems=("a", E_ACUTE), charset="latin1"
    ),
    "char latin1": make("CHAR(5) CHARACTER SET latin1", t.STRING, E_ACUTE, "", flen=5, charset="latin1"),
    "latin1": build_text("latin1", "latin1_swedish_ci", E_ACUTE),
    "ascii": build_text("ascii", "ascii_bin", "b"),
    "utf8mb3": build_text("utf8mb3", "utf8mb3_general_ci", HAN),
    "utf8mb4": build_text("utf8mb4", "utf8mb4_bin", SMILE),
    "utf8mb4 general": build_text("utf8mb4", "utf8mb4_general_ci", E_ACUTE),
    "escaped": build_text("utf8mb4", "utf8mb4_bin", "') OR `x`='\\\n"),
    "gbk": build_text("gbk", "gbk_chinese_ci", HAN),
    "big5": build_text("big5", "big5_chinese_ci", HAN),
    "cp1250": build_text("cp1250", "cp1250_general_ci", "\u0161"),
    "koi8r": build_text("koi8r", "koi8r_general_ci", "\u0436"),
    "sjis": build_text("sjis", "sjis_japanese_ci", "\u3042"),
    "ucs2": build_text("ucs2", "ucs2_general_ci", HAN),
    "utf16": build_text("utf16", "utf16_general_ci", SMILE),
    "utf32": build_text("utf32", "utf32_bin", SMILE),
}
PARTNERS = ("int", "latin1", "utf8mb4", "bit 64", "binary")
CASES = [(name, other) for name in TYPES for other in PARTNERS[:2]] + [("varbinary", "utf8mb4"), ("bit 64", "date")]
ALL_CASES = [pair for name in TYPES for other in TYPES for pair in ((name, other), (other, name))]


def define(*names: str) -> tuple[TableDef, list[dict[str, str | None]]]:
    """The definition and the rows of a table whose key has columns of these types."""
    kinds = [TYPES[name] for name in names]
    columns = [kind.column | {"name": {"O": name, "L": name}} for name, kind in zip(("a", "b"), kinds, strict=False)]
    keyed = [column["name"]["O"] for column in columns]
    made = table("t", *columns, col("v"), keys=(primary(*keyed),))
    if len(kinds) == 1:
        return made, [{"a": value, "v": "1"} for value in kinds[0].values]
    pairs = [(a, b) for a in kinds[0].values for b in kinds[1].values]
    return made, [{"a": a, "b": b, "v": "1"} for a, b in pairs]


def create(session: TargetSession, *names: str) -> tuple[TableDef, list[dict[str, str | None]]]:
    made, images = define(*names)
    columns = "".join(f"{name} {TYPES[kind].sql} NOT NULL," for name, kind in zip(("a", "b"), names, strict=False))
    keyed = ",".join(made.find_identity().columns)
    session.execute("DROP TABLE IF EXISTS d.t")
    session.execute(f"CREATE TABLE d.t ({columns} v INT, PRIMARY KEY ({keyed}))")
    return made, images


def as_columns(images: Sequence[dict[str, str | None]]) -> dict[str, Any]:
    return {name: pa.array([image[name] for image in images], pa.large_string()) for name in images[0]}


def list_misses(server: MariaDb, session: TargetSession, *names: str, alike: bool) -> Iterator[str]:
    """What does not find all rows of a table whose key has these types."""
    dialect = server.name
    made, images = create(session, *names)
    everything, count = as_columns(images), len(images)
    out = TableStatements(made, 0, dialect=dialect, alike=alike)

    def run(batches: Any) -> int:
        return sum(session.execute(sql) for batch in batches for sql in batch.sql)

    for batch in (*out.render_inserts(everything, [1] * count), *out.render_writes(everything)):
        run([batch])
        if batch.verify_sql and session.fetch_value(batch.verify_sql) != count:
            yield "presence"
    keys = [everything[name] for name in made.find_identity().columns]
    counts = KeyCounts(made, keys, dialect=dialect, alike=alike)
    found = [session.fetch_value(counts.format_query(start, stop)) for start, stop in ((0, 1), (1, count))]
    if found != [1, count - 1]:
        yield "counts"
    texts = [tuple(column[row].as_py() for column in keys) for row in range(count)]
    if find_present_keys(session, made, texts) != list(range(count)):
        yield "present keys"
    read = SqlTable(session, ChunkPlan(made, dialect, Cuts()), [("d", "t")]).read_rows_by_key(texts)
    if sorted(map(str, read)) != sorted(map(str, images)):
        yield "rows by key"
    kept = PreserveStatements(made, 0, "`d`.`kept`", dialect=dialect)
    session.execute("DROP TABLE IF EXISTS d.kept")
    session.execute("CREATE TABLE d.kept LIKE d.t")
    if run(kept.keeps(everything)) != count or run(kept.build_moved_restores(everything, everything)) != count:
        yield "preserve"
    one = as_columns(images[:1])
    deletes = [*out.render_deletes(one), *out.render_deletes(everything)]
    looked = [list_deleted_keys(sql) for batch in deletes for sql in batch.sql]
    if [sum(len(session.fetch_column(query)) for query in queries) for queries in looked] != [1, count]:
        yield "look-up of deleted keys"
    if [run([batch]) for batch in deletes] != [1, count - 1]:
        yield "deletes"


@contextlib.contextmanager
def connect(server: MariaDb) -> Iterator[TargetSession]:
    execute(server, "CREATE DATABASE IF NOT EXISTS d CHARACTER SET utf8mb4")
    target = TargetSection(host=server.host, port=server.port, user=server.user, db_type=server.name)
    with contextlib.closing(TargetSession(target)) as session:
        yield session


def find_failures(server: MariaDb, cases: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    with connect(server) as session:
        return {
            case: missed
            for number, case in enumerate(cases)
            if (missed := list(list_misses(server, session, *case, alike=number % 5 > 0)))
        }


@pytest.mark.mariadb
def test_keys_of_one_column_are_found(empty_server: MariaDb) -> None:
    assert find_failures(empty_server, [(name,) for name in TYPES]) == {}


@pytest.mark.mariadb
@pytest.mark.soak_on("mysql")
def test_keys_of_two_columns_are_found(empty_server: MariaDb) -> None:
    # MariaDB: `(a, b) IN ((…), (…))` finds no row beside a latin1 text, and none of BIT(64) from 2^63 on
    assert find_failures(empty_server, CASES) == {}


@pytest.mark.soak
@pytest.mark.mariadb
def test_keys_of_all_pairs_of_types_are_found(empty_server: MariaDb) -> None:
    assert find_failures(empty_server, ALL_CASES) == {}


@pytest.mark.mariadb
@pytest.mark.parametrize("names", [("int", "date"), ("utf8mb4", "int"), ("latin1", "int")], ids="-".join)
def test_each_key_reads_one_row(names: tuple[str, str], empty_server: MariaDb) -> None:
    # (a, b) IN ((5, 5)) reads the whole table on MariaDB
    with connect(empty_server) as session:
        made, _ = create(session, *names)
        values = ("%d", "2024-01-%02d") if names == ("int", "date") else ("key-%d", "%d")
        images = [{"a": values[0] % (n // 28), "b": values[1] % (n % 28 + 1), "v": "1"} for n in range(4000)]
        out = TableStatements(made, 0, dialect=empty_server.name, limits=BatchLimits(rows=2000), alike=True)
        for batch in out.render_inserts(as_columns(images), [1] * len(images)):
            session.execute(batch.sql[0])
        session.execute("ANALYZE TABLE d.t")
        for count in (1, 2, 120):
            wanted = as_columns(images[10 : 10 + count])
            counted = KeyCounts(made, [wanted["a"], wanted["b"]], dialect=empty_server.name, alike=True).format_query(
                0, count
            )
            assert count_rows_read(session, [counted]) <= count + 3, count
            session.begin()
            (batch,) = out.render_deletes(wanted)
            assert count_rows_read(session, batch.sql) <= count + 3, count
            session.rollback()


def count_rows_read(session: TargetSession, statements: Sequence[str]) -> int:
    session.execute("FLUSH STATUS")
    for statement in statements:
        session.fetch_rows(statement)
    return sum(int(value) for _, value in session.fetch_rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))


def test_many_keys_are_compared_in_several_statements() -> None:
    made, _ = define("latin1", "int")
    images = as_columns([{"a": f"k{n}", "b": str(n), "v": None} for n in range(201)])
    (batch,) = TableStatements(made, 0, limits=BatchLimits(rows=1000), alike=True).render_deletes(images)
    assert [sql.count(" OR ") for sql in batch.sql] == [99, 99, 0]
    assert (batch.rows, batch.expect) == (201, (-1, -1, -1))
    counts = KeyCounts(made, [images["a"], images["b"]], dialect="mariadb", alike=True)
    assert counts.format_query(0, 201).count("SELECT COUNT(*)") == 3


def test_proven_keys_are_compared_in_one_list() -> None:
    made, images = define("utf8mb4", "int")
    keys = [as_columns(images)[name] for name in ("a", "b")]
    columns = [column for column in made.columns if column.name != "v"]

    def count_lists(*, alike: bool) -> int:
        found = KeyConditions(columns, keys, "mariadb", alike=alike).format_conditions(0, 4)
        return sum(" IN (" in condition for condition, _ in found)

    assert (count_lists(alike=True), count_lists(alike=False)) == (1, 0)


@pytest.mark.parametrize("names", [("escaped",), ("escaped", "int"), ("escaped", "bit 64"), ("double", "decimal")])
@pytest.mark.parametrize("alike", [True, False])
def test_keys_of_a_delete_are_read_from_its_text(names: tuple[str, ...], alike: bool) -> None:
    made, images = define(*names)
    (batch,) = TableStatements(made, 0, alike=alike).render_deletes(as_columns(images))
    found = list_deleted_keys(batch.sql[0])
    assert len(found) == len(images)
    for query, image in zip(found, images, strict=True):
        (alone,) = TableStatements(made, 0).render_deletes(as_columns([image]))
        assert list_deleted_keys(alone.sql[0]) == [query]
    assert list_deleted_keys("UPDATE `d`.`t` SET `a`=1 WHERE `b`=2") == []
