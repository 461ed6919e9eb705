"""Compile a MySQL expression to a program over one row image, typed by the table's definition (DM's expression filter).

Every node of the parse tree (`sql.py`) must have a form here that handles all its arguments; otherwise the expression
is refused, and no part of it is ignored. Expressions that servers interpret differently are refused too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlglot import exp

from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name
from binlake.rules import comparing as doc
from binlake.rules import evaluate as ev
from binlake.rules.comparing import look_up_letter_weigher, weigh_general_ci
from binlake.rules.sql import (
    MOST_SCALE,
    build_number_literal,
    compile_like_pattern,
    compile_regexp_pattern,
    parse_path_legs,
)
from binlake.rules.terms import (
    NUMBERS,
    UTF8,
    Term,
    Unsupported,
    as_number,
    as_real,
    build_column_term,
    build_condition_term,
    build_constant,
    change_text,
    compare_json,
    divide_integers,
    find_common_collation,
    find_weigher,
    pair_terms,
    require_one_collation,
    unify_branches,
)

_COMPARISONS: Mapping[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: operator.eq, exp.NEQ: operator.ne, exp.GT: operator.gt, exp.GTE: operator.ge, exp.LT: operator.lt,
    exp.LTE: operator.le,
}  # fmt: skip
_Act = Callable[[Any, Any], Any]
_REAL: Mapping[type[exp.Expr], _Act] = {
    exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul, exp.Div: ev.divide_real,
    exp.Mod: ev.compute_real_mod,
}  # fmt: skip
_WHOLE: Mapping[type[exp.Expr], _Act] = {
    exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul, exp.Mod: ev.compute_integer_mod,
}  # fmt: skip
_DECIMAL: Mapping[type[exp.Expr], _Act] = {
    exp.Add: ev.DECIMAL_ADD, exp.Sub: ev.DECIMAL_SUB, exp.Mul: ev.DECIMAL_MUL,
}  # fmt: skip


class ExpressionReader:
    """Compiles expressions over row images of `table`; `columns`: those used so far, in the order of a program's row.

    `bytewise`: the source compares all texts by bytes (source.new-collation = false).
    """

    def __init__(self, table: TableDef, *, bytewise: bool = False) -> None:
        self.columns: list[str] = []
        self._table = table
        self._bytewise = bytewise

    def read_condition(self, node: exp.Expr) -> ev.Program:
        """`node` as a condition: a number is TRUE if it is not zero. Raises Unsupported."""
        term = self.read_value(node)
        if term.kind in (*NUMBERS, "null", "position"):
            return term.program
        raise Unsupported(f"`{node.sql('mysql')}` is a {term.kind}, not a condition: compare it with something")

    def read_value(self, node: exp.Expr) -> Term:
        """`node` with its type. Raises Unsupported."""
        form = FORMS.get(type(node))
        if form is None:
            raise Unsupported(f"`{node.sql('mysql')}` ({type(node).__name__.lower()}) is not supported")
        for name, argument in node.args.items():
            if name not in form.takes and argument not in (None, False, []) and form.ignores.get(name) != argument:
                raise Unsupported(f"`{node.sql('mysql')}`: `{name}` of {type(node).__name__.lower()} is not supported")
        return form.read(self, node)

    def read_column(self, node: exp.Column) -> Term:
        """A column of the table."""
        if node.table and fold_name(node.table) != fold_name(self._table.name):
            raise Unsupported(f"`{node.sql('mysql')}` is a column of another table")
        definition = self._table.find_column(node.name)
        if definition is None:
            raise Unsupported(f"the table has no column `{node.name}`")
        if definition.is_virtual:
            raise Unsupported(
                f"`{node.name}` is a virtual column, which is not in row changes: write its expression instead"
            )
        if definition.name not in self.columns:
            self.columns.append(definition.name)
        return build_column_term(definition, self.columns.index(definition.name))

    def compare(self, node: exp.Binary) -> Term:
        """=, <>, <, <=, >, >=."""
        return build_condition_term(
            self._compare_terms(type(node), self.read_value(node.this), self.read_value(node.expression))
        )

    def read_equal_or_null(self, node: exp.NullSafeEQ) -> Term:
        """<=>."""
        left, right = self.read_value(node.this), self.read_value(node.expression)
        if "json" in (left.kind, right.kind) and "null" not in (left.kind, right.kind):
            return build_condition_term(partial(ev.is_truth, True, compare_json(left, right)))
        return build_condition_term(
            partial(ev.compare_null_safe, *pair_terms(left, right, self._bytewise, ordered=False))
        )

    def _compare_terms(self, kind: type[exp.Expr], left: Term, right: Term) -> ev.Program:
        equality = kind in (exp.EQ, exp.NEQ)
        if "json" in (left.kind, right.kind) and "null" not in (left.kind, right.kind):
            if not equality:
                raise Unsupported("JSON values cannot be ordered here: use the text (->>)")
            program = compare_json(left, right)
            return program if kind is exp.EQ else partial(ev.evaluate_not, program)
        return partial(
            ev.compare_values, _COMPARISONS[kind], *pair_terms(left, right, self._bytewise, ordered=not equality)
        )

    def read_between(self, node: exp.Between) -> Term:
        """x BETWEEN a AND b."""
        value, low, high = (self.read_value(node.args[key]) for key in ("this", "low", "high"))
        if value.kind == "text" and {low.kind, high.kind} - {"text", "null"}:
            raise Unsupported("a text can only be BETWEEN texts here")
        if value.kind in ("int", "decimal") and "real" in (low.kind, high.kind):
            raise Unsupported("an exact number can only be BETWEEN exact numbers here")
        require_one_collation(value, low, high)
        return build_condition_term(
            partial(
                ev.evaluate_and, (self._compare_terms(exp.GTE, value, low), self._compare_terms(exp.LTE, value, high))
            )
        )

    def read_in(self, node: exp.In) -> Term:
        """x IN (a, b, …)."""
        if not node.expressions:
            raise Unsupported("IN takes a list of values")
        value = self.read_value(node.this)
        if value.kind == "json":
            raise Unsupported("IN does not take a JSON value: compare it by =, or its text by ->>")
        members = [self.read_value(part) for part in node.expressions]
        require_one_collation(value, *members)
        return build_condition_term(
            partial(ev.evaluate_or, tuple(self._compare_terms(exp.EQ, value, member) for member in members))
        )

    def read_logic(self, node: exp.Binary) -> Term:
        """AND, OR, XOR."""
        parts = self.read_condition(node.this), self.read_condition(node.expression)
        if isinstance(node, exp.Xor):
            return build_condition_term(partial(ev.evaluate_xor, *parts))
        return build_condition_term(partial(ev.evaluate_and if isinstance(node, exp.And) else ev.evaluate_or, parts))

    def read_not(self, node: exp.Not) -> Term:
        """NOT x."""
        return build_condition_term(partial(ev.evaluate_not, self.read_condition(node.this)))

    def read_is(self, node: exp.Is) -> Term:
        """x IS NULL, IS TRUE, IS FALSE."""
        if isinstance(node.expression, exp.Null):
            return build_condition_term(partial(ev.is_null, self.read_value(node.this).program))
        if isinstance(node.expression, exp.Boolean):
            return build_condition_term(
                partial(ev.is_truth, bool(node.expression.this), self.read_condition(node.this))
            )
        raise Unsupported(f"`{node.sql('mysql')}` is not supported")

    def read_like(self, node: exp.Like) -> Term:
        """x LIKE 'pattern', x NOT LIKE 'pattern'."""
        value, collation, pattern = self._match_operands(node)
        weigh = ev.keep_text if self._bytewise else look_up_letter_weigher(collation)
        if weigh is None:
            find_weigher(collation, bytewise=False)
            raise AssertionError("a collation with a weight function also has one for letters")
        text = value.program if weigh is ev.keep_text else partial(ev.apply_unless_null, weigh, value.program)
        program = partial(ev.apply_unless_null, partial(ev.matches_whole, compile_like_pattern(pattern, weigh)), text)
        return build_condition_term(partial(ev.evaluate_not, program) if node.args.get("negate") else program)

    def read_regexp(self, node: exp.RegexpLike) -> Term:
        """x REGEXP 'pattern'."""
        value, collation, pattern = self._match_operands(node)
        if not self._bytewise and not collation.endswith("_bin"):
            raise Unsupported(f"REGEXP is by code points here, not by {collation}: write `… COLLATE utf8mb4_bin`")
        return build_condition_term(
            partial(ev.apply_unless_null, partial(ev.matches, compile_regexp_pattern(pattern)), value.program)
        )

    def _match_operands(self, node: exp.Binary) -> tuple[Term, str, str]:
        """(the text, its collation, the pattern)."""
        value, pattern = self.read_value(node.this), self.read_value(node.expression)
        if value.kind != "text" or not isinstance(pattern.literal, str) or pattern.kind != "text":
            raise Unsupported("LIKE and REGEXP need a text column and a constant pattern here")
        return value, find_common_collation(value, pattern), pattern.literal

    def read_arithmetic(self, node: exp.Binary) -> Term:
        """+ - * / DIV %; a division by zero gives NULL."""
        left, right = as_number(self.read_value(node.this)), as_number(self.read_value(node.expression))
        if isinstance(node, exp.IntDiv):
            return divide_integers(left, right)
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

    def read_negative(self, node: exp.Neg) -> Term:
        """-x."""
        inner = as_number(self.read_value(node.this))
        if inner.literal is not None:
            return build_constant(ev.negate(inner.literal), inner.kind, inner.scale)  # type: ignore[arg-type]
        return Term(partial(ev.apply_unless_null, ev.negate, inner.program), inner.kind, scale=inner.scale)

    def read_nested(self, node: exp.Paren) -> Term:
        """(x)."""
        return self.read_value(node.this)

    def read_constant(self, node: exp.Literal) -> Term:
        """A text or a number."""
        if node.is_string:
            return build_constant(node.this, "text")
        return build_number_literal(node.this)

    def read_special(self, node: exp.Expr) -> Term:
        """TRUE, FALSE, NULL, b'…', x'…'."""
        if isinstance(node, exp.Null):
            return Term(partial(ev.evaluate_constant, None), "null")
        if isinstance(node, exp.Boolean):
            return build_condition_term(partial(ev.evaluate_constant, bool(node.this)))
        if isinstance(node, exp.BitString):
            return build_constant(int(node.this, 2), "bits")
        if len(node.this) % 2:
            raise Unsupported("write hexadecimal constants with two digits per byte")
        return build_constant(bytes.fromhex(node.this), "binary")

    def read_collate(self, node: exp.Collate) -> Term:
        """x COLLATE name."""
        inner, name = self.read_value(node.this), node.expression.name.lower()
        if inner.kind != "text" or inner.named:
            raise Unsupported("COLLATE needs a text")
        if not name.startswith("utf8") or inner.charset not in ("", *UTF8):
            raise Unsupported("COLLATE takes only collations of utf8 and utf8mb4 here, and columns in one of these")
        find_weigher(name, self._bytewise)
        return replace(inner, collation=name, explicit=True)

    def read_path(self, node: exp.Binary) -> Term:
        """column->'$.path', column->>'$.path', JSON_EXTRACT(column, '$.path')."""
        inner = self.read_value(node.this)
        if inner.kind != "document":
            raise Unsupported(f"`{node.this.sql('mysql')}` is not a JSON column")
        program = partial(
            ev.apply_unless_null, partial(doc.find_value, parse_path_legs(node.expression)), inner.program
        )
        if isinstance(node, exp.JSONExtract):
            return Term(program, "json")
        text = partial(ev.apply_unless_null, doc.unquote, program)
        return Term(text, "text", charset="utf8mb4", collation="utf8mb4_bin")

    def read_if(self, node: exp.If) -> Term:
        """IF(condition, a, b)."""
        if node.args.get("false") is None:
            raise Unsupported("IF takes three arguments")
        term, (yes, no) = unify_branches([self.read_value(node.args["true"]), self.read_value(node.args["false"])])
        return replace(term, program=partial(ev.evaluate_if, self.read_condition(node.this), yes, no), literal=None)

    def read_coalesce(self, node: exp.Coalesce) -> Term:
        """COALESCE(a, b) and IFNULL(a, b)."""
        term, programs = unify_branches([self.read_value(part) for part in (node.this, *node.expressions)])
        return replace(term, program=partial(ev.evaluate_coalesce, tuple(programs)), literal=None)

    def read_absolute(self, node: exp.Abs) -> Term:
        """ABS(x)."""
        inner = as_number(self.read_value(node.this))
        return Term(partial(ev.apply_unless_null, ev.compute_absolute, inner.program), inner.kind, scale=inner.scale)

    def read_case_change(self, node: exp.Expr) -> Term:
        """LOWER, UPPER."""
        inner = self._read_text(node.this)
        change = ev.lower if isinstance(node, exp.Lower) else ev.upper
        return change_text(inner, change)

    def read_trim(self, node: exp.Trim) -> Term:
        """TRIM, LTRIM, RTRIM, TRIM(LEADING 'x' FROM y)."""
        inner, what = self._read_text(node.this), " "
        if node.expression is not None:
            given = self.read_value(node.expression)
            if given.kind != "text" or not isinstance(given.literal, str):
                raise Unsupported("TRIM removes a constant text only here")
            what = given.literal
        ends = {"LEADING": (True, False), "TRAILING": (False, True), "BOTH": (True, True), "": (True, True)}
        sides = ends.get(str(node.args.get("position") or "").upper())
        if sides is None:
            raise Unsupported(f"`{node.sql('mysql')}` is not supported")
        return change_text(inner, partial(ev.trim, what, *sides))

    def read_length(self, node: exp.Length) -> Term:
        """LENGTH in bytes, CHAR_LENGTH in characters."""
        inner = self.read_value(node.this)
        if inner.kind == "binary":
            return Term(partial(ev.apply_unless_null, len, inner.program), "int")
        if inner.kind != "text":
            raise Unsupported(f"the length of a {inner.kind} is not supported")
        if not node.args.get("binary"):
            return Term(partial(ev.apply_unless_null, len, inner.program), "int")
        if inner.charset not in UTF8:
            raise Unsupported("the bytes of a text are counted in utf8 and utf8mb4 only: use CHAR_LENGTH")
        return Term(partial(ev.apply_unless_null, ev.count_bytes, inner.program), "int")

    def read_function(self, node: exp.Anonymous) -> Term:
        """FIND_IN_SET('name', set)."""
        if str(node.this).lower() != "find_in_set" or len(node.expressions) != 2:
            raise Unsupported(f"the function {node.this} is not supported")
        name, names = map(self.read_value, node.expressions)
        # MySQL looks up a constant among the names ignoring case, TiDB by the collation.
        weights = [weigh_general_ci(one) for one in names.set_names]
        if not isinstance(name.literal, str) or name.literal not in names.set_names or len(set(weights)) < len(weights):
            raise Unsupported("FIND_IN_SET needs a name of the SET, spelled as there, and a column of type SET")
        return Term(partial(ev.apply_unless_null, partial(ev.find_in_set, name.literal), names.program), "position")

    def _read_text(self, node: exp.Expr) -> Term:
        inner = self.read_value(node)
        if inner.kind != "text":
            raise Unsupported(f"`{node.sql('mysql')}` is a {inner.kind}, not a text")
        return inner


@dataclass(frozen=True)
class Form:
    """How a node is compiled: the arguments that `read` handles, and meaningless ones that the parser always adds."""

    read: Callable[[ExpressionReader, Any], Term]
    takes: frozenset[str]
    ignores: Mapping[str, object]


def _build_form(
    read: Callable[[ExpressionReader, Any], Term], takes: str = "this expression", **ignores: object
) -> Form:
    return Form(read, frozenset(takes.split()), ignores)


FORMS: Mapping[type[exp.Expr], Form] = {
    exp.Column: _build_form(ExpressionReader.read_column, "this table"),
    **dict.fromkeys(_COMPARISONS, _build_form(ExpressionReader.compare)),
    exp.NullSafeEQ: _build_form(ExpressionReader.read_equal_or_null),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod), _build_form(ExpressionReader.read_arithmetic)),
    exp.Div: _build_form(ExpressionReader.read_arithmetic, safe=True),
    exp.Between: _build_form(ExpressionReader.read_between, "this low high"),
    exp.In: _build_form(ExpressionReader.read_in, "this expressions"),
    **dict.fromkeys((exp.And, exp.Or, exp.Xor), _build_form(ExpressionReader.read_logic)),
    exp.Not: _build_form(ExpressionReader.read_not, "this"),
    exp.Is: _build_form(ExpressionReader.read_is),
    exp.Like: _build_form(ExpressionReader.read_like, "this expression negate"),
    exp.RegexpLike: _build_form(ExpressionReader.read_regexp),
    exp.Neg: _build_form(ExpressionReader.read_negative, "this"),
    exp.Paren: _build_form(ExpressionReader.read_nested, "this"),
    exp.Literal: _build_form(ExpressionReader.read_constant, "this is_string"),
    **dict.fromkeys(
        (exp.Null, exp.Boolean, exp.BitString, exp.HexString), _build_form(ExpressionReader.read_special, "this")
    ),
    exp.Collate: _build_form(ExpressionReader.read_collate),
    exp.JSONExtract: _build_form(ExpressionReader.read_path),
    exp.JSONExtractScalar: _build_form(ExpressionReader.read_path),
    exp.If: _build_form(ExpressionReader.read_if, "this true false"),
    exp.Coalesce: _build_form(ExpressionReader.read_coalesce, "this expressions"),
    exp.Abs: _build_form(ExpressionReader.read_absolute, "this"),
    **dict.fromkeys((exp.Lower, exp.Upper), _build_form(ExpressionReader.read_case_change, "this")),
    exp.Trim: _build_form(ExpressionReader.read_trim, "this expression position"),
    exp.Length: _build_form(ExpressionReader.read_length, "this binary"),
    exp.Anonymous: _build_form(ExpressionReader.read_function, "this expressions"),
}
"""Every node that an expression may contain."""
