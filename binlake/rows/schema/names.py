"""Compare names of databases, tables, columns and indexes as TiDB does: by their lower-case forms.

Binlake writes a name as its definition spells it (`O` of TiDB's names), because a target on Linux distinguishes `Users`
from `users`.
"""

from __future__ import annotations


def fold_name(name: str) -> str:
    """The form by which TiDB compares a name (its `L`): each character is converted to lower case alone, as Go does.

    Unlike `str.lower`, it knows no final sigma (`ΟΔΟΣ` becomes `οδοσ`) and converts `İ` to a single `i`.
    """
    if name.isascii():
        return name.lower()
    return "".join("i" if character == "İ" else character.lower() for character in name)


def fold_pair(name: tuple[str, str]) -> tuple[str, str]:
    """`fold_name` of (database, table)."""
    return fold_name(name[0]), fold_name(name[1])
