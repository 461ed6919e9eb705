"""Batches: their text (golden files), their bounds, and their effect on the target."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, key, primary, table

from binlake.config.servers import TargetSection
from binlake.errors import Permanent, SchemaError
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements import (
    BatchLimits,
    Phase,
    StatementBatch,
    TableStatements,
    build_images_from_rows,
    compute_statement_digest,
    literal,
)
from binlake.target import TargetSession

GOLDEN = Path(__file__).parent / "golden"

ORDERS = table(
    "or`ders",
    col("id", t.LONGLONG, not_null=True, unsigned=True),
    col("c", t.VARCHAR, flen=20),
    col("amount", t.NEWDECIMAL, flen=12, decimal=2),
    col("f", t.FLOAT),
    col("b", t.BIT, flen=10),
    col("h", t.VARSTRING, flen=8, charset="binary"),
    col("at", t.DATETIME, decimal=3),
    col("double_id", t.LONGLONG, generated_expr_string="`id` is null", generated_stored=True),
    keys=(primary("id"),),
)
ORDER_ROWS: list[dict[str, str | None]] = [
    {"id": "1", "c": "it's", "amount": "1.10", "f": "1.1", "b": "0005", "h": "00FF", "at": None, "double_id": "0"},
    {"id": "2", "c": None, "amount": "-3.00", "f": "-0", "b": "03FF", "h": "", "at": "2020-02-29 01:02:03.004",
     "double_id": "0"},
]  # fmt: skip
PAIRS = table(
    "pairs",
    col("a", t.FLOAT, not_null=True),
    col("k", t.VARCHAR, not_null=True, flen=20),
    col("v"),
    keys=(primary("a", "k"),),
)
PAIR_ROWS: list[dict[str, str | None]] = [{"a": "1.1", "k": "x\\y", "v": "1"}, {"a": "2", "k": "ü", "v": None}]
HEAP = table(
    "heap",
    col("a", t.FLOAT),
    col("j", t.JSON),
    col("s", t.VARCHAR, flen=20, collate="utf8mb4_general_ci"),
    col("n", t.LONGLONG),
    keys=(key("nullable", "n"),),
)
HEAP_ROWS: list[dict[str, str | None]] = [
    {"a": "1.1", "j": '{"x": [1, "é"]}', "s": "a", "n": None},
    {"a": None, "j": None, "s": None, "n": "7"},
]


def images(table_def: TableDef, values: list[dict[str, str | None]]) -> dict[str, pa.Array]:
    return build_images_from_rows(values, [c.name for c in table_def.columns])


def golden_text(batches: Iterable[StatementBatch]) -> str:
    lines = []
    for b in batches:
        lines += [f"-- {b.phase.name} {b.batch} {b.kind} rows={b.rows} expect={list(b.expect)} verify={b.verify_rows}"]
        lines += [sql + ";" for sql in (*b.sql, b.verify_sql) if sql]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["orders", "pairs", "heap"])
def test_text_of_batches(name: str) -> None:
    # S0-22: quoting of every kind, generated columns left out
    table_def, values = {"orders": (ORDERS, ORDER_ROWS), "pairs": (PAIRS, PAIR_ROWS), "heap": (HEAP, HEAP_ROWS)}[name]
    out, given = TableStatements(table_def, 3), images(table_def, values)
    if name == "heap":
        batches = [*out.render_image_deletes(given, [1, 2]), *out.render_inserts(given, [2, 1])]
    else:
        batches = [*out.render_deletes(given), *out.render_writes(given)]
    assert golden_text(batches) == (GOLDEN / f"{name}.sql").read_text(encoding="utf-8")


def test_text_outside_safe_mode() -> None:
    # S4-37, R-59: no REPLACE if the identity is the only unique key; otherwise REPLACE
    given = images(ORDERS, ORDER_ROWS)
    text = golden_text(TableStatements(ORDERS, 3, plain=True).render_writes(given))
    assert text == (GOLDEN / "orders_plain.sql").read_text(encoding="utf-8")
    both = table("both", col("id", not_null=True), col("c"), keys=(primary("id"), key("more", "c")))
    row = images(both, [{"id": "1", "c": "2"}])
    assert [b.kind for b in TableStatements(both, 3, plain=True).render_writes(row)] == ["replace"]


def test_batches_are_bounded_by_rows_and_by_bytes() -> None:
    many = images(ORDERS, [{**ORDER_ROWS[0], "id": str(n)} for n in range(1000)])
    by_rows = list(TableStatements(ORDERS, 0, limits=BatchLimits(300)).render_writes(many))
    assert [b.rows for b in by_rows] == [300, 300, 300, 100]
    assert [b.batch for b in by_rows] == [0, 1, 2, 3]
    by_bytes = list(TableStatements(ORDERS, 0, limits=BatchLimits(300, 4000)).render_writes(many))
    assert sum(b.rows for b in by_bytes) == 1000
    assert max(len(b.sql[0]) for b in by_bytes) < 4300
    # one row that is larger than the bound is still sent
    smallest = TableStatements(ORDERS, 0, limits=BatchLimits(bytes=1))
    assert [b.rows for b in smallest.render_writes(images(ORDERS, ORDER_ROWS))] == [1, 1]


def test_row_that_exceeds_a_packet_is_refused_by_name() -> None:
    # the server would only report that it has gone away
    packet = 1 << 20
    limits = BatchLimits.of(100_000, packet)
    many = images(ORDERS, [{**ORDER_ROWS[0], "id": str(n)} for n in range(20_000)])
    batches = list(TableStatements(ORDERS, 0, limits=limits).render_writes(many))
    assert len(batches) > 1
    assert max(len(b.sql[0].encode()) for b in batches) < packet
    assert max(len(b.verify_sql.encode()) for b in batches) < packet
    text = next(c.name for c in ORDERS.columns if ORDER_ROWS[0][c.name] is not None and c.tp in t.STRINGS)
    wide = images(ORDERS, [ORDER_ROWS[0], {**ORDER_ROWS[0], "id": "77", text: "é" * (packet // 2)}])
    with pytest.raises(Permanent, match=rf"10\d{{5}} bytes.*{packet} bytes.*table=.*key=#[0-9a-f]{{12}}\]") as caught:
        list(TableStatements(ORDERS, 0, limits=limits).render_writes(wide))
    assert "max_allowed_packet" in caught.value.hint


@pytest.mark.parametrize("write", ["render_image_deletes", "render_inserts"])
def test_oversized_row_without_a_key_is_shown_shortened(write: str) -> None:
    text = next(c.name for c in HEAP.columns if c.tp in t.STRINGS)
    wide = images(HEAP, [HEAP_ROWS[0], {**HEAP_ROWS[0], text: "x" * (1 << 20)}])
    with pytest.raises(Permanent, match="packets") as caught:
        list(getattr(TableStatements(HEAP, 0, limits=BatchLimits.of(100, 1 << 20)), write)(wide, [1, 3]))
    assert len(caught.value.where["key"]) <= 200


def test_batch_has_its_position_and_digest() -> None:
    out = TableStatements(ORDERS, 4, first_batch=7)
    (batch,) = out.render_writes(images(ORDERS, ORDER_ROWS))
    assert (batch.segment, batch.phase, batch.batch, batch.db, batch.table) == (4, Phase.WRITE, 7, "d", "or`ders")
    assert batch.digest == compute_statement_digest(batch.sql) != compute_statement_digest((batch.sql[0] + " ",))
    assert out.next_batch == 8


def test_no_rows_give_no_batch() -> None:
    assert list(TableStatements(ORDERS, 0).render_writes(images(ORDERS, []))) == []


def test_rendering_by_key_needs_a_key_and_all_columns() -> None:
    with pytest.raises(SchemaError, match="needs a table with a primary or unique key"):
        list(TableStatements(HEAP, 0).render_writes(images(HEAP, HEAP_ROWS)))
    with pytest.raises(SchemaError, match="lacks a column"):
        list(TableStatements(ORDERS, 0).render_writes({"id": pa.array(["1"])}))


def run(server: MariaDb, batches: Iterable[StatementBatch]) -> None:
    """Run batches like finalize: the statements in order, checking affected rows, then the presence check."""
    link = server.connect()
    try:
        with link.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO'")
            done = list(batches)
            for batch in done:
                for sql, expect in zip(batch.sql, batch.expect, strict=True):
                    affected = cursor.execute(sql)
                    assert expect in (-1, affected), sql
            for batch in done:
                if batch.verify_sql:
                    cursor.execute(batch.verify_sql)
                    assert cursor.fetchall() == ((batch.verify_rows,),)
    finally:
        link.close()


@pytest.mark.mariadb
def test_target_accepts_replaces_and_deletes_by_key(empty_server: MariaDb) -> None:
    execute(
        empty_server,
        "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE d.`or``ders` (id BIGINT UNSIGNED PRIMARY KEY, c VARCHAR(20), amount DECIMAL(12,2), f FLOAT,"
        " b BIT(10), h VARBINARY(8), at DATETIME(3), double_id BIGINT AS (id IS NULL) STORED)",
        "CREATE TABLE d.pairs (a FLOAT, k VARCHAR(20), v INT, PRIMARY KEY (a, k))",
    )
    for table_def, values in ((ORDERS, ORDER_ROWS), (PAIRS, PAIR_ROWS)):
        # twice: a replay changes nothing
        for _ in range(2):
            run(
                empty_server,
                TableStatements(table_def, 0, dialect=empty_server.name).render_writes(images(table_def, values)),
            )
    # MariaDB does not store a negative zero.
    zero = "0.0" if empty_server.name == "mariadb" else "-0.0"
    shown = rows(empty_server, "SELECT id, c, amount, f, HEX(b), HEX(h), at, double_id FROM d.`or``ders` ORDER BY id")
    assert [tuple(map(str, row)) for row in shown] == [
        ("1", "it's", "1.10", "1.1", "5", "00FF", "None", "0"),
        ("2", "None", "-3.00", zero, "3FF", "", "2020-02-29 01:02:03.004000", "0"),
    ]
    run(empty_server, TableStatements(PAIRS, 0, dialect=empty_server.name).render_deletes(images(PAIRS, PAIR_ROWS[:1])))
    assert rows(empty_server, "SELECT k FROM d.pairs") == [("ü",)]
    run(empty_server, TableStatements(ORDERS, 0, dialect=empty_server.name).render_deletes(images(ORDERS, ORDER_ROWS)))
    assert rows(empty_server, "SELECT COUNT(*) FROM d.`or``ders`") == [(0,)]


@pytest.mark.mariadb
def test_key_equal_in_the_collation_of_another_batch_is_missed(empty_server: MariaDb) -> None:
    # the definitions say utf8mb4_bin, but the target treats a, A and 'a ' as one key; each alone would be found
    named = table("named", col("k", t.VARCHAR, not_null=True, flen=20), col("v"), keys=(primary("k"),))
    execute(
        empty_server,
        "CREATE DATABASE d",
        "CREATE TABLE d.named (k VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
    )
    for other in ("A", "a "):
        given = images(named, [{"k": "a", "v": "1"}, {"k": other, "v": "2"}])
        batches = list(
            TableStatements(named, 0, dialect=empty_server.name, limits=BatchLimits(rows=1)).render_writes(given)
        )
        assert len(batches) == 2
        with pytest.raises(AssertionError, match="0,"):
            run(empty_server, batches)
        run(empty_server, batches[1:])


@pytest.mark.mariadb
def test_target_deletes_exactly_the_copies_of_an_image(empty_server: MariaDb) -> None:
    # hazards R-44: FLOAT, JSON in another spelling, NULL, and a collation in which a, A and 'a ' are equal
    execute(
        empty_server,
        "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE d.heap (a FLOAT, j JSON, s VARCHAR(20) COLLATE utf8mb4_general_ci, n BIGINT, UNIQUE (n))",
    )
    near: list[dict[str, str | None]] = [{**HEAP_ROWS[0], "s": s} for s in ("A", "a ", "ä")]
    near += [{**HEAP_ROWS[0], "a": "1.2"}, {**HEAP_ROWS[0], "j": None}, {**HEAP_ROWS[0], "j": '{"x": [1, "e"]}'}]
    out = TableStatements(HEAP, 0, dialect=empty_server.name)
    run(empty_server, out.render_inserts(images(HEAP, [*near, *HEAP_ROWS]), [1] * len(near) + [3, 1]))
    execute(empty_server, """UPDATE d.heap SET j = '{"x":[1,"é"]}' WHERE s = 'a' AND BINARY s = 'a' LIMIT 1""")
    run(empty_server, out.render_image_deletes(images(HEAP, HEAP_ROWS), [3, 1]))
    assert rows(empty_server, "SELECT COUNT(*) FROM d.heap") == [(len(near),)]
    run(empty_server, out.render_image_deletes(images(HEAP, near), [1] * len(near)))
    assert rows(empty_server, "SELECT COUNT(*) FROM d.heap") == [(0,)]


@pytest.mark.servers("mariadb")
def test_json_too_deep_for_mariadbs_functions_is_stored_and_matched(empty_server: MariaDb) -> None:
    # S0-22: MariaDB's check of JSON columns accepts 31 levels; the source had checked the value
    execute(
        empty_server,
        "CREATE DATABASE d CHARACTER SET utf8mb4",
        "CREATE TABLE d.heap (a FLOAT, j JSON, s TEXT, n BIGINT)",
    )
    deep: list[dict[str, str | None]] = [{**HEAP_ROWS[0], "j": "[" * n + "]" * n} for n in (31, 32, 100)]
    session, out = (
        TargetSession(TargetSection(db_type="mariadb", port=empty_server.port)),
        TableStatements(HEAP, 0, dialect=empty_server.name),
    )
    try:
        batches = [
            *out.render_inserts(images(HEAP, deep), [1, 1, 1]),
            *out.render_image_deletes(images(HEAP, deep[1:]), [1, 1]),
        ]
        affected = [session.execute(sql) for batch in batches for sql in batch.sql]
        assert affected == [3, 1, 1]
        assert session.fetch_rows("SELECT j FROM d.heap") == [(deep[0]["j"],)]
    finally:
        session.close()


@pytest.mark.parametrize("place", [0, 3, 6, 7, 8, 15])
def test_text_is_found_wherever_a_search_in_parts_begins(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(literal, "_SEARCHED", 4)
    text = "." * place + "ab" + "." * (16 - place)
    values = pa.array(["ab", text[:5], text[5:], "ab"], pa.large_string()).slice(1, 2)
    assert literal._may_contain(values, "ab")
    assert not literal._may_contain(values, "ba")
    assert not literal._may_contain(values.slice(0, 0), "ab")
