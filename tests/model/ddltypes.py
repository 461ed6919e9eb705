"""Column types of the DDL model: their values as the text protocol shows them, and how TiDB converts them at MODIFY.

The results of conversions are those of the real captures `zones` and `ddl` (TiDB v7.5.0). They are written down here
again, independent of the product, whose own conversions are compared with them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from zoneinfo import ZoneInfo

from binlake.rows.schema import mysqltypes as t


@dataclass(frozen=True)
class Type:
    """`sql`: its name in a statement; `values`: canonical texts (hex where the type is binary) that a row may hold."""

    sql: str
    tp: int
    flen: int
    decimal: int
    values: tuple[str, ...]
    charset: str = "binary"
    elems: tuple[str, ...] = ()

    @property
    def collate(self) -> str:
        return "utf8mb4_bin" if self.charset == "utf8mb4" else "binary"

    @property
    def zero(self) -> str | None:
        """What a row from before ADD COLUMN ... NOT NULL without a default holds; None: the model does not draw it."""
        return _ZEROES.get(self.sql)


_MOMENTS = ("2021-01-15 10:00:00", "2021-07-15 23:59:59", "1999-12-31 12:00:00")
_FINE = ("2021-01-15 10:00:00.499999", "2021-07-15 23:59:59.500000", "1999-12-31 12:00:00.000000")

INT = Type("INT", t.LONG, 11, 0, ("0", "1", "2", "3", "7", "-3"))
BIGINT = Type("BIGINT", t.LONGLONG, 20, 0, ("0", "1", "2", "7", "9007199254740993"))
TEXT = Type("VARCHAR(40)", t.VARCHAR, 40, -1, ("a", "A", "", "x y", "ß", "c'\\", "b"), "utf8mb4")
WIDE = Type("VARCHAR(60)", t.VARCHAR, 60, -1, TEXT.values, "utf8mb4")
DIGITS = Type("VARCHAR(30)", t.VARCHAR, 30, -1, ("0", "12", "-5", "12.6"), "utf8mb4")
DECIMAL = Type("DECIMAL(12,3)", t.NEWDECIMAL, 12, 3, ("1.449", "1.450", "-2.250", "0.000", "100.000"))
SHORT_DECIMAL = Type("DECIMAL(10,1)", t.NEWDECIMAL, 10, 1, ("1.4", "1.5", "-2.3", "0.0", "100.0"))
FLOAT = Type("FLOAT", t.FLOAT, 12, -1, ("0.1", "-2.5", "100"))
DOUBLE = Type("DOUBLE", t.DOUBLE, 22, -1, ("0.1", "-2.5", "100"))
DATE = Type("DATE", t.DATE, 10, 0, ("2021-01-02", "1999-12-31"))
DATETIME = Type("DATETIME", t.DATETIME, 19, 0, _MOMENTS)
DATETIME6 = Type("DATETIME(6)", t.DATETIME, 26, 6, _FINE)
TIMESTAMP = Type("TIMESTAMP", t.TIMESTAMP, 19, 0, _MOMENTS)
BESIDE = Type("TIMESTAMP", t.TIMESTAMP, 19, 0, (
    "2020-12-31 20:00:00", "2021-01-01 02:00:00", "2021-02-28 20:00:00", "2021-03-01 02:00:00", "2021-07-15 20:00:00",
    "2021-07-16 02:00:00",
))  # fmt: skip
"""Times that are before or after a midnight, depending on the zone."""
TIMESTAMP6 = Type("TIMESTAMP(6)", t.TIMESTAMP, 26, 6, _FINE)
TIME = Type("TIME", t.DURATION, 10, 0, ("12:34:57", "-01:00:00", "100:00:00"))
TIME2 = Type("TIME(2)", t.DURATION, 13, 2, ("12:34:56.70", "-01:00:00.20", "100:00:00.00"))
YEAR = Type("YEAR", t.YEAR, 4, 0, ("1999", "2021"))
BIT = Type("BIT(8)", t.BIT, 8, 0, ("41", "00", "F6"))
JSON = Type("JSON", t.JSON, 4294967295, 0, ('{"a": 1}', "[1, 2]", '"x"'))
ENUM = Type("ENUM('b','a','c')", t.ENUM, 1, 0, ("a", "b", "c"), "utf8mb4", ("b", "a", "c"))
ENUM4 = Type("ENUM('c','a','b','d')", t.ENUM, 1, 0, ("a", "b", "c", "d"), "utf8mb4", ("c", "a", "b", "d"))
BYTES = Type("VARBINARY(20)", t.VARCHAR, 20, -1, ("", "00", "6162", "FF"))

TYPES = (
    INT, INT, BIGINT, TEXT, TEXT, DIGITS, DECIMAL, FLOAT, DOUBLE, DATE, DATETIME, DATETIME6, TIMESTAMP, TIMESTAMP,
    TIMESTAMP6, TIME2, YEAR, BIT, JSON, ENUM, BYTES,
)  # fmt: skip
_ZEROES = {
    "INT": "0", "BIGINT": "0", "VARCHAR(40)": "", "VARCHAR(30)": "", "VARBINARY(20)": "", "DECIMAL(12,3)": "0.000",
    "FLOAT": "0", "DOUBLE": "0", "JSON": "null", "TIME(2)": "00:00:00.00",
}  # fmt: skip

Convert = Callable[[str, ZoneInfo], str]
"""(A value's text, the zone of the session that runs the DDL) -> the new text."""


def _rounded(text: str, digits: int) -> str:
    whole, _, fraction = text.partition(".")
    value = datetime.fromisoformat(f"{whole}.{fraction:0<6}")
    step = 10 ** (6 - digits)
    value += timedelta(microseconds=(value.microsecond + step // 2) // step * step - value.microsecond)
    return f"{value:%Y-%m-%d %H:%M:%S}" + (f".{value.microsecond:06d}"[: digits + 1] if digits else "")


def _time_rounded(text: str) -> str:
    sign, bare = ("-", text[1:]) if text.startswith("-") else ("", text)
    hours, minutes, seconds = bare.split(":")
    total = int(hours) * 3600 + int(minutes) * 60 + int(Decimal(seconds).quantize(Decimal(1), ROUND_HALF_UP))
    return f"{sign}{total // 3600:02d}:{total // 60 % 60:02d}:{total % 60:02d}"


def _local(text: str, zone: ZoneInfo) -> str:
    """A TIMESTAMP's text at +00:00 as the session sees it."""
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("UTC")).astimezone(zone)
    return f"{moment:%Y-%m-%d %H:%M:%S}" + text[19:]


def utc(text: str, zone: ZoneInfo) -> str:
    """The time that a session in `zone` writes, at +00:00."""
    moment = datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(ZoneInfo("UTC"))
    return f"{moment:%Y-%m-%d %H:%M:%S}" + text[19:]


def _decimal(text: str, places: str) -> str:
    return str(Decimal(text).quantize(Decimal(places), ROUND_HALF_UP))


def _as_double(text: str) -> str:
    value = struct.unpack("<f", struct.pack("<f", float(text)))[0]
    return repr(value).removesuffix(".0")


def same(text: str, _zone: ZoneInfo) -> str:
    """The text is unchanged."""
    return text


CONVERSIONS: tuple[tuple[Type, Type, Convert], ...] = (
    (INT, BIGINT, same),
    (TEXT, WIDE, same),
    (INT, DIGITS, same),
    (DIGITS, INT, lambda text, _: _decimal(text, "1")),
    (DECIMAL, SHORT_DECIMAL, lambda text, _: _decimal(text, "0.1")),
    (DECIMAL, DIGITS, same),
    (DATETIME6, DATETIME, lambda text, _: _rounded(text, 0)),
    (TIMESTAMP6, TIMESTAMP, lambda text, _: _rounded(text, 0)),
    (TIMESTAMP, DATETIME, _local),
    (DATETIME, TIMESTAMP, utc),
    (DATE, DATETIME, lambda text, _: f"{text} 00:00:00"),
    (DATETIME, DATE, lambda text, _: text[:10]),
    (TIME2, TIME, lambda text, _: _time_rounded(text)),
    (FLOAT, DOUBLE, lambda text, _: _as_double(text)),
    (DOUBLE, DIGITS, same),
    (BIT, DIGITS, lambda text, _: str(int(text, 16))),
    (BIT, BIGINT, lambda text, _: str(int(text, 16))),
    (ENUM, ENUM4, same),
    (ENUM, INT, lambda text, _: str(ENUM.elems.index(text) + 1)),
    (YEAR, INT, same),
    (TEXT, BYTES, lambda text, _: text.encode().hex().upper()),
)

ONLY_DEFINITION = {(INT.sql, BIGINT.sql), (TEXT.sql, WIDE.sql)}
"""MODIFY between these types changes no stored value: no reorganisation, no new column id."""
