"""A new stored generated column that is a plain column at the target: computed there once, for the rows that exist.

The target computes it in the same ALTER as the source, and a second ALTER makes it a plain column with these values.
This is exact only if the target's server computes like the source's; otherwise no log has the values of older rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.base.dialects import Dialect
from binlake.dialect.errors import Unmappable
from binlake.dialect.madeup import WAYS
from binlake.dialect.tokens import Token, TokenKind, tokenize_with_spaces
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema.names import fold_name
from binlake.rows.schema.session import SourceSession
from binlake.statements.generation import find_filled_operands, is_proven, list_recomputed, may_store
from binlake.statements.literal import quote_name
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
    had, once = {column.id for column in before.columns}, []
    for column in list_recomputed(before, after):
        if is_computed(column, after, dialect):
            continue
        alike = session.family == dialect or (is_proven(column, after) and may_store(column, after, dialect))
        if column.id in had or column.name in after.primary_key or depends_on_zone(column, after) or not alike:
            raise Unmappable(
                f"a stored generated column ({column.name}) whose values in existing rows only the source can compute"
            )
        once.append(column)
    return once


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


def make_computed_once(
    specs: Sequence[list[Token]], columns: Sequence[ColumnInfo]
) -> tuple[list[list[Token]], list[list[Token]]]:
    """(`specs` that add `columns` as generated ones, specs that then make them plain)."""
    by_name = {fold_name(column.name): column for column in columns}
    computed, later = list(specs), []
    for number, spec in enumerate(specs):
        at = next((i for i, token in enumerate(spec) if token.kind is TokenKind.NAME), None)
        column = by_name.get(fold_name(spec[at].value)) if at is not None and spec[0].is_word("ADD") else None
        if at is None or column is None:
            continue
        generation = tokenize_with_spaces(f"GENERATED ALWAYS AS ({column.generated_expr}) STORED")
        end = _find_word(spec, at + 1, _AFTER_TYPE)
        rest = _find_word(spec, at + 1, _AFTER_DEFINITION)
        nullness = [token for token in spec[end:rest] if not token.is_word("NOT", "NULL")]
        computed[number] = [*spec[:end], *generation, *nullness, *spec[rest:]]
        later.append([*tokenize_with_spaces("MODIFY COLUMN"), *spec[at:rest]])
    return computed, later


def _find_word(spec: Sequence[Token], start: int, words: Sequence[str]) -> int:
    """The index of the first of `words` outside parentheses, the length if there is none."""
    depth = 0
    for at in range(start, len(spec)):
        depth += spec[at].is_mark("(") - spec[at].is_mark(")")
        if depth == 0 and spec[at].is_word(*words):
            return at
    return len(spec)
