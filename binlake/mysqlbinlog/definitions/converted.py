"""MariaDB's CONVERT PARTITION ... TO TABLE and CONVERT TABLE ... TO PARTITION as the statements that they consist of.

The rows of a partition become a table, or a table becomes a partition, without a logged row. Either is an EXCHANGE
PARTITION with an empty table or partition, which targets of every family have.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.classify import NameRef, read_name
from binlake.dialect.tokens import Token, render
from binlake.statements.literal import quote_name, quote_qualified_name


def split_conversion(specs: Sequence[Token], table: NameRef) -> list[tuple[NameRef, str]]:
    """(table, statement) of each statement that the clauses of an ALTER of `table` consist of; empty for others."""
    if len(specs) < 5 or not specs[0].is_word("CONVERT"):
        return []
    if specs[1].is_word("PARTITION") and specs[4].is_word("TABLE"):
        return _split_into_table(quote_name(specs[2].value), table, _complete(read_name(specs, 5)[0], table))
    if specs[1].is_word("TABLE"):
        other, end = read_name(specs, 2)
        return _split_into_partition(_drop_validation(specs[end + 1 :]), table, _complete(other, table))
    return []


def _split_into_table(partition: str, table: NameRef, new: NameRef) -> list[tuple[NameRef, str]]:
    old_name, new_name = quote_qualified_name(*table), quote_qualified_name(*new)
    return [
        (new, f"CREATE TABLE {new_name} LIKE {old_name}"),
        (new, f"ALTER TABLE {new_name} REMOVE PARTITIONING"),
        (table, f"ALTER TABLE {old_name} EXCHANGE PARTITION {partition} WITH TABLE {new_name}"),
        (table, f"ALTER TABLE {old_name} DROP PARTITION {partition}"),
    ]


def _split_into_partition(definition: Sequence[Token], table: NameRef, other: NameRef) -> list[tuple[NameRef, str]]:
    """`definition`: `PARTITION name VALUES ...`."""
    name, other_name, partition = quote_qualified_name(*table), quote_qualified_name(*other), definition[1].value
    return [
        (table, f"ALTER TABLE {name} ADD PARTITION ({render(definition).strip()})"),
        (table, f"ALTER TABLE {name} EXCHANGE PARTITION {quote_name(partition)} WITH TABLE {other_name}"),
        (other, f"DROP TABLE {other_name}"),
    ]


def _complete(name: NameRef | None, beside: NameRef) -> NameRef:
    assert name is not None
    return name[0] or beside[0], name[1]


def _drop_validation(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without `WITH VALIDATION` or `WITHOUT VALIDATION`."""
    return tokens[:-2] if tokens[-1].is_word("VALIDATION") else tokens
