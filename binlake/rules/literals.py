"""Constants of an expression: numbers as MySQL types them, and paths into documents."""

from __future__ import annotations

import re
from decimal import Decimal

from sqlglot import exp

from binlake.rules.terms import Term, Unsupported, constant

MOST_SCALE = 30
"""Digits behind the point of a DECIMAL."""
_MOST_DIGITS = 65


def number_literal(text: str) -> Term:
    """A number: of digits an integer, with a point a DECIMAL, with an exponent a DOUBLE. Raises Unsupported."""
    whole, _, behind = text.partition(".")
    if re.fullmatch(r"[0-9]+", text) and len(text) <= _MOST_DIGITS:
        return constant(int(text), "int")
    if re.fullmatch(r"[0-9]*\.[0-9]*", text) and len(whole + behind) <= _MOST_DIGITS and len(behind) <= MOST_SCALE:
        return constant(Decimal(text), "decimal", len(behind))
    if re.fullmatch(r"[0-9]*\.?[0-9]*[eE][-+]?[0-9]+", text):
        return constant(float(text), "real")
    raise Unsupported(f"`{text}` is not a number")


def path_legs(path: exp.Expr) -> tuple[str | int, ...]:
    """The names and places of a path. Raises Unsupported."""
    found: list[str | int] = []
    parts = path.expressions if isinstance(path, exp.JSONPath) else []
    if not parts or not isinstance(parts[0], exp.JSONPathRoot):
        raise Unsupported(f"the path {path.sql('mysql')} is not supported")
    for part in parts[1:]:
        leg = part.this
        named = isinstance(part, exp.JSONPathKey) and isinstance(leg, str) and "\\" not in leg
        placed = isinstance(part, exp.JSONPathSubscript) and isinstance(leg, int) and leg >= 0
        if not (named or placed):
            raise Unsupported('a path has names and places only, as in $.a[0]."b c"')
        found.append(leg)
    return tuple(found)
