"""Conversion of canonical text to a mirror's typed values and back without loss; type changes follow the source."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tabledefs import col, primary, table
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.lake.columntypes import choose_arrow_type, format_texts, parse_texts
from binlake.mirror.rows import Reshaper, build_image_rows, build_typed_rows, read_mirror_texts, recast
from binlake.rows.codec.casts import CastMoment
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t


def info(tp: int, **more: object) -> ColumnInfo:
    return ColumnInfo.from_json(column(1, "c", tp, **more))  # type: ignore[arg-type]


UNSIGNED = t.FLAG_UNSIGNED
BIGINT_U = info(t.LONGLONG, flag=UNSIGNED)
DATETIME3 = info(t.DATETIME, decimal=3)

CASES = [
    (info(t.LONG), pa.int32(), "-2147483648", -2147483648),
    (info(t.LONG, flag=UNSIGNED), pa.int64(), "4294967295", 4294967295),
    (info(t.INT24, flag=UNSIGNED), pa.int32(), "16777215", 16777215),
    (BIGINT_U, pa.decimal128(20, 0), "18446744073709551615", Decimal(18446744073709551615)),
    (info(t.NEWDECIMAL, flen=10, decimal=2), pa.decimal128(10, 2), "-0.10", Decimal("-0.10")),
    (info(t.NEWDECIMAL, flen=65, decimal=30), pa.string(), "1." + "0" * 30, "1." + "0" * 30),
    (info(t.DOUBLE), pa.float64(), "1.5e20", 1.5e20),
    (info(t.YEAR), pa.int32(), "0000", 0),
    (info(t.DATE), pa.date32(), "9999-12-31", date(9999, 12, 31)),
    (DATETIME3, pa.timestamp("us"), "1000-01-01 00:00:00.120", datetime(1000, 1, 1, 0, 0, 0, 120000)),
    (info(t.DURATION, decimal=0), pa.string(), "-838:59:59", "-838:59:59"),
    (info(t.BIT, flen=10), pa.binary(), "03FF", b"\x03\xff"),
    (info(t.BLOB, charset="binary"), pa.binary(), "00FF", b"\x00\xff"),
    (info(t.ENUM, elems=["a", "b"]), pa.string(), "b", "b"),
]


@pytest.mark.parametrize(("of", "kind", "text", "value"), CASES, ids=lambda case: getattr(case, "type_name", None))
def test_each_type_keeps_its_values(of: ColumnInfo, kind: pa.DataType, text: str, value: object) -> None:
    assert choose_arrow_type(of) == kind
    typed, unfit = parse_texts(of, pa.array([text, None]))
    assert (typed.to_pylist(), unfit) == ([value, None], {})
    assert format_texts(of, typed, [None, None]) == [text, None]


def test_timestamp_is_stored_in_utc() -> None:
    of = info(t.TIMESTAMP, decimal=6)
    typed, _ = parse_texts(of, pa.array(["2026-11-21 01:02:03.000004"]))
    assert typed.type == pa.timestamp("us", tz="UTC")
    assert format_texts(of, typed, [None]) == ["2026-11-21 01:02:03.000004"]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_keeps_its_text(value: float) -> None:
    #
    from binlake.rows.codec.datum import format_float

    of = info(t.FLOAT)
    typed, _ = parse_texts(of, pa.array([format_float(value)]))
    assert format_texts(of, typed, [None]) == [format_float(value)]


@pytest.mark.parametrize("zero", ["0000-00-00", "2024-00-01", "2024-02-30", "0000-01-01"])
def test_date_that_no_reader_supports_is_kept_as_text(zero: str) -> None:
    of = info(t.DATE)
    typed, unfit = parse_texts(of, pa.array(["2024-01-01", zero]))
    assert typed.to_pylist() == [date(2024, 1, 1), None]
    assert unfit == {1: zero}


def test_rows_with_unsupported_values_are_read_back_whole(keyed: TableDef) -> None:
    texts = {"id": ["1", "2"], "day": ["0000-00-00", "2024-01-01"]}
    rows = build_typed_rows(keyed, texts, [5, 6], [0, 0])
    assert rows.column("_text").to_pylist() == [[("day", "0000-00-00")], None]
    assert rows.column("_rowkey").to_pylist() == ['["1"]', '["2"]']
    assert read_mirror_texts(keyed, rows) == texts


def test_images_become_the_same_rows_as_texts() -> None:
    """Of images with other columns, without one, and with texts that need escapes; NULL is a row of NULLs."""
    images = [
        {"id": 'a"1', "day": "2024-01-01"},
        {"day": "0000-00-00", "more": "x", "id": "b\\"},
        {"id": "c"},
        None,
    ]
    maps = pa.array([one and list(one.items()) for one in images], pa.map_(pa.string(), pa.string()))
    text_keyed = table("t", col("id", t.VARCHAR, not_null=True, flen=9), col("day", t.DATE), keys=(primary("id"),))
    texts = {name: [(one or {}).get(name) for one in images] for name in ("id", "day")}
    expected = build_typed_rows(text_keyed, texts, [5, 6, 7, 8], [0] * 4)
    assert build_image_rows(text_keyed, maps, pa.array([5, 6, 7, 8])).equals(expected)
    keys = [json.dumps([text], ensure_ascii=False) for text in texts["id"]]
    assert expected.column("_rowkey").to_pylist() == keys


@pytest.mark.parametrize("odd", [["0", "1"], ["0 0"], ["zz"]])
def test_text_that_is_no_pairs_of_digits_is_kept(odd: list[str]) -> None:
    typed, unfit = parse_texts(info(t.BLOB, charset="binary"), pa.array(["FF", *odd]))
    assert typed.to_pylist() == [b"\xff", *(None for _ in odd)]
    assert unfit == dict(enumerate(odd, 1))


@pytest.fixture
def keyed() -> TableDef:
    from support.tidb_json import INT_PK, table_def, table_info

    columns = [column(1, "id", flag=INT_PK), column(2, "day", t.DATE)]
    return table_def(table_info(45, "t", columns, pk_is_handle=True))


CHANGES = [
    (info(t.LONG), info(t.VARCHAR, flen=10), "42", "42"),
    (info(t.VARCHAR, flen=10), info(t.LONG), " 42", "42"),
    (info(t.NEWDECIMAL, flen=10, decimal=3), info(t.NEWDECIMAL, flen=10, decimal=1), "1.250", "1.3"),
    (info(t.NEWDECIMAL, flen=10, decimal=1), info(t.LONG), "-2.5", "-3"),
    (info(t.DOUBLE), info(t.LONG), "6.5", "6"),
    (info(t.FLOAT), info(t.LONG), "7.5", "8"),
    (info(t.DATE), DATETIME3, "2024-01-02", "2024-01-02 00:00:00.000"),
    (info(t.DATETIME, decimal=6), DATETIME3, "2024-12-31 23:59:59.999500", "2025-01-01 00:00:00.000"),
    (DATETIME3, info(t.DATE), "2024-01-02 03:04:05.678", "2024-01-02"),
    (info(t.VARCHAR, flen=4), info(t.VARCHAR, flen=4, charset="binary"), "é", "C3A9"),
    (info(t.BLOB, charset="binary"), info(t.BLOB), "C3A9", "é"),
    (info(t.BIT, flen=8), info(t.LONG), "2A", "42"),
]


@pytest.mark.parametrize(
    ("source", "target", "text", "changed"), CHANGES, ids=lambda case: getattr(case, "type_name", None)
)
def test_type_change_converts_stored_values(source: ColumnInfo, target: ColumnInfo, text: str, changed: str) -> None:
    assert recast(source, target, [text, None], CastMoment(UTC)) == ([changed, None], [])


LIVE = [
    (info(t.LONG), info(t.TINY, flag=t.FLAG_UNSIGNED), {"300": "255", "-1": "0"}),
    (info(t.VARCHAR, flen=20), info(t.VARCHAR, flen=3), {"abcdef": "abc", "x": "x"}),
    (info(t.NEWDECIMAL, flen=10, decimal=3), info(t.NEWDECIMAL, flen=4, decimal=1), {"12345.678": "999.9"}),
    (info(t.VARCHAR, flen=20), info(t.LONG), {"zz": "0"}),
    (info(t.LONGLONG, flag=t.FLAG_UNSIGNED), info(t.LONG), {"18446744073709551615": "2147483647", "5": "5"}),
]


@pytest.mark.parametrize(("source", "target", "values"), LIVE)
def test_values_that_do_not_fit_become_what_a_live_tidb_made_of_them(
    source: ColumnInfo, target: ColumnInfo, values: dict[str, str]
) -> None:
    # Recorded with sql_mode = '' in the capture `live_cases` (databases c_mm0 to c_mm5).
    assert recast(source, target, list(values), CastMoment(UTC)) == (list(values.values()), [])


@pytest.mark.parametrize(
    ("family", "source", "target", "exact"),
    [
        ("mysql", info(t.VARCHAR, flen=9), info(t.LONG), True),
        ("mariadb", info(t.VARCHAR, flen=9), info(t.LONG), False),
        ("mysql", info(t.DOUBLE), info(t.LONG), False),
        ("mariadb", info(t.LONG), info(t.VARCHAR, flen=9), True),
        ("mysql", info(t.JSON), info(t.VARCHAR, flen=9), False),
    ],
)
def test_conversion_by_other_rules_than_tidbs_makes_a_mirror_inexact(
    family: str, source: ColumnInfo, target: ColumnInfo, exact: bool
) -> None:
    texts, unknown = recast(source, target, ["1", None], CastMoment(UTC, family=family))
    assert (texts, not unknown) == (["1", None], exact)
    assert recast(source, target, [None], CastMoment(UTC, family=family)) == ([None], [])
    assert recast(source, target, ["1"], CastMoment(UTC)) == (["1"], [])


def test_null_becomes_what_a_lenient_server_makes_of_it() -> None:
    source, target, stamp = info(t.LONG), info(t.LONG, flag=t.FLAG_NOT_NULL), info(t.TIMESTAMP, flag=t.FLAG_NOT_NULL)
    assert recast(source, target, ["5", None], CastMoment(UTC, family="mysql")) == (["5", "0"], [])
    assert recast(source, target, [None], CastMoment(UTC)) == ([None], [])
    assert recast(info(t.TIMESTAMP), stamp, [None], CastMoment(UTC, family="mysql"))[1] != []


@pytest.mark.parametrize("kind", [t.VARCHAR, t.STRING])
def test_letters_that_the_new_charset_lacks_become_question_marks(kind: int) -> None:  # S4-02
    source, mysql = info(t.VARCHAR, flen=12), CastMoment(UTC, family="mysql")
    gbk = info(kind, flen=5, charset="gbk", collate="gbk_chinese_ci")
    assert recast(source, gbk, ["Ä中", "a", None], mysql) == (["?中", "a", None], [])
    unknown = info(kind, flen=5, charset="armscii8", collate="armscii8_bin")
    assert recast(source, unknown, ["a"], mysql) == (["a"], [])
    assert recast(source, unknown, ["Ä"], mysql)[1] == [
        "a text of column c: the letters of the character set armscii8 are not known"
    ]


@pytest.mark.parametrize("kind", [t.STRING, t.VARCHAR, t.BLOB])
def test_bytes_become_the_letters_that_they_are_in_the_new_charset(kind: int) -> None:  # S4-02
    # A BINARY(3) of 'Ä' that became TEXT CHARACTER SET gbk (found by drawn sources).
    source, mysql = info(kind, flen=9, charset="binary", collate="binary"), CastMoment(UTC, family="mysql")
    gbk = info(t.VARCHAR, flen=9, charset="gbk", collate="gbk_chinese_ci")
    assert recast(source, gbk, ["C38400", "61", None], mysql) == (["脛\0", "a", None], [])
    latin = info(t.VARCHAR, flen=9, charset="latin1", collate="latin1_bin")
    assert recast(source, latin, ["C384"], mysql)[0] == ["Ã„"]
    assert recast(source, gbk, ["FFFF"], mysql)[1] == ["bytes that are no text of gbk in column c"]
    wide = info(t.VARCHAR, flen=9, charset="utf16", collate="utf16_bin")
    assert recast(source, wide, ["0061"], mysql) == (["a"], [])
    assert recast(source, info(t.VARCHAR, flen=9), ["C384"], mysql) == (["Ä"], [])


@pytest.mark.parametrize("kind", [t.STRING, t.VARCHAR, t.BLOB])
def test_letters_of_another_charset_that_become_bytes_make_a_mirror_inexact(kind: int) -> None:  # S4-02
    target, mysql = info(kind, flen=2, charset="binary", collate="binary"), CastMoment(UTC, family="mysql")
    gbk = info(t.VARCHAR, flen=9, charset="gbk", collate="gbk_chinese_ci")
    assert recast(gbk, target, ["ab"], mysql) == (["6162"], [])
    assert recast(gbk, target, ["中"], mysql)[1] == ["letters of gbk as bytes of column c"]
    wide = info(t.VARCHAR, flen=9, charset="utf16", collate="utf16_bin")
    assert recast(wide, target, ["a"], mysql)[1] == ["letters of utf16 as bytes of column c"]


def test_value_that_cannot_be_converted_stays_and_is_reported() -> None:
    texts, unknown = recast(
        info(t.TIMESTAMP), DATETIME3, ["2024-01-02 03:04:05", None, "2024-01-03 00:00:00"], CastMoment()
    )
    assert texts == ["2024-01-02 03:04:05", None, "2024-01-03 00:00:00"]
    # The report contains no value of a row.
    assert unknown == [
        "timestamp <19 characters> as datetime(3) of column c: the time zone of the source's session is not known"
    ]


AUTO = t.FLAG_NOT_NULL | t.FLAG_AUTO_INCREMENT


@pytest.mark.parametrize(
    ("new", "family", "known"),
    [
        (column(2, "b", t.LONGLONG, flag=AUTO), "mysql", False),
        (column(2, "b", t.LONGLONG, flag=AUTO), "", True),
        ({**column(2, "b", t.VARCHAR, flen=40), "default": "uuid()", "default_is_expr": True}, "mariadb", False),
        (column(2, "b", t.LONGLONG), "mysql", True),
    ],
)
def test_new_column_whose_values_the_log_lacks_makes_a_filled_mirror_inexact(
    new: dict[str, Any], family: str, known: bool
) -> None:
    key = column(1, "id", flag=INT_PK)
    before, after = (table_def(table_info(45, "t", columns, pk_is_handle=True)) for columns in ([key], [key, new]))
    for ids, inexact in (((), False), (("1",), not known)):
        reshaper = Reshaper(before, after, moment=CastMoment(UTC, family=family))
        assert (reshaper.find_appended_fields() is None) == (not known or bool(new["type"]["Flag"] & t.FLAG_NOT_NULL))
        rows = build_typed_rows(before, {"id": list(ids)}, [5] * len(ids), [0] * len(ids))
        assert sum(batch.num_rows for batch in reshaper.reshape_batches(iter(rows.to_batches()))) == len(ids)
        assert bool(reshaper.unknown) == inexact


def test_column_that_becomes_auto_increment_is_inexact_if_it_had_rows_without_a_number() -> None:
    source, target = info(t.LONGLONG), info(t.LONGLONG, flag=t.FLAG_AUTO_INCREMENT)
    moment = CastMoment(UTC, family="mysql")
    assert recast(source, target, ["4", "7"], moment) == (["4", "7"], [])
    assert "numbered rows" in recast(source, target, ["4", "0"], moment)[1][0]
    assert "numbered rows" in recast(source, target, ["4", None], moment)[1][0]
    assert recast(source, target, ["4", "0"], CastMoment(UTC)) == (["4", "0"], [])


@pytest.mark.parametrize(("values", "known"), [(["5", "6"], True), (["5", None], False)])
def test_stored_column_that_reads_nulls_that_became_zeros_is_inexact(values: list[str | None], known: bool) -> None:
    #
    g = col("g", t.VARCHAR, flen=20, generated_expr_string="hex(`a`)", generated_stored=True)
    before, after = (table("t", col("id"), col("a", not_null=zero), g, keys=(primary("id"),)) for zero in (False, True))
    reshaper = Reshaper(before, after, moment=CastMoment(UTC, family="mysql"))
    assert not reshaper.keeps_layout()
    rows = build_typed_rows(before, {"id": ["1", "2"], "a": values, "g": [None, None]}, [5, 5], [0, 0])
    assert sum(batch.num_rows for batch in reshaper.reshape_batches(iter(rows.to_batches()))) == 2
    assert reshaper.unknown == ("" if known else "the source computed g anew where a was NULL")
