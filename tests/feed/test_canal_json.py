"""Canal-JSON as TiCDC's page shows it; a decoder that follows that page reads every row back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from support.canal import decode_canal
from support.examples import examples
from support.feedrows import COMMIT_TS, EVERY, ROWS, Row, columns_of, encoded, every_kind
from support.tidb_json import INT_PK, Json, column, table_def, table_info

from binlake.config.protocols import CanalJsonOptions
from binlake.feed.canaljson import CanalJsonFormat, format_mysql_type
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

PLAIN = CanalJsonFormat(CanalJsonOptions())
EXTENDED = CanalJsonFormat(CanalJsonOptions(extension=True))
TYPES = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}
UNSIGNED = t.FLAG_UNSIGNED

INTEGERS = table_def(
    table_info(
        1,
        "tp_int",
        [
            column(1, "id", t.LONG, flag=INT_PK),
            column(2, "c_tinyint", t.TINY),
            column(3, "c_smallint", t.SHORT),
            column(4, "c_mediumint", t.INT24),
            column(5, "c_int", t.LONG),
            column(6, "c_bigint", t.LONGLONG),
        ],
        pk_is_handle=True,
    )
)
BEFORE: Row = {"id": "2", "c_tinyint": "127", "c_smallint": "32767", "c_mediumint": "8388607", "c_int": "2147483647",
               "c_bigint": "9223372036854775807"}  # fmt: skip
AFTER: Row = {**BEFORE, "c_int": "0", "c_tinyint": "0"}
PAGE: Json = {
    "id": 0,
    "database": "test",
    "table": "tp_int",
    "pkNames": ["id"],
    "isDdl": False,
    "type": "INSERT",
    "es": 1591943372224,
    "ts": 1591943372224,
    "sql": "",
    "sqlType": {"c_bigint": -5, "c_int": 4, "c_mediumint": 4, "c_smallint": 5, "c_tinyint": -6, "id": 4},
    "mysqlType": {"c_bigint": "bigint", "c_int": "int", "c_mediumint": "mediumint", "c_smallint": "smallint",
                  "c_tinyint": "tinyint", "id": "int"},
    "data": [BEFORE],
    "old": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "old", "new", "shown"),
    [
        (INSERT, [], [BEFORE], {}),
        (UPDATE, [BEFORE], [AFTER], {"type": "UPDATE", "data": [AFTER], "old": [BEFORE]}),
        (DELETE, [AFTER], [], {"type": "DELETE", "data": [AFTER]}),
    ],
)
def test_messages_equal_the_pages_examples(op: str, old: list[Row], new: list[Row], shown: Json) -> None:
    [(key, value)] = encoded(PLAIN, op, old, new, INTEGERS)
    assert key is None
    assert json.loads(value) == PAGE | shown
    [(_, value)] = encoded(EXTENDED, op, old, new, INTEGERS)
    assert json.loads(value) == PAGE | shown | {"_tidb": {"commitTs": COMMIT_TS}}


def test_byte_escapes_and_java_types_equal_the_pages() -> None:
    names = {"c_decimal": (t.NEWDECIMAL, {"flen": 10, "decimal": 4}), "c_char": (t.STRING, {"flen": 16}),
             "c_varchar": (t.VARCHAR, {"flen": 16}), "c_binary": (t.STRING, {"flen": 16, "charset": "binary"}),
             "c_varbinary": (t.VARCHAR, {"flen": 16, "charset": "binary"}), "c_enum": (t.ENUM, {"elems": ["a", "b"]}),
             "c_set": (t.SET, {"elems": ["a", "b"]}), "c_bit": (t.BIT, {"flen": 64})}  # fmt: skip
    table = table_def(table_info(1, "t", [column(n, name, tp, **more) for n, (name, (tp, more)) in
                                          enumerate(names.items(), 1)]))  # fmt: skip
    assert {one.name: format_mysql_type(one) for one in table.row_columns} == {
        "c_binary": "binary", "c_bit": "bit", "c_char": "char", "c_decimal": "decimal", "c_enum": "enum",
        "c_set": "set", "c_varbinary": "varbinary", "c_varchar": "varchar",
    }  # fmt: skip
    row: Row = dict.fromkeys(names)
    row["c_varbinary"] = bytes([5, 7, 10, 15, 36, 50, 43, 99, 120, 60, 38, 255, 254, 45, 55, 70]).hex().upper()
    [(_, value)] = encoded(PLAIN, INSERT, [], [row], table)
    assert rb'"c_varbinary":"\u0005\u0007\n\u000f$2+cx\u003c\u0026' + "ÿþ-7F".encode() in value
    message = json.loads(value)
    assert message["pkNames"] is None
    assert message["sqlType"] == {"c_decimal": 3, "c_char": 1, "c_varchar": 12, "c_binary": 2004, "c_varbinary": 2004,
                                  "c_enum": 4, "c_set": -7, "c_bit": -7}  # fmt: skip


@pytest.mark.parametrize(
    ("tp", "small", "large", "codes"),
    [
        (t.TINY, "127", "128", (-6, 5)),
        (t.SHORT, "32767", "32768", (5, 4)),
        (t.INT24, "8388607", "8388608", (4, 4)),
        (t.LONG, "2147483647", "2147483648", (4, -5)),
        (t.LONGLONG, "9223372036854775807", "9223372036854775808", (-5, 3)),
    ],
)
def test_large_unsigned_number_has_a_larger_java_type(tp: int, small: str, large: str, codes: tuple[int, int]) -> None:
    table = table_def(table_info(1, "t", [column(1, "c", tp, flag=UNSIGNED)]))
    messages = encoded(PLAIN, INSERT, [], [{"c": small}, {"c": large}, {"c": None}], table)
    assert [json.loads(value)["sqlType"]["c"] for _, value in messages] == [*codes, codes[0]]


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None)
@given(ROWS)
def test_every_row_is_decoded_unchanged(rows: list[Row]) -> None:
    for op, old, new in every_kind(rows):
        for number, (_, value) in enumerate(encoded(EXTENDED, op, old, new)):
            change = decode_canal(value, columns_of(EVERY))
            assert (change.type, change.name, change.commit_ts) == (TYPES[op], ("test", "every"), COMMIT_TS)
            assert change.data == (new or old)[number]
            assert change.old == (old[number] if op == UPDATE else None)


def test_time_zone_and_delete_keys_only_are_applied() -> None:
    own = CanalJsonFormat(CanalJsonOptions(time_zone="Asia/Shanghai", delete_keys_only=True))
    table: TableDef = table_def(
        table_info(1, "t", [column(1, "id", t.LONG, flag=INT_PK), column(2, "at", t.TIMESTAMP)], pk_is_handle=True)
    )
    row: Row = {"id": "1", "at": "2024-01-01 00:00:00"}
    [(_, value)] = encoded(own, UPDATE, [row], [row], table)
    assert json.loads(value)["data"] == json.loads(value)["old"] == [{"id": "1", "at": "2024-01-01 08:00:00"}]
    [(_, value)] = encoded(own, DELETE, [row], [], table)
    assert json.loads(value)["data"] == [{"id": "1"}]
    assert json.loads(value)["mysqlType"] == {"id": "int"}


def test_watermark_needs_the_extension() -> None:
    assert PLAIN.encode_watermark(COMMIT_TS) is None
    event = EXTENDED.encode_watermark(429918007904436226)
    assert event is not None
    assert (event.key, event.everywhere) == (None, True)
    assert json.loads(event.value or b"") == {
        "id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "type": "TIDB_WATERMARK",
        "es": 1640007049196, "ts": 1640007049196, "sql": "", "sqlType": None, "mysqlType": None, "data": None,
        "old": None, "_tidb": {"watermarkTs": 429918007904436226},
    }  # fmt: skip
