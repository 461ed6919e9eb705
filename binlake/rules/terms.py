"""A value inside an expression: its program and all that decides how it meets another one; pairs in one type.

What servers read unlike (a DATE beside a number, two collations, a text of which the number is not plain) has no pair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Literal

from binlake.rows.codec.temporal import parse_duration
from binlake.rows.codec.writers import decimal_layout
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rules import evaluate as ev
from binlake.rules.collations import collation_of, has_order, weigher

Kind = Literal[
    "int",
    "decimal",
    "real",
    "year",
    "bits",
    "text",
    "binary",
    "date",
    "moment",
    "time",
    "document",
    "json",
    "place",
    "null",
]
NUMBERS = ("int", "decimal", "real", "year")
TEMPORAL = ("date", "moment")
UTF8 = ("utf8", "utf8mb3", "utf8mb4", "ascii")


class Unsupported(Exception):
    """The expression has something that has no form here; the text says what."""


@dataclass(frozen=True)
class Term:
    """A value. `literal`: that of a constant. `scale`: digits behind the point of a DECIMAL.

    Of a text: `charset` and `collation` ("" = a constant takes the other side's), `explicit` by COLLATE; of an ENUM or
    SET (`named`) `ordinal`, its number.
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


def constant(value: str | bytes | int | Decimal | float, kind: Kind, scale: int = 0) -> Term:
    """A constant."""
    return Term(partial(ev.constant, value), kind, value, scale)


def condition_term(program: ev.Program) -> Term:
    """What a condition gives: 1, 0 or NULL."""
    return Term(program, "int")


def column_term(column: ColumnInfo, at: int) -> Term:
    """The column whose canonical text is at place `at` of the rows."""
    for types, kind, convert in _PLAIN_COLUMNS:
        if column.tp in types:
            return Term(partial(ev.read, at, convert), kind)
    if column.tp == t.NEWDECIMAL:
        return Term(partial(ev.read, at, Decimal), "decimal", scale=decimal_layout(column)[1])
    if column.is_binary:
        return Term(partial(ev.read, at, bytes.fromhex), "binary")
    collation = collation_of(column.charset, column.collate)
    text = Term(partial(ev.read, at, ev.keep_text), "text", charset=column.charset.lower(), collation=collation)
    if column.tp in (t.ENUM, t.SET):
        return _named(text, column, at)
    return text


def _named(text: Term, column: ColumnInfo, at: int) -> Term:
    # With an empty name, the text does not tell it from the value without one.
    act = ev.enum_place if column.tp == t.ENUM else ev.set_number
    names = column.elems if column.tp == t.SET else ()
    ordinal = None if "" in column.elems else partial(ev.read, at, partial(act, column.elems))
    return replace(text, ordinal=ordinal, named=True, set_names=names)


_PLAIN_COLUMNS: tuple[tuple[frozenset[int], Kind, Callable[[str], object]], ...] = (
    (t.INTEGERS, "int", int),
    (frozenset({t.YEAR}), "year", int),
    (frozenset({t.FLOAT}), "real", ev.float32),
    (frozenset({t.DOUBLE}), "real", float),
    (frozenset({t.BIT}), "int", ev.bits),
    (t.DATES, "date", ev.moment),
    (t.MOMENTS, "moment", ev.moment),
    (frozenset({t.DURATION}), "time", ev.time),
    (frozenset({t.JSON}), "document", ev.keep_text),
)


def number(term: Term) -> Term:
    """`term` where a number is wanted. Raises Unsupported."""
    if term.kind in NUMBERS:
        return replace(term, kind="int") if term.kind == "year" else term
    if term.kind == "null":
        return replace(term, kind="int")
    if term.kind != "text":
        raise Unsupported(f"a {term.kind} cannot be used as a number here")
    if term.named:
        if term.ordinal is None:
            raise Unsupported("an ENUM or SET with an empty name cannot be used as a number here: compare its text")
        return Term(term.ordinal, "int")
    if isinstance(term.literal, str):
        return constant(float(plain_number(term.literal)), "real")
    return Term(partial(ev.apply_unless_null, ev.leading_number, term.program), "real")


def plain_number(text: str) -> int | Decimal:
    """The number that is all of a constant text; of more than 15 digits servers make different ones.

    Raises Unsupported.
    """
    if re.fullmatch(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)", text) is None or sum(map(str.isdigit, text)) > 15:
        raise Unsupported(f"'{text}' is not a number of up to 15 digits")
    return Decimal(text) if "." in text else int(text)


def as_real(term: Term) -> ev.Program:
    """The program of a number as DOUBLE."""
    return term.program if term.kind == "real" else partial(ev.apply_unless_null, ev.real, term.program)


def unify_number_types(terms: Sequence[Term]) -> list[ev.Program]:
    """Numbers in one type: exact, unless one is a DOUBLE."""
    return [as_real(term) if any(one.kind == "real" for one in terms) else term.program for term in terms]


# Pairs of a comparison


def pair(left: Term, right: Term, bytewise: bool, *, ordered: bool) -> tuple[ev.Program, ev.Program]:
    """What a comparison compares; `ordered` for < and its kin. Raises Unsupported."""
    if "null" in (left.kind, right.kind):
        return left.program, right.program
    for one, other, swapped in ((left, right, False), (right, left, True)):
        found = _beside(one, other, bytewise, ordered)
        if found is not None:
            return (found[1], found[0]) if swapped else found
    raise Unsupported(f"a {left.kind} cannot be compared with a {right.kind} here")


def _beside(one: Term, other: Term, bytewise: bool, ordered: bool) -> tuple[ev.Program, ev.Program] | None:
    """(one, other) where `one` says how `other` is read."""
    if one.kind == "year":
        return one.program, _beside_year(other)
    if one.kind in NUMBERS:
        return _beside_number(one, other)
    if one.kind == "text":
        return _texts(one, other, bytewise, ordered) if other.kind == "text" else None
    if one.kind == "binary":
        return _beside_binary(one, other)
    if one.kind in (*TEMPORAL, "time"):
        return _beside_time(one, other)
    if one.kind == "place" and other.kind == "int" and other.literal == 0:
        return one.program, other.program
    return None


def _beside_year(other: Term) -> ev.Program:
    value = other.literal
    if other.kind == "year":
        return other.program
    if isinstance(value, str) and re.fullmatch("[0-9]{4}", value):
        value = int(value)
    if not isinstance(value, int) or not 1901 <= value <= 2155:
        raise Unsupported("a YEAR is compared with a year from 1901 to 2155 here, written with four digits")
    return partial(ev.constant, value)


def _beside_number(one: Term, other: Term) -> tuple[ev.Program, ev.Program] | None:
    if other.kind == "bits" and one.kind == "int":
        return one.program, other.program
    if other.kind == "text" and not other.named and isinstance(other.literal, str):
        value = plain_number(other.literal)
        other = constant(value, "decimal" if isinstance(value, Decimal) else "int")
    elif other.kind == "text":
        other = number(other)
    if other.kind not in NUMBERS or other.kind == "year":
        return None
    first, second = unify_number_types((one, other))
    return first, second


def _texts(one: Term, other: Term, bytewise: bool, ordered: bool) -> tuple[ev.Program, ev.Program]:
    collation = common_collation(one, other)
    if one.named and other.named:
        raise Unsupported("an ENUM or SET is compared with constants and texts only")
    weigh = weigh_of(collation, bytewise)
    if ordered and not bytewise and not has_order(collation):
        raise Unsupported(f"the order of {collation} is not known here")
    first, second = (_weighed(term, weigh) for term in (one, other))
    return first, second


def _weighed(term: Term, weigh: Callable[[str], str]) -> ev.Program:
    if isinstance(term.literal, str):
        return partial(ev.constant, weigh(term.literal))
    return term.program if weigh is ev.keep_text else partial(ev.apply_unless_null, weigh, term.program)


def common_collation(*terms: Term) -> str:
    """The collation in which texts meet: COLLATE's, else the columns'. Raises Unsupported when there is not one."""
    explicit = {term.collation for term in terms if term.explicit}
    found = explicit or {term.collation for term in terms if term.collation}
    if len(found) != 1:
        raise Unsupported("texts of two collations meet: add COLLATE" if found else "a comparison needs a column")
    return found.pop()


def require_one_collation(*terms: Term) -> None:
    """Texts of one IN or BETWEEN are all compared in one collation. Raises Unsupported."""
    texts = [term for term in terms if term.collation]
    if texts:
        common_collation(*texts)


def weigh_of(collation: str, bytewise: bool) -> Callable[[str], str]:
    """What texts weigh; `bytewise` where the source compares all of them by bytes. Raises Unsupported."""
    found = ev.keep_text if bytewise else weigher(collation)
    if found is None:
        raise Unsupported(
            f"what is equal in the collation {collation} is not known here: compare by code points with"
            " `… COLLATE utf8mb4_bin`"
        )
    return found


def _beside_binary(one: Term, other: Term) -> tuple[ev.Program, ev.Program] | None:
    if other.kind == "binary":
        return one.program, other.program
    if other.kind == "text" and isinstance(other.literal, str):
        return one.program, partial(ev.constant, other.literal.encode())
    return None


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)


_MOST_TIME = parse_duration("838:59:59")


def _beside_time(one: Term, other: Term) -> tuple[ev.Program, ev.Program] | None:
    if one.kind == "time":
        if other.kind == "time":
            return one.program, other.program
    elif other.kind in TEMPORAL:
        return one.program, other.program
    if other.kind != "text" or not isinstance(other.literal, str):
        return None
    return one.program, partial(ev.constant, _time_literal(one.kind, other.literal))


def _time_literal(kind: str, text: str) -> int | str:
    try:
        if kind == "time":
            found = parse_duration(text)
            if abs(found) > _MOST_TIME:
                raise ValueError("beyond TIME")
            return found
        if not (_DATE.fullmatch(text) or _MOMENT.fullmatch(text)):
            raise ValueError("another form")
        datetime.fromisoformat(f"{text:0<26}" if "." in text else text)
    except ValueError:
        form = "hours:minutes:seconds" if kind == "time" else "YYYY-MM-DD or YYYY-MM-DD hh:mm:ss"
        raise Unsupported(f"'{text}' is not a {kind} ({form})") from None
    return ev.moment(text)


# Values that are equal to one another


def alike(terms: Sequence[Term]) -> tuple[Term, list[ev.Program]]:
    """(what IF and COALESCE give, but for its program; their values in one type). Raises Unsupported."""
    known = [term for term in terms if term.kind != "null"]
    programs = [term.program for term in terms]
    if not known:
        return terms[0], programs
    if all(term.kind in NUMBERS for term in known):
        found = [number(term) for term in terms]
        widest = max((term.kind for term in found), key=_WIDTHS.index)
        return Term(_unset, widest, scale=max(term.scale for term in found)), unify_number_types(found)
    kind = known[0].kind
    if kind in ("document", "json", "bits") or any(term.kind != kind for term in known):
        said = ", ".join(sorted({term.kind for term in known}))
        raise Unsupported(f"IF and COALESCE need values of one kind here, not {said}")
    if kind != "text":
        return Term(_unset, kind), programs
    named = [term for term in known if term.collation]
    collation, explicit = common_collation(*named) if named else "", any(term.explicit for term in named)
    charset = named[0].charset if len({term.charset for term in named}) == 1 else ""
    return Term(_unset, "text", charset=charset, collation=collation, explicit=explicit), programs


_WIDTHS: tuple[Kind, ...] = ("int", "decimal", "real")


def _unset(_: ev.Row) -> None:
    raise AssertionError("the caller sets the program")
