"""Keys and defaults of a TEXT or BLOB as MariaDB has them, for a MySQL (docs/understand/target-mapping.md).

MariaDB gives a plain index on a whole text the longest beginning that fits; MySQL wants its length in the statement. A
unique key on a whole text is a hash at MariaDB, which MySQL does not have: it is left out, as the source enforces it.
A default of a text is an expression at MySQL, and only a definition of the column has it, no ALTER COLUMN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from binlake.dialect.conversions import add_index_tokens, drop_index_tokens, format_type
from binlake.dialect.defaults import find_value_end, format_default
from binlake.dialect.tokens import Token, TokenKind, find_closing, join_list, split_list, tokenize, tokenize_with_spaces
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC
from binlake.statements.literal import quote, quote_name

_KEY_WORDS = ("INDEX", "KEY", "UNIQUE")
_EXPRESSED = t.BLOBS | {t.JSON}


def put_key_lengths(tokens: Sequence[Token], table: TableDef | None) -> list[Token]:
    """An element, spec or CREATE INDEX with the lengths that the index of its columns has in `table`."""
    head = _find_key_head(tokens)
    if table is None or head is None:
        return list(tokens)
    end = find_closing(tokens, head)
    parts = split_list(tokens[head + 1 : end])
    names = [fold_name(part[0].value) if part else "" for part in parts]
    plain = (index for index in table.indexes if not index.unique)
    known = next((i.columns for i in plain if [fold_name(one.name) for one in i.columns] == names), None)
    if known is None:
        return list(tokens)
    put = [
        [part[0], *tokenize(f"({known[at].length})"), *part[1:]]
        if _is_whole(part, table) and known[at].length != t.UNSPECIFIED_LENGTH
        else part
        for at, part in enumerate(parts)
    ]
    return [*tokens[: head + 1], *join_list(put), *tokens[end:]]


def makes_whole_text_key(tokens: Sequence[Token], tables: Iterable[TableDef]) -> bool:
    """Whether an element, spec or CREATE INDEX makes a unique key on a whole text of one of `tables`, left out."""
    head = _find_key_head(tokens)
    if head is None or not any(token.is_word("UNIQUE") for token in tokens[:head]):
        return False
    names = [fold_name(part[0].value) for part in split_list(tokens[head + 1 : find_closing(tokens, head)]) if part]
    return any(
        names == [fold_name(part.name) for part in index.columns]
        for table in tables
        for index in table.indexes
        if is_whole_text_key(index, table)
    )


def names_whole_text_key(tokens: Sequence[Token], tables: Iterable[TableDef]) -> bool:
    """Whether it is `DROP|RENAME|ALTER INDEX name` of a key that is left out of one of `tables`, as before the DDL."""
    name = _find_index_name(tokens, "DROP", "RENAME", "ALTER")
    return any(
        fold_name(index.name) == name for table in tables for index in table.indexes if is_whole_text_key(index, table)
    )


def is_whole_text_key(index: IndexInfo, table: TableDef) -> bool:
    """Whether a MySQL goes without `index`. Not if rows are known by it: then it would have no key at all."""
    if not index.unique or index.state != PUBLIC or not _reads_whole_text(index, table):
        return False
    identity = table.find_identity()
    return identity.kind == "row" or list(identity.columns) != [part.name for part in index.columns]


def build_key_specs(
    before: TableDef | None, after: TableDef | None, specs: Sequence[Sequence[Token]]
) -> list[list[Token]]:
    """The specs that an ALTER at MySQL needs as well, as an index of `before` now reads a text, or no longer does.

    An index that `specs` drop is not among them.
    """
    if before is None or after is None:
        return []
    dropped = {_find_index_name(spec, "DROP") for spec in specs}
    former = {fold_name(index.name): index for index in before.indexes if index.state == PUBLIC}
    return [
        spec
        for index in after.indexes
        if (was := former.get(name := fold_name(index.name))) is not None and name not in dropped
        for spec in _change_key(was, index, before, after)
    ]


def _find_index_name(spec: Sequence[Token], *words: str) -> str:
    """The (folded) index that `DROP INDEX name` is about, or another of `words`; "" for any other clause."""
    is_index = len(spec) > 1 and spec[0].is_word(*words) and spec[1].is_word("INDEX", "KEY")
    return next((fold_name(token.value) for token in spec if is_index and token.kind is TokenKind.NAME), "")


def _change_key(was: IndexInfo, now: IndexInfo, before: TableDef, after: TableDef) -> Iterator[list[Token]]:
    had, has = not is_whole_text_key(was, before), not is_whole_text_key(now, after)
    lengths = [[part.length for part in index.columns] for index in (was, now)]
    if had and has and (lengths[0] == lengths[1] or not _reads_text(now, after)):
        return
    if had:
        yield drop_index_tokens(was.name, was)
    if has:
        yield add_index_tokens(now)


def express_default(column: Sequence[Token], info: ColumnInfo | None) -> list[Token]:
    """The definition of a column (from its name on) with its default as an expression if it is a text."""
    at = next((i for i, token in enumerate(column) if token.is_word("DEFAULT")), None)
    end = find_value_end(column[at + 1 :]) if at is not None and info is not None and info.tp in _EXPRESSED else 0
    if at is None or not end:
        return list(column)
    value = column[at + 1 : at + 1 + end]
    return [*column[: at + 1], *tokenize(" ("), *value, *tokenize(")"), *column[at + 1 + end :]]


def spell_default_of_text(spec: Sequence[Token], table: TableDef) -> list[Token] | None:
    """`ALTER COLUMN … SET DEFAULT` or `DROP DEFAULT` of a text as a MODIFY; None for any other spec."""
    if len(spec) < 4 or not spec[0].is_word("ALTER") or spec[1].is_word("INDEX", "KEY", "CHECK", "CONSTRAINT"):
        return None
    info = table.find_column(spec[1 + spec[1].is_word("COLUMN")].value)
    if info is None or info.tp not in _EXPRESSED or info.default_is_expr:
        return None
    words = [f"MODIFY COLUMN {quote_name(info.name)} {format_type(info, 'mysql')}"]
    words += ["NOT NULL"] if info.not_null else []
    words += [f"DEFAULT ({literal})"] if (literal := format_default(info)) is not None else []
    words += [f"COMMENT {quote(info.comment)}"] if info.comment else []
    return tokenize_with_spaces(" ".join(words))


def _find_key_head(tokens: Sequence[Token]) -> int | None:
    """The index of the parenthesis that opens the columns of an index."""
    head = next((i for i, token in enumerate(tokens) if token.is_mark("(")), None)
    return head if head is not None and any(token.is_word(*_KEY_WORDS) for token in tokens[:head]) else None


def _is_whole(part: Sequence[Token], table: TableDef) -> bool:
    column = table.find_column(part[0].value) if part else None
    return column is not None and column.tp in t.BLOBS and not any(token.is_mark("(") for token in part)


def _reads_whole_text(index: IndexInfo, table: TableDef) -> bool:
    columns = [(part.length, table.find_column(part.name)) for part in index.columns]
    return any(
        length == t.UNSPECIFIED_LENGTH and column is not None and column.tp in t.BLOBS for length, column in columns
    )


def _reads_text(index: IndexInfo, table: TableDef) -> bool:
    columns = [table.find_column(part.name) for part in index.columns]
    return any(column is not None and column.tp in t.BLOBS for column in columns)
