"""Constants of an expression: numbers with MySQL's types, and paths into documents."""

from __future__ import annotations

import re
from decimal import Decimal

from sqlglot import exp

from binlake.rules.terms import Term, Unsupported, build_constant

MOST_SCALE = 30
"""Most digits after the decimal point of a DECIMAL."""
_MOST_DIGITS = 65


def build_number_literal(text: str) -> Term:
    """Parse a number: an integer; with a decimal point a DECIMAL; with an exponent a DOUBLE. Raises Unsupported."""
    whole, _, fraction = text.partition(".")
    if re.fullmatch(r"[0-9]+", text) and len(text) <= _MOST_DIGITS:
        return build_constant(int(text), "int")
    if re.fullmatch(r"[0-9]*\.[0-9]*", text) and len(whole + fraction) <= _MOST_DIGITS and len(fraction) <= MOST_SCALE:
        return build_constant(Decimal(text), "decimal", len(fraction))
    if re.fullmatch(r"[0-9]*\.?[0-9]*[eE][-+]?[0-9]+", text):
        return build_constant(float(text), "real")
    raise Unsupported(f"`{text}` is not a number")


def parse_path_legs(path: exp.Expr) -> tuple[str | int, ...]:
    """The names and indexes of a path. Raises Unsupported."""
    legs: list[str | int] = []
    parts = path.expressions if isinstance(path, exp.JSONPath) else []
    if not parts or not isinstance(parts[0], exp.JSONPathRoot):
        raise Unsupported(f"the path {path.sql('mysql')} is not supported")
    for part in parts[1:]:
        leg = part.this
        named = isinstance(part, exp.JSONPathKey) and isinstance(leg, str) and "\\" not in leg
        is_index = isinstance(part, exp.JSONPathSubscript) and isinstance(leg, int) and leg >= 0
        if not (named or is_index):
            raise Unsupported('a path may contain names and indexes only, as in $.a[0]."b c"')
        legs.append(leg)
    return tuple(legs)
