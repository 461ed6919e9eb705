"""A transaction in chunks is decoded from a few of them at a time: the rows and counts of one that is held whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.examples import seeds
from support.tidb_json import INT_PK, Tables, column, table_def, table_info

from binlake.config import Replication
from binlake.errors import WireError
from binlake.rows.codec import MutationBuilder, encode_commit_binlog, encode_prewrite_value, largerows
from binlake.rows.codec.assemble import MUTATION_SCHEMA
from binlake.rows.codec.largerows import list_mutations
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rules import Rules
from binlake.spark_jobs.engine.rows import FileRows, MemoryRows, Rows
from binlake.spark_jobs.job import decoding
from binlake.spark_jobs.job.decoding import ChunkedPayload, Decoder
from binlake.wire import binlog_pb2 as pb

SCHEMA = pa.schema(
    [("commit_ts", pa.int64()), ("start_ts", pa.int64()), ("chunk", pa.int32()), ("kind", pa.string()),
     ("payload", pa.binary())]
)  # fmt: skip
TS = 1000


def cut(payload: bytes, size: int, commit_ts: int = TS) -> list[dict[str, Any]]:
    """Rows of `binlog`."""
    same = {"commit_ts": commit_ts, "start_ts": commit_ts - 1, "kind": "dml"}
    chunks = [payload[at : at + size] for at in range(0, len(payload), size)]
    return [same | {"chunk": number, "payload": chunk} for number, chunk in enumerate(chunks)]


def store(rows: list[dict[str, Any]], folder: Path, draw: Random) -> list[Rows]:
    """`rows` in any order, in memory and in row groups of files."""
    draw.shuffle(rows)
    stored: list[Rows] = []
    while rows:
        count = draw.randint(1, 5)
        table, rows = pa.Table.from_pylist(rows[:count], SCHEMA), rows[count:]
        if draw.random() < 0.3:
            stored.append(MemoryRows(table))
            continue
        path = folder / f"{len(stored)}.parquet"
        pq.write_table(table, path, row_group_size=draw.randint(1, 3))
        stored.append(FileRows(((str(path), ()),), table.nbytes, (0, 5000)))
    return stored


@pytest.mark.parametrize("seed", seeds(12))
def test_the_bytes_from_any_place_on(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PIECE_BYTES", 60)
    draw = Random(seed)
    payload = draw.randbytes(draw.randint(1, 900))
    rows = store([*cut(payload, 97), *cut(b"other", 2, TS + 1), *cut(b"one", 9, TS - 1)], tmp_path, draw)
    chunked = ChunkedPayload(rows, TS)
    for _ in range(8):
        begin = draw.randint(0, len(payload))
        pieces = list(chunked.open_pieces(begin))
        assert b"".join(pieces) == payload[begin:]
        assert all(0 < len(piece) <= 60 for piece in pieces)
    assert chunked.join().to_pylist() == [{"commit_ts": TS, "start_ts": TS - 1, "payload": payload}]
    assert chunked.start_ts == TS - 1


def test_missing_chunks_are_named(tmp_path: Path) -> None:
    rows = cut(b"x" * 100, 10)
    for left in (rows[1:], rows[:4] + rows[5:], []):
        with pytest.raises(WireError, match="chunks of a transaction are missing") as caught:
            ChunkedPayload(store([*left, *cut(b"y", 1, TS + 1)], tmp_path, Random(1)), TS)
        assert caught.value.where["commit_ts"] == str(TS)


class Schemas:
    """Stands for WindowSchemas."""

    def __init__(self, *tables: TableDef) -> None:
        self._tables = Tables(*tables)

    def find_schema_at(self, commit_ts: int) -> Tables:
        assert commit_ts == TS
        return self._tables

    def find_schemas_at(self, commit_ts: Any) -> tuple[list[Tables], Any]:
        return [self._tables], np.zeros(len(commit_ts), np.int64)


def table(name: str, table_id: int, *, second: str = "v") -> TableDef:
    columns = [column(1, "id", flag=INT_PK), column(2, second, tp=t.VARCHAR, flen=900, charset="utf8mb4")]
    return table_def(table_info(table_id, name, columns, pk_is_handle=True))


def transaction(*tables: TableDef, channel: str = "7") -> bytes:
    messages = []
    for one in tables:
        build, name = MutationBuilder(one), one.row_columns[1].name
        for number in range(1 if name == "channel_id" else 90):
            row = {"id": str(number), name: channel if name == "channel_id" else "x" * (number % 23)}
            build.insert(row)
            if number % 3 == 0 and name != "channel_id":
                build.update(row, {**row, name: "new"})
            if number % 5 == 0 and name != "channel_id":
                build.delete({**row, name: "new" if number % 3 == 0 else row[name]})
        messages.append(build.message)
    return encode_commit_binlog(TS - 1, TS, b"key", encode_prewrite_value(7, messages))


def decode(payload: bytes, tables: list[TableDef], tmp_path: Path, **config: Any) -> tuple[list[Any], Counter[str]]:
    """The rows and counts of the chunks of `payload`, which must be those of the whole one."""
    decoder = Decoder(cast("Any", Schemas(*tables)), rules(**config))
    whole, counted = Counter[str](), Counter[str]()
    batch = pa.table({"commit_ts": [TS], "start_ts": [TS - 1], "payload": [payload]}).to_batches()[0]
    expected = list(decoder.decode_rows([batch], whole))
    chunked = ChunkedPayload(store(cut(payload, 333), tmp_path, Random(3)), TS)
    found = list(decoder.decode_chunks(chunked, counted))
    rows = pa.Table.from_batches(found, MUTATION_SCHEMA).to_pylist()
    assert rows == pa.Table.from_batches(expected, MUTATION_SCHEMA).to_pylist()
    assert counted == whole
    return rows, counted


def rules(**config: Any) -> Rules:
    return Rules.of(Replication.model_validate({"name": "r", "lake": {"path": "/nowhere"}, **config}))


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largerows, "MOST_ROWS", 10)
    monkeypatch.setattr(decoding, "PIECE_BYTES", 200)


def test_rows_and_counts_are_those_of_the_whole_transaction(tmp_path: Path) -> None:  # S0-07
    tables = [table("t", 45), table("u", 46)]
    payload = transaction(*tables)
    assert len(decode(payload, tables, tmp_path)[0]) == 2 * (90 + 30 + 18)
    events = [{"schema-pattern": "*", "events": ["delete"], "action": "Ignore"}]
    ignored = {"ignore-table": [{"db-name": "test", "tbl-name": "u"}]}
    rows, counts = decode(payload, tables, tmp_path, filters=events, filter=ignored)
    assert (len(rows), counts["event_filter"], counts["table_filter"]) == (120, 18, 138)


def test_our_own_transactions_are_left_out_and_only_they(tmp_path: Path) -> None:
    tables = [table("t", 45), table("_drainer_repl_mark", 46, second="channel_id")]
    loopback = {"loopback-control": True, "channel-id": 7, "mark-schema": "test", "sync-ddl": True}
    rows, counts = decode(transaction(*tables), tables, tmp_path, loopback=loopback)
    assert (rows, counts) == ([], {"loopback": 1})
    rows, counts = decode(transaction(*tables, channel="8"), tables, tmp_path, loopback=loopback)
    assert len(rows) == 138
    assert "loopback" not in counts


def test_unusual_transactions_are_read_whole(tmp_path: Path) -> None:
    tables = [table("t", 45)]
    binlog = pb.Binlog.FromString(transaction(*tables))
    binlog.ddl_query = b"x"
    payload = binlog.SerializeToString()
    assert list_mutations(lambda begin: iter([payload[begin:]])) is None
    assert len(decode(payload, tables, tmp_path)[0]) == 138
