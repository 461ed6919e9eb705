"""Which columns of a row are sent to the target, and which generated columns it computes as the source did.

MySQL, MariaDB and TiDB compute many expressions differently: texts of latin1, DECIMAL or DOUBLE as text, JSON, TIME.
And a source in a lenient session stores a value cut to its column, which a strict target refuses. So only expressions
of integers, NULL tests and parts of dates are left to the target, and only if every result fits the column
(`tests/e2e/test_e2e_generated.py` compares the servers). All other values come from the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from binlake.common.sql import Dialect
from binlake.errors import SchemaError
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\d+|\w+|<=|>=|<>|!=|[-+*=<>(),])")
_BITS = {t.TINY: 8, t.SHORT: 16, t.INT24: 24, t.LONG: 32, t.LONGLONG: 64}
_COMPARISONS = ("=", "<", ">", "<=", ">=", "<>", "!=")
_DATE_PARTS = {"year": 9999, "month": 12, "day": 31, "dayofmonth": 31, "hour": 23, "minute": 59, "second": 59}
_OF_TIME = ("hour", "minute", "second")
_SIGNED, _UNSIGNED = (-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)
_NAME = re.compile(r"`((?:[^`]|``)+)`")
_Operand = tuple[str, int, bool]
"""Name (lower case), type and sign of a column."""
_ZONED = re.compile(r"\b(?:from_unixtime|unix_timestamp)\s*\(", re.IGNORECASE)


@dataclass(frozen=True)
class _Range:
    """The integers that an expression may give. `unsigned`: the servers compute it as BIGINT UNSIGNED."""

    low: int
    high: int
    unsigned: bool = False

    def join(self, other: _Range) -> _Range:
        """The integers of both."""
        return _Range(min(self.low, other.low), max(self.high, other.high), self.unsigned or other.unsigned)

    def is_within(self, bounds: tuple[int, int]) -> bool:
        """Whether all of them are."""
        return bounds[0] <= self.low and self.high <= bounds[1]


_TRUTH = _Range(0, 1)


def is_proven(column: ColumnInfo, table: TableDef) -> bool:
    """Whether all servers compute the stored generated `column` alike, if its values fit the column."""
    return _find_range(column, table) is not None


def is_exact(column: ColumnInfo, table: TableDef) -> bool:
    """As `is_proven`, and whether all its values fit the column: no session has to cut one."""
    found = _find_range(column, table)
    return found is not None and found.is_within(_find_bounds(column.tp, column.unsigned))


def may_store(column: ColumnInfo, table: TableDef, dialect: Dialect) -> bool:
    """Whether a server of `dialect` takes the stored generated `column` at all: MariaDB takes none that reads a CHAR,
    not even `IS NULL`, as its spaces depend on the session (error 1901).
    """
    return dialect != "mariadb" or not any(
        one.tp == t.STRING and not one.is_binary for one in _list_operands(column, table)
    )


def list_recomputed(before: TableDef, after: TableDef) -> list[ColumnInfo]:
    """The stored generated columns of `after` whose values in existing rows the source computed in this DDL.

    They are new, or have another expression or type, or read a column whose values were converted or computed anew (of
    a column that only became NOT NULL see `find_filled_operands`).
    """
    return [column for column in _list_stored(after) if _has_other_values(column, before, after)]


def find_filled_operands(before: TableDef, after: TableDef) -> Iterator[tuple[ColumnInfo, ColumnInfo]]:
    """(stored generated column of `after`, former definition of a column that it reads) where that column became NOT
    NULL and `list_recomputed` does not have the generated one.

    A MySQL or MariaDB in a session without a strict sql_mode makes the type's zero of NULL, and computes anew what
    reads it.
    """
    had = {column.id: column for column in before.columns}
    filled = {
        column.name.lower(): had[column.id]
        for column in after.columns
        if not column.is_generated and column.not_null and column.id in had and not had[column.id].not_null
    }
    if not filled:
        return
    recomputed = {column.id for column in list_recomputed(before, after)}
    for column in _list_stored(after):
        if column.id not in recomputed:
            yield from ((column, filled[name]) for name in sorted(_list_bases(column, after)) if name in filled)


def _list_stored(table: TableDef) -> list[ColumnInfo]:
    return [column for column in table.columns if column.is_generated and column.generated_stored]


def list_expressions(column: ColumnInfo, table: TableDef) -> Iterator[str]:
    """The expression of a generated column, and those of the virtual columns that it reads."""
    if column.is_generated:
        yield column.generated_expr
    for one in _list_operands(column, table):
        if not one.generated_stored:
            yield from list_expressions(one, table)


def _list_operands(column: ColumnInfo, table: TableDef) -> list[ColumnInfo]:
    """The columns that the expression of a generated column names; none for a plain column."""
    names = set(list_names(column.generated_expr))
    return [one for one in table.columns if one.name.lower() in names and one.id != column.id]


def _list_bases(column: ColumnInfo, table: TableDef) -> set[str]:
    """The names (folded) of the plain columns that a column is computed from, also by way of generated ones."""
    if not column.is_generated:
        return {column.name.lower()}
    return {name for one in _list_operands(column, table) for name in _list_bases(one, table)}


def _has_other_values(column: ColumnInfo, before: TableDef, after: TableDef) -> bool:
    """Whether `column` of `after` is new, or had values other than NULL converted or computed anew."""
    had = {one.id: one for one in before.columns}
    former = had.get(column.id)
    if former is None or not _keeps_values(former, column):
        return True
    if not column.is_generated:
        return False
    operands = _list_operands(column, after)
    renamed = {had[one.id].name.lower(): one.name.lower() for one in operands if one.id in had}
    return (
        (column.generated_stored and not former.generated_stored)
        or _rename(former.generated_expr, renamed) != _rename(column.generated_expr, {})
        or any(_has_other_values(one, before, after) for one in operands)
    )


def _keeps_values(former: ColumnInfo, now: ColumnInfo) -> bool:
    """Whether no value other than NULL changes if a column gets the definition `now`."""
    if former.tp in _BITS and now.tp in _BITS:
        return _Range(*_find_bounds(former.tp, former.unsigned)).is_within(_find_bounds(now.tp, now.unsigned))
    alike = [(c.tp, c.decimal, c.unsigned, c.charset, c.collate, c.elems) for c in (former, now)]
    is_padded = now.tp == t.STRING and now.is_binary
    return alike[0] == alike[1] and (former.flen == now.flen or (former.flen < now.flen and not is_padded))


def _rename(expression: str, names: dict[str, str]) -> str:
    """`expression` in lower case without blanks, with other names of columns."""
    text = _NAME.sub(lambda match: f"`{names.get(match[1].lower(), match[1].lower())}`", expression)
    return re.sub(r"\s+", "", text).lower()


def list_names(expression: str) -> Iterator[str]:
    """The names (folded) of the columns that an expression has."""
    yield from (name.replace("``", "`").lower() for name in _NAME.findall(expression))


def _find_bounds(tp: int, unsigned: bool) -> tuple[int, int]:
    """The least and the greatest integer of a column; an empty range for a column of another type."""
    bits = _BITS.get(tp)
    if bits is None:
        return 0, -1
    return (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _find_range(column: ColumnInfo, table: TableDef) -> _Range | None:
    """The integers that the expression of `column` may give; None if it is not proven."""
    if column.tp not in _BITS:
        return None
    named = set(list_names(column.generated_expr))
    columns = [c for c in table.columns if c.name.lower() in named]
    # The target computes a virtual column itself; of a stored one it has the source's values.
    if any(c.is_generated and not c.generated_stored and not is_exact(c, table) for c in columns):
        return None
    return _read_expression(column.generated_expr, tuple((c.name.lower(), c.tp, c.unsigned) for c in columns))


@lru_cache(maxsize=4096)
def _read_expression(expression: str, operands: tuple[_Operand, ...]) -> _Range | None:
    try:
        return _Reader(list(_split(expression)), operands).read()
    except _NotProven:
        return None


class _NotProven(Exception):
    """The expression has something else than what is proven."""


def _split(expression: str) -> Iterator[str]:
    at, text = 0, expression.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _NotProven
        yield match[1]
        at = match.end()


class _Reader:
    """Reads the tokens of an expression, as SHOW CREATE TABLE or TiDB's definition has it."""

    def __init__(self, tokens: Sequence[str], operands: tuple[_Operand, ...]) -> None:
        self._tokens, self._at = tokens, 0
        self._columns = {name: (tp, unsigned) for name, tp, unsigned in operands}

    def read(self) -> _Range:
        """The range of the whole expression. Raises _NotProven."""
        found = self._read_or()
        if self._at != len(self._tokens):
            raise _NotProven
        return found

    def _peek(self) -> str:
        return self._tokens[self._at].lower() if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        """The next token if it is one of `wanted`, else ""."""
        token = self._peek()
        if token not in wanted or not token:
            return ""
        self._at += 1
        return token

    def _require(self, wanted: str) -> None:
        if not self._take(wanted):
            raise _NotProven

    def _read_or(self) -> _Range:
        found = self._read_not()
        while self._take("and", "or"):
            self._read_not()
            found = _TRUTH
        return found

    def _read_not(self) -> _Range:
        if self._take("not"):
            self._read_not()
            return _TRUTH
        return self._read_comparison()

    def _read_comparison(self) -> _Range:
        if self._tests_null():
            return _TRUTH
        found = self._read_sum()
        while True:
            if self._take(*_COMPARISONS):
                self._read_sum()
            elif self._take("is"):
                self._take("not")
                self._require("null")
            else:
                return found
            found = _TRUTH

    def _tests_null(self) -> bool:
        """Whether `column IS [NOT] NULL` comes next, for a column of any type; then it is read."""
        rest = [token.lower() for token in self._tokens[self._at + 1 : self._at + 4]]
        words = 3 if rest[:3] == ["is", "not", "null"] else 2 if rest[:2] == ["is", "null"] else 0
        if not words or not self._peek().startswith("`"):
            return False
        self._at += 1 + words
        return True

    def _read_sum(self) -> _Range:
        found = self._read_product()
        while sign := self._take("+", "-"):
            other = self._read_product()
            ends = (other.low, other.high) if sign == "+" else (-other.high, -other.low)
            found = _check(_Range(found.low + ends[0], found.high + ends[1], found.unsigned or other.unsigned))
        return found

    def _read_product(self) -> _Range:
        found = self._read_operand()
        while self._take("*"):
            other = self._read_operand()
            ends = [a * b for a in (found.low, found.high) for b in (other.low, other.high)]
            found = _check(_Range(min(ends), max(ends), found.unsigned or other.unsigned))
        return found

    def _read_operand(self) -> _Range:
        if self._take("-"):
            found = self._read_operand()
            return _check(_Range(-found.high, -found.low, found.unsigned))
        if self._take("("):
            found = self._read_or()
            self._require(")")
            return found
        token = self._peek()
        self._at += 1
        if token.isdigit():
            return _check(_Range(int(token), int(token)))
        if token.startswith("`"):
            return self._find_column(token, _BITS)
        return self._read_function(token)

    def _find_column(self, token: str, types: Sequence[int] | dict[int, int]) -> _Range:
        tp, unsigned = self._columns.get(token[1:-1].replace("``", "`"), (t.NULL, False))
        if tp not in types:
            raise _NotProven
        return _Range(*_find_bounds(tp, unsigned), unsigned)

    def _read_function(self, name: str) -> _Range:
        self._require("(")
        if name == "isnull" and self._peek().startswith("`"):
            self._at += 1
            found = _TRUTH
        elif name in _DATE_PARTS:
            self._find_column(self._peek(), (t.DATETIME,) if name in _OF_TIME else (t.DATETIME, t.DATE))
            self._at += 1
            # MySQL's YEAR is unsigned, so a difference may be an error there.
            found = _Range(0, _DATE_PARTS[name], unsigned=True)
        elif name in ("ifnull", "coalesce", "if"):
            found = self._read_choice(is_if=name == "if")
        else:
            raise _NotProven
        self._require(")")
        return found

    def _read_choice(self, *, is_if: bool) -> _Range:
        found = self._read_or()
        if is_if:
            self._require(",")
            found = self._read_or()
        while self._take(","):
            found = found.join(self._read_or())
        return _check(found)


def _check(found: _Range) -> _Range:
    """`found`, if a server computes it without an overflow. Raises _NotProven."""
    if not found.is_within(_UNSIGNED if found.unsigned else _SIGNED):
        raise _NotProven
    return found


def is_computed(column: ColumnInfo, table: TableDef, dialect: Dialect) -> bool:
    """True if the target computes `column` from its row.

    MariaDB allows no primary key on a generated column; there it is a plain column with the source's values. On every
    server, so is a stored generated column that depends on the time zone of the session that wrote the row (hazards
    R-29), or whose values another server may compute differently or refuse (`generation`). A TiDB computes what a TiDB
    computed.
    """
    if not column.is_generated or (column.generated_stored and not _is_computed_alike(column, table, dialect)):
        return False
    return not (dialect == "mariadb" and column.name in table.primary_key)


def _is_computed_alike(column: ColumnInfo, table: TableDef, dialect: Dialect) -> bool:
    is_same_server = dialect == "tidb" and not table.source
    is_alike = is_same_server or (is_exact(column, table) and may_store(column, table, dialect))
    return is_alike and not depends_on_zone(column, table)


def depends_on_zone(column: ColumnInfo, table: TableDef) -> bool:
    """True if a generated column reads a TIMESTAMP, or uses a function that converts between timestamps and local
    time; itself, or by way of a virtual column."""
    stamps = {each.name.lower() for each in table.columns if each.tp == t.TIMESTAMP}
    return any(
        _ZONED.search(expression) or not stamps.isdisjoint(list_names(expression))
        for expression in list_expressions(column, table)
    )


def list_written_columns(table: TableDef, dialect: Dialect) -> list[ColumnInfo]:
    """The columns of an image that statements name."""
    return [column for column in table.row_columns if not is_computed(column, table, dialect)]


def list_key_columns(table: TableDef) -> list[ColumnInfo]:
    """The columns of the table's identity. Raises SchemaError if the table lacks one of them."""
    return [_require_column(table, name) for name in table.find_identity().columns]


def _require_column(table: TableDef, name: str) -> ColumnInfo:
    column = table.find_column(name)
    if column is None:
        raise SchemaError("a key names a column that its table lacks", where={"table": table.name, "column": name})
    return column
