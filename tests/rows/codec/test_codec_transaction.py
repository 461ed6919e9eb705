"""From a transaction's payload to its row changes: the message, the order, and refused payloads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tidb_json import INT_PK, Tables, article_table, column, db_info, index, job, table_def, table_info

from binlake.errors import SchemaError, WireError
from binlake.rows.codec import (
    DecodeStats,
    MutationBuilder,
    RowChange,
    RowEncoder,
    decode_transaction,
    encode_commit_binlog,
    encode_prewrite_value,
)
from binlake.rows.codec.datum import write_int
from binlake.rows.schema import SchemaState, TableDef, WindowDdl, WindowSchemas
from binlake.rows.schema import mysqltypes as t
from binlake.wire import binlog_pb2 as pb
from binlake.wire.build import build_prewrite as prewrite_of

KEY = b"k1"


def row(number: int, name: str | None) -> dict[str, str | None]:
    return {"id": str(number), "name": name}


def article_transaction() -> MutationBuilder:
    """S0-21: six statements of one transaction."""
    build = MutationBuilder(article_table())
    build.insert(row(1, "a")).insert(row(2, "b"))
    build.update(row(1, "a"), row(1, "c")).update(row(2, "b"), row(2, "d"))
    return build.delete(row(2, "d")).insert(row(2, "c"))


def payload(*mutations: pb.TableMutation, commit_ts: int = 262157107202) -> bytes:
    return encode_commit_binlog(262144000001, commit_ts, KEY, encode_prewrite_value(23, mutations))


def decode(
    data: bytes, *tables: TableDef, gone: tuple[int, ...] = (), stats: DecodeStats | None = None
) -> list[RowChange]:
    return list(decode_transaction(data, 262157107202, 262144000001, Tables(*tables, gone=gone), stats))


def test_messages_have_the_original_fields() -> None:  # S0-19, S0-20
    fields = {f.name: f.number for f in pb.TableMutation.DESCRIPTOR.fields}
    assert fields == {
        "table_id": 1,
        "inserted_rows": 2,
        "updated_rows": 3,
        "deleted_ids": 4,
        "deleted_pks": 5,
        "deleted_rows": 6,
        "sequence": 7,
    }
    assert dict(pb.MutationType.items()) == {"Insert": 0, "Update": 1, "DeleteID": 2, "DeletePK": 3, "DeleteRow": 4}


def test_known_bytes_of_rows_and_binlogs() -> None:  # tidb-binlog 1.6
    encoder = RowEncoder(article_table())
    assert encoder.insert(row(1, "a")).hex(" ") == "08 02 08 04 02 02 61"
    assert encoder.update(row(1, "a"), row(1, "b")).hex() == "080208020804020261" + "080208020804020262"
    assert encoder.delete(row(1, "b")).hex(" ") == "08 02 08 02 08 04 02 02 62"
    value = encode_prewrite_value(23, [MutationBuilder(article_table()).insert(row(1, "a")).message])
    assert value.hex() == "0817120d082d1207080208040202613800"
    prewrite = prewrite_of(262144000001, KEY, value).SerializeToString()
    assert prewrite.hex() == "080010818080c8d007180022026b312a11" + value.hex() + "38004000"
    commit = encode_commit_binlog(262144000001, 262157107202, KEY)
    assert commit.hex() == "080110818080c8d007" + "188280a0ced007" + "22026b31" + "38004000"


def test_article_example_gives_six_changes_in_sequence_order() -> None:  # S0-18, S0-21, S1-01
    changes = decode(payload(article_transaction().message), article_table())
    assert [(c.seq, c.op, c.before, c.after) for c in changes] == [
        (0, "insert", None, row(1, "a")),
        (1, "insert", None, row(2, "b")),
        (2, "update", row(1, "a"), row(1, "c")),
        (3, "update", row(2, "b"), row(2, "d")),
        (4, "delete", row(2, "d"), None),
        (5, "insert", None, row(2, "c")),
    ]


def test_article_example_lists_and_sequence() -> None:  # S1-02
    message = article_transaction().message
    assert [len(x) for x in (message.inserted_rows, message.updated_rows, message.deleted_rows)] == [3, 2, 1]
    assert list(message.sequence) == [0, 0, 1, 1, 4, 0]


def test_sequence_with_a_missing_entry_is_an_error() -> None:  # S0-21
    message = article_transaction().message
    del message.sequence[-1]
    with pytest.raises(WireError, match=r"sequence names 2 inserts.*table_id=45 commit_ts=262157107202"):
        decode(payload(message), article_table())


def test_two_tables_keep_mutation_order_and_continuous_seq() -> None:  # S0-19
    other = table_def(table_info(46, "u", [column(1, "id", flag=INT_PK)], pk_is_handle=True))
    second = MutationBuilder(other).insert({"id": "9"}).message
    changes = decode(payload(article_transaction().message, second), article_table(), other)
    assert [c.table_id for c in changes] == [45] * 6 + [46]
    assert [c.seq for c in changes] == list(range(7))


@pytest.mark.parametrize(("field", "value"), [("deleted_ids", 5), ("deleted_pks", b"x")])
def test_deprecated_fields_are_refused_by_name(field: str, value: object) -> None:  # S0-20
    message = pb.TableMutation(table_id=45)
    getattr(message, field).append(value)
    with pytest.raises(WireError, match=rf"deprecated field {field} .*commit_ts=262157107202"):
        decode(payload(message), article_table())


def test_unknown_table_error_has_a_hint() -> None:
    with pytest.raises(SchemaError, match=r"Hint: reload the DDL history.*") as caught:
        decode(payload(article_transaction().message))
    assert caught.value.where == {"table_id": "45", "commit_ts": "262157107202"}


def test_late_change_of_truncated_table_is_counted_and_skipped() -> None:  # tidb-binlog 1.14 point 14
    stats = DecodeStats()
    other = table_def(table_info(46, "u", [column(1, "id", flag=INT_PK)], pk_is_handle=True))
    second = MutationBuilder(other).insert({"id": "9"}).message
    changes = decode(payload(article_transaction().message, second), other, gone=(45,), stats=stats)
    assert stats.gone_rows == {45: 6}
    assert [c.seq for c in changes] == [6]


def wider(*more: dict[str, object]) -> TableDef:
    cols = [column(1, "id", flag=INT_PK), column(2, "name", t.VARCHAR, flen=24), *more]
    return table_def(table_info(45, "test", cols, pk_is_handle=True))


def test_missing_column_gets_the_origin_default_of_its_position() -> None:  # R-19, S0-60, S0-64
    place = wider(column(3, "c", origin_default="7"), column(4, "d"), column(5, "e", flag=t.FLAG_NOT_NULL))
    changes = decode(payload(article_transaction().message), place)
    filled = {"c": "7", "d": None, "e": "0"}
    assert changes[0].after == row(1, "a") | filled
    assert changes[2].before == row(1, "a") | filled
    assert changes[4].before == row(2, "d")


def test_rows_around_a_ddl_have_the_columns_of_their_position() -> None:  # S0-60, S0-64
    narrow = table_info(45, "t", [column(1, "id", flag=INT_PK)], pk_is_handle=True)
    cols = [column(1, "id", flag=INT_PK), column(2, "c", default="7", origin_default="7")]
    wide = table_info(45, "t", cols, pk_is_handle=True)
    base = SchemaState().fold([(1, job(1, 1, db=db_info(2, "test"))), (2, job(3, 2, info=narrow))])
    added = WindowDdl(100, 90, 1003, 5, "ALTER TABLE t ADD c INT DEFAULT 7", job(5, 3, info=wide))
    schemas = WindowSchemas(base, [added])
    old, new = MutationBuilder(table_def(narrow)), MutationBuilder(table_def(wide))
    log = [
        (90, payload(old.insert({"id": "1"}).message)),
        (110, payload(new.insert({"id": "2", "c": "8"}).message)),
        (120, payload(MutationBuilder(table_def(narrow)).update({"id": "1"}, {"id": "1"}).message)),
    ]
    rows = [next(decode_transaction(data, ts, 1, schemas.find_schema_at(ts))).after for ts, data in log]
    assert rows == [{"id": "1"}, {"id": "2", "c": "8"}, {"id": "1", "c": "7"}]


def test_unknown_column_ids_are_ignored() -> None:
    written = wider(column(3, "c"), column(70, "wide", t.VARCHAR, flen=3))
    full = row(1, "a") | {"c": "5", "wide": "x"}
    build = MutationBuilder(written).insert(full).update(full, full | {"c": "6"}).delete(full)
    changes = decode(payload(build.message), article_table())
    assert [(c.before, c.after) for c in changes] == [
        (None, row(1, "a")),
        (row(1, "a"), row(1, "a")),
        (row(1, "a"), None),
    ]


def test_an_update_whose_first_column_is_unknown_or_has_a_long_id() -> None:
    cols = [column(64, "a"), column(65, "b"), column(1, "c")]
    written = table_def(table_info(45, "test", cols))
    before, after = {"a": "1", "b": None, "c": "3"}, {"a": "2", "b": "5", "c": None}
    data = payload(MutationBuilder(written).update(before, after, rowid=3).message)
    assert decode(data, written)[0].after == after
    narrow = table_def(table_info(45, "test", cols[1:]))
    assert decode(data, narrow)[0].before == {"b": None, "c": "3"}


def test_row_without_columns_is_one_zero_byte() -> None:  # tidb-binlog 1.11
    only_key = table_def(table_info(45, "test", [column(1, "id", flag=INT_PK)], pk_is_handle=True))
    message = MutationBuilder(only_key).insert({"id": "7"}).message
    assert message.inserted_rows[0] == write_int(7) + b"\0"
    assert decode(payload(message), only_key)[0].after == {"id": "7"}


def test_unsigned_key_above_signed_range_round_trips() -> None:  # tidb-binlog 1.11
    big = column(1, "id", t.LONGLONG, flag=INT_PK | t.FLAG_UNSIGNED)
    table = table_def(table_info(45, "test", [big, column(2, "v")], pk_is_handle=True))
    top = {"id": str(2**64 - 1), "v": "1"}
    assert decode(payload(MutationBuilder(table).insert(top).message), table)[0].after == top


def common_handle(length: int = -1) -> TableDef:
    cols = [
        column(1, "a", t.VARCHAR, flag=INT_PK, flen=20),
        column(2, "m", t.TIMESTAMP, flag=INT_PK, decimal=3),
        column(3, "v"),
    ]
    primary = index(1, "PRIMARY", [("a", length), ("m", -1)], unique=True, primary=True)
    return table_def(table_info(45, "test", cols, index_info=[primary], is_common_handle=True))


MOMENT = "2024-02-29 12:34:56.789"


def test_row_value_has_priority_over_handle_sort_key() -> None:  # tidb-binlog 1.11, tidb#24890
    table = common_handle()
    message = MutationBuilder(table).insert({"a": "Abc", "m": MOMENT, "v": "1"}).message
    sort_key = b"\x02\x06\xff\xfe\xfd"
    data = message.inserted_rows[0].replace(b"\x02\x06Abc", sort_key, 1)
    message.inserted_rows[0] = data
    assert sort_key in data
    assert decode(payload(message), table)[0].after == {"a": "Abc", "m": MOMENT, "v": "1"}


def test_key_part_missing_in_row_is_read_from_handle() -> None:  # keys_oldcoll
    table = common_handle()
    message = MutationBuilder(table).insert({"a": "Abc", "m": MOMENT, "v": "1"}).message
    message.inserted_rows[0] = message.inserted_rows[0].replace(b"\x08\x02\x02\x06Abc", b"", 1)
    assert decode(payload(message), table)[0].after == {"a": "Abc", "m": MOMENT, "v": "1"}


def test_key_prefix_is_never_used_as_value() -> None:  # tidb-binlog 5.5
    table = common_handle(length=2)
    message = MutationBuilder(table).insert({"a": "Abc", "m": MOMENT, "v": "1"}).message
    message.inserted_rows[0] = message.inserted_rows[0].replace(b"\x08\x02\x02\x06Abc", b"", 1)
    assert decode(payload(message), table)[0].after == {"a": "", "m": MOMENT, "v": "1"}


def test_update_halves_with_different_columns_are_refused() -> None:
    message = MutationBuilder(article_table()).update(row(1, "a"), row(1, "b")).message
    message.updated_rows[0] = message.updated_rows[0][:-5]
    with pytest.raises(WireError, match=r"halves.*table_id=45.*seq=0"):
        decode(payload(message), article_table())


names = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=24))
rows = st.builds(row, st.integers(-(2**31), 2**31 - 1), names)


@settings(max_examples=examples(60))
@given(st.lists(st.one_of(st.tuples(rows), st.tuples(rows, rows), st.tuples(rows, st.none())), max_size=12))
def test_decoding_inverts_encoding(steps: list[tuple[dict[str, str | None], ...]]) -> None:  # S1-02
    build, expected = MutationBuilder(article_table()), []
    for step in steps:
        if len(step) == 1:
            build.insert(step[0])
            expected.append((None, step[0]))
        elif step[1] is None:
            build.delete(step[0])
            expected.append((step[0], None))
        else:
            build.update(*step)
            expected.append(step)
    assert [(c.before, c.after) for c in decode(payload(build.message), article_table())] == expected
