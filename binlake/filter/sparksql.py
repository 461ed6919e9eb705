"""An SQL expression of MySQL as Spark SQL over one row image, typed by the table's definition (DM's expression filter).

sqlglot parses; here each operator that MySQL and Spark read alike is written out, with MySQL's conversions between
types, and what they do not read alike is refused. Nothing written here can fail on a value: casts that do not fit give
NULL, as does a division by zero, and three-valued logic is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from binlake.codec.temporal import parse_duration
from binlake.codec.writers import decimal_layout
from binlake.schema import ColumnInfo, TableDef
from binlake.schema import mysqltypes as t
from binlake.schema.names import fold_name

Kind = Literal["bool", "number", "text", "binary", "moment", "date", "time", "enum", "json", "null"]


class Unsaid(Exception):
    """The expression has something that has no form here; the text says what."""


@dataclass(frozen=True)
class Value:
    """Spark SQL of a value; `literal` is its text when it is a constant, `column` when it is a plain column."""

    sql: str
    kind: Kind
    literal: str | None = None
    column: ColumnInfo | None = None


def parsed(text: str) -> exp.Expr:
    """`text` as MySQL reads it. Raises Unsaid."""
    try:
        return sqlglot.parse_one(text, read="mysql")
    except SqlglotError as error:
        raise Unsaid(str(error).splitlines()[0]) from None


class Writer:
    """Writes expressions over the column `image` (MAP<STRING,STRING> of canonical texts) of rows of `table`."""

    def __init__(self, table: TableDef, image: str) -> None:
        self._table = table
        self._image = image

    def condition(self, node: exp.Expr) -> str:
        """`node` as a BOOLEAN: a number is TRUE when it is not zero. Raises Unsaid."""
        value = self.value(node)
        return value.sql if value.kind in ("bool", "null") else f"({_number(value)} <> 0)"

    def value(self, node: exp.Expr) -> Value:
        """`node` with its type. Raises Unsaid."""
        for kind, write in _WRITERS:
            if isinstance(node, kind):
                return write(self, node)
        raise Unsaid(f"`{node.sql('mysql')}` ({type(node).__name__.lower()}) is not supported")

    def column(self, node: exp.Column) -> Value:
        """A column, cast to its own type."""
        if node.table and fold_name(node.table) != fold_name(self._table.name):
            raise Unsaid(f"`{node.sql('mysql')}` is a column of another table")
        found = self._table.column(node.name)
        if found is None:
            raise Unsaid(f"the table has no column `{node.name}`")
        name = found.name.replace("\\", "\\\\").replace("'", "\\'")
        return _typed(found, f"{self._image}['{name}']")

    def compare(self, node: exp.Binary) -> Value:
        """=, <>, <, <=, >, >= and <=>."""
        left, right = _alike(self.value(node.this), self.value(node.expression))
        return Value(f"({left} {_COMPARISONS[type(node)]} {right})", "bool")

    def between(self, node: exp.Between) -> Value:
        """x BETWEEN a AND b."""
        value, low, high = (self.value(node.args[key]) for key in ("this", "low", "high"))
        (a, least), (b, most) = _alike(value, low), _alike(value, high)
        return Value(f"({a} >= {least} AND {b} <= {most})", "bool")

    def within(self, node: exp.In) -> Value:
        """x IN (a, b, …)."""
        if node.args.get("query") or not node.expressions:
            raise Unsaid("IN takes a list of values")
        value = self.value(node.this)
        pairs = [_alike(value, self.value(part)) for part in node.expressions]
        return Value("(" + " OR ".join(f"{a} = {b}" for a, b in pairs) + ")", "bool")

    def logic(self, node: exp.Binary) -> Value:
        """AND, OR, XOR."""
        left, right = self.condition(node.this), self.condition(node.expression)
        if isinstance(node, exp.Xor):
            return Value(f"({left} <> {right})", "bool")
        return Value(f"({left} {'AND' if isinstance(node, exp.And) else 'OR'} {right})", "bool")

    def negation(self, node: exp.Not) -> Value:
        """NOT x."""
        return Value(f"(NOT {self.condition(node.this)})", "bool")

    def test(self, node: exp.Is) -> Value:
        """x IS NULL, IS TRUE, IS FALSE."""
        if isinstance(node.expression, exp.Null):
            return Value(f"({self.value(node.this).sql} IS NULL)", "bool")
        if isinstance(node.expression, exp.Boolean):
            return Value(f"(({self.condition(node.this)}) IS {node.expression.sql()})", "bool")
        raise Unsaid(f"`{node.sql('mysql')}` is not supported")

    def matching(self, node: exp.Binary) -> Value:
        """LIKE and REGEXP."""
        word = "LIKE" if isinstance(node, exp.Like) else "RLIKE"
        return Value(f"({_text(self.value(node.this))} {word} {_text(self.value(node.expression))})", "bool")

    def arithmetic(self, node: exp.Binary) -> Value:
        """+ - * / DIV %: by zero gives NULL."""
        left, right = _number(self.value(node.this)), _number(self.value(node.expression))
        if isinstance(node, exp.Div | exp.IntDiv | exp.Mod):
            right = f"NULLIF({right}, 0)"
        return Value(f"({left} {_ARITHMETIC[type(node)]} {right})", "number")

    def negative(self, node: exp.Neg) -> Value:
        """-x."""
        return Value(f"(-{_number(self.value(node.this))})", "number")

    def nested(self, node: exp.Paren) -> Value:
        """(x)."""
        return self.value(node.this)

    def constant(self, node: exp.Literal) -> Value:
        """A text or a number."""
        if node.is_string:
            return Value(_quoted(node.this), "text", node.this)
        return Value(node.this, "number", node.this)

    def special(self, node: exp.Expr) -> Value:
        """TRUE, FALSE, NULL, b'…', x'…'."""
        if isinstance(node, exp.Null):
            return Value("NULL", "null")
        if isinstance(node, exp.Boolean):
            return Value(node.sql().upper(), "bool")
        if isinstance(node, exp.BitString):
            return Value(str(int(node.this, 2)), "number", str(int(node.this, 2)))
        return Value(f"X'{node.this}'", "binary")

    def path(self, node: exp.Expr) -> Value:
        """column->"$.path" and column->>"$.path"."""
        path = node.expression.sql("spark") if isinstance(node.expression, exp.JSONPath) else node.expression.this
        return Value(f"GET_JSON_OBJECT({self.value(node.this).sql}, {_quoted(path.strip(chr(39)))})", "json")

    def choice(self, node: exp.If) -> Value:
        """IF(condition, a, b)."""
        yes, no = self.value(node.args["true"]), self.value(node.args["false"])
        a, b = _alike(yes, no)
        kind = yes.kind if yes.kind != "null" else no.kind
        return Value(f"IF({self.condition(node.this)}, {a}, {b})", kind)

    def first(self, node: exp.Coalesce) -> Value:
        """COALESCE(a, b) and IFNULL(a, b)."""
        values = [self.value(node.this), *map(self.value, node.expressions)]
        first = values[0]
        return Value(f"COALESCE({first.sql}, {', '.join(_alike(first, v)[1] for v in values[1:])})", first.kind)

    def changed(self, node: exp.Func) -> Value:
        """LOWER, UPPER, TRIM, ABS, and the lengths of a text."""
        value = self.value(node.this)
        if isinstance(node, exp.Abs):
            return Value(f"ABS({_number(value)})", "number")
        if isinstance(node, exp.Length):
            if value.kind == "binary":
                return Value(f"OCTET_LENGTH({value.sql})", "number")
            return Value(f"{'OCTET_LENGTH' if node.args.get('binary') else 'CHAR_LENGTH'}({_text(value)})", "number")
        return Value(f"{type(node).__name__.upper()}({_text(value)})", "text")

    def function(self, node: exp.Anonymous) -> Value:
        """FIND_IN_SET(text, set)."""
        if str(node.this).lower() != "find_in_set" or len(node.expressions) != 2:
            raise Unsaid(f"the function {node.this} is not supported")
        text, names = map(self.value, node.expressions)
        return Value(f"FIND_IN_SET({_text(text)}, {_text(names)})", "number")


_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=", exp.NullSafeEQ: "<=>",
}  # fmt: skip
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.IntDiv: "DIV", exp.Mod: "%",
}  # fmt: skip
_WRITERS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[Writer, exp.Expr], Value]], ...] = (  # type: ignore[assignment]
    ((exp.Column,), Writer.column),
    (tuple(_COMPARISONS), Writer.compare),
    (tuple(_ARITHMETIC), Writer.arithmetic),
    ((exp.Between,), Writer.between),
    ((exp.In,), Writer.within),
    ((exp.And, exp.Or, exp.Xor), Writer.logic),
    ((exp.Not,), Writer.negation),
    ((exp.Is,), Writer.test),
    ((exp.Like, exp.RegexpLike), Writer.matching),
    ((exp.Neg,), Writer.negative),
    ((exp.Paren,), Writer.nested),
    ((exp.Literal,), Writer.constant),
    ((exp.Null, exp.Boolean, exp.BitString, exp.HexString), Writer.special),
    ((exp.JSONExtract, exp.JSONExtractScalar), Writer.path),
    ((exp.If,), Writer.choice),
    ((exp.Coalesce,), Writer.first),
    ((exp.Lower, exp.Upper, exp.Trim, exp.Abs, exp.Length), Writer.changed),
    ((exp.Anonymous,), Writer.function),
)


def _typed(column: ColumnInfo, text: str) -> Value:
    """A column's canonical text as a value of its type."""
    tp = column.tp
    if tp in t.INTEGERS or tp == t.YEAR:
        wide = tp == t.LONGLONG and column.unsigned
        return Value(f"TRY_CAST({text} AS {'DECIMAL(20,0)' if wide else 'BIGINT'})", "number", column=column)
    if tp in (t.FLOAT, t.DOUBLE):
        kind = "FLOAT" if tp == t.FLOAT else "DOUBLE"
        return Value(f"CAST(TRY_CAST({text} AS {kind}) AS DOUBLE)", "number", column=column)
    if tp == t.NEWDECIMAL:
        precision, scale = decimal_layout(column)
        kind = f"DECIMAL({precision},{scale})" if precision <= 38 else "DOUBLE"
        return Value(f"TRY_CAST({text} AS {kind})", "number", column=column)
    if tp == t.BIT:
        return Value(f"TRY_CAST(CONV({text}, 16, 10) AS DECIMAL(20,0))", "number", column=column)
    if tp in t.DATES:
        return Value(f"TRY_CAST({text} AS DATE)", "date", column=column)
    if tp in t.MOMENTS:
        return Value(f"TRY_CAST({text} AS TIMESTAMP_NTZ)", "moment", column=column)
    if tp == t.DURATION:
        return Value(_microseconds(text), "time", column=column)
    if column.is_binary:
        return Value(f"UNHEX({text})", "binary", column=column)
    if tp in (t.JSON, t.ENUM):
        return Value(text, "json" if tp == t.JSON else "enum", column=column)
    # Without case; accents and trailing blanks are told apart, which MySQL's collations do not all (docs/filters.md).
    return Value(f"({text} COLLATE UTF8_LCASE)" if column.collate.endswith("_ci") else text, "text", column=column)


def _microseconds(text: str) -> str:
    """TIME goes beyond a day and below zero: as a number it compares like one."""
    parts = f"SPLIT(LTRIM('-', {text}), ':')"
    seconds = f"TRY_CAST({parts}[0] AS BIGINT) * 3600 + TRY_CAST({parts}[1] AS BIGINT) * 60"
    whole = f"(({seconds}) * 1000000 + CAST(TRY_CAST({parts}[2] AS DECIMAL(9,6)) * 1000000 AS BIGINT))"
    return f"(IF(STARTSWITH({text}, '-'), -1, 1) * {whole})"


def _alike(left: Value, right: Value) -> tuple[str, str]:
    """Both sides of a comparison in one type, by MySQL's rules for a column beside a constant. Raises Unsaid."""
    if left.kind == right.kind or "null" in (left.kind, right.kind):
        return left.sql, right.sql
    for one, other, order in ((left, right, 1), (right, left, -1)):
        found = _beside(one, other)
        if found is not None:
            return found if order == 1 else (found[1], found[0])
    raise Unsaid(f"a {left.kind} cannot be compared with a {right.kind} here")


def _beside(one: Value, other: Value) -> tuple[str, str] | None:
    """(one, other) when `one` says how `other` is read."""
    if one.kind in ("moment", "date", "time") and other.kind == "text" and other.literal is not None:
        return _beside_time(one, other.literal)
    if one.kind == "moment" and other.kind == "date":
        return one.sql, f"CAST({other.sql} AS TIMESTAMP_NTZ)"
    if one.kind == "binary" and other.literal is not None and other.kind == "text":
        return one.sql, f"X'{other.literal.encode().hex()}'"
    if one.kind == "binary" and other.kind in ("text", "enum"):
        return one.sql, f"CAST({other.sql} AS BINARY)"
    if one.kind == "enum" and other.kind == "number":
        names = ", ".join(_quoted(name) for name in (one.column.elems if one.column else ()))
        return f"ARRAY_POSITION(ARRAY({names}), {one.sql})", other.sql
    if one.kind == "number" and other.kind in ("text", "json", "bool"):
        return one.sql, _number(other)
    if one.kind == "text" and other.kind in ("enum", "json"):
        return one.sql, other.sql
    return None


def _beside_time(one: Value, literal: str) -> tuple[str, str]:
    try:
        if one.kind == "time":
            return one.sql, str(parse_duration(literal) // 1000)
        moment = datetime.fromisoformat(literal.strip())
    except ValueError:
        raise Unsaid(f"'{literal}' is no {one.kind}") from None
    if one.kind == "date" and len(literal.strip()) <= 10:
        return one.sql, f"DATE'{moment.date().isoformat()}'"
    return f"CAST({one.sql} AS TIMESTAMP_NTZ)", f"TIMESTAMP_NTZ'{moment.isoformat(sep=' ')}'"


_LEADING = r"'^\\s*[-+]?(\\d+\\.?\\d*|\\.\\d+)([eE][-+]?\\d+)?'"


def _number(value: Value) -> str:
    """A value where MySQL wants a number: of a text, what it begins with, else 0. Raises Unsaid."""
    if value.kind in ("number", "null"):
        return value.sql
    if value.kind == "bool":
        return f"CAST({value.sql} AS INT)"
    if value.kind not in ("text", "json"):
        raise Unsaid(f"a {value.kind} is no number here")
    if value.literal is not None:
        return _constant_number(value.literal)
    if value.kind == "json":
        return f"TRY_CAST({value.sql} AS DOUBLE)"
    found = f"TRY_CAST(REGEXP_EXTRACT(CAST({value.sql} AS STRING), {_LEADING}, 0) AS DOUBLE)"
    return f"IF({value.sql} IS NULL, NULL, COALESCE({found}, 0D))"


def _constant_number(text: str) -> str:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise Unsaid(f"'{text}' is no number") from None
    if not number.is_finite():
        raise Unsaid(f"'{text}' is no number")
    return format(number, "f")


def _text(value: Value) -> str:
    if value.kind in ("text", "enum", "json", "null"):
        return value.sql
    if value.kind == "number":
        return f"CAST({value.sql} AS STRING)"
    raise Unsaid(f"a {value.kind} is no text here")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
