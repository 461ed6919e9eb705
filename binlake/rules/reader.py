"""Compile a MySQL expression to a program over one row image, typed by the table's definition (DM's expression filter).

Every node of the parse tree (`sql.py`) must have a form here that handles all its arguments; otherwise the expression
is refused, and no part of it is ignored. Expressions that servers interpret differently are refused too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

from sqlglot import exp

from binlake.rows.schema import TableDef
from binlake.rows.schema.names import fold_name
from binlake.rules import documents as doc
from binlake.rules import evaluate as ev
from binlake.rules.collations import general_ci, letter_weigher
from binlake.rules.literals import MOST_SCALE, number_literal, path_legs
from binlake.rules.terms import (
    NUMBERS,
    UTF8,
    Term,
    Unsupported,
    as_real,
    column_term,
    common_collation,
    condition_term,
    constant,
    find_weigher,
    number,
    pair,
    plain_number,
    require_one_collation,
    unify_branches,
)
from binlake.rules.textpatterns import like_pattern, regexp_pattern

_COMPARISONS: Mapping[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: operator.eq, exp.NEQ: operator.ne, exp.GT: operator.gt, exp.GTE: operator.ge, exp.LT: operator.lt,
    exp.LTE: operator.le,
}  # fmt: skip
_Act = Callable[[Any, Any], Any]
_REAL: Mapping[type[exp.Expr], _Act] = {
    exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul, exp.Div: ev.real_divide, exp.Mod: ev.real_mod,
}  # fmt: skip
_WHOLE: Mapping[type[exp.Expr], _Act] = {
    exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul, exp.Mod: ev.integer_mod,
}  # fmt: skip
_DECIMAL: Mapping[type[exp.Expr], _Act] = {
    exp.Add: ev.DECIMAL_ADD, exp.Sub: ev.DECIMAL_SUB, exp.Mul: ev.DECIMAL_MUL,
}  # fmt: skip


class Reader:
    """Compiles expressions over row images of `table`; `columns`: those used so far, in the order of a program's row.

    `bytewise`: the source compares all texts by bytes (source.new-collation = false).
    """

    def __init__(self, table: TableDef, *, bytewise: bool = False) -> None:
        self.columns: list[str] = []
        self._table = table
        self._bytewise = bytewise

    def condition(self, node: exp.Expr) -> ev.Program:
        """`node` as a condition: a number is TRUE if it is not zero. Raises Unsupported."""
        term = self.value(node)
        if term.kind in (*NUMBERS, "null", "position"):
            return term.program
        raise Unsupported(f"`{node.sql('mysql')}` is a {term.kind}, not a condition: compare it with something")

    def value(self, node: exp.Expr) -> Term:
        """`node` with its type. Raises Unsupported."""
        form = FORMS.get(type(node))
        if form is None:
            raise Unsupported(f"`{node.sql('mysql')}` ({type(node).__name__.lower()}) is not supported")
        for name, argument in node.args.items():
            if name not in form.takes and argument not in (None, False, []) and form.ignores.get(name) != argument:
                raise Unsupported(f"`{node.sql('mysql')}`: `{name}` of {type(node).__name__.lower()} is not supported")
        return form.read(self, node)

    def column(self, node: exp.Column) -> Term:
        """A column of the table."""
        if node.table and fold_name(node.table) != fold_name(self._table.name):
            raise Unsupported(f"`{node.sql('mysql')}` is a column of another table")
        definition = self._table.column(node.name)
        if definition is None:
            raise Unsupported(f"the table has no column `{node.name}`")
        if definition.is_virtual:
            raise Unsupported(
                f"`{node.name}` is a virtual column, which is not in row changes: write its expression instead"
            )
        if definition.name not in self.columns:
            self.columns.append(definition.name)
        return column_term(definition, self.columns.index(definition.name))

    def compare(self, node: exp.Binary) -> Term:
        """=, <>, <, <=, >, >=."""
        return condition_term(self._compare_terms(type(node), self.value(node.this), self.value(node.expression)))

    def equal_or_null(self, node: exp.NullSafeEQ) -> Term:
        """<=>."""
        left, right = self.value(node.this), self.value(node.expression)
        if "json" in (left.kind, right.kind) and "null" not in (left.kind, right.kind):
            return condition_term(partial(ev.is_truth, True, _json_equal(left, right)))
        return condition_term(partial(ev.compare_null_safe, *pair(left, right, self._bytewise, ordered=False)))

    def _compare_terms(self, kind: type[exp.Expr], left: Term, right: Term) -> ev.Program:
        equality = kind in (exp.EQ, exp.NEQ)
        if "json" in (left.kind, right.kind) and "null" not in (left.kind, right.kind):
            if not equality:
                raise Unsupported("JSON values cannot be ordered here: use the text (->>)")
            program = _json_equal(left, right)
            return program if kind is exp.EQ else partial(ev.evaluate_not, program)
        return partial(ev.compare_values, _COMPARISONS[kind], *pair(left, right, self._bytewise, ordered=not equality))

    def between(self, node: exp.Between) -> Term:
        """x BETWEEN a AND b."""
        value, low, high = (self.value(node.args[key]) for key in ("this", "low", "high"))
        if value.kind == "text" and {low.kind, high.kind} - {"text", "null"}:
            raise Unsupported("a text can only be BETWEEN texts here")
        if value.kind in ("int", "decimal") and "real" in (low.kind, high.kind):
            raise Unsupported("an exact number can only be BETWEEN exact numbers here")
        require_one_collation(value, low, high)
        return condition_term(
            partial(
                ev.evaluate_and, (self._compare_terms(exp.GTE, value, low), self._compare_terms(exp.LTE, value, high))
            )
        )

    def within(self, node: exp.In) -> Term:
        """x IN (a, b, …)."""
        if not node.expressions:
            raise Unsupported("IN takes a list of values")
        value = self.value(node.this)
        if value.kind == "json":
            raise Unsupported("IN does not take a JSON value: compare it by =, or its text by ->>")
        members = [self.value(part) for part in node.expressions]
        require_one_collation(value, *members)
        return condition_term(
            partial(ev.evaluate_or, tuple(self._compare_terms(exp.EQ, value, member) for member in members))
        )

    def logic(self, node: exp.Binary) -> Term:
        """AND, OR, XOR."""
        parts = self.condition(node.this), self.condition(node.expression)
        if isinstance(node, exp.Xor):
            return condition_term(partial(ev.evaluate_xor, *parts))
        return condition_term(partial(ev.evaluate_and if isinstance(node, exp.And) else ev.evaluate_or, parts))

    def negation(self, node: exp.Not) -> Term:
        """NOT x."""
        return condition_term(partial(ev.evaluate_not, self.condition(node.this)))

    def test(self, node: exp.Is) -> Term:
        """x IS NULL, IS TRUE, IS FALSE."""
        if isinstance(node.expression, exp.Null):
            return condition_term(partial(ev.is_null, self.value(node.this).program))
        if isinstance(node.expression, exp.Boolean):
            return condition_term(partial(ev.is_truth, bool(node.expression.this), self.condition(node.this)))
        raise Unsupported(f"`{node.sql('mysql')}` is not supported")

    def like(self, node: exp.Like) -> Term:
        """x LIKE 'pattern', x NOT LIKE 'pattern'."""
        value, collation, pattern = self._match_operands(node)
        weigh = ev.keep_text if self._bytewise else letter_weigher(collation)
        if weigh is None:
            find_weigher(collation, bytewise=False)
            raise AssertionError("a collation with a weight function also has one for letters")
        text = value.program if weigh is ev.keep_text else partial(ev.apply_unless_null, weigh, value.program)
        program = partial(ev.apply_unless_null, partial(ev.matches_whole, like_pattern(pattern, weigh)), text)
        return condition_term(partial(ev.evaluate_not, program) if node.args.get("negate") else program)

    def regexp(self, node: exp.RegexpLike) -> Term:
        """x REGEXP 'pattern'."""
        value, collation, pattern = self._match_operands(node)
        if not self._bytewise and not collation.endswith("_bin"):
            raise Unsupported(f"REGEXP is by code points here, not by {collation}: write `… COLLATE utf8mb4_bin`")
        return condition_term(
            partial(ev.apply_unless_null, partial(ev.matches, regexp_pattern(pattern)), value.program)
        )

    def _match_operands(self, node: exp.Binary) -> tuple[Term, str, str]:
        """(the text, its collation, the pattern)."""
        value, pattern = self.value(node.this), self.value(node.expression)
        if value.kind != "text" or not isinstance(pattern.literal, str) or pattern.kind != "text":
            raise Unsupported("LIKE and REGEXP need a text column and a constant pattern here")
        return value, common_collation(value, pattern), pattern.literal

    def arithmetic(self, node: exp.Binary) -> Term:
        """+ - * / DIV %; a division by zero gives NULL."""
        left, right = number(self.value(node.this)), number(self.value(node.expression))
        if isinstance(node, exp.IntDiv):
            return _integer_quotient(left, right)
        if "real" in (left.kind, right.kind):
            return Term(partial(ev.calculate, _REAL[type(node)], as_real(left), as_real(right)), "real")
        if isinstance(node, exp.Div):
            raise Unsupported("servers differ in the number of digits of a quotient: write `a * 1e0 / b`, or DIV")
        if left.kind == right.kind == "int":
            return Term(partial(ev.calculate, _WHOLE[type(node)], left.program, right.program), "int")
        if isinstance(node, exp.Mod):
            raise Unsupported("a remainder of DECIMALs may be a negative zero, which servers order differently")
        scale = left.scale + right.scale if isinstance(node, exp.Mul) else max(left.scale, right.scale)
        if scale > MOST_SCALE:
            raise Unsupported(f"a product of more than {MOST_SCALE} digits after the decimal point is rounded")
        return Term(partial(ev.calculate, _DECIMAL[type(node)], left.program, right.program), "decimal", scale=scale)

    def negative(self, node: exp.Neg) -> Term:
        """-x."""
        inner = number(self.value(node.this))
        if inner.literal is not None:
            return constant(ev.negate(inner.literal), inner.kind, inner.scale)  # type: ignore[arg-type]
        return Term(partial(ev.apply_unless_null, ev.negate, inner.program), inner.kind, scale=inner.scale)

    def nested(self, node: exp.Paren) -> Term:
        """(x)."""
        return self.value(node.this)

    def constant(self, node: exp.Literal) -> Term:
        """A text or a number."""
        if node.is_string:
            return constant(node.this, "text")
        return number_literal(node.this)

    def special(self, node: exp.Expr) -> Term:
        """TRUE, FALSE, NULL, b'…', x'…'."""
        if isinstance(node, exp.Null):
            return Term(partial(ev.constant, None), "null")
        if isinstance(node, exp.Boolean):
            return condition_term(partial(ev.constant, bool(node.this)))
        if isinstance(node, exp.BitString):
            return constant(int(node.this, 2), "bits")
        if len(node.this) % 2:
            raise Unsupported("write hexadecimal constants with two digits per byte")
        return constant(bytes.fromhex(node.this), "binary")

    def collated(self, node: exp.Collate) -> Term:
        """x COLLATE name."""
        inner, name = self.value(node.this), node.expression.name.lower()
        if inner.kind != "text" or inner.named:
            raise Unsupported("COLLATE needs a text")
        if not name.startswith("utf8") or inner.charset not in ("", *UTF8):
            raise Unsupported("COLLATE takes only collations of utf8 and utf8mb4 here, and columns in one of these")
        find_weigher(name, self._bytewise)
        return replace(inner, collation=name, explicit=True)

    def path(self, node: exp.Binary) -> Term:
        """column->'$.path', column->>'$.path', JSON_EXTRACT(column, '$.path')."""
        inner = self.value(node.this)
        if inner.kind != "document":
            raise Unsupported(f"`{node.this.sql('mysql')}` is not a JSON column")
        program = partial(ev.apply_unless_null, partial(doc.value_at, path_legs(node.expression)), inner.program)
        if isinstance(node, exp.JSONExtract):
            return Term(program, "json")
        text = partial(ev.apply_unless_null, doc.unquote, program)
        return Term(text, "text", charset="utf8mb4", collation="utf8mb4_bin")

    def choice(self, node: exp.If) -> Term:
        """IF(condition, a, b)."""
        if node.args.get("false") is None:
            raise Unsupported("IF takes three arguments")
        term, (yes, no) = unify_branches([self.value(node.args["true"]), self.value(node.args["false"])])
        return replace(term, program=partial(ev.evaluate_if, self.condition(node.this), yes, no), literal=None)

    def first(self, node: exp.Coalesce) -> Term:
        """COALESCE(a, b) and IFNULL(a, b)."""
        term, programs = unify_branches([self.value(part) for part in (node.this, *node.expressions)])
        return replace(term, program=partial(ev.evaluate_coalesce, tuple(programs)), literal=None)

    def absolute(self, node: exp.Abs) -> Term:
        """ABS(x)."""
        inner = number(self.value(node.this))
        return Term(partial(ev.apply_unless_null, ev.size_of, inner.program), inner.kind, scale=inner.scale)

    def cased(self, node: exp.Expr) -> Term:
        """LOWER, UPPER."""
        inner = self._text(node.this)
        change = ev.lower if isinstance(node, exp.Lower) else ev.upper
        return _change_text(inner, change)

    def trimmed(self, node: exp.Trim) -> Term:
        """TRIM, LTRIM, RTRIM, TRIM(LEADING 'x' FROM y)."""
        inner, what = self._text(node.this), " "
        if node.expression is not None:
            given = self.value(node.expression)
            if given.kind != "text" or not isinstance(given.literal, str):
                raise Unsupported("TRIM removes a constant text only here")
            what = given.literal
        ends = {"LEADING": (True, False), "TRAILING": (False, True), "BOTH": (True, True), "": (True, True)}
        sides = ends.get(str(node.args.get("position") or "").upper())
        if sides is None:
            raise Unsupported(f"`{node.sql('mysql')}` is not supported")
        return _change_text(inner, partial(ev.trim, what, *sides))

    def length(self, node: exp.Length) -> Term:
        """LENGTH in bytes, CHAR_LENGTH in characters."""
        inner = self.value(node.this)
        if inner.kind == "binary":
            return Term(partial(ev.apply_unless_null, len, inner.program), "int")
        if inner.kind != "text":
            raise Unsupported(f"the length of a {inner.kind} is not supported")
        if not node.args.get("binary"):
            return Term(partial(ev.apply_unless_null, len, inner.program), "int")
        if inner.charset not in UTF8:
            raise Unsupported("the bytes of a text are counted in utf8 and utf8mb4 only: use CHAR_LENGTH")
        return Term(partial(ev.apply_unless_null, ev.byte_length, inner.program), "int")

    def function(self, node: exp.Anonymous) -> Term:
        """FIND_IN_SET('name', set)."""
        if str(node.this).lower() != "find_in_set" or len(node.expressions) != 2:
            raise Unsupported(f"the function {node.this} is not supported")
        name, names = map(self.value, node.expressions)
        # MySQL looks up a constant among the names ignoring case, TiDB by the collation.
        weights = [general_ci(one) for one in names.set_names]
        if not isinstance(name.literal, str) or name.literal not in names.set_names or len(set(weights)) < len(weights):
            raise Unsupported("FIND_IN_SET needs a name of the SET, spelled as there, and a column of type SET")
        return Term(partial(ev.apply_unless_null, partial(ev.find_in_set, name.literal), names.program), "position")

    def _text(self, node: exp.Expr) -> Term:
        inner = self.value(node)
        if inner.kind != "text":
            raise Unsupported(f"`{node.sql('mysql')}` is a {inner.kind}, not a text")
        return inner


def _change_text(inner: Term, change: Callable[[str], str]) -> Term:
    changed = replace(inner, program=partial(ev.apply_unless_null, change, inner.program), literal=None)
    return replace(changed, ordinal=None, named=False, set_names=())


def _integer_quotient(left: Term, right: Term) -> Term:
    if "real" in (left.kind, right.kind):
        raise Unsupported("DIV needs exact numbers here")
    return Term(partial(ev.calculate, ev.exact_div, left.program, right.program), "int")


def _json_equal(left: Term, right: Term) -> ev.Program:
    value, wanted = (left, right) if left.kind == "json" else (right, left)
    given = wanted.literal
    if wanted.kind == "text" and isinstance(given, str):
        expected: str | float = given
    elif wanted.kind in NUMBERS and isinstance(given, int | float | Decimal):
        expected = float(plain_number(str(given)) if not isinstance(given, float) else given)
    else:
        raise Unsupported("a JSON value is compared with a constant number or text here")
    return partial(ev.apply_unless_null, partial(doc.equals, expected), value.program)


@dataclass(frozen=True)
class Form:
    """How a node is compiled: the arguments that `read` handles, and meaningless ones that the parser always adds."""

    read: Callable[[Reader, Any], Term]
    takes: frozenset[str]
    ignores: Mapping[str, object]


def _form(read: Callable[[Reader, Any], Term], takes: str = "this expression", **ignores: object) -> Form:
    return Form(read, frozenset(takes.split()), ignores)


FORMS: Mapping[type[exp.Expr], Form] = {
    exp.Column: _form(Reader.column, "this table"),
    **dict.fromkeys(_COMPARISONS, _form(Reader.compare)),
    exp.NullSafeEQ: _form(Reader.equal_or_null),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod), _form(Reader.arithmetic)),
    exp.Div: _form(Reader.arithmetic, safe=True),
    exp.Between: _form(Reader.between, "this low high"),
    exp.In: _form(Reader.within, "this expressions"),
    **dict.fromkeys((exp.And, exp.Or, exp.Xor), _form(Reader.logic)),
    exp.Not: _form(Reader.negation, "this"),
    exp.Is: _form(Reader.test),
    exp.Like: _form(Reader.like, "this expression negate"),
    exp.RegexpLike: _form(Reader.regexp),
    exp.Neg: _form(Reader.negative, "this"),
    exp.Paren: _form(Reader.nested, "this"),
    exp.Literal: _form(Reader.constant, "this is_string"),
    **dict.fromkeys((exp.Null, exp.Boolean, exp.BitString, exp.HexString), _form(Reader.special, "this")),
    exp.Collate: _form(Reader.collated),
    exp.JSONExtract: _form(Reader.path),
    exp.JSONExtractScalar: _form(Reader.path),
    exp.If: _form(Reader.choice, "this true false"),
    exp.Coalesce: _form(Reader.first, "this expressions"),
    exp.Abs: _form(Reader.absolute, "this"),
    **dict.fromkeys((exp.Lower, exp.Upper), _form(Reader.cased, "this")),
    exp.Trim: _form(Reader.trimmed, "this expression position"),
    exp.Length: _form(Reader.length, "this binary"),
    exp.Anonymous: _form(Reader.function, "this expressions"),
}
"""Every node that an expression may contain."""
