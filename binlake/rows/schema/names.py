"""When two names of databases, tables, columns or indexes are one name: TiDB compares their lower-case forms.

A name is said as its definition spells it (`O` of TiDB's names): a target on Linux distinguishes `Users` from `users`.
"""

from __future__ import annotations


def fold_name(name: str) -> str:
    """The form by which TiDB compares a name, its `L`: each character by itself in lower case, as Go does it.

    Unlike `str.lower` it has no final sigma (`ΟΔΟΣ` is `οδοσ`) and makes one `i` of `İ`.
    """
    if name.isascii():
        return name.lower()
    return "".join("i" if character == "İ" else character.lower() for character in name)


def fold_pair(name: tuple[str, str]) -> tuple[str, str]:
    """`fold_name` of (database, table)."""
    return fold_name(name[0]), fold_name(name[1])
