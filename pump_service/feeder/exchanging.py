"""EXCHANGE PARTITION of a source as TiDB's job of it: the plain table and the partition swap ids.

No definition changes, so the tracker does not run it. The rows move with their ids, which no row change shows; every
later part treats the job like one of TiDB.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.classify import read_name
from binlake.dialect.tokens import Token, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.partitions import exchange_ids
from binlake.mysqlbinlog.definitions.writer import DefinitionChange, JobWriter, SourceNames
from binlake.rows.schema import Action, TableDef
from binlake.statements.literal import quote_name, quote_qualified_name


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
