"""Rows of a SELECT written as blocks equal the bytes of the plain writer for all values, without calling it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from support import tabledefs as d

from binlake.common.varint import write_uvarint
from binlake.mysqlbinlog.rowimage.transactions import encode_inserts
from binlake.mysqlbinlog.tablerows.rowblocks import BlockWriter, group_into_blocks
from binlake.mysqlbinlog.tablerows.rowtexts import RowWriter
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import binlog_pb2 as pb

Draw = Callable[[random.Random], bytes]


def _integer(low: int, high: int) -> Draw:
    def draw(random_: random.Random) -> bytes:
        size = random_.randrange(1, max(abs(low), high).bit_length() + 1)
        return str(
            max(low, min(high, random_.choice([low, high, 0, random_.randrange(-(1 << size), 1 << size)])))
        ).encode()

    return draw


def _decimal(precision: int, scale: int) -> Draw:
    def draw(random_: random.Random) -> bytes:
        number = random_.randrange(10 ** random_.randint(1, precision))
        digits = str(number).rjust(scale + 1, "0")
        sign = "-" if number and random_.random() < 0.5 else ""
        return (sign + (digits[:-scale] + "." + digits[-scale:] if scale else digits)).encode()

    return draw


def _moment(fsp: int, has_clock: bool = True) -> Draw:
    def draw(random_: random.Random) -> bytes:
        if random_.random() < 0.1:
            text = "0000-00-00 00:00:00.000000"
        else:
            clock = f"{random_.randrange(24):02}:{random_.randrange(60):02}:{random_.randrange(60):02}"
            day = f"{random_.randrange(10000):04}-{random_.randrange(13):02}-{random_.randrange(32):02}"
            text = f"{day} {clock}.{random_.randrange(10**6):06}"
        return text[: (20 + fsp if fsp else 19) if has_clock else 10].encode()

    return draw


def _clock(fsp: int) -> Draw:
    def draw(random_: random.Random) -> bytes:
        sign, hours = random_.choice(["", "-"]), random_.choice([0, 5, 23, 99, 100, 838])
        text = f"{sign}{hours:02}:{random_.randrange(60):02}:{random_.randrange(60):02}"
        return (text + (f".{random_.randrange(10**fsp):0{fsp}}" if fsp else "")).encode()

    return draw


def _text(most: int) -> Draw:
    return lambda random_: ("aß😀'\\\0" * most)[: random_.randrange(most)].encode()


def _double(random_: random.Random) -> bytes:
    number = random_.choice([0.0, -0.0, 1e308, -2e-308, 0.1, random_.uniform(-1e9, 1e9), random_.gauss(0, 1e-9)])
    return random_.choice([repr(number), f"{number:.17g}"]).encode()


COLUMNS: list[tuple[d.Json, Draw]] = [
    (d.col("tiny", t.TINY), _integer(-128, 127)),
    (d.col("i", t.LONG), _integer(-(1 << 31), (1 << 31) - 1)),
    (d.col("big", t.LONGLONG), _integer(-(1 << 63), (1 << 63) - 1)),
    (d.col("ubig", t.LONGLONG, unsigned=True), _integer(0, (1 << 64) - 1)),
    (d.col("zero", t.LONG, unsigned=True), lambda r: f"{r.randrange(1 << 32):012}".encode()),
    *(
        (d.col(f"dec{p}_{s}", t.NEWDECIMAL, flen=p, decimal=s), _decimal(p, s))
        for p, s in ((1, 0), (9, 0), (10, 2), (18, 9), (20, 20), (30, 10), (65, 30), (65, 0), (3, 3))
    ),
    (d.col("dt", t.DATETIME, decimal=0), _moment(0)),
    (d.col("dt3", t.DATETIME, decimal=3), _moment(3)),
    (d.col("ts6", t.TIMESTAMP, decimal=6), _moment(6)),
    (d.col("day", t.DATE), _moment(0, has_clock=False)),
    (d.col("time", t.DURATION, decimal=0), _clock(0)),
    (d.col("time6", t.DURATION, decimal=6), _clock(6)),
    (d.col("year", t.YEAR), lambda r: r.choice([b"0000", b"1901", b"2155"])),
    (d.col("bit", t.BIT, flen=64), _integer(0, (1 << 64) - 1)),
    (d.col("enum", t.ENUM, elems=("a", "b")), _integer(0, 2)),
    (d.col("f", t.FLOAT), _double),
    (d.col("double", t.DOUBLE), _double),
    (d.col("text", t.VARCHAR, flen=50), _text(60)),
    (d.col("long", t.LONGBLOB), _text(300)),
    (d.col("bytes", t.LONGBLOB, charset="binary"), lambda r: r.randbytes(r.choice([0, 3, 250, 251, 70_000]))),
    (d.col("json", t.JSON), lambda r: r.choice([b"[]", b'{"a": [1, null, "x"]}', b"12"])),
]
KEY = d.col("id", t.LONGLONG, not_null=True)
KEY["type"]["Flag"] |= t.FLAG_PRIMARY


def _packet(values: Sequence[bytes | None]) -> bytes:
    return b"".join(b"\xfb" if value is None else _length(len(value)) + value for value in values)


def _length(size: int) -> bytes:
    if size < 0xFB:
        return bytes((size,))
    return b"\xfc" + size.to_bytes(2, "little") if size < 1 << 16 else b"\xfd" + size.to_bytes(3, "little")


def _plain(table: TableDef, packets: list[bytes]) -> bytes:
    return b"".join(b"\x12" + write_uvarint(len(row)) + row for row in RowWriter(table).write(packets))


@pytest.mark.long
@pytest.mark.parametrize("nulls", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("keyed", [True, False, "together"])
def test_block_equals_the_bytes_of_the_plain_writer(
    monkeypatch: pytest.MonkeyPatch, nulls: float, keyed: bool | str
) -> None:
    columns = [KEY] * bool(keyed) + [column for column, _ in COLUMNS]
    # A clustered key of two columns.
    keys = (d.primary(*(column["name"]["O"] for column in columns[:2])),) if keyed == "together" else ()
    table = d.table("t", *columns, keys=keys, is_common_handle=bool(keys), pk_is_handle=bool(keyed and not keys))
    draw = random.Random(7)
    packets = []
    for number in range(300):
        values = [None if draw.random() < nulls else value(draw) for _, value in COLUMNS]
        packets.append(_packet([str(number * 977 - 5000).encode()] * bool(keyed) + values))
    plain = _plain(table, packets)
    writer = BlockWriter(table)
    first = writer.write(packets[:200])
    monkeypatch.setattr(RowWriter, "write", None)  # the rest of this test does not need it
    both = [BlockWriter(table).write(packets), first]
    assert bytes(both[0].data) == plain
    assert plain.startswith(bytes(first.data))
    assert plain == bytes(first.data) + bytes(writer.write(packets[200:]).data)


def test_block_in_parts_equals_the_value_of_protobuf() -> None:
    table = d.table("t", KEY, d.col("v", t.VARCHAR, flen=50), pk_is_handle=True)
    packets = [_packet([str(n).encode(), b"x" * n]) for n in range(100)]
    parts = list(BlockWriter(table).write(packets).split_into_parts(22, 500))
    assert [rows for rows, _ in parts][:3] == [22, 12, 9]
    rows, read_rows = RowWriter(table).write(packets), 0
    for count, entries in parts:
        mutation = pb.TableMutation(
            table_id=table.id, inserted_rows=rows[read_rows : read_rows + count], sequence=[pb.Insert] * count
        )
        expected = pb.PrewriteValue(schema_version=7, mutations=[mutation]).SerializeToString()
        assert encode_inserts(7, table.id, entries, count) == expected
        read_rows += count
    assert read_rows == 100


@pytest.mark.parametrize(
    ("column", "odd"),
    [
        (d.col("c", t.DATETIME, decimal=3), b"2024-01-01 00:00:00"),
        (d.col("c", t.NEWDECIMAL, flen=5, decimal=2), b"-1.50"),
        (d.col("c", t.LONG, unsigned=True), b"7".rjust(40, b"0")),
    ],
)
def test_unexpected_form_of_text_is_left_to_the_plain_writer(column: d.Json, odd: bytes) -> None:
    table = d.table("t", KEY, column, pk_is_handle=True)
    packets = [_packet([str(n).encode(), odd]) for n in range(80)]
    assert bytes(BlockWriter(table).write(packets).data) == _plain(table, packets)


def test_blocks_are_limited_by_rows_and_bytes() -> None:
    assert [len(block) for block in group_into_blocks([[b"x"] * 3000] * 3)] == [6000, 3000]
    assert [len(block) for block in group_into_blocks([[bytes(1 << 19)], [bytes(1 << 19)], [b"x"]])] == [2, 1]
