"""The drainer's binlog files, read with protobuf's own classes: one record per transaction or DDL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from support.examples import examples
from support.feedrows import EVERY, ROWS, Row, changes_of, columns_of, encoded, every_kind
from support.pbbinlog import rows_of_event
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.config.protocols import PbOptions
from binlake.extras.protocols.pbbinlog import PbBinlogFormat
from binlake.feed.encoding import TRANSACTION
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.feed.messages import MESSAGE_SCHEMA
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import Action
from binlake.wire import pb_binlog_pb2 as pb

OWN = PbBinlogFormat(PbOptions())
KINDS = {INSERT: pb.Insert, UPDATE: pb.Update, DELETE: pb.Delete}
SMALL: TableDef = table_def(
    table_info(1, "it`em", [column(1, "id", t.LONG, flag=INT_PK), column(2, "v", t.VARCHAR, flen=4)], pk_is_handle=True)
)


def encode(*changes: tuple[tuple[int, int], TableDef, str, list[Row], list[Row]]) -> list[dict[str, Any]]:
    """The messages of changes in order: commit_ts, table, kind, row before, row after."""
    rows = []
    for (commit_ts, seq), table, op, old, new in changes:
        [(key, value)] = encoded(OWN, op, old, new, table)
        row = {"commit_ts": commit_ts, "start_ts": commit_ts - 1, "seq": seq, "part": 1, "db": table.db, "op": op}
        rows.append({**row, "table": table.name, "topic": "t", "hash": 0, "key": key, "value": value})
    return OWN.assemble(pa.Table.from_pylist(rows, MESSAGE_SCHEMA)).to_pylist()


def test_message_is_a_transaction() -> None:
    row: Row = {"id": "1", "v": None}
    messages = encode(
        ((10, 0), SMALL, INSERT, [], [row]),
        ((10, 1), SMALL, UPDATE, [row], [{"id": "2", "v": "x"}]),
        ((12, 0), SMALL, DELETE, [row], []),
    )
    assert [(one["commit_ts"], one["seq"], one["op"], one["key"]) for one in messages] == [
        (10, 1, TRANSACTION, None),
        (12, 0, TRANSACTION, None),
    ]
    first, second = (pb.Binlog.FromString(one["value"]) for one in messages)
    assert (first.tp, first.commit_ts, second.commit_ts) == (pb.DML, 10, 12)
    assert [(one.schema_name, one.table_name, one.tp) for one in first.dml_data.events] == [
        ("test", "it`em", pb.Insert),
        ("test", "it`em", pb.Update),
    ]
    assert not first.HasField("ddl_query")


def test_bytes_equal_the_reference() -> None:
    """Written by hand from the published proto: protobuf's bytes for them, and the datums of tidb-binlog 1.12."""
    [message] = encode(((10, 0), SMALL, UPDATE, [{"id": "1", "v": "a"}], [{"id": "-2", "v": None}]))
    ids = bytes.fromhex("0a026964 120103 1a03696e74 22020802 2a020803")
    texts = bytes.fromhex("0a0176 12010f 1a0776617263686172 2203020261 2a0100")
    event = b"\x0a\x04test\x12\x05it`em\x18\x01"
    event += b"".join(b"\x22" + bytes([len(one)]) + one for one in (ids, texts))
    data = b"\x0a" + bytes([len(event)]) + event
    assert message["value"] == b"\x08\x00\x10\x0a\x1a" + bytes([len(data)]) + data
    assert pb.Binlog.FromString(message["value"]).SerializeToString() == message["value"]


@settings(max_examples=examples(15), deadline=None)
@given(ROWS)
def test_every_row_is_decoded_unchanged(rows: list[Row]) -> None:
    columns = columns_of(EVERY)
    for op, old, new in every_kind(rows):
        values = OWN.encode(changes_of(EVERY, op, old, new)).values.to_pylist()
        assert len(values) == len(rows)
        for number, value in enumerate(values):
            [event] = pb.DMLData.FromString(value).events
            assert event.tp == KINDS[op]
            gone, came = rows_of_event(event, columns)
            assert gone == (old[number] if old else None)
            assert came == (new[number] if new else None)


def test_rows_of_a_table_without_visible_columns_are_events() -> None:
    """All its columns are virtual, and row images do not contain them."""
    virtual = column(1, "v", t.LONG, generated_expr_string="1")
    table = table_def(table_info(1, "t", [virtual]))
    values = [value for _, value in encoded(OWN, INSERT, [], [{}, {}], table)]
    event = pb.Event(schema_name="test", table_name="t", tp=pb.Insert)
    assert values == [pb.DMLData(events=[event]).SerializeToString()] * 2


def test_timestamps_are_shown_in_the_feeds_zone() -> None:
    table = table_def(table_info(1, "t", [column(1, "at", t.TIMESTAMP)]))
    [(_, value)] = encoded(PbBinlogFormat(PbOptions("+02:00")), INSERT, [], [{"at": "2026-01-01 23:00:00"}], table)
    assert b"2026-01-02 01:00:00" in value


#
@pytest.mark.parametrize(
    ("action", "sql", "text"),
    [
        (Action.CREATE_SCHEMA, "CREATE DATABASE `a`", "CREATE DATABASE `a`;"),
        (Action.DROP_SCHEMA, "DROP DATABASE `a`;", "use `a``b`; DROP DATABASE `a`;"),
        (Action.ADD_COLUMN, "ALTER TABLE `t` ADD COLUMN `c` INT ; ", "use `a``b`; ALTER TABLE `t` ADD COLUMN `c` INT;"),
    ],
)
def test_ddl_is_placed_before_its_first_rows(action: Action, sql: str, text: str) -> None:
    event = OWN.encode_ddl(
        cast(Any, SimpleNamespace(db="a`b", sql=sql, query="", action=action, commit_ts=12, since=10))
    )
    assert event is not None
    assert not event.everywhere
    binlog = pb.Binlog.FromString(event.value or b"")
    assert (binlog.tp, binlog.commit_ts, binlog.ddl_query.decode()) == (pb.DDL, 10, text)
    assert not binlog.HasField("dml_data")
