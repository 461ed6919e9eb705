"""A value in an expression: its program and the properties that decide how it is compared; pairs get a common type.

Pairs that servers compare differently (a DATE and a number, two collations, a text that is not a plain number) are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Literal

from binlake.rows.codec.encode import derive_decimal_layout, parse_flat_number
from binlake.rows.codec.temporal import parse_duration
from binlake.rows.codec.values import show_member_text
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rules import comparing as doc
from binlake.rules import evaluate as ev
from binlake.rules.comparing import has_order, look_up_weigher, resolve_collation

Kind = Literal[
    "int",
    "decimal",
    "real",
    "year",
    "bits",
    "text",
    "binary",
    "date",
    "datetime",
    "time",
    "document",
    "json",
    "position",
    "null",
]
NUMBERS = ("int", "decimal", "real", "year")
TEMPORAL = ("date", "datetime")
UTF8 = ("utf8", "utf8mb3", "utf8mb4", "ascii")


class Unsupported(Exception):
    """The expression contains something unsupported; the text says what."""


@dataclass(frozen=True)
class Term:
    """A value. `literal`: the value of a constant. `scale`: digits after the decimal point of a DECIMAL.

    For a text: `charset` and `collation` ("" = a constant, which takes the other side's); `explicit`: set by COLLATE.
    For an ENUM or SET (`named`), `ordinal` gives its number.
    """

    program: ev.Program
    kind: Kind
    literal: str | bytes | int | Decimal | float | None = None
    scale: int = 0
    charset: str = ""
    collation: str = ""
    explicit: bool = False
    ordinal: ev.Program | None = None
    named: bool = False
    set_names: tuple[str, ...] = ()


def build_constant(value: str | bytes | int | Decimal | float, kind: Kind, scale: int = 0) -> Term:
    """A constant."""
    return Term(partial(ev.evaluate_constant, value), kind, value, scale)


def change_text(inner: Term, change: Callable[[str], str]) -> Term:
    """`inner` with its text changed: no constant and no ENUM or SET any more."""
    changed = replace(inner, program=partial(ev.apply_unless_null, change, inner.program), literal=None)
    return replace(changed, ordinal=None, named=False, set_names=())


def divide_integers(left: Term, right: Term) -> Term:
    """`left` DIV `right`. Raises Unsupported for floating-point numbers."""
    if "real" in (left.kind, right.kind):
        raise Unsupported("DIV needs exact numbers here")
    return Term(partial(ev.calculate, ev.divide_exact, left.program, right.program), "int")


def compare_json(left: Term, right: Term) -> ev.Program:
    """Whether a JSON value equals a constant. Raises Unsupported for anything else than a number or a text."""
    value, wanted = (left, right) if left.kind == "json" else (right, left)
    given = wanted.literal
    if wanted.kind == "text" and isinstance(given, str):
        expected: str | float = given
    elif wanted.kind in NUMBERS and isinstance(given, int | float | Decimal):
        expected = float(parse_plain_number(str(given)) if not isinstance(given, float) else given)
    else:
        raise Unsupported("a JSON value is compared with a constant number or text here")
    return partial(ev.apply_unless_null, partial(doc.equals, expected), value.program)


def build_condition_term(program: ev.Program) -> Term:
    """The result of a condition: 1, 0 or NULL."""
    return Term(program, "int")


def build_column_term(column: ColumnInfo, at: int) -> Term:
    """The column whose canonical text is at index `at` of the rows."""
    for types, kind, convert in _PLAIN_COLUMNS:
        if column.tp in types:
            return Term(partial(ev.read, at, convert), kind)
    if column.tp == t.NEWDECIMAL:
        return Term(partial(ev.read, at, Decimal), "decimal", scale=derive_decimal_layout(column)[1])
    if column.is_binary:
        return Term(partial(ev.read, at, bytes.fromhex), "binary")
    collation = resolve_collation(column.charset, column.collate)
    show = partial(show_member_text, column) if column.has_empty_member else ev.keep_text
    text = Term(partial(ev.read, at, show), "text", charset=column.charset.lower(), collation=collation)
    if column.tp in (t.ENUM, t.SET):
        return _build_named_term(text, column, at)
    return text


def _build_named_term(text: Term, column: ColumnInfo, at: int) -> Term:
    names = column.elems if column.tp == t.SET else ()
    ordinal = partial(ev.read, at, partial(parse_flat_number, column))
    return replace(text, ordinal=ordinal, named=True, set_names=names)


_PLAIN_COLUMNS: tuple[tuple[frozenset[int], Kind, Callable[[str], object]], ...] = (
    (t.INTEGERS, "int", int),
    (frozenset({t.YEAR}), "year", int),
    (frozenset({t.FLOAT}), "real", ev.parse_float32),
    (frozenset({t.DOUBLE}), "real", float),
    (frozenset({t.BIT}), "int", ev.parse_bits),
    (t.DATES, "date", ev.pad_moment),
    (t.MOMENTS, "datetime", ev.pad_moment),
    (frozenset({t.DURATION}), "time", ev.parse_time),
    (frozenset({t.JSON}), "document", ev.keep_text),
)


def as_number(term: Term) -> Term:
    """`term` as a number. Raises Unsupported."""
    if term.kind in NUMBERS:
        return replace(term, kind="int") if term.kind == "year" else term
    if term.kind == "null":
        return replace(term, kind="int")
    if term.kind != "text":
        raise Unsupported(f"a {term.kind} cannot be used as a number here")
    if term.ordinal is not None:
        return Term(term.ordinal, "int")
    if isinstance(term.literal, str):
        return build_constant(float(parse_plain_number(term.literal)), "real")
    return Term(partial(ev.apply_unless_null, ev.parse_leading_number, term.program), "real")


def parse_plain_number(text: str) -> int | Decimal:
    """Parse a constant text as a number. Raises Unsupported, also for more than 15 digits, where servers differ."""
    if re.fullmatch(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)", text) is None or sum(map(str.isdigit, text)) > 15:
        raise Unsupported(f"'{text}' is not a number of up to 15 digits")
    return Decimal(text) if "." in text else int(text)


def as_real(term: Term) -> ev.Program:
    """The program of a number as DOUBLE."""
    return term.program if term.kind == "real" else partial(ev.apply_unless_null, ev.to_real, term.program)


def unify_number_types(terms: Sequence[Term]) -> list[ev.Program]:
    """Programs of numbers in a common type: exact, unless one of them is a DOUBLE."""
    return [as_real(term) if any(each.kind == "real" for each in terms) else term.program for term in terms]


# Pairs of a comparison


def pair_terms(left: Term, right: Term, bytewise: bool, *, ordered: bool) -> tuple[ev.Program, ev.Program]:
    """The two programs whose results a comparison compares; `ordered`: for < and similar. Raises Unsupported."""
    if "null" in (left.kind, right.kind):
        return left.program, right.program
    for first, second, swapped in ((left, right, False), (right, left, True)):
        programs = _pair_by_first(first, second, bytewise, ordered)
        if programs is not None:
            return (programs[1], programs[0]) if swapped else programs
    raise Unsupported(f"a {left.kind} cannot be compared with a {right.kind} here")


def _pair_by_first(first: Term, second: Term, bytewise: bool, ordered: bool) -> tuple[ev.Program, ev.Program] | None:
    """The programs of (first, second) if the type of `first` decides how `second` is read; None if it does not."""
    if first.kind == "year":
        return first.program, _build_year_program(second)
    if first.kind in NUMBERS:
        return _pair_numbers(first, second)
    if first.kind == "text":
        return _pair_texts(first, second, bytewise, ordered) if second.kind == "text" else None
    if first.kind == "binary":
        return _pair_binaries(first, second)
    if first.kind in (*TEMPORAL, "time"):
        return _pair_times(first, second)
    if first.kind == "position" and second.kind == "int" and second.literal == 0:
        return first.program, second.program
    return None


def _build_year_program(partner: Term) -> ev.Program:
    value = partner.literal
    if partner.kind == "year":
        return partner.program
    if isinstance(value, str) and re.fullmatch("[0-9]{4}", value):
        value = int(value)
    if not isinstance(value, int) or not 1901 <= value <= 2155:
        raise Unsupported("a YEAR can only be compared with a year from 1901 to 2155 here, written with four digits")
    return partial(ev.evaluate_constant, value)


def _pair_numbers(one: Term, other: Term) -> tuple[ev.Program, ev.Program] | None:
    if other.kind == "bits" and one.kind == "int":
        return one.program, other.program
    if other.kind == "text" and not other.named and isinstance(other.literal, str):
        value = parse_plain_number(other.literal)
        other = build_constant(value, "decimal" if isinstance(value, Decimal) else "int")
    elif other.kind == "text":
        other = as_number(other)
    if other.kind not in NUMBERS or other.kind == "year":
        return None
    first, second = unify_number_types((one, other))
    return first, second


def _pair_texts(one: Term, other: Term, bytewise: bool, ordered: bool) -> tuple[ev.Program, ev.Program]:
    collation = find_common_collation(one, other)
    if one.named and other.named:
        raise Unsupported("an ENUM or SET can only be compared with constants and texts")
    weigh = find_weigher(collation, bytewise)
    if ordered and not bytewise and not has_order(collation):
        raise Unsupported(f"the order of {collation} is unknown here")
    first, second = (_weigh_term(term, weigh) for term in (one, other))
    return first, second


def _weigh_term(term: Term, weigh: Callable[[str], str]) -> ev.Program:
    if isinstance(term.literal, str):
        return partial(ev.evaluate_constant, weigh(term.literal))
    return term.program if weigh is ev.keep_text else partial(ev.apply_unless_null, weigh, term.program)


def find_common_collation(*terms: Term) -> str:
    """The collation of a comparison: that of COLLATE, else that of the columns. Raises Unsupported."""
    explicit = {term.collation for term in terms if term.explicit}
    collations = explicit or {term.collation for term in terms if term.collation}
    if len(collations) != 1:
        raise Unsupported(
            "texts of two collations are compared: add COLLATE" if collations else "a comparison needs a column"
        )
    return collations.pop()


def require_one_collation(*terms: Term) -> None:
    """Raise Unsupported unless all texts of an IN or BETWEEN have the same collation."""
    texts = [term for term in terms if term.collation]
    if texts:
        find_common_collation(*texts)


def find_weigher(collation: str, bytewise: bool) -> Callable[[str], str]:
    """The weight function of texts; `bytewise`: the source compares all texts by bytes. Raises Unsupported."""
    weigh = ev.keep_text if bytewise else look_up_weigher(collation)
    if weigh is None:
        raise Unsupported(
            f"equality in the collation {collation} is unknown here: compare by code points with"
            " `… COLLATE utf8mb4_bin`"
        )
    return weigh


def _pair_binaries(first: Term, second: Term) -> tuple[ev.Program, ev.Program] | None:
    if second.kind == "binary":
        return first.program, second.program
    if second.kind == "text" and isinstance(second.literal, str):
        return first.program, partial(ev.evaluate_constant, second.literal.encode())
    return None


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)


_MOST_TIME = parse_duration("838:59:59")


def _pair_times(first: Term, second: Term) -> tuple[ev.Program, ev.Program] | None:
    if first.kind == "time":
        if second.kind == "time":
            return first.program, second.program
    elif second.kind in TEMPORAL:
        return first.program, second.program
    if second.kind != "text" or not isinstance(second.literal, str):
        return None
    return first.program, partial(ev.evaluate_constant, _parse_time_literal(first.kind, second.literal))


def _parse_time_literal(kind: str, text: str) -> int | str:
    try:
        if kind == "time":
            duration = parse_duration(text)
            if abs(duration) > _MOST_TIME:
                raise ValueError("beyond TIME")
            return duration
        if not (_DATE.fullmatch(text) or _MOMENT.fullmatch(text)):
            raise ValueError("another form")
        datetime.fromisoformat(f"{text:0<26}" if "." in text else text)
    except ValueError:
        form = "hours:minutes:seconds" if kind == "time" else "YYYY-MM-DD or YYYY-MM-DD hh:mm:ss"
        raise Unsupported(f"'{text}' is not a {kind} ({form})") from None
    return ev.pad_moment(text)


# Branches of IF and COALESCE


def unify_branches(terms: Sequence[Term]) -> tuple[Term, list[ev.Program]]:
    """(term of an IF or COALESCE without its program, the programs of its values in one type). Raises Unsupported."""
    known = [term for term in terms if term.kind != "null"]
    programs = [term.program for term in terms]
    if not known:
        return terms[0], programs
    if all(term.kind in NUMBERS for term in known):
        numbers = [as_number(term) for term in terms]
        widest = max((term.kind for term in numbers), key=_WIDTHS.index)
        return Term(_unset, widest, scale=max(term.scale for term in numbers)), unify_number_types(numbers)
    kind = known[0].kind
    if kind in ("document", "json", "bits") or any(term.kind != kind for term in known):
        kinds = ", ".join(sorted({term.kind for term in known}))
        raise Unsupported(f"IF and COALESCE need values of one kind here, not {kinds}")
    if kind != "text":
        return Term(_unset, kind), programs
    named = [term for term in known if term.collation]
    collation, explicit = find_common_collation(*named) if named else "", any(term.explicit for term in named)
    charset = named[0].charset if len({term.charset for term in named}) == 1 else ""
    return Term(_unset, "text", charset=charset, collation=collation, explicit=explicit), programs


_WIDTHS: tuple[Kind, ...] = ("int", "decimal", "real")


def _unset(_: ev.Row) -> None:
    raise AssertionError("the caller sets the program")
