"""Row changes as Arrow columns of the lake's table `mutation`."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from codec_golden import read_log
from tidb_json import INT_PK, Tables, article_table, column, table_def, table_info

from binlake.capture import Capture
from binlake.codec import MapColumn, MutationBatch, MutationBuilder, commit_binlog, decode_transaction, prewrite_value
from binlake.codec.batch import MUTATION_SCHEMA, key_text
from binlake.lake.tables import MUTATION
from binlake.tso import compose

CAPTURES = Path(__file__).parents[1] / "captures"
COMMIT = compose(1_700_000_000_000, 3)


def binlog(*builders: MutationBuilder) -> bytes:
    return commit_binlog(5, COMMIT, b"k", prewrite_value(23, [b.message for b in builders]))


def test_the_columns_are_those_of_the_lake() -> None:
    assert MUTATION_SCHEMA.names == [c.name for c in MUTATION.columns]
    words = {"int64": "BIGINT", "int32": "INT", "date32[day]": "DATE", "string": "STRING"}
    types = [words.get(str(f.type), "MAP<STRING, STRING>") for f in MUTATION_SCHEMA]
    assert types == [c.type for c in MUTATION.columns]


def test_one_transaction_as_rows() -> None:  # S0-18, S1-01
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
        "before": [("id", "1"), ("name", None)],
        "after": [("id", "1"), ("name", 'q"')],
    }
    assert rows[0]["before"] is None
    assert rows[2]["after"] is None
    assert len(batch) == 0
    assert batch.take().num_rows == 0


def test_filters_leave_the_numbers_of_the_rest() -> None:
    other = table_def(table_info(46, "u", [column(1, "id", flag=INT_PK)], pk_is_handle=True))
    batch = MutationBatch(route=lambda table: None if table.name == "test" else ("d", table.name))
    first, second = MutationBuilder(article_table()).insert({"id": "1"}), MutationBuilder(other).insert({"id": "9"})
    assert batch.add(binlog(first, second), COMMIT, 5, Tables(article_table(), other)) == 1
    assert [(r["seq"], r["table"]) for r in batch.take().to_pylist()] == [(1, "u")]


def test_a_keyless_row_is_its_own_key() -> None:
    table = table_def(table_info(45, "k", [column(1, "a"), column(2, "b")]))
    batch = MutationBatch()
    batch.add(binlog(MutationBuilder(table).delete({"a": "1", "b": None}, rowid=7)), COMMIT, 5, Tables(table))
    assert batch.take().to_pylist()[0]["key"] == '["1",null]'


def test_a_delete_without_a_column_of_its_place_has_a_shorter_map() -> None:
    old = table_def(table_info(45, "k", [column(1, "a")]))
    new = table_def(table_info(45, "k", [column(1, "a"), column(2, "b", origin_default="4")]))
    batch = MutationBatch()
    batch.add(binlog(MutationBuilder(old).delete({"a": "1"}, rowid=7)), COMMIT, 5, Tables(new))
    batch.add(binlog(MutationBuilder(new).delete({"a": "1", "b": "2"}, rowid=7)), COMMIT, 5, Tables(new))
    rows = batch.take().to_pylist()
    assert [r["before"] for r in rows] == [[("a", "1")], [("a", "1"), ("b", "2")]]
    assert [r["key"] for r in rows] == ['["1"]', '["1","2"]']


def test_keys_are_json() -> None:
    values = ["1", None, 'q"\\\n中\u2028', ""]
    assert json.loads(key_text(values)) == values


def test_maps_with_null_rows_and_shared_names() -> None:
    maps, ab, c = MapColumn(), ("a", "b"), ("c",)
    for image in [None, (ab, ["1", None]), (c, ["2"]), None, (ab, ["3", "4"]), (("a", "b"), ["5", "6"]), ((), [])]:
        maps.append(image)
    array = maps.to_arrow()
    array.validate(full=True)
    assert array.type == pa.map_(pa.string(), pa.string())
    assert array.to_pylist() == [
        None, [("a", "1"), ("b", None)], [("c", "2")], None, [("a", "3"), ("b", "4")], [("a", "5"), ("b", "6")], [],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["bank", "keys"])
def test_batches_hold_what_single_decoding_gives(name: str) -> None:
    log, batch = read_log(Capture(CAPTURES / name)), MutationBatch()
    expected = []
    for commit_ts, start_ts, payload in log.transactions[::7]:
        place = log.schemas.place(commit_ts)
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
