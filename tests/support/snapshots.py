"""Full loads in tests: opened on a real server, and read into rows as everything downstream of the pumps sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from support.mariadb import MariaDb, MySql

from binlake.mysqlbinlog.model import Flavor
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.snapshot import structures
from binlake.pump_service.feeder.snapshot.opening import SourceSnapshots, open_snapshot
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.snapshot.reading import CHUNK_ROWS, MOST_ROWS, Form, SnapshotReader, SnapshotTable
from binlake.rows.codec import decode_transaction, encode_commit_binlog
from binlake.rows.schema import TableDef

FORM: Form = "rows"
"""The form of the values that `reader_of` reads."""


def opened(server: MariaDb, sessions: int = 3, tables: Sequence[Name] = ()) -> SourceSnapshots:
    """A snapshot of a server of either family."""
    flavor = Flavor.MYSQL if isinstance(server, MySql) else Flavor.MARIADB
    return open_snapshot(server.connect, flavor, sessions, tables)


def reader_of(
    server: MariaDb,
    snapshot: SourceSnapshots,
    table: TableDef,
    *,
    chunk_rows: int = CHUNK_ROWS,
    most_rows: int = MOST_ROWS,
) -> tuple[SnapshotReader, SnapshotProgress]:
    """A reader of one table with its current structure, and the reader's progress."""
    name = (table.db, table.name)
    with server.connect() as link:
        text = structures.read_create_text(link, name)
    assert text is not None
    progress = SnapshotProgress.of({name: 1}, [name])
    tables = [SnapshotTable(name, table, text)]
    reader = SnapshotReader(snapshot, tables, 7, progress, chunk_rows=chunk_rows, most_rows=most_rows, form=FORM)
    return reader, progress


@dataclass(frozen=True)
class _Lookup:
    of: TableDef

    def find_table(self, _table_id: int) -> TableDef:
        return self.of

    def is_gone(self, _table_id: int) -> bool:
        return False


def images(reader: SnapshotReader, table: TableDef) -> list[dict[str, str | None]]:
    """The rows that the reader's values contain."""
    read: list[dict[str, str | None]] = []
    for value in reader.read_values():
        changes = list(decode_transaction(encode_commit_binlog(1, 2, b"k", value.value), 2, 1, _Lookup(table)))
        assert len(changes) == value.rows
        assert all(change.op == "insert" for change in changes)
        read.extend(change.after or {} for change in changes)
    return read
