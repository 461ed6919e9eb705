"""A file that the original drainer wrote (8.3, from TiDB 7.5): our encoder gives the same bytes for its values."""

from __future__ import annotations

import gzip
from collections import defaultdict
from pathlib import Path
from zoneinfo import ZoneInfo

from support.feedrows import Row, encoded
from support.tidb_json import column, table_def, table_info

from binlake.binlogfile.reading import INSERT as INSERTED
from binlake.binlogfile.reading import UPDATE as UPDATED
from binlake.binlogfile.reading import BinlogRow, BinlogTransaction, read_items
from binlake.common.filestore import LocalStore
from binlake.config.protocols import PbOptions
from binlake.extras.protocols.pbbinlog import PbBinlogFormat
from binlake.extras.reparo.cells import build_datum_reader
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import pb_binlog_pb2 as pb

FILE = Path(__file__).parents[2] / "fixtures" / "pbfiles" / "original.binlog.gz"
ELEMENTS = {"e": ["a", "b"], "s": ["x", "y", "z"], "en": ["a", "b", "c"], "st": ["x", "y", "z"]}
LENGTHS = {"b1": 1, "b8": 8, "b64": 64, "bt": 12}
UNSIGNED = {("types", "si"), ("types", "bi"), ("t", "u"), ("acct", "id")}
FRACTIONS = {("t", "ts"): 3, ("t", "dt"): 6, ("t", "tm"): 2, ("nonclus", "b"): 3, ("types", "dtm"): 6,
             ("types", "ts"): 3, ("types", "tm"): 2}  # fmt: skip
Shape = tuple[str, str, str, tuple[tuple[str, int, str], ...]]


def read_events(folder: Path) -> list[BinlogRow]:
    (folder / "binlog-0000000000000000-20261101000000").write_bytes(gzip.decompress(FILE.read_bytes()))
    return [
        event for item in read_items(LocalStore(folder)) if isinstance(item, BinlogTransaction) for event in item.events
    ]


def define(shape: Shape) -> TableDef:
    """The table with the columns of an event; what the file does not say is from its CREATE TABLE."""
    db, name, _, columns = shape
    defined = [
        column(
            number, title, tp,
            flag=t.FLAG_UNSIGNED if (name, title) in UNSIGNED else 0,
            flen=LENGTHS.get(title, -1),
            decimal=FRACTIONS.get((name, title), -1),
            charset="binary" if "blob" in kind or "binary" in kind else "",
            elems=ELEMENTS.get(title),
        )
        for number, (title, tp, kind) in enumerate(columns, start=1)
    ]  # fmt: skip
    return table_def(table_info(1, name, defined), db)


def read_row(table: TableDef, datums: list[bytes]) -> Row:
    readers = [build_datum_reader(one, ZoneInfo("UTC")) for one in table.row_columns]
    return {one.name: read(datum) for one, read, datum in zip(table.row_columns, readers, datums, strict=True)}


def test_every_value_has_the_bytes_of_the_originals_own_file(tmp_path: Path) -> None:
    groups: defaultdict[Shape, list[BinlogRow]] = defaultdict(list)
    for event in read_events(tmp_path):
        shape = tuple((one.name, one.tp, one.mysql_type) for one in event.columns)
        groups[event.db, event.table, event.kind, shape].append(event)
    form, compared, kinds = PbBinlogFormat(PbOptions()), 0, set()
    for (db, name, kind, columns), events in groups.items():
        table = define((db, name, kind, columns))
        first = [read_row(table, [one.value for one in event.columns]) for event in events]
        last = [read_row(table, [one.changed or b"" for one in event.columns]) for event in events if kind == UPDATED]
        op = INSERT if kind == INSERTED else UPDATE if kind == UPDATED else DELETE
        sent = encoded(form, op, [] if op == INSERT else first, first if op == INSERT else last, table)
        for event, (_, value) in zip(events, sent, strict=True):
            [ours] = pb.DMLData.FromString(value).events
            assert (ours.schema_name, ours.table_name) == (db, name)
            read = [pb.Column.FromString(raw) for raw in ours.row]
            found = [(one.name, one.tp, one.mysql_type, one.value, one.changed_value) for one in read]
            assert found == [
                (one.name, bytes([one.tp]), one.mysql_type, one.value, one.changed or b"") for one in event.columns
            ]
            compared += len(found)
            kinds |= {(one.mysql_type, one.value[0]) for one in read}
    assert compared > 9_000
    assert {("bit", 9), ("bit", 0), ("enum", 9), ("float", 5), ("json", 2), ("timestamp", 2), ("year", 8)} <= kinds
