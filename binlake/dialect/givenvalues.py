"""Values that an ALTER gives to the rows that exist, and that the log does not have.

Numbers of a new AUTO_INCREMENT column follow the order in which the server stores the rows, and `DEFAULT (UUID())` is
drawn anew. The target must not choose such values. So it may run the statement only if it has none of these rows, as
then the source had none either.

A stored generated column is a plain column at the target. An ALTER that adds it, or has it computed anew, makes it a
generated column there, and a second ALTER makes it a plain column with these values. This is exact only if the target's
server computes like the source's, and no variable of the source's session counts that the log does not have: another
session of the same server may compute that 10 / 3 is 3.3333 or 3.333333333. The list of such expressions was measured,
one variable at a time, in stored generated columns of MySQL and MariaDB (tests/dialect/test_unlogged_variables.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from binlake.common.sql import Dialect
from binlake.dialect.conversions import format_type
from binlake.dialect.routed import Unmappable
from binlake.dialect.tokens import Token, TokenKind, find_closing, split_list, tokenize, tokenize_with_spaces
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import SourceSession
from binlake.statements.ddlsteps import RequireNoRows
from binlake.statements.generation import (
    depends_on_zone,
    find_filled_operands,
    is_computed,
    is_proven,
    list_expressions,
    list_recomputed,
    may_store,
)
from binlake.statements.literal import quote, quote_name

_OF_FUNCTIONS = {
    "DAYNAME": "lc_time_names", "MONTHNAME": "lc_time_names", "TO_CHAR": "lc_time_names",
    "AES_ENCRYPT": "block_encryption_mode", "AES_DECRYPT": "block_encryption_mode",
}  # fmt: skip
_OF_MARIADB = {
    word: "default_regex_flags" for word in ("REGEXP", "RLIKE", "REGEXP_REPLACE", "REGEXP_INSTR", "REGEXP_SUBSTR")
}
CHARSET = "character_set_connection"
_INTRODUCED = re.compile("_(?!utf8|binary)[a-z0-9]+", re.IGNORECASE)
_LOST = re.compile(r"[^\x00-\x7f]|\?")
"""A MySQL shows `?` for a character of a literal that has another character set than UTF-8."""
_NAMES_OF_DAYS = re.compile("%[abMW]")
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
_AFTER_TYPE = ("NOT", "NULL", "COMMENT", "UNIQUE", "PRIMARY", "KEY", "FIRST", "AFTER")
_AFTER_DEFINITION = ("UNIQUE", "PRIMARY", "KEY", "FIRST", "AFTER")


def find_unlogged_variable(expression: str, family: str) -> str:
    """The session variable on which a server of `family` lets `expression` depend; "" if there is none."""
    return next(_list_variables(tokenize(expression), family), "")


def _list_variables(tokens: Sequence[Token], family: str) -> Iterator[str]:
    words = _OF_FUNCTIONS | (_OF_MARIADB if family == "mariadb" else {})
    for at, token in enumerate(tokens):
        if token.is_mark("/"):
            yield "div_precision_increment"
        elif family == "mysql" and token.kind is TokenKind.STRING and at and _INTRODUCED.fullmatch(tokens[at - 1].text):
            if _LOST.search(token.value):
                yield CHARSET
        elif token.kind is TokenKind.WORD and token.text.upper() in words:
            yield words[token.text.upper()]
        elif token.is_word("DATE_FORMAT", "WEEK") and at + 1 < len(tokens) and tokens[at + 1].is_mark("("):
            arguments = split_list(tokens[at + 2 : find_closing(tokens, at + 1)])
            if token.is_word("WEEK") and len(arguments) == 1:
                yield "default_week_format"
            elif token.is_word("DATE_FORMAT") and (len(arguments) != 2 or _names_days(arguments[1])):
                yield "lc_time_names"
        elif token.is_word("WEEK") and at and tokens[at - 1].is_mark("("):  # EXTRACT(WEEK FROM day)
            yield "default_week_format"


def _names_days(form: Sequence[Token]) -> bool:
    """Whether the format of a DATE_FORMAT has names of days or months, or may have them."""
    *charset, text = form
    is_literal = text.kind is TokenKind.STRING and all(token.kind is TokenKind.WORD for token in charset)
    return not is_literal or bool(_NAMES_OF_DAYS.search(text.value))


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


def find_computed_once(
    before: TableDef | None, after: TableDef | None, session: SourceSession, dialect: Dialect
) -> list[ColumnInfo]:
    """The columns that the target computes in this ALTER and keeps as plain ones from then on.

    Raises Unmappable if the source computed values in existing rows that the target cannot compute alike.
    """
    if before is None or after is None:
        return []
    once = [column for column in list_recomputed(before, after) if not is_computed(column, after, dialect)]
    for column in once:
        why = _find_obstacle(column, after, session, dialect)
        if why:
            what = (
                f"a stored generated column ({column.name}) whose values in existing rows only the source can compute"
            )
            raise Unmappable(f"{what}: {why}")
    return once


def _find_obstacle(column: ColumnInfo, table: TableDef, session: SourceSession, dialect: Dialect) -> str:
    """Why the target cannot compute the values of `column` as the source did; "" if it can."""
    if column.name in table.primary_key:
        return "it is in the primary key"
    if depends_on_zone(column, table):
        return "it depends on the time zone of the session that wrote each row"
    if session.family == dialect or (is_proven(column, table) and may_store(column, table, dialect)):
        return ""
    return "a server of another family may compute it differently"


def require_no_unlogged_values(
    table: str, once: Sequence[ColumnInfo], after: TableDef | None, session: SourceSession, dialect: Dialect
) -> list[str]:
    """The steps before an ALTER of `table` (SQL text) that computes the columns `once`: the table has no rows if a
    variable of the source's session, which no log has, made their values."""
    if after is None:
        return []
    return [
        require_known_variable(table, f"computed the stored generated column {column.name}", variable)
        for column in once
        for expression in list_expressions(column, after)
        if (variable := find_unlogged_variable(expression, session.family or dialect))
    ]


def require_no_filled_operands(
    table: str, before: TableDef | None, after: TableDef | None, session: SourceSession, dialect: Dialect
) -> list[str]:
    """The steps before an ALTER of `table` (SQL text) that makes columns NOT NULL in a lenient session.

    The log does not have what the source then computed in the rows that had NULL, and the target computes it only in
    columns that are generated there, too.
    """
    if before is None or after is None or not (session.family and session.is_lenient):
        return []
    return [
        RequireNoRows(
            table,
            f"{quote_name(former.name)} IS NULL",
            f"the source computed the stored generated column {column.name} anew in rows whose {former.name} was NULL"
            f" and became NOT NULL{WAYS}",
        ).to_sql()
        for column, former in find_filled_operands(before, after)
        if not is_computed(column, after, dialect)
    ]


def build_once_computed_specs(
    specs: Sequence[list[Token]], columns: Sequence[ColumnInfo], dialect: Dialect
) -> tuple[list[list[Token]], list[list[Token]]]:
    """(`specs` that make `columns` generated ones, specs that then make them plain).

    A column that no spec defines is computed anew because of a column that it reads.
    """
    by_name = {fold_name(column.name): column for column in columns}
    computed, later = list(specs), []
    for number, spec in enumerate(specs):
        at = _find_defined_name(spec)
        column = by_name.pop(fold_name(spec[at].value), None) if at else None
        if column is None:
            continue
        generation = tokenize_with_spaces(f" GENERATED ALWAYS AS ({column.generated_expr}) STORED")
        end = _find_word(spec, at + 1, _AFTER_TYPE)
        rest = _find_word(spec, at + 1, _AFTER_DEFINITION)
        nullness = [token for token in spec[end:rest] if not token.is_word("NOT", "NULL")]
        computed[number] = [*spec[:end], *generation, *nullness, *spec[rest:]]
        later.append([*tokenize_with_spaces("MODIFY COLUMN"), *spec[at:rest]])
    for column in by_name.values():
        for part, is_plain in ((computed, False), (later, True)):
            part.append(tokenize_with_spaces(f"MODIFY COLUMN {_define(column, dialect, is_plain=is_plain)}"))
    return computed, later


def build_reader_specs(
    before: TableDef | None, after: TableDef | None, specs: Sequence[Sequence[Token]], dialect: Dialect
) -> list[list[Token]]:
    """The specs that define generated columns anew at the target, of those that `specs` do not define.

    They are those that the target begins or ceases to compute, because of another type of a column that they read or of
    another primary key; and at MySQL, those that read a column with a new name: a MariaDB changes expressions itself.
    """
    if before is None or after is None:
        return []
    had = {column.id: column for column in before.columns}
    renamed = {quote_name(one.name).lower() for one in after.columns if one.id in had and had[one.id].name != one.name}
    defined = {fold_name(spec[at].value) for spec in specs if (at := _find_defined_name(spec))}
    anew = {column.id for column in list_recomputed(before, after)}
    made = []
    for column in after.columns:
        former = had.get(column.id)
        if former is None or not (former.is_generated and column.is_generated) or fold_name(column.name) in defined:
            continue
        was, now = is_computed(former, before, dialect), is_computed(column, after, dialect)
        reads = dialect == "mysql" and any(name in column.generated_expr.lower() for name in renamed)
        # What is computed once becomes plain later (`build_once_computed_specs`).
        if (now and (reads or not was)) or (was and not now and column.id not in anew):
            made.append(tokenize_with_spaces(f"MODIFY COLUMN {_define(column, dialect, is_plain=not now)}"))
    return made


def _define(column: ColumnInfo, dialect: Dialect, *, is_plain: bool) -> str:
    """The definition of a generated column, or of the plain one with its values."""
    words = [quote_name(column.name), format_type(column, dialect)]
    if is_plain:
        words += ["NOT NULL"] if column.not_null else []
    else:
        words += [f"GENERATED ALWAYS AS ({column.generated_expr}) {'STORED' if column.generated_stored else 'VIRTUAL'}"]
    return " ".join([*words, *([f"COMMENT {quote(column.comment)}"] if column.comment else [])])


def _find_defined_name(spec: Sequence[Token]) -> int:
    """The index of the (new) name of the column that an ADD, MODIFY or CHANGE defines; 0 if there is none."""
    if not spec or not spec[0].is_word("ADD", "MODIFY", "CHANGE"):
        return 0
    at = 1
    while at < len(spec) and spec[at].is_word("COLUMN", "IF", "NOT", "EXISTS"):
        at += 1
    at += spec[0].is_word("CHANGE")
    return at if at < len(spec) and spec[at].kind is TokenKind.NAME else 0


def _find_word(spec: Sequence[Token], start: int, words: Sequence[str]) -> int:
    """The index of the first of `words` outside parentheses, the length if there is none."""
    depth = 0
    for at in range(start, len(spec)):
        depth += spec[at].is_mark("(") - spec[at].is_mark(")")
        if depth == 0 and spec[at].is_word(*words):
            return at
    return len(spec)
