"""Where chunks end: keys in the server's index order, each row in one chunk on both sides, unambiguous texts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, primary, table
from support.tinylake import put
from support.windows import target_of

from binlake.lake.paths import LakePaths
from binlake.repair.chunks import ChunkPlan, Cuts, KeyOrder, hash_texts
from binlake.repair.comparing import VerifyState
from binlake.repair.serverside import Digest, SqlTable
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb

TEXT = col("k", t.VARCHAR, flen=20, not_null=True)
KEYS = {
    "text": (TEXT, ["a", "a\t", "a b", "a\tb", "aa", "A", "ß", "😀", "", "\x01", "a!", "a\x1f", "ab", "€"]),
    "bytes": (
        col("k", t.VARCHAR, flen=20, charset="binary", not_null=True),
        ["", "00", "0000", "FF", "7F", "AB", "0A"],
    ),
    "decimal": (
        col("k", t.NEWDECIMAL, flen=10, decimal=2, not_null=True),
        ["-1.50", "-10.00", "0.00", "2.00", "10.00"],
    ),
    "unsigned": (col("k", t.LONGLONG, flen=20, unsigned=True, not_null=True), ["18446744073709551615", "9", "10"]),
    "moment": (col("k", t.DATETIME, decimal=3, not_null=True), ["2026-01-01 00:00:00.000", "1999-12-31 23:59:59.999"]),
}
TYPES = {
    "text": "VARCHAR(20) COLLATE utf8mb4_bin", "bytes": "VARBINARY(20)", "decimal": "DECIMAL(10,2)",
    "unsigned": "BIGINT UNSIGNED", "moment": "DATETIME(3)",
}  # fmt: skip


@pytest.fixture
def session(server: MariaDb) -> Iterator[TargetSession]:
    server.wipe()
    execute(server, "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    opened = TargetSession(target_of(server))
    yield opened
    opened.close()


def test_chunks_end_in_the_order_of_the_servers_index(server: MariaDb, session: TargetSession) -> None:
    # S3-04: in a wrong order, a row would be counted in different chunks on the two sides
    for name, (column, keys) in KEYS.items():
        definition = table(name, column, col("v"), keys=(primary("k"),))
        execute(server, f"CREATE TABLE d.{name} (k {TYPES[name]} PRIMARY KEY, v INT)")
        put(server, definition, [{"k": key, "v": None} for key in random.Random(1).sample(keys, len(keys))])
        order = KeyOrder.of(definition, server.name)
        assert order is not None
        # A cut after every key, so that the whole order is visible.
        cuts = SqlTable(session, ChunkPlan(definition, server.name, Cuts()), [("d", name)]).compute_cuts(1)
        assert [key for (key,) in cuts.uppers] == sorted(keys, key=lambda key: order.compute_rank([key]))
        plan = ChunkPlan(definition, server.name, cuts)
        there = SqlTable(session, plan, [("d", name)])
        chunk_numbers = plan.compute_chunk_numbers({"k": keys, "v": [None] * len(keys)})
        sums = plan.hash_rows({"k": keys, "v": [None] * len(keys)})
        expected = {int(number): Digest(1, int(digest)) for number, digest in zip(chunk_numbers, sums, strict=True)}
        assert {n: d for n, d in there.compute_digests(range(cuts.count)) if d.rows} == expected


def test_several_tables_of_the_source_are_read_as_one(server: MariaDb, session: TargetSession) -> None:
    # S4-03
    definition = table("t", col("id", not_null=True), col("v"), keys=(primary("id"),))
    for name in ("t", "t_0", "t_1"):
        execute(server, f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v INT)")
    execute(server, "INSERT INTO d.t VALUES " + ", ".join(f"({n}, {n % 7})" for n in range(100)))
    execute(server, "INSERT INTO d.t_0 SELECT * FROM d.t WHERE id % 2 = 0")
    execute(server, "INSERT INTO d.t_1 SELECT * FROM d.t WHERE id % 2 = 1")
    plan = ChunkPlan(definition, server.name, Cuts(buckets=4))
    whole, parts = (SqlTable(session, plan, [("d", n) for n in names]) for names in (["t"], ["t_0", "t_1"]))
    assert dict(whole.compute_digests(range(4))) == dict(parts.compute_digests(range(4)))
    assert whole.compute_part_digests({0: 8}) == parts.compute_part_digests({0: 8})
    assert rows(server, "SELECT COUNT(*) FROM d.t") == [(sum(d.rows for _, d in parts.compute_digests(range(4))),)]


def test_no_two_rows_share_a_text_and_equal_changes_do_not_cancel_out() -> None:
    # U-18
    definition: TableDef = table("t", col("a", t.VARCHAR, flen=9), col("b", t.VARCHAR, flen=9))
    pairs = [("a,b", "c"), ("a", "b,c"), ("1:", ""), ("", "1:"), (None, "-"), ("-", None), ("", None), (None, "")]
    texts = {"a": [a for a, _ in pairs], "b": [b for _, b in pairs]}
    assert len(set(hash_texts(definition.row_columns, texts).tolist())) == len(pairs)
    before = hash_texts(definition.row_columns, {"a": ["x22"] * 4, "b": ["k1", "k2", "k3", "k4"]})
    after = hash_texts(definition.row_columns, {"a": ["x32"] * 4, "b": ["k1", "k2", "k3", "k4"]})
    assert before.sum() != after.sum()


def test_state_of_a_run_with_another_hash_is_not_continued(tmp_path: Path) -> None:
    # U-23: a row may be in another bucket now
    paths = LakePaths(str(tmp_path))
    older = VerifyState(paths, 7, "lake")
    older.begin(("d", "t"), Cuts(buckets=4))
    older.record_equal(("d", "t"), 2, 10)
    older.flush()
    again = VerifyState(paths, 7, "lake")
    assert (again.find_cuts(("d", "t")), again.look_up_equal_chunks(("d", "t"))) == (Cuts(buckets=4), {2: 10})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("binlake.repair.chunks.HASH", "another")
        newer = VerifyState(paths, 7, "lake")
        assert (newer.find_cuts(("d", "t")), newer.look_up_equal_chunks(("d", "t"))) == (None, {})
        newer.begin(("d", "t"), Cuts(buckets=4))
        newer.flush()
        assert VerifyState(paths, 7, "lake").look_up_equal_chunks(("d", "t")) == {}
