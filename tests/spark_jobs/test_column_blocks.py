"""Blocks of columns among ordinary transactions: merge's decoder gives the rows of both, in commit order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from support.tidb_json import INT_PK, column, db_info, job, table_info

from binlake.common.lakecolumns import Binlog, Mutation
from binlake.config.model import Replication
from binlake.rows.codec import MutationBuilder, encode_commit_binlog, encode_prewrite_value
from binlake.rows.codec.columnblocks import encode_column_block
from binlake.rows.schema import Action, SchemaState, WindowSchemas
from binlake.rules import Rules
from binlake.spark_jobs.job.decoding import Decoder
from binlake.wire import binlog_pb2 as pb

MARKS = {"loopback-control": True, "channel-id": 7, "sync-ddl": True, "mark-schema": "test"}


def build_schemas() -> WindowSchemas:
    marks = [column(1, "id", flag=INT_PK), column(2, "channel_id")]
    made = [
        job(Action.CREATE_SCHEMA, 2, db=db_info(2, "test")),
        job(Action.CREATE_TABLE, 4, info=table_info(10, "t", [column(1, "id", flag=INT_PK)], pk_is_handle=True)),
        job(Action.CREATE_TABLE, 6, info=table_info(11, "_drainer_repl_mark", marks, pk_is_handle=True)),
    ]
    return WindowSchemas(SchemaState().fold((0, one) for one in made), [])


def build_replication(**sections: Any) -> Replication:
    at = {"pd-urls": ["http://127.0.0.1:2379"], "status-url": "http://127.0.0.1:10080"}
    return Replication.model_validate({"name": "r", "source": at, "lake": {"path": "/nowhere"}, **sections})


def as_rows(ids: range) -> bytes:
    table = build_schemas().find_schema_of_segment(0).find_table(10)
    assert table is not None
    builder = MutationBuilder(table)
    for number in ids:
        builder.insert({"id": str(number)})
    return encode_prewrite_value(6, [builder.message])


def as_block(ids: range, table_id: int = 10, **columns: list[str]) -> bytes:
    texts = {1: [str(number) for number in ids], **{int(name[1:]): values for name, values in columns.items()}}
    block = encode_column_block({one: pa.array(values, pa.string()) for one, values in texts.items()})
    mutation = pb.TableMutation(table_id=table_id, inserted_rows=[block], sequence=[pb.Insert])
    return encode_prewrite_value(6, [mutation])


def decode(values: list[bytes], **sections: Any) -> tuple[list[tuple[int, int, str]], Counter[str]]:
    commits = [100 + 10 * n for n in range(len(values))]
    payloads = [encode_commit_binlog(ts - 1, ts, b"k", value) for ts, value in zip(commits, values, strict=True)]
    landed = pa.RecordBatch.from_pydict(
        {Binlog.PAYLOAD: payloads, Binlog.COMMIT_TS: commits, Binlog.START_TS: [ts - 1 for ts in commits]}
    )
    left_out = Counter[str]()
    rules = Rules.of(build_replication(**sections))
    batches = Decoder(build_schemas(), rules).decode_rows([landed.slice(0, 2), landed.slice(2)], left_out)
    names = (Mutation.COMMIT_TS, Mutation.SEQ, Mutation.KEY)
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()], left_out


@pytest.mark.parametrize("blocks", range(1, 16))
@pytest.mark.parametrize("sections", [{}, {"loopback": MARKS}], ids=["plain", "loopback"])
def test_rows_stay_in_commit_order(blocks: int, sections: dict[str, Any]) -> None:
    """`blocks`: which of four transactions are blocks, as bits."""
    parts = [range(3), range(10, 200), range(200, 201), range(300, 305)]
    values = [(as_block if blocks >> n & 1 else as_rows)(ids) for n, ids in enumerate(parts)]
    found, _ = decode(values, **sections)
    assert found == decode([as_rows(ids) for ids in parts], **sections)[0]
    assert found == [(100 + 10 * n, at, f'["{i}"]') for n, ids in enumerate(parts) for at, i in enumerate(ids)]


def test_a_block_of_marks_of_our_side_is_left_out() -> None:
    ours, others = as_block(range(2), 11, c2=["3", "7"]), as_block(range(2), 11, c2=["3", "4"])
    found, left_out = decode([ours, as_rows(range(1))], loopback=MARKS)
    assert (len(found), left_out["loopback"]) == (1, 1)
    found, left_out = decode([others, as_rows(range(1))], loopback=MARKS)
    assert (len(found), left_out["loopback"]) == (1, 0)


def test_rows_that_filters_leave_out_are_counted() -> None:
    filters = {"filter": {"replicate-do-db": ["other"]}}
    found, left_out = decode([as_block(range(5)), as_rows(range(2))], **filters)
    assert (found, left_out["table_filter"]) == ([], 7)
