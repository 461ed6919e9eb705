"""Refuse statements that change rows in a way that the log does not show."""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.tokens import Token, split_list
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.standalone import draws_from_sequence

_REMOVE_ROWS = ("UNIQUE", "PRIMARY", "AUTO_INCREMENT", "PERIOD", "PARTITION", "CHECK", "FOREIGN")
"""Words of an ADD that existing rows may not fit."""
_PLAIN = ("COMMENT", "DEFAULT", "ENGINE", "RENAME", "ROW_FORMAT")


def refuse_unlogged_rows(specs: Sequence[Token]) -> None:
    """Raises SchemaError for clauses that change a table's rows without logging them."""
    for spec in split_list(specs):
        if spec and spec[0].is_word("ADD") and draws_from_sequence(spec):
            raise SchemaError(
                "a new column has a default from a sequence: the log does not have the values that older rows get",
                hint="if the table was empty, set in [[source.replace]] of feeder.toml the statement without this"
                " default; otherwise exclude the table (ignore-tables) or take a new snapshot of the source after this"
                " statement (binlake bootstrap)",
                where=_name_clause(spec),
            )
        if spec and spec[0].is_word("DISCARD", "IMPORT", "EXCHANGE"):
            raise SchemaError(
                "a statement changes a table's rows without logging them",
                hint="take a new snapshot of the source after this statement (binlake bootstrap)",
                where=_name_clause(spec),
            )


def refuse_ignored_rows(specs: Sequence[Token]) -> None:
    """Raises SchemaError for clauses of an ALTER IGNORE TABLE that may remove or change rows, which no log shows."""
    for spec in split_list(specs):
        if not _keeps_rows(spec):
            raise SchemaError(
                "ALTER IGNORE removes or changes rows that do not fit, without logging them",
                hint="if it reported no duplicates and no warnings, name its transaction in [[source.replace]] of"
                " feeder.toml with the same statement without IGNORE (a target that has duplicates then refuses it);"
                " else take a new snapshot of the source after this statement (binlake bootstrap)",
                where=_name_clause(spec),
            )


def _name_clause(spec: Sequence[Token]) -> dict[str, str]:
    """The clause, for the `where` of an error; a list of partitions or values may be long."""
    return {"clause": " ".join(token.text for token in spec)[:200]}


def _keeps_rows(spec: Sequence[Token]) -> bool:
    if not spec or spec[0].is_word(*_PLAIN):
        return True
    if spec[0].is_word("DROP"):
        return any(token.is_word("INDEX", "KEY") for token in spec[1:3])
    adds = spec[0].is_word("ADD") and not any(token.is_word(*_REMOVE_ROWS) for token in spec)
    return adds or spec[0].is_word("ALTER")
