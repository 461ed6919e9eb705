"""Row changes as Arrow columns of the lake's table `mutation`."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from codec_golden import read_log
from support.tidb_json import INT_PK, Tables, article_table, column, table_def, table_info

from binlake.errors import WireError
from binlake.lake.tables import MUTATION
from binlake.rows.codec import (
    MutationBatch,
    MutationBuilder,
    decode_transaction,
    encode_commit_binlog,
    encode_prewrite_value,
    walk,
)
from binlake.rows.codec.assemble import MUTATION_SCHEMA, format_key_text
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.captures.capture import Capture
from binlake.tso import compose
from binlake.wire import binlog_pb2 as pb

CAPTURES = Path(__file__).parents[2] / "captures"
COMMIT = compose(1_700_000_000_000, 3)


def binlog(*builders: MutationBuilder) -> bytes:
    return encode_commit_binlog(5, COMMIT, b"k", encode_prewrite_value(23, [b.message for b in builders]))


def test_columns_match_the_lake_table() -> None:
    assert MUTATION_SCHEMA.names == [c.name for c in MUTATION.columns]
    words = {"int64": "BIGINT", "int32": "INT", "date32[day]": "DATE", "string": "STRING"}
    types = [words.get(str(f.type), "MAP<STRING, STRING>") for f in MUTATION_SCHEMA]
    assert types == [c.type for c in MUTATION.columns]


def test_transaction_becomes_rows() -> None:  # S0-18, S1-01
    batch = MutationBatch(route=lambda table: ("target", table.name))
    build = MutationBuilder(article_table()).insert({"id": "1", "name": None})
    build.update({"id": "1", "name": None}, {"id": "1", "name": 'q"'}).delete({"id": "1", "name": 'q"'})
    assert batch.add(binlog(build), COMMIT, 5, Tables(article_table())) == 3
    rows = batch.take().to_pylist()
    assert [r["op"] for r in rows] == ["insert", "update", "delete"]
    assert rows[1] == {
        "commit_ts": COMMIT,
        "start_ts": 5,
        "seq": 1,
        "commit_date": date(2023, 11, 14),
        "schema_version": 23,
        "source_db": "test",
        "source_table": "test",
        "db": "target",
        "table": "test",
        "table_id": 45,
        "op": "update",
        "key": '["1"]',
        "new_key": None,
        "before": [("id", "1"), ("name", None)],
        "after": [("id", "1"), ("name", 'q"')],
    }
    assert rows[0]["before"] is None
    assert rows[2]["after"] is None
    assert len(batch) == 0
    assert batch.take().num_rows == 0


def test_filters_do_not_renumber_remaining_rows() -> None:
    other = table_def(table_info(46, "u", [column(1, "id", flag=INT_PK)], pk_is_handle=True))
    batch = MutationBatch(route=lambda table: None if table.name == "test" else ("d", table.name))
    first, second = MutationBuilder(article_table()).insert({"id": "1"}), MutationBuilder(other).insert({"id": "9"})
    assert batch.add(binlog(first, second), COMMIT, 5, Tables(article_table(), other)) == 1
    assert [(r["seq"], r["table"]) for r in batch.take().to_pylist()] == [(1, "u")]


def test_filtered_rows_are_counted_and_not_decoded() -> None:  # S4-07, U-05
    build = MutationBuilder(article_table()).insert({"id": "1"}).update({"id": "1"}, {"id": "2"}).delete({"id": "2"})
    broken = build.message
    broken.updated_rows[0] = broken.deleted_rows[0] = b"\xff no row at all"
    payload = encode_commit_binlog(5, COMMIT, b"k", encode_prewrite_value(23, [broken, broken]))
    batch = MutationBatch(kinds=lambda _: {"insert"})
    assert batch.add(payload, COMMIT, 5, Tables(article_table())) == 2
    assert [(r["seq"], r["op"]) for r in batch.take().to_pylist()] == [(0, "insert"), (3, "insert")]
    assert (batch.stats.event_rows, batch.stats.table_rows) == (4, 0)
    nothing = MutationBatch(route=lambda _: None)
    assert nothing.add(payload, COMMIT, 5, Tables(article_table())) == 0
    assert nothing.stats.table_rows == 6


def test_row_without_a_key_uses_all_columns_as_key() -> None:
    table = table_def(table_info(45, "k", [column(1, "a"), column(2, "b")]))
    batch = MutationBatch()
    batch.add(binlog(MutationBuilder(table).delete({"a": "1", "b": None}, rowid=7)), COMMIT, 5, Tables(table))
    assert batch.take().to_pylist()[0]["key"] == '["1",null]'


def test_delete_without_a_defined_column_has_a_shorter_map() -> None:
    old = table_def(table_info(45, "k", [column(1, "a")]))
    new = table_def(table_info(45, "k", [column(1, "a"), column(2, "b", origin_default="4")]))
    batch = MutationBatch()
    batch.add(binlog(MutationBuilder(old).delete({"a": "1"}, rowid=7)), COMMIT, 5, Tables(new))
    batch.add(binlog(MutationBuilder(new).delete({"a": "1", "b": "2"}, rowid=7)), COMMIT, 5, Tables(new))
    rows = batch.take().to_pylist()
    assert [r["before"] for r in rows] == [[("a", "1")], [("a", "1"), ("b", "2")]]
    assert [r["key"] for r in rows] == ['["1"]', '["1","2"]']


def test_key_texts_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FEWEST", 1)
    cols = [column(1, "a", t.VARCHAR, flen=9), column(2, "b", t.ENUM, elems=['q"', "x"], origin_default='q"')]
    older = MutationBuilder(table_def(table_info(45, "k", cols[:1])))
    table = table_def(table_info(45, "k", cols))
    rows: list[dict[str, str | None]] = [
        {"a": 'say "hi"', "b": "x"}, {"a": None, "b": 'q"'}, {"a": "", "b": None}, {"a": "\\\t", "b": "x"},
        {"a": "\u2028\x7f", "b": None}, {"a": None, "b": None},
    ]  # fmt: skip
    new = MutationBuilder(table)
    for row in rows:
        new.insert(row)
    batch = MutationBatch()
    batch.add(binlog(new, older.insert({"a": "old"})), COMMIT, 5, Tables(table))
    expected = [format_key_text([row["a"], row["b"]]) for row in [*rows, {"a": "old", "b": 'q"'}]]
    assert batch.take().column("key").to_pylist() == expected


@pytest.mark.parametrize("few", [1, 1 << 40], ids=["together", "one by one"])
def test_error_names_its_row_for_every_batch_cut(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FEWEST", few)
    batch, tables = MutationBatch(), Tables(article_table())
    for commit_ts in (COMMIT, COMMIT + 1):
        build = MutationBuilder(article_table())
        for n in range(5):
            build.insert({"id": str(n), "name": "x"}).delete({"id": str(n), "name": "x"})
        if commit_ts > COMMIT:
            build.message.deleted_rows[3] = build.message.deleted_rows[3][:-1]
        batch.add(binlog(build), commit_ts, 5, tables)
    with pytest.raises(WireError, match=rf"kind delete.*cut short.*table_id=45 commit_ts={COMMIT + 1} seq=7"):
        list(batch.take_batches(rows=3))


def test_large_transaction_is_split_into_bounded_batches() -> None:  # S0-07, U-06
    table = table_def(
        table_info(45, "k", [column(1, "id", flag=INT_PK), column(2, "b", t.LONGBLOB)], pk_is_handle=True)
    )
    build = MutationBuilder(table)
    for n in range(170):
        build.insert({"id": str(n), "b": "x" * 100_000})
    batch = MutationBatch()
    assert batch.add(binlog(build), COMMIT, 5, Tables(table)) == 170
    assert batch.is_full
    taken = list(batch.take_batches(rows=300, size=4 << 20))
    assert [one.column("seq")[0].as_py() for one in taken] == list(range(0, 170, 41))
    assert sum(one.num_rows for one in taken) == 170
    assert max(one.nbytes for one in taken) < 5 << 20
    assert not batch.is_full
    assert len(batch) == 0


def test_binlog_above_protobuf_limit_is_refused() -> None:  # S0-07
    class Huge(bytes):
        def __len__(self) -> int:
            return (2 << 30) + 1

    with pytest.raises(WireError, match=r"2147483649 bytes is above the 2147483647 bytes.*commit_ts=7"):
        MutationBatch().add(Huge(), 7, 5, Tables(article_table()))


def test_excluded_tables_have_lists_checked_but_rows_not_decoded() -> None:
    batch = MutationBatch(route=lambda _: None)
    build = MutationBuilder(article_table()).insert({"id": "1", "name": "a"})
    build.message.inserted_rows[0] = b"\xff"
    assert batch.add(binlog(build), COMMIT, 5, Tables(article_table())) == 0
    assert list(batch.take_batches()) == []
    build.message.sequence.append(pb.Insert)
    with pytest.raises(WireError, match="sequence names 2 inserts"):
        batch.add(binlog(build), COMMIT, 5, Tables(article_table()))


def test_keys_are_json() -> None:
    values = ["1", None, 'q"\\\n中\u2028', ""]
    assert json.loads(format_key_text(values)) == values


@pytest.mark.long
@pytest.mark.parametrize("name", ["bank", "keys"])
def test_batches_equal_decoding_one_by_one(name: str) -> None:
    log, batch = read_log(Capture(CAPTURES / name)), MutationBatch()
    expected = []
    for commit_ts, start_ts, payload in log.transactions[::7]:
        place = log.schemas.find_schema_at(commit_ts)
        batch.add(payload, commit_ts, start_ts, place)
        expected += [
            (commit_ts, c.seq, c.table_id, c.op, c.before, c.after)
            for c in decode_transaction(payload, commit_ts, start_ts, place)
        ]
    got = [
        (r["commit_ts"], r["seq"], r["table_id"], r["op"], _dict(r["before"]), _dict(r["after"]))
        for r in batch.take().to_pylist()
    ]
    assert got == expected


def _dict(pairs: list[tuple[str, str | None]] | None) -> dict[str, str | None] | None:
    return None if pairs is None else dict(pairs)
