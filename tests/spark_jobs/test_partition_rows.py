"""`source.partition-rows = "removed"` through merge's decoder: the rows, and one alert per window and table."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from support.tidb_json import INT_PK, column, db_info, job, name, table_info

from binlake.common.lakecolumns import Binlog, Mutation
from binlake.config.model import Replication
from binlake.errors import SchemaError
from binlake.rows.codec import MutationBuilder, encode_prewrite_value
from binlake.rows.schema import Action, SchemaState, WindowDdl, WindowSchemas
from binlake.rows.schema.forms import Json
from binlake.rules import Rules
from binlake.spark_jobs.job.decoding import BY_TABLE, Decoder
from binlake.spark_jobs.stages.merge import Bounds, _build_table_alerts
from binlake.wire import build

GOES, STAYS = 101, 102


def build_info(*ids: int) -> Json:
    bounds = {GOES: "100", STAYS: "MAXVALUE"}
    parts = [{"id": one, "name": name(f"p{one}"), "less_than": [bounds[one]], "in_values": None} for one in ids]
    partition = {"type": 1, "expr": "`id`", "columns": None, "definitions": parts}
    return table_info(10, "t", [column(1, "id", flag=INT_PK)], pk_is_handle=True, partition=partition)


def build_schemas() -> WindowSchemas:
    """A DROP PARTITION at 100 that began at 60, of version 8."""
    made = [
        job(Action.CREATE_SCHEMA, 2, db=db_info(2, "test")),
        job(Action.CREATE_TABLE, 4, info=build_info(GOES, STAYS)),
    ]
    dropped = job(Action.DROP_PARTITION, 8, info=build_info(STAYS), real_start_ts=60)
    return WindowSchemas(
        SchemaState().fold((0, one) for one in made), [WindowDdl(100, 90, 1008, 5, "ALTER TABLE t", dropped)]
    )


def build_replication(**source: str) -> Replication:
    at = {"pd-urls": ["http://127.0.0.1:2379"], "status-url": "http://127.0.0.1:10080"}
    return Replication.model_validate({"name": "r", "source": {**at, **source}, "lake": {"path": "/nowhere"}})


def test_rows_in_doubt_are_taken_away_and_reported_by_table() -> None:
    # S0-60
    schemas, left_out = build_schemas(), Counter[str]()
    table = schemas.find_schema_of_segment(0).find_table(10)
    assert table is not None
    builder = MutationBuilder(table)
    for number in ("50", "150"):
        builder.insert({"id": number})
    key = b"t" + (STAYS + (1 << 63)).to_bytes(8, "big") + b"_r" + bytes(8)
    payload = build.build_prewrite(89, key, encode_prewrite_value(5, [builder.message])).SerializeToString()
    logged = pa.RecordBatch.from_pydict({Binlog.PAYLOAD: [payload], Binlog.COMMIT_TS: [90], Binlog.START_TS: [89]})
    with pytest.raises(SchemaError, match=r"source\.partition-rows = removed"):
        list(Decoder(schemas, Rules.of(build_replication())).decode_rows([logged], left_out))
    rules = Rules.of(build_replication(**{"partition-rows": "removed"}))
    [rows] = Decoder(schemas, rules).decode_rows([logged], left_out)
    assert [dict(after)["id"] for after in rows.column(Mutation.AFTER).to_pylist()] == ["150"]
    counted = {name: count for name, count in left_out.items() if name.startswith(BY_TABLE)}
    [alert] = _build_table_alerts(counted, Bounds(0, 100))
    assert (alert["table"], alert["reason"]) == ("test.t", "partition-rows")
    assert alert["alert"].startswith("1 transactions of test.t were committed while a partition was dropped")
