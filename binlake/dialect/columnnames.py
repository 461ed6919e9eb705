"""Find the columns that the clauses of an ALTER TABLE rename, add or drop; column ids do not show it for every server.

All names are folded. A statement of another kind has no clauses.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.classify import DdlKind, classify_tokens
from binlake.dialect.tokens import Token, TokenKind, find_closing, skip_exists, split_list
from binlake.rows.schema.forms import fold_name

KEY_HEADS = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK")
"""Keywords after ADD or DROP of a key or constraint."""


def find_alter_clauses(tokens: Sequence[Token]) -> list[Token]:
    """The tokens after the table name of an ALTER TABLE, without comments; empty for another statement."""
    plain = [token for token in tokens if token.kind not in (TokenKind.FEATURE, TokenKind.COMMENT)]
    statement = classify_tokens(plain)
    return plain[statement.rest :] if statement.kind is DdlKind.ALTER_TABLE else []


def find_changed_columns(clauses: Sequence[Token]) -> dict[str, str]:
    """New name -> former name of each `CHANGE [COLUMN] former new ...`; the two may be equal."""
    former_names = dict[str, str]()
    for clause in split_list(clauses):
        if clause and clause[0].is_word("CHANGE"):
            at = _find_name(clause)
            former_names[fold_name(clause[at + 1].value)] = fold_name(clause[at].value)
    return former_names


def find_renamed_columns(clauses: Sequence[Token]) -> dict[str, str]:
    """New name -> former name of each column that a CHANGE or RENAME COLUMN renames."""
    former_names = find_changed_columns(clauses)
    for clause in split_list(clauses):
        if len(clause) > 4 and clause[0].is_word("RENAME") and clause[1].is_word("COLUMN"):
            at = _find_name(clause)
            former_names[fold_name(clause[at + 2].value)] = fold_name(clause[at].value)
    return {new: former for new, former in former_names.items() if new != former}


def find_dropped_columns(clauses: Sequence[Token]) -> set[str]:
    """The columns of each `DROP [COLUMN] name`."""
    return _find_columns_after("DROP", clauses)


def find_added_columns(clauses: Sequence[Token]) -> set[str]:
    """The columns of each `ADD [COLUMN] name ...`, and of each `ADD [COLUMN] (name ..., name ...)`."""
    return _find_columns_after("ADD", clauses)


def read_added_elements(clause: Sequence[Token]) -> list[list[Token]]:
    """The columns and keys of `ADD [COLUMN] [IF NOT EXISTS] (element, element ...)`; empty for another clause."""
    at = _find_name(clause) if len(clause) > 1 and clause[0].is_word("ADD") else len(clause)
    if at >= len(clause) or not clause[at].is_mark("("):
        return []
    return split_list(clause[at + 1 : find_closing(clause, at)])


def is_period(clause: Sequence[Token]) -> bool:
    """Whether a clause is `ADD | DROP PERIOD [IF [NOT] EXISTS] FOR …` (MariaDB): `PERIOD` is no column there."""
    after = skip_exists(clause, 2)
    return len(clause) > after and clause[1].is_word("PERIOD") and clause[after].is_word("FOR")


def _find_columns_after(verb: str, clauses: Sequence[Token]) -> set[str]:
    columns = set[str]()
    for clause in split_list(clauses):
        if len(clause) > 1 and clause[0].is_word(verb) and not is_period(clause):
            elements = read_added_elements(clause) or [clause[_find_name(clause) :]]
            names = [element[0] for element in elements if element]
            columns |= {fold_name(name.value) for name in names if not name.is_word("PARTITION", *KEY_HEADS)}
    return columns


def _find_name(clause: Sequence[Token]) -> int:
    return skip_exists(clause, 1 + clause[1].is_word("COLUMN"))
