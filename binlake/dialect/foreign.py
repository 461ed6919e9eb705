"""Write the index that TiDB creates for a foreign key explicitly.

A server creates such an index too, but drops it as soon as another index can serve; TiDB keeps it under its name.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.tokens import Token, tokenize
from binlake.rows.schema import IndexInfo, TableDef
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import quote_name


def build_foreign_key_indexes(
    elements: Sequence[Sequence[Token]], before: TableDef | None, after: TableDef | None
) -> list[list[Token]]:
    """`INDEX name (columns)` for each index that TiDB created for a foreign key and that `elements` do not name."""
    if after is None:
        return []
    keys = {fold_name(key["fk_name"]["O"]) for key in after.raw.get("fk_info") or ()}
    had = {fold_name(index.name) for index in (before.indexes if before else ())}
    own = [i for i in after.indexes if fold_name(i.name) in keys - had and not _is_named(i, elements)]
    return [tokenize(f" INDEX {quote_name(i.name)} ({', '.join(quote_name(c.name) for c in i.columns)})") for i in own]


def spell_foreign_key(spec: list[Token], before: TableDef | None) -> list[Token]:
    """`DROP FOREIGN KEY name` with the name as it was created, because MariaDB distinguishes letter case."""
    words = [token.text.upper() for token in spec[:3]]
    if before is None or len(spec) < 4 or words != ["DROP", "FOREIGN", "KEY"]:
        return spec
    names = [key["fk_name"]["O"] for key in before.raw.get("fk_info") or ()]
    own = next((name for name in names if fold_name(name) == fold_name(spec[-1].value)), None)
    return spec if own is None else [*spec[:-1], *tokenize(f" {quote_name(own)}")]


def _is_named(index: IndexInfo, elements: Sequence[Sequence[Token]]) -> bool:
    made = (part for part in elements if any(token.is_word("INDEX", "KEY", "UNIQUE") for token in part[:3]))
    return any(fold_name(token.value) == fold_name(index.name) for part in made for token in part[:5])
