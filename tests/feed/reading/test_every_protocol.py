"""`binlake feed read` decodes what each protocol writes, and refuses anything else with its position."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.feedrows import COMMIT_TS, Row, changes_of
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.config.protocols import (
    PROTOCOLS,
    CanalJsonOptions,
    DebeziumOptions,
    OpenProtocolOptions,
    Options,
)
from binlake.errors import WireError
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.feed.protocols import format_of
from binlake.feed.reading.decoders import PLAIN, build_decoder
from binlake.feed.reading.events import FeedRecord, MessageEvent
from binlake.rows.schema import mysqltypes as t

TABLE = table_def(
    table_info(1, "item", [column(1, "id", t.LONG, flag=INT_PK), column(2, "name", t.VARCHAR, flen=20)],
               pk_is_handle=True)
)  # fmt: skip
OLD: Row = {"id": "7", "name": "before"}
NEW: Row = {"id": "7", "name": None}
OPTIONS: dict[str, Options] = {
    "canal-json": CanalJsonOptions(extension=True),
    "open-protocol": OpenProtocolOptions(),
    "debezium": DebeziumOptions(extension=True),
}


def write_record(protocol: str, op: str, old: Sequence[Row], new: Sequence[Row]) -> FeedRecord:
    [(key, value)] = zip(*(one.to_pylist() for one in format_of(OPTIONS[protocol]).encode(
        changes_of(TABLE, op, old, new))), strict=True)  # fmt: skip
    return FeedRecord("t[0]@1", key, value)


def to_texts(row: Any) -> Row:
    return {name: None if value is None else str(value) for name, value in row.items()}


@pytest.mark.parametrize("protocol", sorted(OPTIONS))
def test_row_change_is_decoded(protocol: str) -> None:
    decode = build_decoder(protocol)
    for op, old, new in ((INSERT, [], [NEW]), (UPDATE, [OLD], [NEW]), (DELETE, [OLD], [])):
        (event,) = decode(write_record(protocol, op, old, new))
        # In the Open Protocol an insert looks like an update without an old row.
        assert event.op == (None if (protocol, op) == ("open-protocol", INSERT) else op)
        assert (event.commit_ts, event.db, event.table) == (COMMIT_TS, TABLE.db, "item")
        shown = event.value or event.before if op == DELETE else event.value
        if shown is not None:
            assert to_texts(shown) == (new or old)[0]
        if op == UPDATE:
            assert to_texts(event.before) == OLD
        assert event.key is None or to_texts(event.key) == {"id": "7"}
        assert json.loads(json.dumps(event.to_dict()))["commit_ts"] == str(COMMIT_TS)


@pytest.mark.parametrize("protocol", sorted(OPTIONS))
def test_watermark_is_decoded(protocol: str) -> None:
    made = format_of(OPTIONS[protocol]).encode_watermark(COMMIT_TS)
    assert made is not None
    (event,) = build_decoder(protocol)(FeedRecord("t[0]@1", made.key, made.value))
    assert (event.op, event.commit_ts, event.db, event.table) == ("watermark", COMMIT_TS, "", "")


def test_drainer_messages_have_the_rows_of_a_transaction() -> None:
    from binlake.wire import slave_binlog_pb2 as pb

    columns = [pb.ColumnInfo(name="id"), pb.ColumnInfo(name="name")]
    row = pb.Row(columns=[pb.Column(int64_value=7), pb.Column(is_null=True)])
    before = pb.Row(columns=[pb.Column(int64_value=7), pb.Column(string_value="before")])
    mutations = [
        pb.TableMutation(type=pb.Insert, row=before),
        pb.TableMutation(type=pb.Update, row=row, change_row=before),
        pb.TableMutation(type=pb.Delete, row=row),
    ]
    keys = [pb.Key(name="PRIMARY", column_names=["id"])]
    table = pb.Table(
        schema_name="shop", table_name="item", column_info=columns, mutations=mutations, unique_keys=keys
    )  # fmt: skip
    binlog = pb.Binlog(type=pb.DML, commit_ts=COMMIT_TS, dml_data=pb.DMLData(tables=[table]))
    decode = build_decoder("slave-binlog")
    events = list(decode(FeedRecord("t[0]@1", None, binlog.SerializeToString())))
    plain, null = {"id": 7, "name": "before"}, {"id": 7, "name": None}
    assert [(e.op, e.key, e.value, e.before) for e in events] == [
        ("c", {"id": 7}, plain, None), ("u", {"id": 7}, null, plain), ("d", {"id": 7}, None, None),
    ]  # fmt: skip
    data = pb.DDLData(schema_name="shop", table_name="item", ddl_query=b"DROP TABLE item")
    ddl = pb.Binlog(type=pb.DDL, commit_ts=COMMIT_TS, ddl_data=data)
    assert list(decode(FeedRecord("t[0]@2", None, ddl.SerializeToString()))) == [
        MessageEvent("t[0]@2", COMMIT_TS, "shop", "item", "ddl", message={"sql": "DROP TABLE item"})
    ]


def test_open_protocol_message_may_have_several_events() -> None:
    parts = [write_record("open-protocol", INSERT, [], [one]) for one in (OLD, NEW)]
    key = (parts[0].key or b"") + (parts[1].key or b"")[8:]
    value = b"".join(part.value or b"" for part in parts)
    events = list(build_decoder("open-protocol")(FeedRecord("t[0]@1", key, value)))
    assert [to_texts(event.value) for event in events] == [OLD, NEW]


VERSION = (1).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("protocol", "key", "value", "error"),
    [
        ("open-protocol", b"", b"", "does not begin with version 1"),
        ("open-protocol", VERSION + (9).to_bytes(8, "big"), b"", "longer than the message"),
        ("open-protocol", VERSION + (2).to_bytes(8, "big") + b"{}", b"", "1 keys and 0 values"),
        ("debezium", None, b"{}", "no payload with a source"),
        ("debezium", None, b'{"payload":{"source":{},"op":"x"}}', "its op is 'x'"),
        ("slave-binlog", None, b"\xff\xff", "not a slave.binlog"),
    ],
)
def test_invalid_message_is_refused(protocol: str, key: bytes | None, value: bytes, error: str) -> None:
    with pytest.raises(WireError, match=rf"{error}.*at=t\[2\]@5"):
        list(build_decoder(protocol)(FeedRecord("t[2]@5", key, value)))


def test_every_protocol_of_a_topic_has_a_decoder() -> None:
    assert {"avro", *PLAIN} == set(PROTOCOLS) - {"csv", "pb"}
