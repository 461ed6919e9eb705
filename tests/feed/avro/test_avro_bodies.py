"""Bodies of the Avro protocol: an independent library decodes them to the row (MISSION S2)."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tidb_json import INT_PK, Json, column, table_def, table_info

from binlake.config.protocols import AvroOptions
from binlake.errors import SchemaError
from binlake.feed.avro import encode_keys, encode_values
from binlake.feed.avroschema import build_key_schema, build_value_schema
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

PAGE = AvroOptions()
NOT_NULL, UNSIGNED = t.FLAG_NOT_NULL, t.FLAG_UNSIGNED


def table_of(*kinds: Json) -> TableDef:
    cols = [column(1, "id", t.LONGLONG, flag=INT_PK), *({**kind, "id": n} for n, kind in enumerate(kinds, 2))]
    return table_def(table_info(1, "t", cols, pk_is_handle=True))


def encode(table: TableDef, rows: list[dict[str, str | None]], options: AvroOptions = PAGE) -> list[bytes]:
    images = {c.name: pa.array([row[c.name] for row in rows], pa.string()) for c in table.row_columns}
    ops, stamps = pa.array(["c"] * len(rows)), pa.array([417318403368288260] * len(rows))
    bodies: list[bytes] = encode_values(table, images, ops, stamps, options).to_pylist()
    return bodies


def decode(table: TableDef, rows: list[dict[str, str | None]], options: AvroOptions = PAGE) -> list[Any]:
    schema = fastavro.parse_schema(json.loads(build_value_schema(table, options)))
    found = []
    for body in encode(table, rows, options):
        stream = io.BytesIO(body)
        found.append(fastavro.schemaless_reader(stream, schema, None))
        assert not stream.read()
    return found


def value(kind: Json, text: str | None, options: AvroOptions = PAGE) -> Any:
    return decode(table_of(kind), [{"id": "1", kind["name"]["O"]: text}], options)[0][kind["name"]["O"]]


VALUES = [
    # S2-21
    (column(2, "c", t.TINY), "-128", -128),
    (column(2, "c", t.TINY, flag=UNSIGNED), "255", 255),
    (column(2, "c", t.SHORT), "-32768", -32768),
    (column(2, "c", t.SHORT, flag=UNSIGNED), "65535", 65535),
    (column(2, "c", t.INT24), "8388607", 8388607),
    (column(2, "c", t.INT24, flag=UNSIGNED), "16777215", 16777215),
    (column(2, "c", t.LONG), "-2147483648", -(1 << 31)),
    (column(2, "c", t.LONG, flag=UNSIGNED), "4294967295", 4294967295),
    (column(2, "c", t.LONGLONG), "-9223372036854775808", -(1 << 63)),
    (column(2, "c", t.YEAR), "2155", 2155),
    (column(2, "c", t.YEAR), "0000", 0),
    # S2-22
    (column(2, "c", t.LONGLONG, flag=UNSIGNED), "18446744073709551615", -1),
    # S2-23
    *((column(2, "c", kind, charset="binary"), "00FF80", b"\x00\xff\x80") for kind in sorted(t.STRINGS)),
    (column(2, "c", t.STRING, charset="binary", flen=4), "61000000", b"a\0\0\0"),
    # S2-24
    *((column(2, "c", kind), "𝄞 ü", "𝄞 ü") for kind in sorted(t.STRINGS)),
    # S2-25
    (column(2, "c", t.FLOAT), "1.5", 1.5),
    (column(2, "c", t.DOUBLE), "-2.2250738585072014e-308", -2.2250738585072014e-308),
    # S2-26
    (column(2, "c", t.DATE), "2024-02-29", "2024-02-29"),
    (column(2, "c", t.DATETIME, decimal=3), "2024-02-29 12:34:56.789", "2024-02-29 12:34:56.789"),
    (column(2, "c", t.DURATION), "-01:00:00", "-01:00:00"),
    (column(2, "c", t.DATE), "0000-00-00", "0000-00-00"),
    # S2-27
    (column(2, "c", t.BIT, flen=10), "0041", b"\x41"),
    (column(2, "c", t.BIT, flen=10), "02AB", b"\x02\xab"),
    (column(2, "c", t.BIT, flen=64), "0000000000000000", b"\0"),
    # S2-28
    (column(2, "c", t.JSON), '{"a": [1, null, "x"]}', '{"a": [1, null, "x"]}'),
    # S2-29
    (column(2, "c", t.ENUM, elems=["a", "b"]), "b", "b"),
    (column(2, "c", t.ENUM, elems=["a", "b"]), "", ""),
    (column(2, "c", t.SET, elems=["a", "b", "c"]), "a,c", "a,c"),
    # S2-30, S2-31
    (column(2, "c", t.NEWDECIMAL, flen=20, decimal=7), "129012.1230000", Decimal("129012.1230000")),
    (column(2, "c", t.NEWDECIMAL, flen=65, decimal=30), f"-{'9' * 35}.{'9' * 30}", Decimal(f"-{'9' * 35}.{'9' * 30}")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "expected"), VALUES)
def test_independent_reader_decodes_the_value(kind: Json, text: str, expected: object) -> None:
    assert value(kind, text) == expected
    assert value(kind, None) is None


# S2-22, S2-31, S2-33
def test_string_modes_keep_the_text() -> None:
    options = AvroOptions(decimals="string", unsigned_bigints="string")
    assert value(column(2, "c", t.LONGLONG, flag=UNSIGNED), "18446744073709551615", options) == "18446744073709551615"
    assert value(column(2, "c", t.NEWDECIMAL, flen=20, decimal=7), "129012.1230000", options) == "129012.1230000"


# S2-30
@pytest.mark.parametrize(
    ("text", "digits"), [("12.3456", "01e240"), ("-0.0001", "ff"), ("0.0000", "00"), ("0.0128", "0080")]
)
def test_decimal_is_its_shortest_twos_complement(text: str, digits: str) -> None:
    kind = column(2, "c", t.NEWDECIMAL, flag=NOT_NULL, flen=10, decimal=4)
    body = encode(table_of(kind), [{"id": "0", "c": text}])[0]
    assert body == b"\0" + bytes([2 * (len(digits) // 2)]) + bytes.fromhex(digits)


# S2-25, X-13
def test_float_is_the_servers_float_in_both_forms() -> None:
    nearest = 1.100000023841858
    assert value(column(2, "c", t.FLOAT), "1.1") == nearest
    assert value(column(2, "c", t.FLOAT), "1.1", AvroOptions(floats="float")) == nearest


# S2-26
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2024-07-01 12:00:00.12", "2024-07-01 14:00:00.12"),
        ("2024-01-01 23:30:00.00", "2024-01-02 00:30:00.00"),
        ("0000-00-00 00:00:00.00", "0000-00-00 00:00:00.00"),
    ],
)
def test_timestamp_is_shown_in_the_feeds_zone(text: str, shown: str) -> None:
    kind = column(2, "c", t.TIMESTAMP, decimal=2)
    assert value(kind, text) == text
    assert value(kind, text, AvroOptions(time_zone="Europe/Berlin")) == shown


# S2-07
def test_default_message_has_only_the_row() -> None:
    table = table_of(column(2, "c", t.VARCHAR))
    schema = json.loads(build_value_schema(table, PAGE))
    assert [field["name"] for field in schema["fields"]] == ["id", "c"]
    assert decode(table, [{"id": "7", "c": "x"}]) == [{"id": 7, "c": "x"}]


# S2-19
def test_nullable_column_is_a_union() -> None:
    kind = column(2, "c", t.VARCHAR)
    table = table_of(kind)
    assert json.loads(build_value_schema(table, PAGE))["fields"][1] == {
        "name": "c",
        "default": None,
        "type": ["null", {"type": "string", "connect.parameters": {"tidb_type": "TEXT"}}],
    }
    # In zig-zag the branch of `null` is 0, and that of the text is 2, before its length.
    bodies = encode(table, [{"id": "0", "c": None}, {"id": "0", "c": "x"}])
    assert bodies == [b"\x00\x00", b"\x00\x02\x02x"]
    assert [value(kind, text) for text in (None, "x")] == [None, "x"]


# S2-09, S2-10, S2-11
def test_extension_adds_operation_and_commit_ts() -> None:
    row = decode(table_of(), [{"id": "7"}], AvroOptions(extension=True))[0]
    assert row == {
        "id": 7,
        "_tidb_op": "c",
        "_tidb_commit_ts": 417318403368288260,
        "_tidb_commit_physical_time": 1591943372224,
    }


# S2-15, S2-48
def test_key_has_only_its_columns() -> None:
    table = table_of(column(2, "c"))
    images = {"id": pa.array(["1", "-5"]), "c": pa.array([None, "2"])}
    schema = fastavro.parse_schema(json.loads(build_key_schema(table, PAGE)))
    keys = encode_keys(table, images, PAGE).to_pylist()
    assert [fastavro.schemaless_reader(io.BytesIO(key), schema, None) for key in keys] == [{"id": 1}, {"id": -5}]


def test_value_that_does_not_fit_names_table_and_column() -> None:
    with pytest.raises(SchemaError, match=r"table=test\.t column=c"):
        encode(table_of(column(2, "c")), [{"id": "1", "c": "one"}])
    with pytest.raises(SchemaError, match=r"table=test\.t column=c"):
        encode(table_of(column(2, "c", flag=NOT_NULL)), [{"id": "1", "c": None}])


BERLIN = AvroOptions(time_zone="Europe/Berlin")
DEFAULTS: list[tuple[Json, str, AvroOptions]] = [
    # column with a default as TiDB stores it, the canonical text of that value
    (column(2, "c", t.LONG, default="1.5"), "2", PAGE),
    (column(2, "c", t.TINY, default="-7"), "-7", PAGE),
    (column(2, "c", t.LONGLONG, flag=UNSIGNED, default="18446744073709551615"), "18446744073709551615", PAGE),
    (column(2, "c", t.YEAR, default="2024"), "2024", PAGE),
    (column(2, "c", t.FLOAT, default="1.1"), "1.1", PAGE),
    (column(2, "c", t.FLOAT, default="1.1"), "1.1", AvroOptions(floats="float")),
    (column(2, "c", t.DOUBLE, default="1e2"), "100", PAGE),
    (column(2, "c", t.TIMESTAMP, default="2024-07-01 12:00:00"), "2024-07-01 12:00:00", BERLIN),
    (column(2, "c", t.TIMESTAMP, default="0000-00-00 00:00:00"), "0000-00-00 00:00:00", BERLIN),
    (column(2, "c", t.TIMESTAMP, decimal=3, default="2024-01-01 00:00:00"), "2024-01-01 00:00:00.000", BERLIN),
    (column(2, "c", t.DATETIME, decimal=2, default="2024-02-29 00:00:00"), "2024-02-29 00:00:00.00", BERLIN),
    (column(2, "c", t.DATE, default="2024-02-29"), "2024-02-29", PAGE),
    (column(2, "c", t.DURATION, decimal=1, default="-01:00:00"), "-01:00:00.0", PAGE),
    (column(2, "c", t.ENUM, elems=["a", "b"], default="b"), "b", PAGE),
    (column(2, "c", t.SET, elems=["a", "b"], default="a,b"), "a,b", PAGE),
    (column(2, "c", t.STRING, flen=5, default="a "), "a", PAGE),
    (column(2, "c", t.VARCHAR, flen=20, default="CURRENT_DATE"), "CURRENT_DATE", PAGE),
]


@pytest.mark.parametrize(("kind", "text", "options"), DEFAULTS, ids=lambda case: str(getattr(case, "time_zone", "")))
def test_default_is_the_value_of_a_row_that_has_it(kind: Json, text: str, options: AvroOptions) -> None:  # U-28
    table = table_of(kind)
    default = json.loads(build_value_schema(table, options))["fields"][1]["default"]
    [row] = decode(table, [{"id": "1", "c": text}], options)
    assert default == row["c"]


@pytest.mark.parametrize(
    "kind",
    [
        column(2, "c", t.DATE, default="CURRENT_DATE"),
        column(2, "c", t.DATE, default="current_date()"),
        column(2, "c", t.TIMESTAMP, decimal=3, default="CURRENT_TIMESTAMP(3)"),
        column(2, "c", t.DATETIME, default="CURRENT_TIMESTAMP"),
        column(2, "c", t.YEAR, default="CURRENT_TIMESTAMP"),
        column(2, "c", t.LONG, default="nextval(s)"),
        column(2, "c", t.VARCHAR, default="uuid()", default_is_expr=True),
    ],
    ids=lambda kind: f"{kind['type']['Tp']}-{kind['default']}",
)
def test_what_is_no_value_is_no_default(kind: Json) -> None:
    table = table_of(kind)
    assert json.loads(build_value_schema(table, PAGE))["fields"][1]["default"] is None
    assert decode(table, [{"id": "1", "c": None}])[0]["c"] is None


_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_KINDS: list[tuple[Json, st.SearchStrategy[str]]] = [
    (column(2, "i", t.LONGLONG), st.integers(-(1 << 63), (1 << 63) - 1).map(str)),
    (
        column(2, "d", t.NEWDECIMAL, flen=38, decimal=6),
        st.decimals(-(10**31), 10**31, places=6).map(lambda d: f"{d:f}"),
    ),
    (column(2, "s", t.VARCHAR), _TEXT),
    (column(2, "n", t.VARCHAR, flag=NOT_NULL), _TEXT),
    (column(2, "b", t.BLOB, charset="binary"), st.binary(max_size=200).map(lambda b: b.hex().upper())),
    (column(2, "x", t.BIT, flen=24), st.binary(min_size=3, max_size=3).map(lambda b: b.hex().upper())),
    (column(2, "f", t.DOUBLE), st.floats(allow_nan=False, allow_infinity=False).map(repr)),
    (column(2, "z", t.VARCHAR, default="null"), _TEXT),
]


@pytest.mark.long
@given(data=st.data())
def test_rows_of_random_tables_are_read_back(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(_KINDS), unique_by=lambda kind: kind[0]["name"]["O"], max_size=6))
    table = table_of(*(kind for kind, _ in chosen))
    rows: list[dict[str, str | None]] = []
    for number in range(data.draw(st.integers(1, 20))):
        row: dict[str, str | None] = {"id": str(number)}
        for kind, texts in chosen:
            nullable = not kind["type"]["Flag"] & NOT_NULL
            row[kind["name"]["O"]] = data.draw(st.one_of(st.none(), texts) if nullable else texts)
        rows.append(row)
    for row, read in zip(rows, decode(table, rows), strict=True):
        assert read == {name: None if text is None else _typed(name, text) for name, text in row.items()}


def _typed(name: str, text: str) -> object:
    match name:
        case "id" | "i":
            return int(text)
        case "d":
            return Decimal(text)
        case "f":
            return float(text)
        case "b":
            return bytes.fromhex(text)
        case "x":
            return bytes.fromhex(text).lstrip(b"\0") or b"\0"
        case _:
            return text
