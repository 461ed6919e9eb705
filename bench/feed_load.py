"""Rows of `mutation` for the feed benchmark: the tables of bench_decode.py, in single-row transactions."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from decode_load import SHAPES, OneTable, build_table, build_transactions

from binlake.config.protocols import AvroOptions, Options
from binlake.ddl.definitions import Segments, WindowDefinitions
from binlake.feed.messages import MessageEncoder
from binlake.feed.protocols import format_of
from binlake.rows.codec import MutationBatch
from binlake.rows.schema import TableDef
from binlake.rules.topics import Dispatcher, Topics

ROWS = {"narrow": 200_000, "wide": 40_000, "text-heavy": 60_000}
BATCH = 20_000
AVRO = AvroOptions(extension=True)


@dataclass(frozen=True)
class FeedRows:
    """`batches` of row changes of `table`, in the form that encode reads."""

    name: str
    table: TableDef
    batches: list[pa.RecordBatch]

    @property
    def count(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def build_encoder(self, topic: str = "{schema}.{table}", options: Options = AVRO) -> MessageEncoder:
        """Return a new encoder, as a new window has."""
        definitions = WindowDefinitions(_One(self.table), ())
        topics = Topics([Dispatcher(("*.*",), topic)])
        return MessageEncoder(definitions, Segments(0, 1 << 62, ()), topics, format_of(options))


@dataclass(frozen=True)
class _One:
    table: TableDef

    def find(self, db: str, table: str) -> TableDef | None:
        """Return the table if its name matches."""
        return self.table if (db, table) == (self.table.db, self.table.name) else None


def build_loads() -> list[FeedRows]:
    """Return single-row transactions for each table shape."""
    loads = []
    for name, columns in SHAPES.items():
        word = name.split()[0]
        table = build_table(columns)
        load = build_transactions(table, columns, ROWS[word], 1)
        batch = MutationBatch()
        for commit_ts, start_ts, payload in load:
            batch.add(payload, commit_ts, start_ts, OneTable(table))
        rows = pa.Table.from_batches(list(batch.take_batches())).combine_chunks()
        loads.append(FeedRows(name, table, rows.to_batches(max_chunksize=BATCH)))
    return loads
