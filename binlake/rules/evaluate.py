"""Evaluate an expression of `expression-filter` for one row; picklable, and independent of the parser.

A program takes the row's canonical texts, in the order of the columns that it reads, and returns an int, Decimal,
float, str, bytes or None (NULL). Exact numbers are unbounded, so no value is an error: where a server reports a BIGINT
or DECIMAL out of range, the exact number is used. The rules are those of TiDB's expressions, as far as MySQL and
MariaDB share them (docs/reference/filters.md); a test compares every form with a real server.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any

from binlake.rows.codec.temporal import parse_duration

Row = Sequence[str | None]
Program = Callable[[Row], Any]

_EXACT = Context(prec=1000)
_WHOLE_MOMENT = "0000-00-00 00:00:00.000000"
_LEADING_NUMBER = re.compile(r"[ \t\n\v\f\r]*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")


def evaluate_constant(value: Any, row: Row) -> Any:  # noqa: ARG001 - a program takes the row
    """The value, for any row."""
    return value


def read(at: int, convert: Callable[[str], Any], row: Row) -> Any:
    """The value of the column at index `at`."""
    text = row[at]
    return None if text is None else convert(text)


def apply_unless_null(change: Callable[[Any], Any], inner: Program, row: Row) -> Any:
    """Apply `change` to a value that is not NULL; NULL stays NULL."""
    value = inner(row)
    return None if value is None else change(value)


# Canonical texts as values


def keep_text(text: str) -> str:
    """The text itself."""
    return text


def parse_float32(text: str) -> float:
    """A FLOAT, rounded to 32-bit precision."""
    return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])


def parse_bits(text: str) -> int:
    """A BIT, whose text is hex."""
    return int(text, 16)


def pad_moment(text: str) -> str:
    """Pad a DATE, DATETIME or TIMESTAMP to equal length, so that texts sort by time, including zero parts."""
    return text + _WHOLE_MOMENT[len(text) :]


def parse_time(text: str) -> int:
    """A TIME in nanoseconds."""
    return parse_duration(text)


# Numbers


def parse_leading_number(text: str) -> float:
    """The number at the beginning of a text; 0 if there is none."""
    match = _LEADING_NUMBER.match(text)
    return float(match[1]) if match else 0.0


def to_real(value: int | float | Decimal) -> float:
    """A number as DOUBLE; infinite if it is too large for a DOUBLE."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def calculate(act: Callable[[Any, Any], Any], left: Program, right: Program, row: Row) -> Any:
    """Apply `act` to two numbers; NULL if there is no result (a division by zero)."""
    a = left(row)
    if a is None:
        return None
    b = right(row)
    if b is None:
        return None
    result = act(a, b)
    return None if result != result else result


def calculate_exactly(act: Callable[[Decimal, Decimal], Decimal], a: int | Decimal, b: int | Decimal) -> Decimal:
    """Apply `act` to two exact numbers, one of which is a DECIMAL."""
    return act(Decimal(a), Decimal(b))


def divide_exact(a: int | Decimal, b: int | Decimal) -> int | None:
    """a DIV b, truncated towards zero."""
    if not b:
        return None
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return int(_EXACT.divide_int(Decimal(a), Decimal(b)))
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


def compute_integer_mod(a: int, b: int) -> int | None:
    """a % b of integers, with the sign of a."""
    if not b:
        return None
    size = abs(a) % abs(b)
    return -size if a < 0 else size


def divide_real(a: float, b: float) -> float | None:
    """a / b of DOUBLEs."""
    return a / b if b else None


def compute_real_mod(a: float, b: float) -> float | None:
    """a % b of DOUBLEs."""
    return math.fmod(a, b) if b and math.isfinite(a) else None


DECIMAL_ADD = partial(calculate_exactly, _EXACT.add)
DECIMAL_SUB = partial(calculate_exactly, _EXACT.subtract)
DECIMAL_MUL = partial(calculate_exactly, _EXACT.multiply)


def negate(value: int | float | Decimal) -> Any:
    """-x; a Decimal keeps all its digits."""
    return _EXACT.minus(value) if isinstance(value, Decimal) else -value


def compute_absolute(value: int | float | Decimal) -> Any:
    """ABS(x)."""
    return _EXACT.abs(value) if isinstance(value, Decimal) else abs(value)


# Conditions: 1, 0 or NULL


def is_true(value: Any) -> bool | None:
    """A number as a condition: TRUE if it is not zero; NULL stays NULL."""
    return None if value is None else bool(value)


def compare_values(act: Callable[[Any, Any], bool], left: Program, right: Program, row: Row) -> bool | None:
    """A comparison; NULL if one side is NULL."""
    a = left(row)
    if a is None:
        return None
    b = right(row)
    return None if b is None else act(a, b)


def compare_null_safe(left: Program, right: Program, row: Row) -> bool:
    """a <=> b."""
    a, b = left(row), right(row)
    return a is b if a is None or b is None else bool(a == b)


def evaluate_and(parts: Sequence[Program], row: Row) -> bool | None:
    """AND."""
    result: bool | None = True
    for part in parts:
        value = is_true(part(row))
        if value is False:
            return False
        if value is None:
            result = None
    return result


def evaluate_or(parts: Sequence[Program], row: Row) -> bool | None:
    """OR."""
    result: bool | None = False
    for part in parts:
        value = is_true(part(row))
        if value:
            return True
        if value is None:
            result = None
    return result


def evaluate_xor(left: Program, right: Program, row: Row) -> bool | None:
    """XOR."""
    a, b = is_true(left(row)), is_true(right(row))
    return None if a is None or b is None else a is not b


def evaluate_not(inner: Program, row: Row) -> bool | None:
    """NOT."""
    value = is_true(inner(row))
    return None if value is None else not value


def is_null(inner: Program, row: Row) -> bool:
    """IS NULL."""
    return inner(row) is None


def is_truth(wanted: bool, inner: Program, row: Row) -> bool:
    """IS TRUE, IS FALSE."""
    return is_true(inner(row)) is wanted


def evaluate_if(condition: Program, yes: Program, no: Program, row: Row) -> Any:
    """IF(condition, yes, no)."""
    return yes(row) if is_true(condition(row)) else no(row)


def evaluate_coalesce(parts: Sequence[Program], row: Row) -> Any:
    """COALESCE."""
    return next((value for value in (part(row) for part in parts) if value is not None), None)


# Texts


def matches(pattern: re.Pattern[str], text: str) -> bool:
    """True if `pattern` matches anywhere in `text`."""
    return pattern.search(text) is not None


def matches_whole(pattern: re.Pattern[str], text: str) -> bool:
    """True if `pattern` matches the whole `text`."""
    return pattern.fullmatch(text) is not None


def lower(text: str) -> str:
    """LOWER: letter by letter, by Unicode's simple mapping, like Go's ToLower."""
    return "".join(low if len(low := char.lower()) == 1 else low[0] for char in text)


def upper(text: str) -> str:
    """UPPER: letter by letter; a letter whose capital form has several letters gets its title form or stays
    unchanged."""
    return "".join(map(_capitalize_letter, text))


def _capitalize_letter(char: str) -> str:
    capital = char.upper()
    if len(capital) == 1:
        return capital
    title = char.title()
    return title if len(title) == 1 else char


def trim(what: str, leading: bool, trailing: bool, text: str) -> str:
    """TRIM: remove `what` as often as it occurs at the chosen ends."""
    if not what:
        return text
    start, end = 0, len(text)
    while leading and text.startswith(what, start, end):
        start += len(what)
    while trailing and text.endswith(what, start, end):
        end -= len(what)
    return text[start:end]


def count_bytes(text: str) -> int:
    """LENGTH: the bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def find_in_set(needle: str, text: str) -> int:
    """FIND_IN_SET."""
    names = text.split(",") if text else []
    return names.index(needle) + 1 if needle in names else 0


def strip_trailing_spaces(text: str) -> str:
    """A text as padding collations compare it: without trailing spaces."""
    return text.rstrip(" ")
