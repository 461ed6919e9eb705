"""Debezium's JSON as TiCDC's page shows it; a decoder that uses the schema alone reads every row back."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.debezium import decode_debezium
from support.examples import examples
from support.feedrows import COMMIT_TS, EVERY, ROWS, Row, encoded, every_kind
from support.tidb_json import INT_PK, Json, column, table_def, table_info

from binlake.config.protocols import DebeziumOptions
from binlake.extras.protocols.debezium import DebeziumFormat
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.rows.codec.temporal import parse_duration
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

OWN = DebeziumFormat(DebeziumOptions(cluster="test_cluster"))
TABLE = table_def(table_info(1, "table1", [column(1, "tiny", t.TINY, flag=INT_PK)], pk_is_handle=True))
PHYSICAL = COMMIT_TS >> 18
PAYLOAD: Json = {
    "source": {
        "version": "2.4.0.Final", "connector": "TiCDC", "name": "test_cluster", "ts_ms": PHYSICAL, "snapshot": "false",
        "db": "test", "table": "table1", "server_id": 0, "gtid": None, "file": "", "pos": 0, "row": 0, "thread": 0,
        "query": None, "commit_ts": COMMIT_TS, "cluster_id": "test_cluster",
    },
    "ts_ms": PHYSICAL,
    "transaction": None,
}  # fmt: skip
TINY: Json = {"type": "int16", "optional": False, "field": "tiny"}


@pytest.mark.parametrize(
    ("op", "old", "new", "before", "after"),
    [
        (INSERT, [], [{"tiny": "1"}], None, {"tiny": 1}),
        (UPDATE, [{"tiny": "2"}], [{"tiny": "1"}], {"tiny": 2}, {"tiny": 1}),
        (DELETE, [{"tiny": "2"}], [], {"tiny": 2}, None),
    ],
)
def test_messages_equal_the_pages_examples(
    op: str, old: list[Row], new: list[Row], before: Json | None, after: Json | None
) -> None:
    [(key, value)] = encoded(OWN, op, old, new, TABLE)
    assert json.loads(key) == {
        "payload": after or before,
        "schema": {"type": "struct", "name": "test_cluster.test.table1.Key", "optional": False, "fields": [TINY]},
    }
    message = json.loads(value)
    assert message["payload"] == PAYLOAD | {"op": op, "before": before, "after": after}
    schema = message["schema"]
    assert {name: schema[name] for name in ("type", "optional", "name", "version")} == {
        "type": "struct", "optional": False, "name": "test_cluster.test.table1.Envelope", "version": 1,
    }  # fmt: skip
    image = {"type": "struct", "optional": True, "name": "test_cluster.test.table1.Value", "fields": [TINY]}
    assert schema["fields"][:2] == [image | {"field": "before"}, image | {"field": "after"}]
    assert [field["field"] for field in schema["fields"][2:]] == ["source", "op", "ts_ms", "transaction"]
    source = [field["field"] for field in schema["fields"][2]["fields"]]
    assert [name for name in source if name != "sequence"] == list(PAYLOAD["source"])[:14]


def test_options_control_schemas_old_values_and_tidb_types() -> None:
    row: Row = {"tiny": "1"}
    short = DebeziumFormat(DebeziumOptions(schemas=False, old_values=False))
    [(key, value)] = encoded(short, UPDATE, [row], [row], TABLE)
    assert json.loads(key) == {"payload": {"tiny": 1}}
    assert "schema" not in json.loads(value)
    assert "before" not in json.loads(value)["payload"]
    long = DebeziumFormat(DebeziumOptions(extension=True))
    [(_, value)] = encoded(long, INSERT, [], [row], TABLE)
    before, after = json.loads(value)["schema"]["fields"][:2]
    assert (before["fields"], after["fields"]) == ([TINY], [TINY | {"tidb_type": "INT"}])


def test_table_without_a_key_has_empty_keys() -> None:
    table = table_def(table_info(1, "t", [column(1, "c", t.LONG)]))
    [(key, _)] = encoded(OWN, INSERT, [], [{"c": "1"}], table)
    assert decode_debezium(key)[1] == {}


def expected_value(column: ColumnInfo, text: str | None) -> Any:
    """Debezium's value of a canonical text, computed in another way than by the encoder."""
    if text is None:
        return None
    match column.tp:
        case t.LONGLONG:
            return int(np.array(int(text) % (1 << 64), np.uint64).astype(np.int64))
        case t.FLOAT | t.DOUBLE | t.NEWDECIMAL:
            return float(text)
        case t.BIT:
            return int(text, 16)
        case t.DATE:
            return _parsed(column, lambda: date.fromisoformat(text), date(1970, 1, 1))
        case t.DATETIME:
            return _parsed(column, lambda: datetime.fromisoformat(text), datetime(1970, 1, 1))
        case t.TIMESTAMP:
            return "1970-01-01T00:00:00Z" if text.startswith("0000") else text.replace(" ", "T") + "Z"
        case t.DURATION:
            return timedelta(microseconds=parse_duration(text) // 1000)
        case _ if column.is_binary:
            return base64.b64encode(bytes.fromhex(text)).decode()
        case _:
            return int(text) if column.tp in t.INTEGERS or column.tp == t.YEAR else text


def _parsed(column: ColumnInfo, parse: Any, zero: Any) -> Any:
    try:
        return parse()
    except ValueError:
        return zero if column.not_null else None


@settings(max_examples=examples(60), deadline=None)
@given(ROWS)
def test_every_row_is_decoded_unchanged(rows: list[Row]) -> None:
    for op, old, new in every_kind(rows):
        for number, (key, value) in enumerate(encoded(OWN, op, old, new)):
            payload = decode_debezium(value)[1]
            for side, sides in (("before", old), ("after", new)):
                wanted = (
                    {c.name: expected_value(c, sides[number][c.name]) for c in EVERY.row_columns} if sides else None
                )
                assert payload[side] == wanted
            assert decode_debezium(key)[1] == {"id": int((new or old)[number]["id"] or 0)}


@pytest.mark.parametrize(
    ("kind", "text", "name", "number"),
    [
        (column(1, "c", t.DATETIME, decimal=3), "1970-01-01 00:00:01.500", "Timestamp", 1500),
        (column(1, "c", t.DATETIME, decimal=4), "1970-01-01 00:00:01.5000", "MicroTimestamp", 1_500_000),
        (column(1, "c", t.DATETIME, flag=t.FLAG_NOT_NULL), "0000-00-00 00:00:00", "Timestamp", 0),
        (column(1, "c", t.DATE, flag=t.FLAG_NOT_NULL), "2024-00-01", "Date", 0),
        (column(1, "c", t.DATE), "2024-00-01", "Date", None),
    ],
)
def test_temporal_values_are_encoded_by_their_precision(kind: Json, text: str, name: str, number: int | None) -> None:
    [(_, value)] = encoded(OWN, INSERT, [], [{"c": text}], table_def(table_info(1, "t", [kind])))
    message = json.loads(value)
    assert message["payload"]["after"] == {"c": number}
    [field] = message["schema"]["fields"][1]["fields"]
    assert field["name"] == f"io.debezium.time.{name}"


def test_watermark_needs_the_extension() -> None:
    assert OWN.encode_watermark(COMMIT_TS) is None
    event = DebeziumFormat(DebeziumOptions(extension=True)).encode_watermark(COMMIT_TS)
    assert event is not None
    assert event.everywhere
    schema, payload = decode_debezium(event.key or b"")
    assert (schema["name"], payload) == ("default.watermark.Key", {})
    schema, payload = decode_debezium(event.value or b"")
    assert (schema["name"], payload["op"]) == ("default.watermark.Envelope", "m")
    assert json.loads(event.value or b"")["payload"]["source"]["commit_ts"] == COMMIT_TS
