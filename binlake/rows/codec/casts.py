"""Convert a stored value as MODIFY COLUMN does in TiDB. No other server shares this conversion (hazards R-29).

The result is that of a lenient session. Where a strict session would differ, TiDB refuses the DDL, so every logged DDL
has this result. An unknown conversion is an error; it is never guessed. Sources: TiDB 7.5 types/datum.go
(ConvertTo), types/convert.go, table.CastValue; each pair of types is checked with the recorded capture `zones`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, tzinfo
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, localcontext
from math import isfinite

import numpy as np

from binlake.common.redaction import redact_value
from binlake.rows.codec import temporal as times
from binlake.rows.codec.datum import FLOAT_MAX, as_float32, format_double, format_float
from binlake.rows.codec.jsons import encode_json, read_json, show_json, write_json
from binlake.rows.codec.values import format_bit, format_set, show_member_text
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo

_BITS = {t.TINY: 8, t.SHORT: 16, t.INT24: 24, t.LONG: 32, t.LONGLONG: 64}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_NUMBERS = t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE}
_TIMES = t.MOMENTS | t.DATES | {t.DURATION}
_YEAR_WIDTH = 4
_EXACT = Context(prec=400)
"""A DOUBLE has up to 309 digits, a DECIMAL 65."""


class UnknownCast(ValueError):
    """Binlake does not know the conversion's result: for these types, this value, or without the session's time
    zone."""


@dataclass(frozen=True)
class CastMoment:
    """Where and when the source converted: time `zone` of its session, `day` in that zone. None = not known.

    `guessed`: non-ASCII texts may have been other bytes at the source (`source.invalid-text`). `family`: the source's,
    if it is a MySQL or MariaDB.
    """

    zone: tzinfo | None = None
    day: date | None = None
    guessed: bool = False
    family: str = ""


def derive_cast_form(column: ColumnInfo) -> tuple[object, ...]:
    """The properties of `column` that decide how its values are written: if two forms are equal, no value changes."""
    tp, text = column.tp, column.tp in t.STRINGS
    fixed = tp == t.STRING
    width = column.flen if tp in (t.BIT, t.NEWDECIMAL) or (fixed and column.is_binary) else 0
    digits = column.decimal if tp in t.MOMENTS | {t.DURATION, t.NEWDECIMAL, t.FLOAT, t.DOUBLE} else 0
    elems = column.elems if tp in (t.ENUM, t.SET) else ()
    return "text" if text else tp, fixed, column.unsigned, column.is_binary, width, max(digits, 0), elems


def may_cut(source: ColumnInfo, target: ColumnInfo) -> bool:
    """Whether a text or bytes of `source` can be too long for `target`: a session that is not strict cuts them."""
    if source.tp not in t.STRINGS or target.tp not in t.STRINGS or target.flen < 0:
        return False
    wide = source.flen < 0 or (source.tp in t.BLOBS) != (target.tp in t.BLOBS)
    return wide or source.flen > target.flen


def knows_pair(source: ColumnInfo, target: ColumnInfo) -> bool:
    """Whether `cast_text` knows how some values of `source` are converted to `target`; single values may be unknown."""
    now = target.tp
    if source.tp == t.JSON:
        return now in t.STRINGS
    if now in t.MOMENTS or now in t.DATES:
        return source.tp in _TIMES | t.STRINGS | t.INTEGERS | {t.NEWDECIMAL}
    if now == t.DURATION:
        return source.tp in _TIMES | t.STRINGS | _NUMBERS
    if now == t.JSON:
        text = source.tp in t.STRINGS | {t.ENUM, t.SET} and not source.is_binary
        return text or source.tp in _NUMBERS | {t.YEAR}
    return True


def cast_text(source: ColumnInfo, target: ColumnInfo, text: str | None, moment: CastMoment) -> str | None:
    """Convert the canonical text of column `source` to that of `target`. Raises UnknownCast naming types and value."""
    if text is None:
        return None
    try:
        if derive_cast_form(source) == derive_cast_form(target):
            return _cut(text, target)
        if moment.guessed and target.is_binary and source.tp in t.STRINGS and not (source.is_binary or text.isascii()):
            raise ValueError("the source may hold other bytes, which Binlake read as latin1")
        with localcontext(_EXACT):
            return _choose_writer(target)(_Value(source, text, moment), target)
    except (ValueError, ArithmeticError) as error:
        raise UnknownCast(
            f"{source.type_text} {redact_value(text)} as {target.type_text} of column {target.name}: {error}"
        ) from error


def _cut(text: str, target: ColumnInfo) -> str:
    """Cut a text that is too long, as a lenient session does."""
    if target.tp not in t.STRINGS or target.flen < 0:
        return text
    if target.is_binary:
        return text[: target.flen * 2]
    if target.tp in t.BLOBS and not text.isascii() and len(text.encode()) > target.flen:
        raise ValueError("it is cut after bytes, which may be inside a character")
    text = text[: target.flen]
    return text.rstrip(" ") if target.tp == t.STRING else text


@dataclass(frozen=True)
class _Value:
    """A stored value in the forms that conversions need."""

    column: ColumnInfo
    text: str
    moment: CastMoment

    @property
    def tp(self) -> int:
        return self.column.tp

    def to_local_text(self) -> str:
        """The text as the session shows it: a TIMESTAMP in the session's time zone."""
        return times.convert_to_zone(self.text, _require_zone(self.moment)) if self.tp == t.TIMESTAMP else self.text

    def to_text(self) -> str:
        """The text that a conversion to a string gives."""
        if self.tp in (t.FLOAT, t.DOUBLE):
            return format(Decimal(self.text), "f")
        if self.tp == t.YEAR:
            return str(int(self.text))
        if self.tp == t.BIT:
            return str(int(self.text, 16))
        if self.tp == t.JSON:
            # A server that stores documents may show them with another order of keys.
            return show_json(write_json(self.text))
        if self.column.is_binary:
            return bytes.fromhex(self.text).decode()
        if self.column.has_empty_member:
            return show_member_text(self.column, self.text)
        return self.to_local_text()

    def to_number(self) -> Decimal:
        """The exact number; for a text its leading number, else 0."""
        if self.tp == t.BIT:
            return Decimal(int(self.text, 16))
        if self.tp == t.FLOAT:
            return Decimal(repr(as_float32(self.text)))
        if self.tp in t.MOMENTS or self.tp in t.DATES:
            return times.convert_moment_to_number(self.to_local_text())
        if self.tp == t.DURATION:
            return times.convert_clock_to_number(self.text)
        return self._parse_number()

    def _parse_number(self) -> Decimal:
        elems = self.column.elems
        if self.tp == t.ENUM:
            return Decimal(elems.index(self.text) + 1 if self.text in elems else 0)
        if self.tp == t.SET:
            return Decimal(sum({1 << elems.index(name) for name in self.text.split(",")}) if self.text else 0)
        if self.tp == t.JSON:
            raise ValueError("JSON can only be converted to text")
        match = _NUMBER.match(self.to_text() if self.tp in t.STRINGS else self.text)
        return Decimal(match[1]) if match else Decimal(0)


def _require_zone(moment: CastMoment) -> tzinfo:
    if moment.zone is None:
        raise ValueError("the time zone of the source's session is not known")
    return moment.zone


Writer = Callable[[_Value, ColumnInfo], str]


def _choose_writer(target: ColumnInfo) -> Writer:
    if target.tp in t.INTEGERS:
        return _cast_to_integer
    if target.tp in t.STRINGS:
        return _cast_to_bytes if target.is_binary else _cast_to_string
    if target.tp in t.MOMENTS:
        return _cast_to_moment
    if target.tp in (t.FLOAT, t.DOUBLE):
        return _cast_to_float
    return _cast_to_date if target.tp in t.DATES else _WRITERS[target.tp]


def _cast_to_integer(value: _Value, target: ColumnInfo) -> str:
    if value.tp in t.MOMENTS:
        number = times.convert_moment_to_number(times.round_moment(value.to_local_text(), 0))
    elif value.tp == t.DURATION:
        number = times.convert_clock_to_number(times.round_clock(value.text, 0))
    else:
        number = Decimal(_round_to_integer(value))
    bits = _BITS[target.tp]
    low, high = (0, (1 << bits) - 1) if target.unsigned else (-1 << bits - 1, (1 << bits - 1) - 1)
    return str(min(max(int(number), low), high))


def _round_to_integer(value: _Value) -> int:
    """Round to an integer: a FLOAT or DOUBLE by C's rint (6.5 becomes 6), a DECIMAL or text half up (6.5 becomes 7)."""
    even = value.tp in (t.FLOAT, t.DOUBLE)
    return int(value.to_number().quantize(Decimal(1), ROUND_HALF_EVEN if even else ROUND_HALF_UP))


def _cast_to_decimal(value: _Value, target: ColumnInfo) -> str:
    precision, scale = (target.flen if target.flen > 0 else 10), max(target.decimal, 0)
    number = value.to_number().quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    most = Decimal(10) ** (precision - scale) - Decimal(1).scaleb(-scale)
    number = min(max(number, -most), most)
    if target.unsigned and number < 0:
        number = Decimal(0)
    return format(number if number else abs(number), "f")


def _cast_to_float(value: _Value, target: ColumnInfo) -> str:
    number = float(value.to_number())
    if value.tp in (t.FLOAT, t.DOUBLE) and value.text.startswith("-") and not number:
        number = -0.0
    if target.decimal >= 0:
        step = 10.0**target.decimal
        number = float(np.rint(number * step)) / step
    if not isfinite(number) or (target.tp == t.FLOAT and abs(number) > FLOAT_MAX):
        raise ValueError("out of range")
    if target.unsigned and number < 0:
        number = 0.0
    return format_float(number) if target.tp == t.FLOAT else format_double(number)


def _cast_to_string(value: _Value, target: ColumnInfo) -> str:
    text = value.to_text()
    text = text if target.flen < 0 or target.tp in t.BLOBS else text[: target.flen]
    return text.rstrip(" ") if target.tp == t.STRING else text


def _cast_to_bytes(value: _Value, target: ColumnInfo) -> str:
    data = bytes.fromhex(value.text) if value.tp in t.STRINGS and value.column.is_binary else value.to_text().encode()
    if target.flen >= 0 and target.tp not in t.BLOBS:
        data = data[: target.flen]
    return data.ljust(max(target.flen, 0) if target.tp == t.STRING else 0, b"\0").hex().upper()


def _cast_to_datetime(value: _Value, fsp: int) -> str:
    """The datetime in the session's time zone, rounded to `fsp` digits."""
    if value.tp in t.MOMENTS or value.tp in t.DATES:
        text = value.to_local_text()
    elif value.tp == t.DURATION:
        if value.moment.day is None:
            raise ValueError("it is not known on which day the source converted the value")
        text = times.add_clock_to_day(value.moment.day, value.text)
    elif value.tp in t.STRINGS:
        text = value.to_text()
        # Recorded in the capture `live_cases`: a text that cannot begin a date is the zero date.
        text = times.parse_moment(text) if text.strip()[:1].isdigit() else times.ZERO
    elif value.tp in t.INTEGERS or value.tp == t.NEWDECIMAL:
        text = times.convert_number_to_moment(value.to_number())
    else:
        raise ValueError("the conversion of this type to a date is not known")
    return times.round_moment(text, fsp)


def _cast_to_moment(value: _Value, target: ColumnInfo) -> str:
    if value.tp == target.tp:
        return times.round_moment(value.text, target.fsp)
    text = _cast_to_datetime(value, target.fsp)
    return times.convert_to_utc(text, _require_zone(value.moment)) if target.tp == t.TIMESTAMP else text


def _cast_to_date(value: _Value, _target: ColumnInfo) -> str:
    return value.to_local_text()[:10] if value.tp in t.MOMENTS else _cast_to_datetime(value, 6)[:10]


def _cast_to_duration(value: _Value, target: ColumnInfo) -> str:
    if value.tp == t.DURATION:
        text = value.text
    elif value.tp in t.MOMENTS:
        text = value.to_local_text()[11:]
    elif value.tp in t.DATES:
        text = "00:00:00"
    elif value.tp in t.STRINGS:
        text = times.parse_clock(value.to_text())
    elif value.tp in _NUMBERS:
        text = times.convert_number_to_clock(value.to_number())
    else:
        raise ValueError("the conversion of this type to a time is not known")
    return times.round_clock(text, target.fsp)


def _cast_to_year(value: _Value, _target: ColumnInfo) -> str:
    if value.tp in t.MOMENTS or value.tp in t.DATES:
        return value.to_local_text()[:4]
    text = value.to_text() if value.tp in t.STRINGS else ""
    year = _round_to_integer(value)
    if year == 0:
        return "2000" if text.startswith("0") and len(text) != _YEAR_WIDTH else "0000"
    year += (2000 if year < 70 else 1900) if 0 < year < 100 else 0
    if not 1901 <= year <= 2155:
        raise ValueError("out of range")
    return f"{year:04d}"


def _cast_to_enum(value: _Value, target: ColumnInfo) -> str:
    elems = target.elems
    if value.tp in (t.ENUM, t.SET) or value.tp in t.STRINGS:
        name = value.to_text()
        if name in elems or (value.tp == t.ENUM and name == ""):
            return name
        raise ValueError("the type has no element of this name")
    ordinal = _round_to_integer(value)
    if not 0 < ordinal <= len(elems):
        raise ValueError("the type has no element of this number")
    return elems[ordinal - 1]


def _cast_to_set(value: _Value, target: ColumnInfo) -> str:
    if value.tp in (t.ENUM, t.SET) or value.tp in t.STRINGS:
        names = value.to_text().split(",") if value.to_text() else []
        bits = sum({1 << target.elems.index(name) for name in names})
    else:
        bits = _round_to_integer(value)
    if bits >> len(target.elems):
        raise ValueError("the type has no elements for this number")
    return format_set(bits, target.elems)


def _cast_to_bit(value: _Value, target: ColumnInfo) -> str:
    if value.tp in t.STRINGS:
        data = bytes.fromhex(value.text) if value.column.is_binary else value.text.encode()
        return format_bit(int.from_bytes(data, "big"), target.flen)
    return format_bit(_round_to_integer(value), target.flen)


def _cast_to_json(value: _Value, _target: ColumnInfo) -> str:
    """A number becomes a number (a DECIMAL or FLOAT a double), a text the document that it is."""
    if value.tp in t.INTEGERS or value.tp == t.YEAR:
        document = encode_json(int(value.text))
    elif value.tp in (t.NEWDECIMAL, t.FLOAT, t.DOUBLE):
        document = encode_json(float(value.to_number()))
    elif value.tp in (t.ENUM, t.SET) or (value.tp in t.STRINGS and not value.column.is_binary):
        document = write_json(value.text)
    else:
        raise ValueError("the conversion of this type to JSON is not known")
    return read_json(document, 0)[0]


_WRITERS: dict[int, Writer] = {
    t.NEWDECIMAL: _cast_to_decimal,
    t.DURATION: _cast_to_duration,
    t.YEAR: _cast_to_year,
    t.ENUM: _cast_to_enum,
    t.SET: _cast_to_set,
    t.BIT: _cast_to_bit,
    t.JSON: _cast_to_json,
}
