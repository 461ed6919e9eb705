"""CPU of each step of a window on 20,000 fixed row changes, in this process: `make bench-steps`, `make bench-record`.

The test in tests/bench compares the ratio of a step's CPU time to that of a loop that never changes. Both are the best
of several repeats taken in turn, so the ratio depends little on the machine or on other load. cost_per_row.json holds
the recorded ratios; after making a step cheaper, record them again.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from binlake.ddl.definitions import SegmentTable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bulk_load import BulkLoad
from sysbench_rows import DB, LOADS, SysbenchLoad

from binlake.changes.net.columns import compute_net_changes
from binlake.common.rowhash import hash_rows
from binlake.config.protocols import AvroOptions
from binlake.ddl.definitions import Cell, Segments, WindowDefinitions
from binlake.feed.avro import AvroFormat
from binlake.feed.messages import MessageEncoder
from binlake.lake.parts import write_parts
from binlake.lake.tables import BINLOG, CHANGE, MUTATION, parse_schema
from binlake.mirror.rows import build_image_rows
from binlake.rows.schema import DdlJob, SchemaState, TableDef, WindowSchemas
from binlake.rules import Rules
from binlake.rules.topics import Dispatcher, Topics
from binlake.spark_jobs.job.decoding import Decoder
from binlake.spark_jobs.land.binlogfiles import measure_landed
from binlake.spark_jobs.shared.render import Renderer
from binlake.spark_jobs.shared.statements import build_statement_table
from binlake.statements import BatchLimits, TableStatements, build_images_from_maps
from binlake.testkit.workload.catalog import ID
from binlake.tso import to_datetime
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.pump_pb2 import WriteBinlogReq

RECORDED = Path(__file__).with_name("cost_per_row.json")
TRANSACTIONS, ROWS = 4_000, 20_000
REPEATS = 7
TOLERANCE = 1.5
_FIRST_TS = 470_000_000_000_000_000  # of 2026


@dataclass(frozen=True)
class BenchStep:
    """A processing step; `run` performs it for all `rows` rows."""

    name: str
    rows: int
    run: Callable[[], object]


class _RecordingWire:
    """Keeps the binlogs that would go to a pump."""

    def __init__(self) -> None:
        self.binlogs: list[Binlog] = []

    def send(self, *messages: np.ndarray) -> None:
        """Parse the messages and keep their binlogs."""
        for message in itertools.chain(*messages):
            self.binlogs.append(Binlog.FromString(WriteBinlogReq.FromString(message.tobytes()).payload))

    def wait(self) -> None:
        """Return at once: `send` has already kept them."""


class BenchClock:
    """Timestamps as a PD gives them."""

    def __init__(self) -> None:
        self._last = _FIRST_TS

    def fetch_ts(self, count: int = 1) -> int:
        """Return the last of `count` new timestamps."""
        self._last += count
        return self._last


def build_steps(folder: str) -> Iterator[BenchStep]:
    """Yield all steps in order, each with the output of earlier ones as input; files go to `folder`."""
    bulk, binlog, jobs = build_landed(LOADS["c"].with_scale(TRANSACTIONS / LOADS["c"].transactions))
    assert bulk.writer.load.transactions == TRANSACTIONS
    schema = SchemaState().fold((_FIRST_TS, job) for job in jobs)
    tables = [definition for job in jobs if (definition := schema.find_table(job.table_id)) is not None]
    yield BenchStep("land: count and digest", binlog.num_rows, lambda: measure_landed(binlog))
    decoder = Decoder(WindowSchemas(schema, []), Rules())
    batches = binlog.select(["payload", "commit_ts", "start_ts"]).to_batches()

    def decode() -> list[pa.RecordBatch]:
        return list(decoder.decode_rows(batches, Counter()))

    yield BenchStep("merge: decode", ROWS, decode)
    mutations = pa.Table.from_batches(decode())
    assert mutations.num_rows == ROWS
    yield BenchStep("merge: write", ROWS, lambda: write_parts(folder, MUTATION, mutations.to_batches()))
    yield BenchStep("digest of row changes", ROWS, lambda: hash_rows(mutations, MUTATION.list_column_names()))
    yield BenchStep("feed: encode", ROWS, lambda: _encode(schema, mutations.to_batches()))
    cells = [Cell(DB, table.name, 0, 0, 1 << 62, "primary", (ID,), (None,)) for table in tables]
    yield BenchStep("compact: net change", ROWS, lambda: compute_net_changes(mutations, cells, strict=frozenset(cells)))
    table = tables[0]
    own = mutations.filter(pc.and_(pc.equal(mutations["table"], table.name), pc.is_valid(mutations["after"])))
    images = own["after"].combine_chunks()
    names = [column.name for column in table.row_columns]
    yield BenchStep("convert: images", own.num_rows, lambda: build_images_from_maps(images, names))
    columns = build_images_from_maps(images, names)
    yield BenchStep(
        "convert: text", own.num_rows, lambda: list(TableStatements(table, 0, alike=True).render_writes(columns))
    )
    changes = compute_net_changes(mutations, cells)
    changes = changes.append_column("window", pa.repeat("0-1", changes.num_rows)).select(CHANGE.list_column_names())
    definitions = {SegmentTable(0, each.db, each.name): each for each in tables}
    yield BenchStep(
        "mirror: typed rows", own.num_rows, lambda: build_image_rows(table, images, own["commit_ts"].chunk(0))
    )
    yield BenchStep("convert: whole", changes.num_rows, lambda: _convert(changes, definitions))


def _encode(schema: SchemaState, batches: list[pa.RecordBatch]) -> None:
    """Encode the rows as Avro messages, as the encode stage does."""
    topics = Topics([Dispatcher(("*.*",), "{schema}_{table}")])
    definitions, segments = WindowDefinitions(schema, ()), Segments(0, 1 << 62, ())
    encoder = MessageEncoder(definitions, segments, topics, AvroFormat(AvroOptions(extension=True)))
    for batch in batches:
        encoder.encode(batch)


def _convert(changes: pa.Table, definitions: Mapping[SegmentTable, TableDef]) -> pa.Table:
    """Return rows of `statement`, as the convert stage makes them from the output of compact."""
    renderer = Renderer("0-1", definitions, "mariadb", BatchLimits(1000), plain=False)
    return pa.concat_tables(build_statement_table("0-1", batches) for batches in renderer(0, changes))


def build_landed(load: SysbenchLoad, *, whole: bool = False) -> tuple[BulkLoad, pa.Table, list[DdlJob]]:
    """Write `load`; return it, its transactions as rows of `binlog`, and its DDL jobs.

    `whole`: the rows of `binlog` include the transactions that inserted the initial rows.
    """
    wire = _RecordingWire()
    bulk = BulkLoad(load, BenchClock(), 1, [wire])
    bulk.create()
    wire.binlogs = []
    bulk.write(load.list_setup_roles(), load.rows)
    if not whole:
        wire.binlogs = []
    bulk.write(load.roles, load.transactions)
    prewrites = {binlog.start_ts: binlog for binlog in wire.binlogs if binlog.prewrite_value}
    rows = [_build_row(binlog, prewrites[binlog.start_ts]) for binlog in wire.binlogs if not binlog.prewrite_value]
    rows.sort(key=itemgetter("commit_ts"))
    jobs = [DdlJob.parse(json.dumps(job)) for job in bulk.history.list_finished_jobs(1 << 62)]
    return bulk, pa.Table.from_pylist(rows, parse_schema(BINLOG.build_spark_schema())), jobs


def _build_row(commit: Binlog, prewrite: Binlog) -> dict[str, Any]:
    commit.prewrite_value = prewrite.prewrite_value
    day = to_datetime(commit.commit_ts).date()
    return {"commit_ts": commit.commit_ts, "start_ts": commit.start_ts, "chunk": 0, "commit_date": day, "pump": "p",
            "kind": "dml", "schema_version": 5, "job_id": 0, "schema_state": 0,
            "payload": commit.SerializeToString()}  # fmt: skip


def calibrate() -> object:
    """The loop that never changes: Python objects, numpy numbers and bytes, about 40 ms.

    It uses nothing that special processor instructions speed up. numpy's default sort is ten times as fast with
    AVX-512, which made all steps look three times as expensive.
    """
    texts: dict[int, str] = {}
    for number in range(20_000):
        texts[number * 7919 % 65_537] = str(number)
    numbers = np.arange(1 << 17, dtype=np.uint64)
    for _ in range(4):
        numbers = np.sort((numbers * np.uint64(0x9E3779B97F4A7C15)) ^ (numbers >> np.uint64(29)), kind="stable")
    return len(b"".join(text.encode() for text in texts.values())), int(numbers[-1])


def measure_ratio(step: BenchStep, repeats: int = REPEATS) -> tuple[float, float]:
    """Return (CPU of the step divided by that of `calibrate`, CPU us per row)."""
    own, other = float("inf"), float("inf")
    with _run_quietly():
        for _ in range(repeats):
            other = min(other, _measure_cpu(calibrate))
            own = min(own, _measure_cpu(step.run))
    return own / other, own / step.rows * 1e6


def read_recorded() -> Mapping[str, float]:
    """Return the recorded ratio of each step."""
    ratios: dict[str, float] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return ratios


def compute_limit(name: str) -> float:
    """Return the highest ratio that the step may have."""
    return TOLERANCE * read_recorded()[name]


def _measure_cpu(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


@contextmanager
def _run_quietly() -> Iterator[None]:
    """Run the body with one Arrow thread and without garbage collection."""
    threads, collects = pa.cpu_count(), gc.isenabled()
    pa.set_cpu_count(1)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        pa.set_cpu_count(threads)
        if collects:
            gc.enable()


def main() -> int:
    """Print each step; with the argument `record`, write the ratios to cost_per_row.json."""
    known = read_recorded() if RECORDED.exists() else {}
    ratios = {}
    with tempfile.TemporaryDirectory(prefix="binlake-steps-") as folder:
        for step in build_steps(folder):
            ratios[step.name], cost = measure_ratio(step, 2 * REPEATS)
            before = known.get(step.name)
            then = "" if before is None else f", recorded {before:.3f}"
            print(f"{step.name:<28} {cost:7.2f} us per row, ratio {ratios[step.name]:.3f}{then}", flush=True)
    if "record" in sys.argv[1:]:
        rounded = {name: round(ratio, 4) for name, ratio in ratios.items()}
        RECORDED.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
