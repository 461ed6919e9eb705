"""Find values that an ALTER gives to existing rows by the server's own choice, and that the log does not have.

A new AUTO_INCREMENT column is numbered in the order in which the server stores the rows, and `DEFAULT (UUID())` is
drawn anew. The target must not choose such values. So it may run the statement only if it has none of these rows, as
then the source had none either.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from binlake.dialect.tokens import TokenKind, tokenize
from binlake.dialect.unlogged import CHARSET, find_unlogged_variable
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.statements.literal import quote_name
from binlake.statements.requiredrows import RequireNoRows

_ZERO_STAYS = 1 << 19
"""NO_AUTO_VALUE_ON_ZERO in sql_mode, in both families."""
_CLOCKS = frozenset(
    {
        "CURDATE", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURTIME", "LOCALTIME", "LOCALTIMESTAMP", "NOW",
        "UNIX_TIMESTAMP", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP",
    }
)  # fmt: skip
"""Functions of the statement's own time, which a session can set."""
_FIXED = frozenset(
    {
        "ABS", "ADDDATE", "AND", "ASCII", "BIN", "CAST", "CEIL", "CEILING", "CHAR", "CHAR_LENGTH", "COALESCE", "CONCAT",
        "CONCAT_WS", "CONVERT", "CRC32", "DATE", "DATE_ADD", "DATE_FORMAT", "DATE_SUB", "DATETIME", "DAY", "DECIMAL",
        "ELT", "FIELD", "FLOOR", "GREATEST", "HEX", "HOUR", "IF", "IFNULL", "IN", "JSON_ARRAY", "JSON_OBJECT",
        "JSON_QUOTE", "LAST_DAY", "LCASE", "LEAST", "LEFT", "LENGTH", "LOWER", "LPAD", "LTRIM", "MAKEDATE", "MD5",
        "MINUTE", "MOD", "MONTH", "NOT", "NULLIF", "OCTET_LENGTH", "OR", "POW", "POWER",
        "QUARTER", "REPEAT", "REPLACE", "REVERSE",
        "RIGHT", "ROUND", "RPAD", "RTRIM", "SECOND", "SHA1", "SHA2", "SIGN", "SPACE", "STR_TO_DATE", "SUBDATE",
        "SUBSTR", "SUBSTRING", "TIME", "TIMESTAMP", "TIMESTAMPADD", "TO_BASE64", "TRIM", "TRUNCATE", "UCASE", "UNHEX",
        "UPPER", "VARCHAR", "WEEKDAY", "YEAR",
    }
)  # fmt: skip
"""Functions and types whose result depends on their arguments alone, or for some of them on a variable that
`find_unlogged_variable` names; for any other function it is not known."""
_UTC = ("+00:00", "UTC", "SYSTEM", "ETC/UTC")
WAYS = (
    ": let the other tables continue (`binlake table aside`), copy the table from the source, and bring it back with"
    " `binlake table back --rows-are-there`"
)
"""The end of a message about values of the source that only a copy of its table has."""


_DECLARE = (
    ': if sessions of the source never change it, set `source.session-variables = "default"` and run finalize again; or'
)


def require_known_variable(table: str, what: str, variable: str) -> str:
    """The step (SQL text) before a DDL in which the source `what` (a sentence's middle) with a variable of its session:
    `table` has no rows."""
    why = f"the source {what} with its session's {variable}, whose effect is not in the log"
    if variable == CHARSET:  # known: it was not the default
        return RequireNoRows(table, "TRUE", f"{why}{WAYS}").to_sql()
    return RequireNoRows(table, "TRUE", f"{why}{_DECLARE}{WAYS.removeprefix(':')}", variable).to_sql()


def list_requirements(table: str, before: TableDef, after: TableDef, session: SourceSession) -> list[str]:
    """The steps before an ALTER of `table` (SQL text) of a MySQL or MariaDB source; TiDB refuses such statements."""
    if not session.family:
        return []
    former = {column.id: column for column in before.columns}
    return [step for column in after.columns for step in _list_steps(table, former.get(column.id), column, session)]


def reads_clock(column: ColumnInfo) -> bool:
    """Whether the default of a column is an expression that reads the statement's time."""
    return column.default_is_expr and bool(_list_functions(column.default or "") & _CLOCKS)


def is_made_up(column: ColumnInfo) -> bool:
    """Whether the source fills a new column in old rows with values that its definition alone does not give."""
    return not column.is_generated and (bool(column.flag & t.FLAG_AUTO_INCREMENT) or column.default_is_expr)


def _list_steps(table: str, former: ColumnInfo | None, column: ColumnInfo, session: SourceSession) -> Iterator[str]:
    made_up = list(_find_made_up(former, column, session))
    for where, what in made_up:
        yield RequireNoRows(table, where, f"{what}{WAYS}").to_sql()
    variable = find_unlogged_variable(column.default or "", session.family) if column.default_is_expr else ""
    if former is None and not column.is_generated and variable and not made_up:
        yield require_known_variable(table, f"filled the new column {column.name}", variable)


def _find_made_up(former: ColumnInfo | None, column: ColumnInfo, session: SourceSession) -> Iterator[tuple[str, str]]:
    """(the rows in which the server chooses the value, what is not known)."""
    numbered = bool(column.flag & t.FLAG_AUTO_INCREMENT)
    if former is None:
        if numbered:
            yield "TRUE", f"the source numbered old rows in the new column {column.name}, and the log has no numbers"
        elif column.default_is_expr and not column.is_generated and not _is_reproducible(column, session):
            yield "TRUE", f"the source filled the new column {column.name} by an expression with values of its own"
    elif numbered and not former.flag & t.FLAG_AUTO_INCREMENT:
        name = quote_name(former.name)
        zero = "" if session.sql_mode & _ZERO_STAYS else f" OR {name} = 0"
        yield f"{name} IS NULL{zero}", f"the source numbered rows with NULL or 0 in column {column.name}"


def _is_reproducible(column: ColumnInfo, session: SourceSession) -> bool:
    functions = _list_functions(column.default or "")
    timed = bool(session.moment) and session.zone.upper() in _UTC
    return functions <= _FIXED | _CLOCKS and (timed or not functions & _CLOCKS)


def _list_functions(expression: str) -> set[str]:
    """The functions that an expression calls, and the clocks that it names without parentheses."""
    return {
        token.text.upper()
        for token, after in pairwise([*tokenize(expression), None])
        if token is not None
        and token.kind is TokenKind.WORD
        and ((after is not None and after.is_mark("(")) or token.text.upper() in _CLOCKS)
    }
