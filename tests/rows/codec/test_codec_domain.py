"""Every column type over its whole domain, in a row as TiDB writes it: both decoders return the encoded values."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pytest
from codec_tables import INTEGERS, KINDS, Kind, Row, as_payload, decode_in_lanes, decode_plainly
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tidb_json import Tables, column, index, table_def, table_info

from binlake.rows.codec import MutationBuilder, walk
from binlake.rows.codec.datum import format_double, format_float
from binlake.rows.codec.encode import write_text
from binlake.rows.codec.jsons import (
    DATE,
    DATETIME,
    TIME,
    TIMESTAMP,
    Opaque,
    Temporal,
    encode_json,
    read_json,
    show_json,
    write_json,
)
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(autouse=True, scope="module")
def _lanes_for_few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "FEWEST", 1)
        yield


def assert_rows_round_trip(table: TableDef, rows: list[Row], new_collation: bool = True) -> None:
    """Insert each row, update it to the previous one and delete that; check the images decoded alone and together."""
    build = MutationBuilder(table, new_collation)
    expected: list[tuple[str, Any, Any]] = []
    for n, row in enumerate(rows):
        build.insert(row, n).update(row, rows[n - 1], n).delete(rows[n - 1], n)
        pairs, other = [(c.name, row[c.name]) for c in table.row_columns], rows[n - 1]
        new = [(c.name, other[c.name]) for c in table.row_columns]
        expected += [("insert", None, pairs), ("update", pairs, new), ("delete", new, None)]
    payloads, tables = [(9, as_payload(9, build.message))], Tables(table)
    found = decode_in_lanes(payloads, tables)
    assert found == decode_plainly(payloads, tables)
    assert [(row[4], row[7], row[8]) for row in found] == expected


def of_column(tp: int, **more: Any) -> TableDef:
    """A table without a key, with one column of this type."""
    return table_def(table_info(45, "t", [column(1, "c", tp, **more)]))


def assert_values_round_trip(table: TableDef, texts: list[str | None]) -> None:
    assert_rows_round_trip(table, [{"c": text} for text in [*texts, None]])


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(INTEGERS), st.data())
def test_integers(kind: Kind, data: st.DataObject) -> None:
    bits = {t.TINY: 8, t.SHORT: 16, t.INT24: 24, t.LONG: 32, t.LONGLONG: 64}[kind.tp]
    low, high = (0, 2**bits - 1) if kind.more["flag"] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    numbers = data.draw(st.lists(st.integers(low, high), max_size=5))
    table = of_column(kind.tp, **kind.more)
    assert_values_round_trip(table, [str(n) for n in (low, high, *numbers)])
    for beyond in (low - 1, high + 1):
        with pytest.raises(ValueError, match="out of range"):
            write_text(table.row_columns[0], str(beyond))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
@example([1e15, 999999999999999.9, 1e9, 5e-324, -0.0, 1e-15, 9007199254740993.0, 1e-4, 0.00009999])
def test_doubles(numbers: list[float]) -> None:
    assert_values_round_trip(of_column(t.DOUBLE), [format_double(n) for n in numbers])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=8))
@example([float(np.float32(n)) for n in (1e15, 16777216, 16777215, 123456789, 1e-45, 3.4028235e38, -0.0, 0.1, 1e-5)])
def test_floats(numbers: list[float]) -> None:
    assert_values_round_trip(of_column(t.FLOAT), [format_float(n) for n in numbers])


@pytest.mark.long
@settings(max_examples=examples(80), deadline=None)
@given(st.integers(1, 65).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, min(p, 30)))), st.data())
def test_decimals_up_to_65_digits(layout: tuple[int, int], data: st.DataObject) -> None:
    precision, scale = layout
    most = 10**precision - 1
    numbers = data.draw(st.lists(st.integers(-most, most), max_size=5))
    texts = [f"{Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)):f}" for n in (most, -most, 0, *numbers)]
    few, walk_few = of_column(t.NEWDECIMAL, flen=precision, decimal=scale), texts * 30
    assert_values_round_trip(few, list(walk_few))
    with pytest.raises(ValueError, match="does not fit"):
        write_text(few.row_columns[0], f"{10**precision}")


moments = st.builds(
    lambda y, m, d, clock, micro: f"{y:04d}-{m:02d}-{d:02d} {clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
    f".{micro:06d}",
    st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 86399), st.integers(0, 999999),
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from([t.DATETIME, t.TIMESTAMP]), st.integers(0, 6), st.lists(moments, max_size=5))
def test_datetimes_and_dates_with_zero_parts(tp: int, fsp: int, texts: list[str]) -> None:
    texts = [*texts, "0000-00-00 00:00:00.000000", "9999-12-31 23:59:59.999999"]
    assert_values_round_trip(of_column(tp, decimal=fsp), [text[: 20 + fsp] if fsp else text[:19] for text in texts])
    assert_values_round_trip(of_column(t.DATE), [text[:10] for text in texts])


@pytest.mark.parametrize("text", ["2024-13-01", "2024-12-32", "2024-01-01 24:00:00", "2024-01-01 00:60:00", "now"])
def test_invalid_datetimes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range|not a date"):
        write_text(of_column(t.DATETIME).row_columns[0], text)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=5))
def test_binaries(values: list[bytes]) -> None:
    texts = [value.hex().upper() for value in [b"", b"\0\xff", *values]]
    for tp in (t.STRING, t.VARCHAR, t.LONGBLOB):
        assert_values_round_trip(of_column(tp, charset="binary"), list(texts))


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(["utf8mb4", "latin1", "gbk", "ascii"]), st.lists(ANY_TEXT, max_size=5))
def test_texts_are_utf8_in_every_charset(charset: str, texts: list[str]) -> None:  # tidb-binlog 1.14 point 16
    for tp in (t.STRING, t.VARCHAR, t.LONGBLOB):
        assert_values_round_trip(of_column(tp, charset=charset), list(texts))


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 64), st.data())
def test_bits_enums_sets(width: int, data: st.DataObject) -> None:
    size = (width + 7) // 8 * 2
    numbers = [0, 2**width - 1, data.draw(st.integers(0, 2**width - 1))]
    assert_values_round_trip(of_column(t.BIT, flen=width, flag=t.FLAG_UNSIGNED), [f"{n:0{size}X}" for n in numbers])
    names = [f"n{n}" for n in range(width)]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=64))
    assert_values_round_trip(of_column(t.ENUM, elems=names), ["", *chosen])
    assert_values_round_trip(
        of_column(t.SET, elems=names), ["", ",".join(n for n in names if n in chosen), ",".join(names)]
    )


def test_times_and_years() -> None:
    for fsp in (0, 3, 6):
        tail = f".{'9' * fsp}" if fsp else ""
        texts = [
            f"{sign}{clock}{tail}" for sign in ("", "-") for clock in ("838:59:58", "00:00:01", "99:00:00", "100:00:00")
        ]
        assert_values_round_trip(of_column(t.DURATION, decimal=fsp), list(texts))
    assert_values_round_trip(of_column(t.YEAR, flag=t.FLAG_UNSIGNED), ["0000", "1901", "2155"])


JSON_LEAVES: Any = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), ANY_TEXT,
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(Opaque, st.integers(0, 255), st.binary(max_size=40)),
    st.builds(Temporal, st.sampled_from([DATE, DATETIME, TIMESTAMP]), moments),
    st.sampled_from([Temporal(TIME, "-838:59:59.000001"), Temporal(TIME, "00:00:00.000000")]),
)  # fmt: skip


@settings(max_examples=examples(80), deadline=None)
@given(st.recursive(JSON_LEAVES, lambda x: st.lists(x, max_size=4) | st.dictionaries(ANY_TEXT, x, max_size=4)))
def test_json_values_that_text_does_not_distinguish(value: Any) -> None:
    data = encode_json(value)
    assert read_json(data, 0) == (_json(value), len(data))


NUMBERS: Any = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.integers(-99, 99).map(float),
    st.sampled_from([5.0, 1e2, -0.0, 1e15, 1e20, 1e21, 2.0**63, 1e-7, 1e300]),
)  # fmt: skip


@settings(max_examples=examples(80), deadline=None)
@given(st.recursive(NUMBERS, lambda x: st.lists(x, max_size=4) | st.dictionaries(ANY_TEXT, x, max_size=4)))
@example({"p": 5.0, "q": [1e2, 100]})
def test_the_text_of_a_document_gives_the_same_document(value: Any) -> None:
    """A double that is whole stays a double: JSON_TYPE and generated columns differ otherwise."""
    document = encode_json(value)
    assert write_json(read_json(document, 0)[0]) == document


def test_tidb_prints_a_whole_double_as_an_integer() -> None:
    document = encode_json({"p": 5.0, "q": [1e2, 2.5, 1e21, -0.0]})
    assert show_json(document) == '{"p": 5, "q": [100, 2.5, 1e+21, -0]}'
    assert read_json(document, 0)[0] == '{"p": 5.0, "q": [100.0, 2.5, 1e+21, -0.0]}'


def _json(value: Any) -> str:
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: item[0].encode())
        return "{" + ", ".join(f"{_json(key)}: {_json(item)}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    if isinstance(value, Temporal):
        return f'"{value.text[:10] if value.kind == DATE else value.text}"'
    return read_json(encode_json(value), 0)[0]


def test_times_and_opaque_values_in_json_match_tidb() -> None:
    value = [Temporal(DATE, "2020-01-02"), Temporal(TIME, "10:11:12.000000"), Opaque(253, b"\0\xff\x10"),
             Temporal(DATETIME, "2020-01-02 03:04:05.000006")]  # fmt: skip
    shown = '["2020-01-02", "10:11:12.000000", "base64:type253:AP8Q", "2020-01-02 03:04:05.000006"]'
    assert read_json(encode_json(value), 0)[0] == shown


@pytest.mark.parametrize("text", ["NaN", "[1e999]", "{", "[-Infinity]", '"\\ud800"'])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a JSON document"):
        write_text(of_column(t.JSON).row_columns[0], text)


KEYS = [kind for kind in KINDS if kind.tp not in (t.JSON, *t.BLOBS)]


@pytest.mark.parametrize("new_collation", [True, False])
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_common_handles_of_every_type(new_collation: bool, seed: int) -> None:  # tidb-binlog 1.11, 1.14 point 17, U-13
    draw = Random(seed)
    kinds = draw.sample(KEYS, 4)
    cols = [column(n + 1, f"k{n}", k.tp, **{**k.more, "flag": k.more.get("flag", 0) | t.FLAG_NOT_NULL}) for n, k in enumerate(kinds)]  # fmt: skip  # noqa: E501
    parts = [(f"k{n}", 2 if k.tp in t.STRINGS and n % 2 else -1) for n, k in enumerate(kinds)]
    primary = index(1, "PRIMARY", parts, unique=True, primary=True)
    table = table_def(table_info(45, "t", [*cols, column(9, "v")], index_info=[primary], is_common_handle=True))
    rows = [
        {f"k{n}": k.text(draw, k.more) for n, k in enumerate(kinds)} | {"v": draw.choice([None, "1"])} for _ in range(4)
    ]
    assert_rows_round_trip(table, rows, new_collation)


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda k: f"{k.tp}-{k.more['flag']}")
def test_integer_handles(kind: Kind) -> None:  # tidb-binlog 1.11
    flag = kind.more["flag"] | t.FLAG_PRIMARY | t.FLAG_NOT_NULL
    table = table_def(table_info(45, "t", [column(1, "id", kind.tp, flag=flag), column(2, "v")], pk_is_handle=True))
    draw = Random(1)
    assert_rows_round_trip(table, [{"id": kind.text(draw, {}), "v": None} for _ in range(20)])


def test_insert_leaves_out_nulls_and_delete_contains_hidden_columns() -> None:  # tidb-binlog 1.11
    cols = [
        column(1, "id", flag=t.FLAG_PRIMARY | t.FLAG_NOT_NULL),
        column(2, "plain"),
        column(3, "defaulted", default="5"),
        column(4, "born_full", origin_default="6"),
        column(5, "bit", t.BIT, flen=8, default_bit="AQ=="),
        column(6, "virtual", generated_expr_string="x"),
        column(7, "stored", generated_expr_string="x", generated_stored=True),
        column(8, "half_added", state=3),
        column(9, "half_dropped", state=1),
    ]
    table = table_def(table_info(45, "t", cols, pk_is_handle=True))
    nothing: Row = {"id": "1"}
    message = MutationBuilder(table).insert(nothing).update(nothing, nothing).delete(nothing).message
    assert _ids(message.inserted_rows[0][2:]) == [3, 4, 5]
    assert _ids(message.updated_rows[0]) == [1, 2, 3, 4, 5, 7, 8] * 2
    assert _ids(message.deleted_rows[0]) == [1, 2, 3, 4, 5, 6, 7]


def _ids(row: bytes) -> list[int]:
    """The column ids of a row whose values are NULL or the number 1."""
    found, at = [], 0
    while at < len(row):
        found.append(row[at + 1] >> 1)
        at += 3 if row[at + 2] == 0 else 4
    return found


def test_every_column_type_can_be_null() -> None:
    for kind in KINDS:
        info = ColumnInfo.from_json(column(1, "c", kind.tp, **kind.more))
        assert write_text(info, None) == b"\0"
