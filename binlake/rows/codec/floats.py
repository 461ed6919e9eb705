"""Texts of FLOAT and DOUBLE: the shortest text that reads back as the same number, in TiDB's form (R-44).

TiDB writes plain decimals, but an exponent (`1.5e20`) from 1e15 up and below 1e-15. TiDB cuts the exponent form of a
FLOAT to 6 digits; Binlake writes all digits, so that the text is lossless.
"""

from __future__ import annotations

from decimal import Decimal
from math import isfinite

import numpy as np

_DOUBLE_LIMITS = (1e-15, 1e15)
# TiDB compares a FLOAT with the limits converted to float32, which differ from the doubles.
_FLOAT_LIMITS = (float(np.float32(1e-15)), float(np.float32(1e15)))
FLOAT_MAX = 3.4028235677973366e38
"""The largest double that rounds to a finite float32 value."""


def format_double(value: float) -> str:
    """The text of a DOUBLE; raises ValueError for NaN and infinity, which no column holds."""
    return _format_as_tidb(value, repr(value), _DOUBLE_LIMITS)


def format_float(value: float) -> str:
    """The text of a FLOAT: the shortest that reads back as the same float32."""
    if abs(value) > FLOAT_MAX:
        raise ValueError(f"{value!r} is not a FLOAT value")
    single = np.float32(value)
    return _format_as_tidb(float(single), str(single), _FLOAT_LIMITS)


def as_float32(text: str) -> float:
    """The number that a FLOAT column holds for `text`; raises ValueError for text that is not a number."""
    return float(np.float32(float(text)))


def _format_as_tidb(value: float, shortest: str, limits: tuple[float, float]) -> str:
    if not isfinite(value):
        raise ValueError(f"{value!r} is not a value of a column")
    size = abs(value)
    if size >= limits[1] or (size and size < limits[0]):
        return _format_exponent(shortest)
    if "e" in shortest:
        return format(Decimal(shortest), "f")
    return shortest[:-2] if shortest.endswith(".0") else shortest


def _format_exponent(shortest: str) -> str:
    sign, digits, exponent = Decimal(shortest).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    power = int(exponent) + len(digits) - 1
    mantissa = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
    return f"{'-' if sign else ''}{mantissa}e{power}"


def format_json_double(value: float) -> str:
    """A double inside JSON as text that reads back as a double: `5.0`, not `5`, which is an integer to every reader."""
    shown = show_json_double(value)
    return shown if "." in shown or "e" in shown else f"{shown}.0"


def show_json_double(value: float) -> str:
    """A double inside JSON: plain, but with an exponent from 1e21 up and below 1e-6 (as TiDB 7.5 prints it)."""
    if not isfinite(value):
        raise ValueError(f"{value!r} is not a JSON number")
    size = abs(value)
    if size and (size < 1e-6 or size >= 1e21):
        text = _format_exponent(repr(value))
        mantissa, _, power = text.partition("e")
        return text if power.startswith("-") else f"{mantissa}e+{power}"
    shortest = repr(value)
    if "e" in shortest:
        shortest = format(Decimal(shortest), "f")
    return shortest[:-2] if shortest.endswith(".0") else shortest
