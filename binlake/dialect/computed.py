"""A stored generated column that is a plain column at the target: computed there once, for the rows that exist.

An ALTER that adds it, or has it computed anew, makes it a generated column at the target, and a second ALTER makes it a
plain column with these values. This is exact only if the target's server computes like the source's, and no variable of
the source's session counts that the log does not have; otherwise no log has the values of older rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.base.sql import Dialect
from binlake.dialect.conversions import format_type
from binlake.dialect.errors import Unmappable
from binlake.dialect.madeup import WAYS, require_known_variable
from binlake.dialect.tokens import Token, TokenKind, tokenize_with_spaces
from binlake.dialect.unlogged import find_unlogged_variable
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema.names import fold_name
from binlake.rows.schema.session import SourceSession
from binlake.statements.generation import (
    find_filled_operands,
    is_proven,
    list_expressions,
    list_recomputed,
    may_store,
)
from binlake.statements.literal import quote, quote_name
from binlake.statements.requiredrows import RequireNoRows
from binlake.statements.writtencolumns import depends_on_zone, is_computed

_AFTER_TYPE = ("NOT", "NULL", "COMMENT", "UNIQUE", "PRIMARY", "KEY", "FIRST", "AFTER")
_AFTER_DEFINITION = ("UNIQUE", "PRIMARY", "KEY", "FIRST", "AFTER")


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
        generation = _generate(column)
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


def _generate(column: ColumnInfo) -> list[Token]:
    return tokenize_with_spaces(f" GENERATED ALWAYS AS ({column.generated_expr}) STORED")


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
