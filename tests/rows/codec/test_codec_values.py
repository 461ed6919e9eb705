"""Every column type: canonical text to datum and back, and the texts that TiDB shows."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tidb_json import column, table_def, table_info

from binlake.errors import SchemaError
from binlake.rows.codec import datum
from binlake.rows.codec.datum import format_double, format_float, read_decimal, write_decimal
from binlake.rows.codec.encode import derive_filled_text, write_text
from binlake.rows.codec.jsons import read_json, write_json
from binlake.rows.codec.tabledecoder import build_reader
from binlake.rows.codec.temporal import format_duration, format_moment, pack_moment
from binlake.rows.codec.values import NotText, read_text, skip
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

UNSIGNED = t.FLAG_UNSIGNED


def col(tp: int, **more: Any) -> ColumnInfo:
    return ColumnInfo.from_json(column(1, "c", tp, **more))


def both(info: ColumnInfo, text: str | None) -> str | None:
    """Write, then read by the shortcut and by the general path: all must agree, and `skip` must find the end."""
    data = write_text(info, text) + b"\xff"
    assert skip(data, 0) == len(data) - 1
    general = read_text(info, data, 0)
    assert general[1] == len(data) - 1
    assert build_reader(info)(data, 0) == general
    return general[0]


SAMPLES: dict[str, str | None] = {
    "i": "-5",
    "u": "18446744073709551615",
    "d": "-1234567890.1234",
    "f": "1.5",
    "g": "-2.25e-300",
    "s": "it's 中😀",
    "b": "00FF10",
    "bit": "01FF",
    "e": "b",
    "set": "a,c",
    "day": "2024-02-29",
    "dt": "2024-02-29 12:34:56.789",
    "ts": "1970-01-01 00:00:01",
    "tm": "-838:59:59.000001",
    "y": "1999",
    "j": '{"a": [1, 2.5, null, true, "x"]}',
}
COLUMNS: dict[str, dict[str, Any]] = {
    "i": column(1, "i", t.LONGLONG),
    "u": column(2, "u", t.LONGLONG, flag=UNSIGNED),
    "d": column(3, "d", t.NEWDECIMAL, flen=14, decimal=4),
    "f": column(4, "f", t.FLOAT),
    "g": column(5, "g", t.DOUBLE),
    "s": column(6, "s", t.VARCHAR, flen=40),
    "b": column(7, "b", t.VARCHAR, flen=40, charset="binary"),
    "bit": column(8, "bit", t.BIT, flen=9, flag=UNSIGNED),
    "e": column(9, "e", t.ENUM, elems=["a", "b", "c"]),
    "set": column(10, "set", t.SET, elems=["a", "b", "c"]),
    "day": column(11, "day", t.DATE),
    "dt": column(12, "dt", t.DATETIME, decimal=3),
    "ts": column(13, "ts", t.TIMESTAMP, decimal=0),
    "tm": column(14, "tm", t.DURATION, decimal=6),
    "y": column(15, "y", t.YEAR),
    "j": column(16, "j", t.JSON),
}
ALL_TYPES = table_def(table_info(99, "all_types", list(COLUMNS.values())))


@pytest.mark.parametrize("name", COLUMNS)
def test_values_of_every_type_round_trip(name: str) -> None:
    info = ColumnInfo.from_json(COLUMNS[name])
    assert both(info, SAMPLES[name]) == SAMPLES[name]
    assert both(info, None) is None


def test_known_datums() -> None:  # tidb-binlog 1.6
    assert write_text(col(t.DATETIME, decimal=3), "2024-02-29 12:34:56.789").hex(" ") == "09 88 94 b0 c0 8b d9 ae d9 19"
    assert datum.write_float(1.5).hex(" ") == "05 bf f8 00 00 00 00 00 00"
    assert datum.write_float(-1.5).hex(" ") == "05 40 07 ff ff ff ff ff ff"
    assert write_text(col(t.DURATION, decimal=0), "-01:00:00").hex(" ") == "08 ff ff c4 8b c6 d1 01"
    decimal = write_text(col(t.NEWDECIMAL, flen=14, decimal=4), "1234567890.1234")
    assert decimal.hex(" ") == "06 0e 04 81 0d fb 38 d2 04 d2"


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_integers(value: int) -> None:
    assert both(col(t.LONGLONG), str(value)) == str(value)


@given(st.integers(0, 2**64 - 1))
def test_unsigned_integers_and_the_signed_form_of_a_handle(value: int) -> None:
    info = col(t.LONGLONG, flag=UNSIGNED)
    assert both(info, str(value)) == str(value)
    signed = value - 2**64 if value >> 63 else value
    assert read_text(info, datum.write_int(signed), 0)[0] == str(value)


@given(st.integers(1, 65), st.data())
def test_decimals(precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, min(30, precision)))
    number = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole, frac = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
    text = f"{'-' if number < 0 else ''}{whole}{'.' if frac else ''}{frac}"
    assert both(col(t.NEWDECIMAL, flen=precision, decimal=scale), text) == text


def test_decimal_has_the_scale_of_its_column() -> None:
    assert read_decimal(write_decimal("1.5", 3, 1), 0, 4)[0] == "1.5000"
    assert read_decimal(write_decimal("-0.00", 3, 2), 0, 2)[0] == "0.00"
    with pytest.raises(ValueError, match="does not fit"):
        write_decimal("123.4", 3, 1)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_lossless(value: float) -> None:
    text = format_double(value)
    assert struct.pack("<d", float(text)) == struct.pack("<d", value)
    assert both(col(t.DOUBLE), text) == text


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_floats_are_lossless_and_shortest(value: float) -> None:
    text = format_float(value)
    assert np.float32(text).tobytes() == np.float32(value).tobytes()
    assert both(col(t.FLOAT), text) == text
    assert len(text.replace("-", "").replace(".", "").partition("e")[0].strip("0")) <= 9


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e15, "1e15"), (999999999999999.0, "999999999999999"), (1e-15, "0.000000000000001"), (5e-324, "5e-324"),
     (9.999e-16, "9.999e-16"), (1.5e300, "1.5e300"), (-0.0, "-0"), (100.0, "100"), (0.1, "0.1"),
     (1.7976931348623157e308, "1.7976931348623157e308")],
)  # fmt: skip
def test_double_texts_match_tidb(value: float, text: str) -> None:
    assert format_double(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0.1"), (16777216.0, "16777216"), (3.4028234663852886e38, "3.4028235e38"), (1e15, "1e15")]
)
def test_float_texts_keep_digits_that_tidb_cuts(value: float, text: str) -> None:
    assert format_float(float(np.float32(value))) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_no_column_can_hold_are_refused(value: float) -> None:
    for show in (format_double, format_float):
        with pytest.raises(ValueError, match=r"not a (DOUBLE |FLOAT )?value"):
            show(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_texts(value: str) -> None:
    assert both(col(t.BLOB), value) == value


@given(st.binary())
def test_binaries_are_upper_case_hex(value: bytes) -> None:
    assert both(col(t.BLOB, charset="binary"), value.hex().upper()) == value.hex().upper()


def write_comparable(value: bytes) -> bytes:
    """The comparable datum of a string (flag 1), as in keys: groups of eight bytes, each with its padding."""
    out = [b"\x01"]
    for start in range(0, len(value) + 1, 8):
        group = value[start : start + 8]
        out.append(group.ljust(8, b"\0") + bytes((0xFF - (8 - len(group)),)))
    return b"".join(out)


@given(st.binary())
def test_comparable_bytes(value: bytes) -> None:
    data = write_comparable(value)
    assert datum.read_comparable(data, 1) == (value, len(data))
    assert read_text(col(t.VARCHAR, charset="binary"), data, 0)[0] == value.hex().upper()


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(NotText):
        build_reader(col(t.VARCHAR))(datum.write_bytes(b"\xff"), 0)


@given(st.integers(1, 64), st.data())
def test_bits_are_padded_to_whole_bytes(width: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(0, 2**width - 1))
    text = both(col(t.BIT, flen=width, flag=UNSIGNED), f"{value:X}")
    assert text == value.to_bytes((width + 7) // 8, "big").hex().upper()


def test_enums_and_sets_by_name() -> None:
    enum, many = col(t.ENUM, elems=["x y", "中"]), col(t.SET, elems=["r", "it's", "蓝"])
    assert [read_text(enum, datum.write_uint(n), 0)[0] for n in (0, 1, 2, 3)] == ["", "x y", "中", ""]
    assert [read_text(many, datum.write_uint(n), 0)[0] for n in (0, 5, 2)] == ["", "r,蓝", "it's"]
    assert both(many, "r,it's") == "r,it's"
    assert both(enum, "") == ""


moments = st.tuples(
    st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 23), st.integers(0, 59),
    st.integers(0, 59), st.integers(0, 999999),
)  # fmt: skip


@given(moments, st.integers(0, 6))
def test_datetimes_with_zero_parts_too(parts: tuple[int, ...], fsp: int) -> None:
    year, month, day, hour, minute, second, micro = parts
    text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
    text += f".{micro:06d}"[: fsp + 1] if fsp else ""
    for tp in (t.DATETIME, t.TIMESTAMP):
        assert both(col(tp, decimal=fsp), text) == text
    assert both(col(t.DATE), text[:10]) == text[:10]


def test_zero_date_is_the_number_zero() -> None:
    assert format_moment(0, 2) == "0000-00-00 00:00:00.00"
    assert pack_moment("0000-00-00 00:00:00") == 0


@given(st.integers(-838 * 3600 * 10**6, 838 * 3600 * 10**6), st.integers(0, 6))
def test_durations(micros: int, fsp: int) -> None:
    unit = 10 ** (6 - fsp)
    text = format_duration(micros // unit * unit * 1000, fsp)
    assert both(col(t.DURATION, decimal=fsp), text) == text


def test_years() -> None:
    assert [both(col(t.YEAR), year) for year in ("0000", "1901", "2155")] == ["0000", "1901", "2155"]


utf8 = st.text(st.characters(exclude_categories=["Cs"]))
# TiDB prints an integral double without a decimal point, so greater ones would read back as integers.
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-(2.0**53), 2.0**53)
    | utf8,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(utf8, inner, max_size=5),
    max_leaves=15,
)  # fmt: skip


@settings(max_examples=examples(150))
@given(documents)
def test_json_documents(value: object) -> None:
    data = write_json(json.dumps(value))
    text, end = read_json(data, 0)
    assert end == len(data)
    assert json.loads(text) == value
    assert both(col(t.JSON), text) == read_json(write_json(text), 0)[0]


@pytest.mark.parametrize(
    ("data", "text"),
    [("0d fd 03 00 ff 10", '"base64:type253:AP8Q"'),
     ("0e 00 00 00 00 00 c4 90 1f", '"2020-01-02"'),
     ("11 00 f2 05 2a 01 00 00 00 00 00 00 00", '"00:00:05.000000"'),
     ("0b 00 00 00 00 00 00 59 40", "100.0"),
     ("0c 05 22 5c 0a 08 41", '"\\"\\\\\\n\\u0008A"')],
)  # fmt: skip
def test_json_parts_that_json_text_cannot_express(data: str, text: str) -> None:
    raw = bytes.fromhex(data)
    if raw[0] == 0x0E:
        raw = b"\x0e" + (2020 << 50 | 1 << 46 | 2 << 41).to_bytes(8, "little")
    assert read_json(raw, 0)[0] == text


def test_json_deeper_than_tidb_allows_is_refused() -> None:
    with pytest.raises(ValueError, match="deeper than 100"):
        write_json("[" * 102 + "]" * 102)
    kind, body = 4, b"\x00"
    for _ in range(102):
        entry = bytes((kind,)) + (body.ljust(4, b"\0") if kind == 4 else struct.pack("<I", 13))
        rest = b"" if kind == 4 else body
        kind, body = 3, struct.pack("<II", 1, 13 + len(rest)) + entry + rest
    with pytest.raises(ValueError, match="damaged"):
        read_json(bytes((kind,)) + body, 0)


def test_wrong_datums_for_a_column_are_refused() -> None:
    cases = [(t.LONG, datum.write_bytes(b"x")), (t.VARCHAR, datum.write_int(1)), (t.DATE, datum.write_float(1.0)),
             (t.LONG, b"\x06" + write_decimal("1", 1, 0)), (t.LONG, b"\x0a\x04\x00"), (t.ENUM, datum.write_int(-1)),
             (t.LONG, b"\x14"), (t.LONG, b"\x08" + b"\xff" * 11)]  # fmt: skip
    for tp, data in cases:
        with pytest.raises(ValueError, match=r"cannot be in|column|flag|longer"):
            read_text(col(tp), data, 0)


@pytest.mark.parametrize(
    ("info", "text"),
    [(col(t.LONG), None), (col(t.LONG, flag=1), "0"), (col(t.LONG, origin_default="7"), "7"),
     (col(t.NEWDECIMAL, flen=8, decimal=2, origin_default="1.5"), "1.50"), (col(t.NEWDECIMAL, flen=5, flag=1), "0"),
     (col(t.VARCHAR, flag=1), ""), (col(t.STRING, flen=3, charset="binary", origin_default="a"), "610000"),
     (col(t.BIT, flen=9, origin_default_bit="AQI="), "0102"), (col(t.ENUM, elems=["q", "r"], flag=1), "q"),
     (col(t.SET, elems=["q", "r"], flag=1), ""), (col(t.DATETIME, decimal=2, origin_default="2020-01-02 03:04:05"),
     "2020-01-02 03:04:05.00"), (col(t.TIMESTAMP, flag=1), "0000-00-00 00:00:00"),
     (col(t.DURATION, flag=1), "00:00:00"), (col(t.YEAR, flag=1), "0000"),
     (col(t.JSON, flag=1), "null"), (col(t.DOUBLE, origin_default="1e2"), "100"),
     (col(t.DATE, flag=1), "0000-00-00"), (col(t.BIT, flen=3, flag=1), "00"), (col(t.FLOAT, flag=1), "0")],
)  # fmt: skip
def test_fill_value_of_a_missing_column(info: ColumnInfo, text: str | None) -> None:  # tidb-binlog 5.5
    assert derive_filled_text(info) == text


def test_origin_default_of_another_type_is_an_error() -> None:
    with pytest.raises(SchemaError, match=r"origin default.*column=c"):
        derive_filled_text(col(t.DATETIME, origin_default="soon"))


def test_latin1_bytes_error_names_column_and_has_a_hint() -> None:
    # TiDB accepts any bytes in a latin1 column; recorded in the capture `zones`.
    from binlake.rows.codec.transaction import build_row_error

    of = ColumnInfo.from_json(column(1, "v", t.VARCHAR, flen=9, charset="latin1"))
    assert build_reader(of)(b"\x02\x04\xc3\xb6", 0) == ("ö", 4)
    with pytest.raises(ValueError, match=r"the latin1 column v holds bytes that are not UTF-8: X'F66F'") as found:
        build_reader(of)(b"\x02\x04\xf6o", 0)
    told = build_row_error(found.value, "insert", 7, 470640484516888579, 0)
    assert "filter.ignore-txn-commit-ts" in told.hint
    assert "470640484516888579" in str(told)
    assert build_row_error(ValueError("something else"), "insert", 7, 9, 0).hint == ""
