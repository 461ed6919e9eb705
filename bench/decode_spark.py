"""The decoding benchmark through Spark: payloads into the Delta table `mutation`, compared with rows of bare bytes."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from decode_load import SHAPES, OneTable, Transactions, make_table, make_transactions
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from binlake.config import Replication
from binlake.lake.paths import LakePaths
from binlake.lake.payloads import PayloadRange
from binlake.lake.tables import BINLOG, MUTATION
from binlake.rows.codec.lanes import Ints
from binlake.rows.codec.transaction import DecodeStats, read_mutations, split
from binlake.rules import Rules
from binlake.tso import to_datetime
from spark_jobs.job.context import StageContext
from spark_jobs.job.lake import ensure_tables, overwrite
from spark_jobs.engine.session import start_classic_session
from spark_jobs.merge.decode import Decoder
from spark_jobs.merge.direct import split_into_shares, write_rows

ROWS = {"narrow": 400_000, "wide": 40_000, "text-heavy": 60_000}
FILES = 4
_TICK = os.sysconf("SC_CLK_TCK")
_NOTE = {"run": "bench"}
_BARE = "commit_ts bigint, seq int, body binary"


@dataclass
class OneSchema:
    """One schema for every commit_ts."""

    schema: OneTable

    def find_schema_at(self, _commit_ts: int) -> OneTable:
        """Return the schema at a commit_ts."""
        return self.schema

    def find_schemas_at(self, commit_ts: Ints) -> tuple[list[OneTable], Ints]:
        """Return the schema for many commit_ts."""
        return self.schema.find_schemas_at(commit_ts)


def measure_through_spark() -> None:
    """Print rows/s and rows per CPU second written to `mutation`, for each table shape and transaction size.

    For comparison it also measures the same rows through the JVM, and their bare bytes.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in Path(__file__).resolve().parents[:2])
    spark = start_classic_session("bench-decode", "local[2]", {"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory(prefix="binlake-bench-") as folder:
        # The first case only warms up the JVM.
        for n, (word, in_each) in enumerate((("narrow", 1000), *((word, each) for word in ROWS for each in (1000, 1)))):
            name = next(name for name in SHAPES if name.startswith(word))
            _measure(spark, f"{folder}/{n}", name, in_each, ROWS[word])
    spark.stop()


def _measure(spark: SparkSession, folder: str, name: str, in_each: int, rows: int) -> None:
    columns = SHAPES[name]
    schema = OneTable(make_table(columns))
    load = make_transactions(schema.definition, columns, rows, in_each)
    lakes = {way: _make_context(spark, folder, way) for way in ("spark", "direct")}
    source = _write(f"{folder}/in", load)
    for ctx in lakes.values():
        ensure_tables(ctx.paths)
        overwrite(spark.read.parquet(source), ctx.paths, BINLOG, "commit_ts > 0", _NOTE)
    decoder = Decoder(OneSchema(schema), Rules())  # type: ignore[arg-type]
    bare = _time(lambda: _write_bare(spark.read.parquet(source), schema, f"{folder}/bare"))
    payloads = PayloadRange(0, load[-1][0])
    full = _time(lambda: _write_through_jvm(lakes["spark"], payloads, decoder))
    direct = _time(lambda: write_rows(lakes["direct"], payloads, decoder, _NOTE, here=False))
    sizes = [_measure_size(lakes[way].paths) / rows for way in ("spark", "direct")]
    print(
        f"spark {name:<20} {in_each:>4} rows/txn  into mutation {rows / direct[0]:>9,.0f} rows/s, "
        f"{rows / direct[1]:>9,.0f} a core, {sizes[1]:>4.0f} B/row"
        f"  through the JVM {rows / full[1]:>9,.0f} a core, {sizes[0]:>4.0f} B/row ({full[1] / direct[1]:.1f} x)"
        f"  bare bytes {rows / bare[1]:>9,.0f} a core ({bare[1] / direct[1]:.1f} x)",
        flush=True,
    )


def _write(folder: str, load: Transactions) -> str:
    """Write the load as rows of `binlog` into FILES files."""
    Path(folder).mkdir(parents=True)
    share = -(-len(load) // FILES)
    for n in range(0, len(load), share):
        commit, start, payload = zip(*load[n : n + share], strict=True)
        values = {"commit_ts": commit, "start_ts": start, "payload": payload, "kind": ["dml"] * len(commit)}
        values |= {"commit_date": [to_datetime(ts).date() for ts in commit], "chunk": [0] * len(commit)}
        columns = [values.get(field.name, [None] * len(commit)) for field in BINLOG.build_arrow_schema()]
        rows = pa.Table.from_arrays(list(map(pa.array, columns)), names=BINLOG.list_column_names())
        pq.write_table(rows.cast(BINLOG.build_arrow_schema()), f"{folder}/{n}.parquet")
    return folder


def _make_context(spark: SparkSession, folder: str, way: str) -> StageContext:
    replication = Replication.model_validate({"name": way, "lake": {"path": folder}})
    return StageContext(replication, "bench", lambda: spark)


def _write_through_jvm(ctx: StageContext, payloads: PayloadRange, decoder: Decoder) -> None:
    """The alternative: the workers return the rows to Spark, and Spark writes them."""
    shares = split_into_shares(ctx.paths, payloads, decoder)
    count = len(shares.shares)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return shares.decode_rows((number for batch in batches for number in batch.column(0).to_pylist()), Counter())

    rows = ctx.spark.range(0, count, 1, count).mapInArrow(decode, MUTATION.build_spark_schema())
    overwrite(rows, ctx.paths, MUTATION, "commit_ts > 0", _NOTE)


def _measure_size(paths: LakePaths) -> int:
    return sum(
        pa.table(DeltaTable(paths.locate_table(MUTATION.name)).get_add_actions()).column("size_bytes").to_pylist()
    )


def _write_bare(frame: DataFrame, schema: OneTable, path: str) -> None:
    def cut_payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            commits: list[int] = []
            bodies: list[bytes] = []
            numbers: list[int] = []
            for commit_ts, payload in zip(
                *(batch.column(n).to_pylist() for n in ("commit_ts", "payload")), strict=True
            ):
                value = split(payload, commit_ts, 0)
                for seq, _, _, rows in read_mutations(value, commit_ts, schema, DecodeStats()):
                    bodies += rows.inserts + rows.updates + rows.deletes
                    commits += [commit_ts] * len(rows.kinds)
                    numbers += range(seq, seq + len(rows.kinds))
            columns = [pa.array(commits, pa.int64()), pa.array(numbers, pa.int32()), pa.array(bodies, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["commit_ts", "seq", "body"])

    frame.mapInArrow(cut_payloads, _BARE).write.format("delta").save(path)


def _time(work: object) -> tuple[float, float]:
    """Run `work`; return (wall-clock seconds, CPU seconds of this process and all its descendants)."""
    began, cpu = time.perf_counter(), _measure_cpu()
    work()  # type: ignore[operator]
    return time.perf_counter() - began, _measure_cpu() - cpu


def _measure_cpu() -> float:
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    return sum(count for pid, count in ticks.items() if _is_below(pid, parents)) / _TICK


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    measure_through_spark()
