"""The drainer's Kafka messages, read with protobuf's own classes: one message per transaction, in one partition."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from support.examples import examples
from support.feedrows import EVERY, ROWS, Row, columns_of, encoded, every_kind
from support.slavebinlog import row_of_slave
from support.tidb_json import INT_PK, column, index, table_def, table_info

from binlake.config.protocols import SlaveBinlogOptions
from binlake.extras.protocols.slavebinlog import SlaveBinlogFormat
from binlake.feed.encoding import TRANSACTION
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.feed.messages import MESSAGE_SCHEMA
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import slave_binlog_pb2 as pb

OWN = SlaveBinlogFormat(SlaveBinlogOptions())
KINDS = {INSERT: pb.Insert, UPDATE: pb.Update, DELETE: pb.Delete}
Place = tuple[int, int]


def small(name: str) -> TableDef:
    columns = [column(1, "id", t.LONG, flag=INT_PK), column(2, "v", t.VARCHAR, flen=4)]
    info = table_info(1, name, columns, pk_is_handle=True)
    info["index_info"] = [index(1, "uk", [("v", -1)], unique=True), index(2, "plain", [("v", -1)])]
    return table_def(info)


def encode(*changes: tuple[Place, TableDef, str, list[Row], list[Row]]) -> pa.Table:
    """The messages of changes in order: commit_ts, table, kind, row before, row after."""
    rows = []
    for (commit_ts, seq), table, op, old, new in changes:
        [(key, value)] = encoded(OWN, op, old, new, table)
        row = {"commit_ts": commit_ts, "start_ts": commit_ts - 1, "seq": seq, "part": 1, "db": table.db, "op": op}
        rows.append({**row, "table": table.name, "topic": "t", "hash": 0, "key": key, "value": value})
    return OWN.assemble(pa.Table.from_pylist(rows, MESSAGE_SCHEMA))


def test_message_is_a_transaction() -> None:
    a, b = small("a"), small("b")
    row: Row = {"id": "1", "v": None}
    messages = encode(
        ((10, 0), a, INSERT, [], [row]),
        ((10, 1), a, UPDATE, [row], [{"id": "2", "v": "x"}]),
        ((10, 2), b, DELETE, [row], []),
        ((10, 3), a, DELETE, [row], []),
        ((12, 0), a, INSERT, [], [row]),
    ).to_pylist()
    assert [(one["commit_ts"], one["seq"], one["op"], one["hash"], one["key"]) for one in messages] == [
        (10, 3, TRANSACTION, 0, None),
        (12, 0, TRANSACTION, 0, None),
    ]
    first, second = (pb.Binlog.FromString(one["value"]) for one in messages)
    assert (first.type, first.commit_ts, second.commit_ts) == (pb.DML, 10, 12)
    shown = [(table.table_name, [one.type for one in table.mutations]) for table in first.dml_data.tables]
    assert shown == [("a", [pb.Insert, pb.Update]), ("b", [pb.Delete]), ("a", [pb.Delete])]
    update = first.dml_data.tables[0].mutations[1]
    assert [one.string_value for one in update.row.columns] == ["", "x"]
    assert update.row.columns[0].int64_value == 2
    assert update.change_row.columns[1].is_null


def test_table_header_has_columns_and_keys() -> None:
    [message] = encode(((10, 0), small("a"), INSERT, [], [{"id": "1", "v": "x"}])).to_pylist()
    [table] = pb.Binlog.FromString(message["value"]).dml_data.tables
    assert (table.schema_name, table.table_name) == ("test", "a")
    shown = [(one.name, one.mysql_type, one.is_primary_key) for one in table.column_info]
    assert shown == [("id", "int", True), ("v", "varchar", False)]
    assert [(one.name, list(one.column_names)) for one in table.unique_keys] == [("PRIMARY", ["id"]), ("uk", ["v"])]


@pytest.mark.long
@settings(max_examples=examples(40), deadline=None)
@given(ROWS)
def test_every_row_is_decoded_unchanged(rows: list[Row]) -> None:
    columns = columns_of(EVERY)
    for op, old, new in every_kind(rows):
        for number in range(len(rows)):
            before, after = (side[number : number + 1] for side in (old, new))
            [message] = encode(((10, 0), EVERY, op, before, after)).to_pylist()
            [table] = pb.Binlog.FromString(message["value"]).dml_data.tables
            [mutation] = table.mutations
            assert mutation.type == KINDS[op]
            assert row_of_slave(table, mutation.row, columns) == (after or before)[0]
            assert mutation.HasField("change_row") == (op == UPDATE)
            if op == UPDATE:
                assert row_of_slave(table, mutation.change_row, columns) == before[0]
