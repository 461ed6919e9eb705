"""A datum of a file as text: in the original's form, in older forms, and in a pump's form."""

from __future__ import annotations

import struct
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs
from support.drainerfiles import column_of, compact, real, uvarint, varint

from binlake.extras.reparo.cells import build_datum_reader
from binlake.rows.schema import ColumnInfo

BERLIN, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")


def column(
    tp: int, *, flen: int = -1, decimal: int = 0, elems: tuple[str, ...] = (), charset: str = "utf8mb4"
) -> ColumnInfo:
    shape = column_of("c", tp, charset=charset, elems=elems)
    kind = {**shape["type"], "Flen": flen, "Decimal": decimal, "Collate": ""}
    return ColumnInfo.from_json({"id": 1, "offset": 0, "state": 5, **shape, "type": kind})


PACKED = 0x19B2BAC8B80C0A08  # 2024-02-29 12:34:56.789 (reference, 1.6)

CASES = [
    # type, datum, text
    (column(12, decimal=3), compact(b"2024-02-29 12:34:56.789"), "2024-02-29 12:34:56.789"),
    (column(12, decimal=3), b"\x09" + uvarint(PACKED), "2024-02-29 12:34:56.789"),
    (column(7), compact(b"2024-07-01 02:00:00"), "2024-07-01 00:00:00"),
    (column(7, decimal=6), compact(b"2024-01-01 00:30:00.000001"), "2023-12-31 23:30:00.000001"),
    (column(7), compact(b"0000-00-00 00:00:00"), "0000-00-00 00:00:00"),
    (column(10), compact(b"0000-00-00"), "0000-00-00"),
    (column(11), compact(b"-01:00:00"), "-01:00:00"),
    (column(0xF6, flen=10, decimal=2), compact(b"-1.50"), "-1.50"),
    (column(0xF6, flen=14, decimal=4), bytes.fromhex("060e04810dfb38d204d2"), "1234567890.1234"),
    (column(0xF5), compact(b'{"a": 1}'), '{"a": 1}'),
    (column(0xFB), b"\x0a\x04\x01", "true"),
    (column(0xF7, elems=("x", "y")), b"\x09\x02", "y"),
    (column(0xF7, elems=("x", "y")), b"\x09\x00", ""),
    (column(0xF8, elems=("x", "y", "z")), b"\x09\x05", "x,z"),
    (column(16, flen=20), b"\x09" + uvarint(0x54321), "054321"),
    (column(16, flen=20), compact(b"\x05\x43\x21"), "054321"),
    (column(8), b"\x08" + varint(-(1 << 63)), str(-(1 << 63))),
    (column(13), b"\x08" + varint(1999), "1999"),
    (column(4), real(struct.unpack("<f", struct.pack("<f", 1.1))[0]), "1.1"),
    (column(15, charset="binary"), compact(b"\x00\xff"), "00FF"),
    (column(15), compact("ä".encode()), "ä"),
    (column(15), b"\x00", None),
]


@pytest.mark.parametrize(("kind", "datum", "text"), CASES, ids=lambda case: getattr(case, "type_name", None))
def test_datum_is_read_in_any_form(kind: ColumnInfo, datum: bytes, text: str | None) -> None:
    assert build_datum_reader(kind, BERLIN)(datum) == text


@pytest.mark.parametrize("datum", [compact(b"2024")[:-1], b"\x08", b"\x09\x01\x01", compact(b"x") + b"y", b"\x63"])
def test_truncated_or_invalid_datum_is_rejected(datum: bytes) -> None:
    for kind in (column(12), column(8)):
        with pytest.raises((ValueError, IndexError)):
            build_datum_reader(kind, UTC)(datum)


def test_ambiguous_hour_of_a_time_zone_is_logged() -> None:
    read = build_datum_reader(column(7), BERLIN)
    with capture_logs() as logged:
        assert read(compact(b"2024-10-27 01:59:59")) == "2024-10-26 23:59:59"
        assert logged == []
        assert read(compact(b"2024-10-27 02:30:00")) == "2024-10-27 00:30:00"
    [event] = logged
    assert (event["event"], event["text"]) == ("timestamp_in_a_doubled_hour", "2024-10-27 02:30:00")
