"""The examples of docs/reference/feed-protocols.md equal the output of the formats."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import text_format
from support.feedrows import COMMIT_TS, encoded
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.config.protocols import CanalJsonOptions, DebeziumOptions, OpenProtocolOptions, Options, SlaveBinlogOptions
from binlake.feed.formats import UPDATE
from binlake.feed.messages import MESSAGE_SCHEMA
from binlake.feed.protocols import format_of
from binlake.rows.schema import mysqltypes as t
from binlake.wire import slave_binlog_pb2 as pb

PAGE = (Path(__file__).parents[2] / "docs/reference/feed-protocols.md").read_text()
COLUMNS = [column(1, "id", t.LONG, flag=INT_PK), column(2, "val", t.VARCHAR, flen=16)]
TABLE = table_def(table_info(1, "t1", COLUMNS, pk_is_handle=True))


@pytest.mark.parametrize(
    ("options", "before_key", "before_value"),
    [
        (CanalJsonOptions(extension=True), 0, 0),
        (OpenProtocolOptions(), 16, 8),
        (DebeziumOptions(schemas=False), 0, 0),
    ],
    ids=["canal-json", "open-protocol", "debezium"],
)
def test_json_on_the_page_equals_the_message(options: Options, before_key: int, before_value: int) -> None:
    [(key, value)] = encoded(format_of(options), UPDATE, [{"id": "2", "val": "aa"}], [{"id": "2", "val": "bb"}], TABLE)
    lines = [] if key is None else [key[before_key:].decode()]
    assert "\n".join(["```json", *lines, value[before_value:].decode(), "```"]) in PAGE


def test_binlog_on_the_page_equals_the_message() -> None:
    own = format_of(SlaveBinlogOptions())
    [(key, value)] = encoded(own, UPDATE, [{"id": "2", "val": "aa"}], [{"id": "2", "val": "bb"}], TABLE)
    row = {"commit_ts": COMMIT_TS, "start_ts": 1, "seq": 0, "part": 1, "key": key, "value": value}
    [message] = own.assemble(pa.Table.from_pylist([row], MESSAGE_SCHEMA))["value"].to_pylist()
    shown = text_format.Parse(PAGE.split("```text\n")[1].split("```")[0], pb.Binlog())
    sent = pb.Binlog.FromString(message)
    for info in sent.dml_data.tables[0].column_info:
        if not info.is_primary_key:
            info.ClearField("is_primary_key")
    assert shown == sent
