"""A block of columns has the texts that a decoder reads from the rows of the same packets, whatever a server sends."""

from __future__ import annotations

import struct
from random import Random

import pytest
from support import tabledefs as d
from support.tidb_json import Tables

from binlake.common.varint import write_uvarint
from binlake.mysqlbinlog.rowimage.transactions import encode_inserts
from binlake.mysqlbinlog.tablerows.rowblocks import ColumnWriter
from binlake.mysqlbinlog.tablerows.rowtexts import RowWriter
from binlake.rows.codec import decode_transaction, encode_commit_binlog
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

Sent = bytes | None

KINDS = [
    (d.col("c", t.LONG), [b"0", b"-1", b"007", b"2147483647", None]),
    (d.col("c", t.LONGLONG, unsigned=True), [b"0", b"18446744073709551615", b"00042"]),
    (d.col("c", t.NEWDECIMAL, flen=10, decimal=2), [b"0.00", b"-0.00", b"-12.50", b"0000012.50", b"12345678.90", None]),
    (d.col("c", t.NEWDECIMAL, flen=3, decimal=3), [b"0.067", b"-0.500", b"-0.000"]),
    (d.col("c", t.NEWDECIMAL, flen=6, decimal=0), [b"0", b"000012", b"-7"]),
    (d.col("c", t.DOUBLE), [b"0", b"-0", b"1e300", b"1.5", b"-2e-308", b"123456789012345680", b"0.1", None]),
    (d.col("c", t.FLOAT), [b"0", b"-0", b"0.10000000149011612", b"16777216", b"3.4028234663852886e38", None]),
    (d.col("c", t.YEAR), [b"0000", b"2155"]),
    (d.col("c", t.DATE), [b"0000-00-00", b"2024-02-29", None]),
    (d.col("c", t.DURATION), [b"-838:59:59", b"00:00:00", b"-00:00:00", b"-00:00:01", None]),
    (d.col("c", t.DURATION, decimal=3), [b"12:00:00.001", b"-00:00:00.000"]),
    (d.col("c", t.DATETIME, decimal=6), [b"0000-00-00 00:00:00.000000", b"9999-12-31 23:59:59.999999"]),
    (d.col("c", t.VARCHAR, flen=50), [b"", "äöü€😀".encode(), b"a'\\\"\x00\n", b"x" * 300, None]),
    (d.col("c", t.VARCHAR, flen=50, charset="gbk"), ["中文".encode("gbk"), b"", None]),
    (d.col("c", t.LONGBLOB, charset="binary"), [b"\x00\xff\xfb", b"", b"\xfb" * 300, None]),
    (d.col("c", t.BIT, flen=12), [b"0", b"4095", None]),
    (d.col("c", t.ENUM, elems=("", "a", "ß")), [b"0", b"3", None]),
    (d.col("c", t.SET, elems=("a", "b", "ß")), [b"0", b"5", None]),
    (d.col("c", t.JSON), [b'{"b": [1, 1.5, null], "a": true}', b"[]", None]),
]
"""Definitions, and texts that a server sends for them; of ENUM, SET and BIT their numbers."""


def pack(values: list[Sent]) -> bytes:
    """A row's packet (text protocol)."""
    return b"".join(b"\xfb" if value is None else _prefix(len(value)) + value for value in values)


def _prefix(size: int) -> bytes:
    return bytes((size,)) if size < 0xFB else b"\xfc" + struct.pack("<H", size)


def table_of(*columns: d.Json) -> TableDef:
    named = [{**column, "name": {"O": f"c{n}", "L": f"c{n}"}} for n, column in enumerate(columns)]
    return d.table("t", *named, db="db")


def images(table: TableDef, value: bytes) -> list[dict[str, str | None] | None]:
    changes = decode_transaction(encode_commit_binlog(1, 2, b"k", value), 2, 1, Tables(table))
    return [change.after for change in changes]


def by_columns(table: TableDef, packets: list[bytes]) -> bytes | None:
    entry = ColumnWriter(table, "refuse").write(packets)
    return None if entry is None else encode_inserts(7, table.id, entry, 1)


def by_rows(table: TableDef, packets: list[bytes]) -> bytes:
    rows = RowWriter(table, invalid_text="refuse").write(packets)
    return encode_inserts(7, table.id, b"".join(b"\x12" + write_uvarint(len(row)) + row for row in rows), len(rows))


@pytest.mark.parametrize("seed", range(20))
def test_columns_have_the_texts_of_rows(seed: int) -> None:
    draw = Random(seed)
    kinds = draw.sample(KINDS, draw.randint(1, len(KINDS)))
    table = table_of(*(definition for definition, _ in kinds))
    packets = [pack([draw.choice(texts) for _, texts in kinds]) for _ in range(draw.choice([64, 500]))]
    value = by_columns(table, packets)
    assert value is not None
    assert images(table, value) == images(table, by_rows(table, packets))


@pytest.mark.parametrize(("definition", "texts"), KINDS)
def test_each_type_alone(definition: d.Json, texts: list[Sent]) -> None:
    """Also with one value only, so that no other value makes the column go the plain way."""
    table = table_of(definition)
    for some in [texts, *([text] for text in texts)]:
        packets = [pack([text]) for text in some]
        value = by_columns(table, packets)
        assert value is not None
        assert images(table, value) == images(table, by_rows(table, packets))


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        (d.col("c", t.LONG), b"x"),
        (d.col("c", t.VARCHAR, flen=5), b"\xff\xfe"),
        (d.col("c", t.DOUBLE), b"nan"),
        (d.col("c", t.FLOAT), b"1e39"),
    ],
)
def test_a_text_of_another_form_is_left_to_the_writer_of_rows(definition: d.Json, text: bytes) -> None:
    packets = [pack([b"1"])] * 100
    assert by_columns(table_of(definition), packets) is not None
    assert by_columns(table_of(definition), [*packets, pack([text])]) is None


def test_a_single_row_is_a_block_and_nothing_is_none() -> None:
    table = table_of(d.col("c", t.LONG))
    assert by_columns(table, []) is None
    assert by_columns(table, [pack([b"1"])]) is not None


def test_a_cut_packet_is_left_to_the_writer_of_rows() -> None:
    table = table_of(d.col("c", t.LONG), d.col("c", t.LONG))
    assert by_columns(table, [pack([b"1", b"2"])] * 100 + [pack([b"1"])]) is None
