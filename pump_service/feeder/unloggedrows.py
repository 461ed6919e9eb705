"""Statements that move rows without logging them: EXCHANGE PARTITION, and names that come from or go to left-out
tables.

EXCHANGE PARTITION becomes TiDB's job of it: the plain table and the partition swap ids. No definition changes, so the
tracker does not run it. The rows move with their ids; every later part treats the job like one of TiDB. A statement
that moves rows between a followed table and one that is left out is refused: no log has such rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.classify import DdlKind, NameRef, classify_tokens, read_name
from binlake.dialect.tokens import Token, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.partitions import exchange_ids
from binlake.mysqlbinlog.definitions.statements import SingleStatement
from binlake.mysqlbinlog.definitions.writer import DefinitionChange, JobWriter, SourceNames
from binlake.rows.schema import Action, TableDef
from binlake.statements.literal import quote_name, quote_qualified_name

SPECS_AT = len(tokenize("ALTER TABLE `d`.`t`"))
"""Index of the first token of the clauses of a single ALTER TABLE."""

_NEW_LOAD = (
    "follow both tables or leave out both (ignore-tables), and take a new snapshot of the source after this statement"
    " (binlake bootstrap)"
)


def is_left_out(names: SourceNames, single: SingleStatement) -> bool:
    """Whether `single` is about a table that is left out. Raises SchemaError if it also changes a followed one."""
    if not names.leaves_out(single.db, single.table):
        return False
    own = (single.db, single.table)
    if single.kind is DdlKind.RENAME_TABLE and single.to is not None and not names.leaves_out(*single.to):
        raise _build_error(
            "a table that is left out gets the name of one that is followed, but its rows were not replicated",
            own, single.to, _NEW_LOAD,
        )  # fmt: skip
    specs = single.tokens[SPECS_AT:]
    if single.kind is DdlKind.ALTER_TABLE and is_exchange(specs):
        other = read_exchange(specs, single.db)[1]
        if not names.leaves_out(*other):
            raise _build_error(
                "rows are exchanged between a table that is left out and one that is followed: they are not logged",
                own, other, _NEW_LOAD,
            )  # fmt: skip
    return True


def refuse_leaving(names: SourceNames, single: SingleStatement) -> None:
    """Raises SchemaError if a followed table gets a name that is left out: its later changes would be missed."""
    if single.to is not None and names.leaves_out(*single.to):
        raise _build_error(
            "a table that is followed gets a name that is left out", (single.db, single.table), single.to,
            "name its transaction in [[source.replace]] of feeder.toml with DROP TABLE of this table (then the target"
            " drops it, too), or change ignore-tables",
        )  # fmt: skip


def refuse_copied_definition(names: SourceNames, single: SingleStatement) -> None:
    """Raises SchemaError for CREATE TABLE ... LIKE a table that is left out: its definition is not known here."""
    model = _read_model(single)
    if model is not None and names.leaves_out(*model):
        raise _build_error(
            "a table is created like one that is left out, whose definition is not known here",
            (single.db, single.table), model,
            "name its transaction in [[source.replace]] of feeder.toml with the CREATE TABLE that SHOW CREATE TABLE"
            " shows",
        )  # fmt: skip


def _read_model(single: SingleStatement) -> tuple[str, str] | None:
    """The table of LIKE in a CREATE TABLE; None if it has none."""
    if single.kind is not DdlKind.CREATE_TABLE_LIKE:
        return None
    rest = classify_tokens(single.tokens).rest
    like = next(at for at in range(rest, len(single.tokens)) if single.tokens[at].is_word("LIKE"))
    name, _ = read_name(single.tokens, like + 1)
    return None if name is None else (name[0] or single.db, name[1])


def _build_error(what: str, own: NameRef, other: NameRef, hint: str) -> SchemaError:
    return SchemaError(what, where={"table": ".".join(own), "other": ".".join(other)}, hint=hint)


def is_exchange(clauses: Sequence[Token]) -> bool:
    """Whether the clauses of an ALTER exchange the rows of a partition with those of a table."""
    return len(clauses) > 1 and clauses[0].is_word("EXCHANGE") and clauses[1].is_word("PARTITION")


def read_exchange(clauses: Sequence[Token], db: str) -> tuple[str, tuple[str, str], Sequence[Token]]:
    """Partition, table and the rest of `EXCHANGE PARTITION name WITH TABLE [db.]table [WITHOUT VALIDATION]`; `db`: the
    database of a table without one."""
    table, end = read_name(clauses, 5)
    assert table is not None
    return clauses[2].value, (table[0] or db, table[1]), clauses[end:]


def exchange_partition(
    writer: JobWriter, names: SourceNames, altered: tuple[str, TableDef], clauses: Sequence[Token]
) -> DefinitionChange:
    """The change that the clauses make. `altered`: the partitioned table and its database's name at the source.

    Raises SchemaError if the feeder does not have the other table, or does not know the partition.
    """
    db, former = altered
    partition, name, validation = read_exchange(clauses, db)
    other = None if names.leaves_out(*name) else writer.find_table(names, *name)
    info = exchange_ids(former, partition, other) if other is not None else None
    if other is None or info is None:
        lacks = f"table {'.'.join(name)}" if other is None else f"partition {partition}"
        raise SchemaError(
            f"rows are exchanged with the {lacks}, which the feeder does not have: they are not logged",
            hint="exclude both tables (ignore-tables), or take a new snapshot of the source after this statement"
            " (binlake bootstrap)",
            where={"table": f"{db}.{former.name}"},
        )
    partitioned, plain = (quote_qualified_name(table.db, table.name) for table in (former, other))
    text = f"ALTER TABLE {partitioned} EXCHANGE PARTITION {quote_name(partition)} WITH TABLE {plain}"
    home = writer.find_database_of(other)
    return writer.build_change(names, Action.EXCHANGE_PARTITION, [*tokenize(text), *validation], home, other, info)
